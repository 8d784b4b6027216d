"""Numbers and intervals as tables show them."""

from __future__ import annotations

import pytest

from udjfl.metrics import METRICS, Metric
from udjfl.report.cells import format_number, interval_text, with_arrow
from udjfl.statistics import Summary


@pytest.mark.parametrize(
    ("key", "interval", "shown"),
    [
        ("mean_accuracy", (80.0, 90.0), "±5.00"),
        ("mean_accuracy", (93.04, 101.0), "93 to 100"),
        ("mean_accuracy", (-3.0, 12.345), "0 to 12.3"),
        ("pearson_r", (-0.98, -0.96), "±0.01"),
        ("pearson_r", (-1.05, -0.734), "-1 to -0.73"),
        ("std", (-1.0, 4.0), "0 to 4"),
        ("psi", (-120.0, 140.0), "±130.00"),  # no end of the scale
    ],
)
def test_intervals_end_where_the_scale_does(
    key: str, interval: tuple[float, float], shown: str
) -> None:
    summary = Summary((interval[0] + interval[1]) / 2, interval, (), 5)
    assert interval_text(METRICS[key], summary) == shown


def test_one_seed_has_no_interval() -> None:
    assert interval_text(METRICS["std"], Summary(3.0, None, (3.0,), 1)) == ""


def test_signs_and_arrows() -> None:
    assert format_number(-0.001, METRICS["psi"]) == "+0.00"
    assert format_number(0.5, METRICS["pearson_r"]) == "+0.50"
    assert format_number(81.456, METRICS["mean_accuracy"]) == "81.46"
    assert with_arrow(METRICS["std"]) == "STD ↓"
    assert with_arrow(METRICS["accuracy_most_uncertain"]) == "Most ↑\nuncert."
    plain = Metric("x", "X", lambda o: 0.0, better=0, unit="", description="")
    assert with_arrow(plain) == "X"
