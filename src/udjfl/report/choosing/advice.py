"""From answers to a theory, a budget, what to beware of, and the commands that try it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from udjfl.report.choosing.cautions import CAUTIONS, Caution
from udjfl.report.choosing.measured import Measurement, read_measurements
from udjfl.report.choosing.questions import ALONE, NO_LIMIT, Answers
from udjfl.report.choosing.theories import THEORIES

DATA = "scanners"  # in the commands, unless other data are named; it needs no files
FOLDER, SEEDS, HOLDOUT = "runs/choice", 10, 0.2


@dataclass(frozen=True)
class Step:
    """One command, and what it is for."""

    purpose: str
    command: str


@dataclass(frozen=True)
class Advice:
    """The guide's answer.

    theories       the theory to try, or all four
    methods        a method for each of the four theories, the first answer's theory first
    measurements   what the theories did in our studies, with a budget or without
    steps          commands; the last one is the goal of the guide
    """

    answers: Answers
    theories: tuple[str, ...]
    methods: tuple[str, ...]
    cautions: tuple[Caution, ...]
    measurements: tuple[Measurement, ...]
    steps: tuple[Step, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the advice as plain values."""
        return {
            "answers": dict(vars(self.answers)),
            "theory": self.answers.theory,
            "theories": [dict(vars(THEORIES[name])) for name in self.theories],
            "methods": list(self.methods),
            "cautions": [
                {"key": c.key, "group": c.group, "when": c.when, "text": c.text}
                for c in self.cautions
            ],
            "measured": [dict(vars(measurement)) for measurement in self.measurements],
            "steps": [dict(vars(step)) for step in self.steps],
        }


def advise(answers: Answers, data: str = DATA, target: str | None = None) -> Advice:
    """Return what follows from the answers, with commands for these data."""
    theories = (answers.theory,) if answers.theory else tuple(THEORIES)
    others = tuple(name for name in THEORIES if name not in theories)
    methods = tuple(_method(name, answers) for name in (*theories, *others))
    return Advice(
        answers=answers,
        theories=theories,
        methods=methods,
        cautions=tuple(caution for caution in CAUTIONS if caution.applies(answers)),
        measurements=tuple(
            measurement
            for measurement in read_measurements()
            if measurement.theory in theories and measurement.has_budget == answers.has_budget
        ),
        steps=_steps(answers, methods, data, target),
    )


def _method(theory: str, answers: Answers) -> str:
    """Return the method of a theory within the limits of the answers, as `--methods` takes it."""
    if not answers.has_budget:
        return theory
    parts = [theory, f"budget={answers.budget}"]
    if answers.client_limit == ALONE:
        parts.append("floor=alone")
    elif answers.client_limit != NO_LIMIT:
        parts.append(f"client_budget={answers.client_limit}")
    if theory == "rawls" and answers.examples == "few":
        parts.append("advantage=fedavg")  # uncertainties of few examples are themselves uncertain
    return ":".join(parts)


def _steps(
    answers: Answers, methods: tuple[str, ...], data: str, target: str | None
) -> tuple[Step, ...]:
    """Return the commands; of files without a target, with COLUMN to be replaced."""
    from udjfl.data.tables.files import name_files  # with torch: too slow for every command

    if target is None and name_files(data):
        target = "COLUMN"
    described = shlex.quote(data) + ("" if target is None else f" --target {shlex.quote(target)}")
    named = f"--data {described}"
    holdout = f" --holdout {HOLDOUT:g}" if answers.client_limit == ALONE else ""
    beside = (
        "Try all four theories beside FedAvg."
        if answers.theory is None
        else "Try it beside FedAvg, and see what the other three theories would do."
    )
    steps = [
        Step("See the clients and their data.", f"udjfl data describe {described}"),
        Step(
            f"{beside} Where seeds do not decide, the verdict says how many would.",
            f"udjfl compare {named} --methods {','.join(methods)}{holdout} --seeds {SEEDS} "
            f"--out {FOLDER}",
        ),
        Step(
            "Look at it with the people concerned: one page with figures (`udjfl[report]`).",
            f"udjfl report {FOLDER} --html report.html",
        ),
    ]
    if answers.theory is not None:
        steps.append(
            Step(
                "If the choice stands, train the model.",
                f"udjfl run {named} --method {methods[0]}{holdout} --out runs/model",
            )
        )
    return tuple(steps)
