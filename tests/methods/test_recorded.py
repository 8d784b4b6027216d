"""Methods of saved runs: built by name, or shown as they were recorded, never imported."""

from __future__ import annotations

import pytest
import torch

from udjfl import Reports
from udjfl.methods.recorded import build_recorded


def test_a_known_method_is_built() -> None:
    rule = build_recorded("qffl", {"q": 2.0}, label="another label", name="other")
    assert (rule.name, rule.params["q"]) == ("qffl", 2.0)


def test_code_that_is_named_is_not_imported() -> None:
    """The module does not exist: importing it would fail."""
    rule = build_recorded(
        "nowhere.module:Trimmed",
        {"share": 0.1},
        label="Trimmed (share=0.1)",
        name="trimmed",
        theories=["rawls"],
        grade="recalled",
    )
    assert (rule.name, rule.title, rule.label) == (
        "trimmed",
        "Trimmed (share=0.1)",
        "Trimmed (share=0.1)",
    )
    assert (rule.theories, rule.grade, rule.params) == (("rawls",), "recalled", {"share": 0.1})
    assert (rule.changed, type(rule).__name__) == ({}, "RecordedMethod")
    with pytest.raises(NotImplementedError, match="it is not imported"):
        rule.aggregate({}, Reports(ids=["a"], deltas=torch.zeros(1, 1)))


def test_little_is_known_of_an_unfinished_run() -> None:
    rule = build_recorded("nowhere:Trimmed", {}, label="nowhere:Trimmed")
    assert (rule.name, rule.theories, rule.grade) == ("unknown", (), "")
