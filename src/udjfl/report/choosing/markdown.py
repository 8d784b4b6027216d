"""The page docs/choosing.md, made from the same content as the guide on the terminal."""

from __future__ import annotations

import textwrap

from udjfl.report.choosing.advice import advise
from udjfl.report.choosing.cautions import CAUTIONS, GROUPS
from udjfl.report.choosing.measured import Measurement, read_measurements
from udjfl.report.choosing.questions import QUESTIONS, Answers, Question
from udjfl.report.choosing.theories import THEORIES, Theory
from udjfl.report.output import markdown_table

INTRODUCTION = (
    "Four theories of distributive justice answer the question whom a shared model should serve "
    "best. This page does not say which one is right. It says what each aims at, who gains, who "
    "pays, what it cost where we measured it, and when its numbers should not be trusted. "
    "`udjfl choose` asks the questions below in the terminal and ends with the commands to run."
)
FLAGS = (
    "Every question has a flag, so that no question need be asked: `udjfl choose --aim lift "
    "--budget 2`. `--defaults` and `--json` ask nothing; what no flag answers has its default."
)
MEASURED = (
    "What it did in our studies, against FedAvg on the same seeds "
    "([experiments/JUSTICE.md](../experiments/JUSTICE.md)). Without a budget means at the paper's "
    "beta and gamma. Mean: change of the clients' mean accuracy, in points. Within 2: runs whose "
    "mean ended at most 2 points below FedAvg's. Fresh: other seeds, and as many as the first ones "
    "said would decide. Holdout: scores of examples held out of training."
)
BUDGETS = (
    "A budget turns the question round: you say how many points of the clients' mean accuracy may "
    "be lost, and the theory is pursued as far as that goes. Two points were used in our studies. "
    "A limit for single clients can be added. [budgets.md](budgets.md) has the rule and what it "
    "promises."
)
EXAMPLES = (
    "The four situations of the first question, answered as they are told; with `--data` naming "
    "your own data ([data.md](data.md)). The last command is what the guide ends with; the one "
    "before it shows the other theories, too."
)
# The test that answers the questions, as pytest names it; `make docs-check` asks for it.
ASKED_IN = "tests/cli/test_choose.py::test_questions_take_numbers_names_and_defaults"
# The situations of the first question, with the causes that they tell of.
CAUSES = {"lift": "place", "equal": "means", "reward": "choice", "whole": "place"}


def choosing_markdown() -> str:
    """Return the page."""
    parts = [
        "# Choosing a theory and a budget",
        "<!-- Made by `make docs` from src/udjfl/report/choosing; change it there. -->",
        _fill(INTRODUCTION),
        f"<!-- run by: {ASKED_IN} -->\n```bash\nudjfl choose\n```",
        _fill(FLAGS),
        "## The questions",
        *(part for question in QUESTIONS for part in _question_parts(question)),
        _fill(
            "The situations of the first question follow the example of hospitals in Carey & Wu "
            "(FAccT 2025), which extends one of Donahue & Kleinberg (2023)."
        ),
        "## The theories",
        *(part for theory in THEORIES.values() for part in _theory_parts(theory)),
        "## The budget",
        _fill(BUDGETS),
        *(part for group, title in GROUPS.items() for part in _caution_parts(group, title)),
        "## From answers to commands",
        _fill(EXAMPLES),
        *(part for aim, cause in CAUSES.items() for part in _example_parts(aim, cause)),
    ]
    return "\n\n".join(parts) + "\n"


def _fill(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _question_parts(question: Question) -> list[str]:
    default = f"Flag `{question.flag}`, by default `{question.default}`."
    parts = [f"### {question.text}", _fill(f"{question.why} {default}")]
    if question.choices:
        has_theory = any(choice.theory for choice in question.choices)
        rows = [
            [f"`{choice.key}`", choice.text, *([choice.theory or "all four"] if has_theory else [])]
            for choice in question.choices
        ]
        titles = ["answer", "meaning", *(["theory to try"] if has_theory else [])]
        parts.append("\n".join(markdown_table(titles, rows)))
    else:
        words = " or ".join(f"`{word}`" for word in question.words)
        parts.append(f"Answer: a number from 0 to 100, or {words}.")
    return parts


def _theory_parts(theory: Theory) -> list[str]:
    items = [
        textwrap.fill(f"- **{name}:** {text}", 100, subsequent_indent="  ")
        for name, text in theory.facts.items()
    ]
    measured = [m for m in read_measurements() if m.theory == theory.name]
    titles = ["data", "budget", "verdict", "mean", "within 2"]
    table = markdown_table(titles, [_measured_row(m) for m in measured], right=2)
    return [
        f"### {theory.title} (`{theory.name}`)",
        "\n".join(items),
        _fill(MEASURED),
        "\n".join(table),
    ]


def _measured_row(m: Measurement) -> list[str]:
    budget = "2 points" if m.has_budget else "none"
    within = f"{m.within_budget} of {m.seeds}"
    return [m.data, budget, m.sentence, f"{m.mean_change:+.2f}", within]


def _caution_parts(group: str, title: str) -> list[str]:
    parts = [f"## {title}"]
    for caution in CAUTIONS:
        if caution.group == group:
            pages = dict.fromkeys(page for page, _ in caution.sources)
            links = ", ".join(f"[{page}]({_relative(page)})" for page in pages)
            source = f" ({links})" if links else ""
            parts.append(_fill(f"**{caution.when}.** {caution.text}{source}"))
    return parts


def _relative(page: str) -> str:
    """Return the path of a page as seen from docs/."""
    return page.removeprefix("docs/") if page.startswith("docs/") else f"../{page}"


def _example_parts(aim: str, cause: str) -> list[str]:
    answers = Answers(aim=aim, cause=cause, gap="clear", false_reports="no", examples="some")
    flags = f"--aim {aim} --cause {cause} --gap clear --false-reports no --examples some"
    advice = advise(answers)
    commands = [f"udjfl choose {flags} --defaults", *(step.command for step in advice.steps)]
    title = THEORIES[advice.theories[0]].title
    return [f"{title}:", "```bash\n" + "\n".join(commands) + "\n```"]
