"""Advice on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from udjfl.report.choosing.advice import Advice
from udjfl.report.choosing.cautions import ALWAYS, GROUPS, Caution
from udjfl.report.choosing.questions import ALONE, NO_LIMIT, Answers, Question
from udjfl.report.choosing.theories import THEORIES, Theory
from udjfl.report.output import FitWidth, facts_table

WIDEST = 100  # columns of prose
MEASURED = (
    "Mean: change of the clients' mean accuracy against FedAvg, in points. Within 2: runs whose "
    "mean ended at most 2 points below it. Fresh: other seeds, and more of them. Verdicts in "
    "words: docs/choosing.md."
)


def question_view(question: Question, number: int, total: int) -> RenderableType:
    """Show one question with its numbered answers."""
    answers = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    answers.add_column(justify="right", no_wrap=True)
    answers.add_column(overflow="fold")
    for position, choice in enumerate(question.choices, start=1):
        answers.add_row(f"{position}.", choice.text)
    parts: list[RenderableType] = [
        Text(""),
        Text(f"{number} of {total}. {question.text}", style="bold"),
        Text(question.why, style="dim"),
    ]
    return _narrowed(Group(*parts, answers) if question.choices else Group(*parts))


def advice_view(advice: Advice) -> RenderableType:
    """Show the theory or the four, what they did in our studies, cautions, and the commands."""
    parts: list[RenderableType] = [Text("")]
    if advice.answers.theory is None:
        parts += [Text("All four theories, one beside the other", style="bold")]
        for name in advice.theories:
            parts += [Text(""), *_short_theory_parts(THEORIES[name])]
    else:
        parts += _theory_parts(THEORIES[advice.theories[0]])
    parts += [Text(""), Text("The budget", style="bold"), Text(budget_sentence(advice.answers))]
    parts += [Text(""), *_measured_parts(advice)]
    for group, title in GROUPS.items():
        cautions = [caution for caution in advice.cautions if caution.group == group]
        if cautions:
            parts += [Text(""), Text(title, style="bold")]
            parts += [_item(caution) for caution in cautions]
    parts += [Text(""), Text("What to run", style="bold")]
    for number, step in enumerate(advice.steps, start=1):
        parts += [Text(f"{number}. {step.purpose}"), _command(step.command)]
    closing = "No theory is right because a program names it. Your own data: docs/data.md."
    return _narrowed(Group(*parts, Text(""), Text(closing, style="dim")))


def budget_sentence(answers: Answers) -> str:
    """Say what the budget allows, and the limit for single clients."""
    if not answers.has_budget:
        return "None: the theory as the paper sets it, whatever it costs."
    text = (
        f"The clients' mean accuracy may end {answers.budget} points below FedAvg's, measured on "
        "their training data."
    )
    if answers.client_limit == ALONE:
        return f"{text} No client may end below a model of its own."
    if answers.client_limit != NO_LIMIT:
        return f"{text} No single client may lose more than {answers.client_limit} points."
    return f"{text} A single client may lose more."


def _narrowed(view: RenderableType) -> RenderableType:
    """Keep lines short enough to read, on a terminal of any width."""
    return FitWidth(lambda width: Constrain(view, min(width, WIDEST)))


def _item(caution: Caution) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    when = "" if caution.when == ALWAYS else f"{caution.when}: "
    table.add_row("-", Text.assemble((when, "italic"), caution.text))
    return table


def _command(command: str) -> RenderableType:
    return FitWidth(lambda width: Text(wrap_command(command, width), style="bold"))


def wrap_command(command: str, width: int) -> str:
    """Break a command into lines that a shell joins again, so that it can be copied."""
    lines = [""]
    for word in command.split(" "):
        parts = word.replace(",", ",\0").split("\0")
        for position, part in enumerate(parts):
            space = "" if position or not lines[-1] else " "
            if lines[-1] and len(lines[-1] + space + part) > width - 2:
                lines[-1] += f"{space}\\"
                lines.append(part)  # not indented: the shell joins the parts of a word
            else:
                lines[-1] += space + part
    return "\n".join(lines)


def _theory_parts(theory: Theory) -> list[RenderableType]:
    return [Text(theory.title, style="bold"), facts_table(theory.facts.items())]


def _short_theory_parts(theory: Theory) -> list[RenderableType]:
    facts = {name: theory.facts[name] for name in ("Aim", "Pays", "For it", "Against it")}
    return [Text(theory.title, style="bold"), facts_table(facts.items())]


def _measured_parts(advice: Advice) -> list[RenderableType]:
    with_budget = "a budget of 2 points" if advice.answers.has_budget else "no budget"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("Data", no_wrap=True)
    table.add_column("Verdict", no_wrap=True)
    table.add_column("Mean", justify="right", no_wrap=True)
    table.add_column("Within 2", justify="right", no_wrap=True)
    for theory in advice.theories:
        if len(advice.theories) > 1:
            table.add_row(Text(theory.capitalize(), style="bold italic"))
        for m in (m for m in advice.measurements if m.theory == theory):
            within = f"{m.within_budget} of {m.seeds}"
            table.add_row(m.data, m.kind, f"{round(m.mean_change, 1) + 0.0:+.1f}", within)
    return [
        Text(f"Measured, with {with_budget}", style="bold"),
        table,
        Text(MEASURED, style="dim"),
    ]
