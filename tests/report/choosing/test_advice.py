"""Advice: the commands work, and the cautions appear where they belong."""

from __future__ import annotations

import itertools
import shlex

import pytest

from udjfl.methods import method
from udjfl.report.choosing import QUESTIONS, THEORIES, Answers, advise

AIMS = [choice.key for choice in QUESTIONS[0].choices]


def keys(answers: Answers) -> set[str]:
    return {caution.key for caution in advise(answers).cautions}


@pytest.mark.parametrize("aim", AIMS)
@pytest.mark.parametrize(
    ("budget", "limit"), [("none", "none"), ("0", "none"), ("2.5", "5"), ("2", "alone")]
)
def test_every_method_that_is_advised_exists(aim: str, budget: str, limit: str) -> None:
    for examples in ("few", "many"):
        answers = Answers(aim=aim, budget=budget, client_limit=limit, examples=examples)
        advice = advise(answers)
        built = [method(spec) for spec in advice.methods]
        assert sorted(m.params["theory"] for m in built) == sorted(THEORIES)
        if answers.theory:
            assert built[0].params["theory"] == answers.theory
        for m in built:
            assert m.params["budget"] == (None if budget == "none" else float(budget))
            assert m.params["floor"] == ("alone" if limit == "alone" else None)


def test_the_commands_hold_the_answers() -> None:
    advice = advise(Answers(aim="equal", budget="3", client_limit="alone"), "my data:x=1")
    describe, compare, report, run = (shlex.split(step.command) for step in advice.steps)
    assert describe == ["udjfl", "data", "describe", "my data:x=1"]
    assert (
        compare[compare.index("--methods") + 1].split(",")[0] == "egalitarian:budget=3:floor=alone"
    )
    assert compare[compare.index("--holdout") + 1] == "0.2"
    assert compare[compare.index("--out") + 1] in report
    assert run[run.index("--method") + 1] == "egalitarian:budget=3:floor=alone"
    assert "--holdout" in run


def test_the_undecided_get_all_four_and_no_command_that_decides() -> None:
    advice = advise(Answers())
    assert advice.theories == tuple(THEORIES)
    assert not any(step.command.startswith("udjfl run") for step in advice.steps)
    assert {m.theory for m in advice.measurements} == set(THEORIES)


def test_the_limits_that_the_authors_name() -> None:
    """A severe gap under utilitarianism, hostile data, and uncertainty that is not quality."""
    assert "utilitarian-gap" in keys(Answers(aim="whole", gap="severe"))
    assert "utilitarian-gap" not in keys(Answers(aim="whole", gap="small"))
    assert "utilitarian-gap" not in keys(Answers(aim="lift", gap="severe"))
    assert "false-reports" in keys(Answers(false_reports="yes"))
    assert "false-reports" not in keys(Answers(false_reports="no"))
    for aim, cause in itertools.product(AIMS, ("choice", "nature")):
        assert "uncertainty-is-not-quality" in keys(Answers(aim=aim, cause=cause))
        assert ("hard-cases" in keys(Answers(aim=aim, cause=cause))) == (cause == "nature")


def test_desert_is_questioned_where_nobody_chose() -> None:
    for cause in ("means", "place", "nature"):
        assert "desert-not-chosen" in keys(Answers(aim="reward", cause=cause))
    assert "desert-not-chosen" not in keys(Answers(aim="reward", cause="choice"))
    assert "help-for-careless" in keys(Answers(aim="equal", cause="choice"))


def test_budgets_are_questioned_at_both_ends() -> None:
    assert "small-budget" in keys(Answers(budget="0.5"))
    assert "large-budget" in keys(Answers(budget="6"))
    assert not {"small-budget", "large-budget"} & keys(Answers(budget="2"))
    without = keys(Answers(budget="none"))
    assert "no-budget" in without
    assert not {"small-budget", "large-budget", "budget-kept-on-training-data"} & without


def test_measurements_are_with_a_budget_or_without_as_asked() -> None:
    for budget in ("2", "none"):
        measured = advise(Answers(aim="whole", budget=budget)).measurements
        assert {(m.theory, m.has_budget) for m in measured} == {("utilitarian", budget == "2")}


def test_who_is_helped_does_not_go_by_uncertainties_of_few_examples() -> None:
    assert advise(Answers(aim="lift", examples="few")).methods[0].endswith(":advantage=fedavg")
    assert advise(Answers(aim="lift", examples="many")).methods[0] == "rawls:budget=2"
