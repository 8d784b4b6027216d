"""`udjfl choose`: questions on the terminal, or flags, and the advice that follows from them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from udjfl.cli.options import AsJson, complete_data
from udjfl.errors import SettingsError
from udjfl.report.choosing import QUESTIONS, Question, advise, read_answers
from udjfl.report.choosing.advice import DATA
from udjfl.report.choosing.questions import is_asked
from udjfl.report.choosing.view import advice_view, question_view
from udjfl.report.output import show


def _flag(key: str) -> typer.models.OptionInfo:
    """Return the option of a question, with its answers."""
    question = next(question for question in QUESTIONS if question.key == key)
    answers = [choice.key for choice in question.choices] or ["NUMBER", *question.words]
    option: typer.models.OptionInfo = typer.Option(
        question.flag,
        metavar="|".join(answers),
        help=f"{question.text} (default: {question.default})",
        autocompletion=lambda incomplete: [a for a in answers if a.startswith(incomplete)],
    )
    return option


def choose_command(
    aim: Annotated[str | None, _flag("aim")] = None,
    cause: Annotated[str | None, _flag("cause")] = None,
    gap: Annotated[str | None, _flag("gap")] = None,
    false_reports: Annotated[str | None, _flag("false_reports")] = None,
    examples: Annotated[str | None, _flag("examples")] = None,
    budget: Annotated[str | None, _flag("budget")] = None,
    client_limit: Annotated[str | None, _flag("client_limit")] = None,
    data: Annotated[
        str,
        typer.Option("--data", help="Data to name in the commands.", autocompletion=complete_data),
    ] = DATA,
    target: Annotated[
        str | None, typer.Option("--target", help="Column of the labels to name in the commands.")
    ] = None,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Ask nothing: what no flag answers has its default.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Find a theory and a budget for your situation, and the commands that try them.

    Asks what no flag answers; --defaults and --json ask nothing. It does not say which theory is
    right: it says what each costs, who pays, and when its numbers should not be trusted.
    """
    flags = {
        "aim": aim,
        "cause": cause,
        "gap": gap,
        "false_reports": false_reports,
        "examples": examples,
        "budget": budget,
        "client_limit": client_limit,
    }
    given = {key: answer for key, answer in flags.items() if answer is not None}
    read_answers(given)  # mistakes in flags are told before the first question
    answers = read_answers(given if defaults or json else ask(given))
    advice = advise(answers, data, target)
    show(advice_view(advice), advice.as_dict(), json)


def ask(given: Mapping[str, str]) -> dict[str, str]:
    """Ask what is not given, on standard error, and return all answers."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    answers = dict(given)
    open_questions = [question for question in QUESTIONS if question.key not in given]
    for number, question in enumerate(open_questions, start=1):
        if is_asked(question, answers):
            console.print(question_view(question, number, len(open_questions)))
            answers[question.key] = _prompt(question)
    return answers


def _prompt(question: Question) -> str:
    """Read one answer; a wrong one is asked for again."""
    keys = [choice.key for choice in question.choices]
    default = str(keys.index(question.default) + 1) if keys else question.default
    text = f"1 to {len(keys)}" if keys else f"A number, or {' or '.join(question.words)}"
    while True:
        # Not typer.prompt, which writes a blank to standard output.
        typer.echo(f"{text} [{default}]: ", nl=False, err=True)
        try:
            return _read(question, keys, input().strip() or default)
        except EOFError:
            typer.echo(err=True)
            if sys.stdin.isatty():
                raise KeyboardInterrupt from None
            raise SettingsError(
                f"{question.key}: there is no answer to read; give {question.flag}, or --defaults"
            ) from None
        except ValueError as error:
            typer.echo(str(error), err=True)


def _read(question: Question, keys: list[str], typed: str) -> str:
    """Return the answer that was typed: a number of the list or a name, or what is asked for."""
    if not keys:
        return question.read(typed)
    if typed.isascii() and typed.isdigit() and 1 <= int(typed) <= len(keys):
        return keys[int(typed) - 1]
    try:
        return question.read(typed)
    except ValueError:
        raise ValueError(f"{typed!r} is no answer. Give a number from 1 to {len(keys)}.") from None
