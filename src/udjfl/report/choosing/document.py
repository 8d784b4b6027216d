"""The whole guide as plain values, for pages and other programs."""

from __future__ import annotations

from typing import Any

from udjfl.report.choosing.cautions import CAUTIONS, GROUPS
from udjfl.report.choosing.measured import read_measurements
from udjfl.report.choosing.questions import QUESTIONS
from udjfl.report.choosing.theories import THEORIES


def guide_document() -> dict[str, Any]:
    """Return questions, theories with their measurements, and cautions by group."""
    measurements = read_measurements()
    return {
        "questions": [
            {**vars(question), "choices": [dict(vars(choice)) for choice in question.choices]}
            for question in QUESTIONS
        ],
        "theories": [
            {
                **vars(theory),
                "measured": [dict(vars(m)) for m in measurements if m.theory == theory.name],
            }
            for theory in THEORIES.values()
        ],
        "cautions": [
            {
                "title": title,
                "cautions": [
                    {"key": c.key, "when": c.when, "text": c.text}
                    for c in CAUTIONS
                    if c.group == group
                ],
            }
            for group, title in GROUPS.items()
        ],
    }
