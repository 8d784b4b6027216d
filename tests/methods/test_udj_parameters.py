"""Which parameters of UDJ-FL have a meaning beside others."""

from __future__ import annotations

import pytest

from udjfl.methods._udj_parameters import check_budget, without_meaning

NONE: dict[str, object] = dict.fromkeys(
    ("theory", "budget", "client_budget", "floor", "limit", "advantage", "caution")
)
NONE |= dict.fromkeys(("beta", "gamma", "r"))


def test_a_budget_has_parameters_of_its_own() -> None:
    of_a_budget = {"client_budget", "floor", "limit", "advantage", "caution"}
    assert without_meaning({}) == of_a_budget
    assert without_meaning({"theory": "rawls", "budget": None}) == of_a_budget
    others = {"beta", "gamma", "r", "step"}
    assert without_meaning({"budget": 2.0}) == others
    assert without_meaning({"theory": "rawls", "budget": 2.0}) == others
    assert without_meaning({"theory": "desert", "budget": 2.0}) == {*others, "advantage"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"floor": 1.0}, "floor applies to a budget"),
        ({"budget": 2.0}, "a budget needs a theory"),
        ({"budget": 2.0, "theory": "rawls", "beta": 1.0}, "beta has no effect with a budget"),
        ({"budget": 2.0, "theory": "rawls", "step": "paper"}, "step has no effect with a budget"),
        ({"budget": 2.0, "theory": "desert", "advantage": "alone"}, "a choice of rawls"),
    ],
)
def test_parameters_without_meaning_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_budget({**NONE, "step": "calibrated", **given}, "calibrated")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"theory": "desert", "beta": 1.0},
        {"budget": 2.0, "theory": "desert", "floor": 1.0},
        {"budget": 2.0, "theory": "rawls", "advantage": "alone"},
    ],
)
def test_parameters_with_a_meaning_pass(given: dict[str, object]) -> None:
    check_budget({**NONE, "step": "calibrated", **given}, "calibrated")
