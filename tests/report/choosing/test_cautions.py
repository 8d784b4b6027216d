"""Cautions: every number is on the page that it names, and every one can appear."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from udjfl.report.choosing import CAUTIONS, QUESTIONS, Answers, Caution
from udjfl.report.choosing.cautions import GROUPS

ROOT = Path(__file__).parents[3]
# Numbers that are not measured: counts of something in the text itself, and settings.
PLAIN = {"0.2", "2", "5", "1", "25", "95", "30", "40", "440", "413"}


@pytest.mark.parametrize("caution", CAUTIONS, ids=lambda caution: caution.key)
def test_the_pages_have_the_numbers(caution: Caution) -> None:
    quoted = ""
    for page, words in caution.sources:
        assert words in (ROOT / page).read_text(encoding="utf-8"), page
        quoted += f" {words} "
    numbers = set(re.findall(r"\d+(?:\.\d+)?", caution.text)) - PLAIN
    assert numbers <= set(re.findall(r"\d+(?:\.\d+)?", quoted))


def test_the_runs_within_the_budget_are_added_up() -> None:
    (caution,) = [c for c in CAUTIONS if c.key == "budget-kept-on-training-data"]
    pairs = [re.fullmatch(r"(\d+) of (\d+)", words) for _, words in caution.sources]
    counts = [(int(pair[1]), int(pair[2])) for pair in pairs if pair]
    assert [sum(column) for column in zip(*counts, strict=True)] == [413, 440]


def test_every_caution_can_appear_and_belongs_to_a_group() -> None:
    choices = [
        [choice.key for choice in question.choices]
        or {"budget": ["0", "2", "9", "none"], "client_limit": ["none", "alone"]}[question.key]
        for question in QUESTIONS
    ]
    seen = set()
    for combination in itertools.product(*choices):
        answers = Answers(*combination)
        seen |= {caution.key for caution in CAUTIONS if caution.applies(answers)}
    assert seen == {caution.key for caution in CAUTIONS}
    assert {caution.group for caution in CAUTIONS} == set(GROUPS)
