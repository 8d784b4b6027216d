"""Parts of UDJ-FL's step, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from method_helpers import close

from udjfl.errors import SettingsError
from udjfl.methods._udj_math import (
    divide,
    floor_uncertainties,
    largest_share,
    log_cap,
    step_signs,
)


def values(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_uncertainties_are_at_least_a_hundredth_of_the_largest() -> None:
    close(floor_uncertainties(values(1e-9, 0.5, 2.0)), [0.02, 0.5, 2.0])
    close(floor_uncertainties(values(1e-9, 0.5), largest=4.0), [0.04, 0.5])


@pytest.mark.parametrize(
    ("rule", "numerator", "denominator"),
    [
        ("paper", [-1.0, 1.0, 1.0], [-1.0, 1.0, 1.0]),
        ("authors", [-1.0, 1.0, 1.0], [1.0, -1.0, 1.0]),
        ("safe", [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
        ("calibrated", [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
    ],
)
def test_signs_of_the_published_rules(
    rule: str, numerator: list[float], denominator: list[float]
) -> None:
    """p is below 0, between 0 and 1, and above 1."""
    s, s_below = step_signs(values(-0.5, 0.5, 2.0), rule)  # type: ignore[arg-type]
    assert (s.tolist(), s_below.tolist()) == (numerator, denominator)


def test_a_published_rule_that_divides_by_zero_names_others() -> None:
    assert divide(values(6.0), torch.tensor(3.0), "paper").tolist() == [2.0]
    with pytest.raises(SettingsError, match="step='paper' divides by zero here; use step="):
        divide(values(1.0), torch.tensor(0.0), "paper")


def test_p_of_one_has_no_sign_below() -> None:
    """H^(p-1) does not depend on H there."""
    assert step_signs(values(1.0), "authors")[1].tolist() == [0.0]


def test_the_cap_by_hand() -> None:
    # Of 1, 2 and 9 the others sum to 3: at most half of the sum, the largest is 3.
    assert log_cap(values(1.0, 9.0, 2.0).log(), 0.5) == pytest.approx(math.log(3))
    assert log_cap(values(1.0, 9.0, 2.0).log(), 0.75) == pytest.approx(math.log(9))
    assert log_cap(values(1.0, 9.0).log(), 1.0) == math.inf
    assert log_cap(values(-math.inf, 0.0), 0.5) == math.inf
    assert [largest_share(0.5, n) for n in (1, 2, 3, 4, 9)] == [1.0, 1.0, 2 / 3, 0.5, 0.5]
