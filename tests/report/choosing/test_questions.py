"""Answers: what is accepted, and the mistakes that are named."""

from __future__ import annotations

import dataclasses

import pytest

from udjfl.errors import SettingsError
from udjfl.report.choosing import QUESTIONS, Answers, read_answers
from udjfl.report.choosing.questions import is_asked


def test_answers_and_questions_have_the_same_names_and_defaults() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(Answers)}
    assert defaults == {question.key: question.default for question in QUESTIONS}
    assert read_answers({}) == Answers()
    for question in QUESTIONS:
        assert question.read(question.default) == question.default


def test_each_theory_has_one_situation() -> None:
    theories = [choice.theory for choice in QUESTIONS[0].choices]
    assert theories == ["rawls", "egalitarian", "desert", "utilitarian", None]


def test_answers_are_read_as_people_write_them() -> None:
    answers = read_answers({"aim": " LIFT ", "budget": "2.50", "client_limit": "Alone"})
    assert (answers.aim, answers.budget, answers.client_limit) == ("lift", "2.5", "alone")


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        read_answers({"aim": "lifft", "budget": "lots", "client_limit": "nan", "colour": "red"})
    aim, budget, client, colour = caught.value.mistakes
    assert aim.startswith("aim: 'lifft' is no answer. Did you mean 'lift'?")
    assert budget == "budget: 'lots' is no answer. Give a number from 0 to 100, or 'none'."
    assert "or 'alone' or 'none'" in client
    assert colour.startswith("colour is no question.")


@pytest.mark.parametrize("budget", ["-1", "101", "inf", ""])
def test_a_budget_is_a_number_of_points(budget: str) -> None:
    with pytest.raises(SettingsError, match="budget: "):
        read_answers({"budget": budget})


def test_a_limit_for_single_clients_goes_with_a_budget() -> None:
    with pytest.raises(SettingsError, match=r"client_limit: .* goes with a budget"):
        read_answers({"budget": "none", "client_limit": "5"})
    last = QUESTIONS[-1]
    assert is_asked(last, {"budget": "2"})
    assert not is_asked(last, {"budget": "none"})
