"""Readings: the uncertainties as methods and metrics see them."""

from __future__ import annotations

import math

import pytest

from udjfl.uncertainty.values import (
    ALMOST_ONE_CLASS,
    LEARNED_NOTHING,
    ONE_CLASS,
    ClientEvidence,
    Uncertainty,
)


def measured(flags: dict[str, tuple[str, ...]], kind: str = "crossfit") -> Uncertainty:
    """Return four clients with uncertainties 0.1, 0.2, 0.4 and 0.5, and these flags."""
    values = {"a": 0.1, "b": 0.2, "c": 0.4, "d": 0.5}
    evidence = {k: ClientEvidence(50, 1.0, 0.5, flags=flags.get(k, ())) for k in values}
    return Uncertainty(kind, values, evidence=evidence)


@pytest.mark.parametrize("flag", [ONE_CLASS, ALMOST_ONE_CLASS])
def test_a_client_of_one_class_counts_as_the_median_of_the_others(flag: str) -> None:
    assert measured({"a": (flag,)}).readings == {"a": 0.4, "b": 0.2, "c": 0.4, "d": 0.5}


def test_other_flags_and_the_papers_measure_change_nothing() -> None:
    for uncertainty in (
        measured({"d": (LEARNED_NOTHING,)}),
        measured({"a": (ONE_CLASS,)}, "paper"),
    ):
        assert uncertainty.readings == uncertainty.values


def test_with_one_class_everywhere_nothing_is_known_better() -> None:
    everybody = measured(dict.fromkeys("abcd", (ONE_CLASS,)))
    assert everybody.readings == everybody.values


def test_a_client_elsewhere_says_so_itself() -> None:
    uncertainty = Uncertainty("crossfit", {"a": 0.1, "b": 0.2, "c": math.nan}, unreliable=("a",))
    assert uncertainty.readings["a"] == 0.2
    assert math.isnan(uncertainty.readings["c"])
    assert Uncertainty.from_dict(uncertainty.as_dict()).unreliable == ("a",)
