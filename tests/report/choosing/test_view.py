"""Advice on terminals of several widths."""

from __future__ import annotations

import itertools
import shlex

import pytest
from rich.console import Console

from udjfl.report.choosing import QUESTIONS, THEORIES, Answers, advise
from udjfl.report.choosing.view import advice_view, question_view, wrap_command


def rendered(view: object, width: int) -> list[str]:
    console = Console(width=width, highlight=False, no_color=True)
    with console.capture() as capture:
        console.print(view)
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("aim", ["lift", "undecided"])
def test_advice_fits_and_ends_with_the_commands(width: int, aim: str) -> None:
    advice = advise(Answers(aim=aim, gap="severe"))
    lines = rendered(advice_view(advice), width)
    assert max(map(len, lines)) <= min(width, 100)
    text = "\n".join(line.rstrip() for line in lines)
    for step in advice.steps:
        assert wrap_command(step.command, min(width, 100)) in text
    assert "…" not in text
    for name in advice.theories:
        assert THEORIES[name].title in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_questions_fit(width: int) -> None:
    for question in QUESTIONS:
        lines = rendered(question_view(question, 1, 7), width)
        assert max(map(len, lines)) <= width
        assert len([line for line in lines if line[:2].rstrip(".").isdigit()]) >= len(
            question.choices
        )


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_wrapped_command_is_the_same_command_to_a_shell(width: int) -> None:
    for aim, limit in itertools.product(("lift", "whole"), ("none", "alone")):
        for step in advise(Answers(aim=aim, client_limit=limit), "my data,x").steps:
            wrapped = wrap_command(step.command, width)
            assert shlex.split(wrapped.replace("\\\n", "")) == shlex.split(step.command)
            assert "\\\n " not in wrapped
