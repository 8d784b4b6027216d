"""Uncertainties as values: written, read back, never zero."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from udjfl.uncertainty import SMALLEST, ClientEvidence, Uncertainty, without_nan
from udjfl.uncertainty.values import (
    ALMOST_ONE_CLASS,
    LEARNED_NOTHING,
    ONE_CLASS,
    TINY,
    mean_uncertainty,
)

EVIDENCE = {
    "a": ClientEvidence(80, 0.69, 0.5, 0.9, 0.3, 0.1, 0.02, (0.1, 0.3), indistinct_from="b"),
    "b": ClientEvidence(20, 0.2, 0.95, flags=(LEARNED_NOTHING, ALMOST_ONE_CLASS, TINY)),
    "c": ClientEvidence(9, 0.0, 1.0, flags=(ONE_CLASS, TINY)),
}
EVIDENCE_OF_A = dataclasses.asdict(EVIDENCE["a"])


def test_uncertainties_are_restored_from_plain_values() -> None:
    uncertainty = Uncertainty("ensemble", {"a": 0.1}, {"a": 0.01})
    assert Uncertainty.from_dict(json.loads(json.dumps(uncertainty.as_dict()))) == uncertainty
    assert Uncertainty(**uncertainty.as_dict()) == uncertainty


def test_a_missing_number_is_null_in_the_file_and_nan_in_memory() -> None:
    plain = Uncertainty("paper", {"a": math.nan, "b": 0.5}).as_dict()
    assert plain["values"] == {"a": None, "b": 0.5}
    assert math.isnan(Uncertainty.from_dict(plain).values["a"])


def test_without_nan() -> None:
    assert without_nan({"a": math.inf, "b": 1.0}) == {"a": None, "b": 1.0}
    assert without_nan(None) is None


def test_the_mean_is_not_below_the_smallest_uncertainty() -> None:
    assert mean_uncertainty(torch.tensor([0.0, 0.0])) == SMALLEST
    assert mean_uncertainty(torch.tensor([0.1, 0.3], dtype=torch.float64)) == 0.2
    assert math.isnan(mean_uncertainty(torch.tensor([0.1, math.nan])))


def test_evidence_is_restored_from_plain_values() -> None:
    uncertainty = Uncertainty("crossfit", {"a": 0.1, "b": 0.2, "c": 0.3}, evidence=EVIDENCE)
    plain = json.loads(json.dumps(uncertainty.as_dict(), allow_nan=False))
    assert Uncertainty.from_dict(plain) == uncertainty
    # Later versions may keep more, earlier ones kept none.
    plain["evidence"]["a"]["colour"] = "green"
    assert Uncertainty.from_dict(plain) == uncertainty
    del plain["evidence"]
    assert Uncertainty.from_dict(plain).evidence is None


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": 3},
        {"values": {"a": "much"}},
        {"values": [0.1]},
        {"epistemic": {"a": {}}},
        {"evidence": {"a": {**EVIDENCE_OF_A, "interval": []}}},
        {"evidence": {"a": {**EVIDENCE_OF_A, "size": "many"}}},
        {"evidence": {"a": {**EVIDENCE_OF_A, "flags": 5}}},
        {"evidence": {"a": {"size": 80}}},
        {"unreliable": 1},
    ],
)
def test_values_of_other_types_are_refused(changed: dict[str, Any]) -> None:
    """A folder of somebody else's may hold anything."""
    plain = json.loads(json.dumps(Uncertainty("crossfit", {"a": 0.1}).as_dict()))
    with pytest.raises((ValueError, TypeError)):
        Uncertainty.from_dict({**plain, **changed})


def test_clients_whose_uncertainty_is_not_quality_are_named_with_the_reason() -> None:
    uncertainty = Uncertainty("crossfit", {"a": 0.1, "b": 0.2, "c": 0.3}, evidence=EVIDENCE)
    assert list(uncertainty.untrusted) == ["b", "c"]
    assert "all its labels are one class" in uncertainty.untrusted["c"]
    both = uncertainty.untrusted["b"]
    assert "no better than the class frequencies" in both
    assert "nine in ten" in both
    assert Uncertainty("given", {"a": 1.0}).untrusted == {}


def test_notes_are_one_sentence_for_each_remark() -> None:
    notes = Uncertainty("crossfit", {"a": 0.1, "b": 0.2, "c": 0.3}, evidence=EVIDENCE).notes()
    assert notes == [
        "One class only, so the uncertainty says nothing about the data: c.",
        "Nearly all labels are one class, so a low uncertainty does not mean good data: b.",
        "Trained alone, no better than the class frequencies, so a high uncertainty does not mean "
        "bad data: b.",
        "So few examples that the uncertainty is a guess: b, c.",
        "Uncertainties that count as the median of the others: b, c.",
        "Uncertainties that cannot be told apart: a and b.",
    ]
    assert Uncertainty("given", {"a": 1.0}).notes() == []


def test_the_work_grows_with_the_clients_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: Counter[str] = Counter()

    def count(name: str) -> property:
        own = getattr(Uncertainty, name).fget

        def counted(self: Uncertainty) -> object:
            counts[name] += 1
            return own(self)

        return property(counted)

    for name in ("uninformative", "readings"):
        monkeypatch.setattr(Uncertainty, name, count(name))
    clients = {f"c{number}": 0.1 + number for number in range(50)}
    uncertainty = Uncertainty("crossfit", clients, evidence=dict.fromkeys(clients, EVIDENCE["c"]))
    half = replace(uncertainty, unreliable=tuple(clients)[:25], evidence=None)
    for each in (uncertainty, half):
        counts.clear()
        assert each.notes()
        assert max(counts.values()) <= 4
