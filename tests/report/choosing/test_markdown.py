"""docs/choosing.md is made from the guide's content, and is in our own words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from udjfl.report.choosing import CAUTIONS, QUESTIONS, THEORIES
from udjfl.report.choosing.markdown import choosing_markdown

ROOT = Path(__file__).parents[3]
PAPER = ROOT.parent / "shared" / "paper" / "udj-fl.tex"


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_the_page_is_up_to_date() -> None:
    """If this fails after a change of the guide, run `make docs`."""
    assert (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8") == choosing_markdown()


def test_the_page_has_the_whole_guide() -> None:
    page = flat(choosing_markdown())
    for question in QUESTIONS:
        assert flat(question.text) in page
        assert all(flat(choice.text) in page for choice in question.choices)
    for theory in THEORIES.values():
        assert all(flat(text) in page for text in (theory.aim, theory.pays, theory.objection))
    assert all(flat(caution.text) in page for caution in CAUTIONS)


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's source is not here")
def test_no_run_of_eight_words_is_from_the_paper() -> None:
    def runs(text: str) -> set[tuple[str, ...]]:
        words = re.findall(r"[a-z0-9]+", text.lower())
        return {tuple(words[start : start + 8]) for start in range(len(words) - 7)}

    assert not runs(choosing_markdown()) & runs(PAPER.read_text(encoding="utf-8"))
