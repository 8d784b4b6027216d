"""Evidence: numbers by hand, and flags on clients made to deserve them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from noisy_clients import make_noisy, measure_in

import udjfl
from udjfl.uncertainty import ClientEvidence, CrossFit
from udjfl.uncertainty.evidence import cross_fit_evidence, label_evidence


def make_federation(labels: dict[str, list[int]], n_classes: int = 2) -> udjfl.Federation:
    clients = {
        name: (np.arange(len(y))[:, None] + 100.0 * number, y, [[-1.0 - number]], [0])
        for number, (name, y) in enumerate(labels.items())
    }
    names = [str(number) for number in range(n_classes)]
    return udjfl.Federation.from_arrays(clients, test=([[-9.0]], [0]), class_names=names)


def make_fit(labels: list[int], out: list[float], seen: list[float] | None = None) -> CrossFit:
    """Make predictions of two classes with these held-out losses of the labels."""
    y, losses = torch.tensor(labels), torch.tensor(out, dtype=torch.float64)
    held_out = torch.empty(len(y), 2, dtype=torch.float64)
    held_out[torch.arange(len(y)), y] = -losses
    held_out[torch.arange(len(y)), 1 - y] = torch.log1p(-torch.exp(-losses))
    in_losses = losses if seen is None else torch.tensor(seen, dtype=torch.float64)
    return CrossFit(y, held_out, losses, in_losses, 1.0, 10)


def evidence_of(**fits: CrossFit) -> dict[str, ClientEvidence]:
    federation = make_federation({name: fit.labels.tolist() for name, fit in fits.items()})
    return cross_fit_evidence(federation, fits)


def test_labels_by_hand() -> None:
    labels = {"a": [0, 1] * 20, "b": [0] * 45 + [1] * 5, "c": [1] * 40, "d": [0, 0, 1]}
    a, b, c, d = label_evidence(make_federation(labels, n_classes=3)).values()
    assert (a.size, a.majority_share, a.flags) == (40, 0.5, ())
    assert a.label_entropy == pytest.approx(math.log(2))
    assert (b.majority_share, b.flags) == (0.9, ("almost one class",))
    assert (c.label_entropy, c.flags) == (0.0, ("one class",))
    assert (d.size, d.flags) == (3, ("tiny",))
    assert a.interval is a.held_out_loss is a.held_out_accuracy is None


def test_copies_are_flagged_within_a_client_and_between_clients() -> None:
    rows = np.arange(40.0)[:, None]
    y = [0, 1] * 20
    clients = {
        "apart": (rows + 100, y),
        "half": (np.repeat(rows[:30], [11] + [1] * 29, axis=0) + 200, [0] * 11 + [1, 0] * 14 + [1]),
        "most": (np.repeat(rows[:20], 2, axis=0) + 300, [0] * 20 + [1] * 20),
        "labels": (np.repeat(rows[:20], 2, axis=0) + 400, y),  # ambiguous, not copies
        "twin-1": (rows + 500, y),
        "twin-2": (rows + 500, y),
    }
    federation = udjfl.Federation.from_arrays(
        {name: (*own, [[-1.0 - n]], [0]) for n, (name, own) in enumerate(clients.items())},
        test=([[-9.0]], [0]),
        class_names="ab",
    )
    flagged = [name for name, own in label_evidence(federation).items() if "copies" in own.flags]
    assert flagged == ["most", "twin-1", "twin-2"]


def test_numbers_of_a_cross_fit_by_hand() -> None:
    # Held-out losses ln 2 / 2 and 3 ln 2 / 2 (wrong), seen ones half of that.
    half = math.log(2) / 2
    fit = make_fit([0, 1] * 18, [half, 3 * half] * 18, [half / 2, 3 * half / 2] * 18)
    (a,) = evidence_of(a=fit).values()
    assert a.held_out_accuracy == 0.5
    assert a.held_out_loss == pytest.approx(math.log(2))
    assert a.seen_loss == pytest.approx(half)
    # Values are 3/4 and 9/4 of `half`: their mean 3/2, their deviation 3/4 (36 / 35 for 36 - 1).
    assert a.standard_error == pytest.approx(0.75 * half * math.sqrt(36 / 35) / 6)
    wide = 1.96 * math.hypot(a.standard_error, half / 4)  # the gap is `half`: u +/- half / 2
    assert a.interval == pytest.approx((1.5 * half - wide, 1.5 * half + wide))


def test_the_rule_of_three_keeps_an_interval_of_certain_predictions_open() -> None:
    (a,) = evidence_of(a=make_fit([0, 1] * 30, [1e-6] * 60)).values()
    assert a.interval == pytest.approx((1e-6, 1e-6 + 3 / 60))


def test_an_interval_does_not_go_below_zero() -> None:
    fit = make_fit([0, 1] * 5, [0.001] * 9 + [3.0])
    (a,) = evidence_of(a=fit).values()
    assert a.interval is not None
    assert a.interval[0] == 0.0


@pytest.mark.parametrize(
    ("labels", "losses", "learned"),
    [
        ([0, 1] * 50, [0.1] * 100, True),  # all right
        ([0, 1] * 50, [0.68, 0.70] * 50, False),  # as a coin
        ([0] * 80 + [1] * 20, [0.05] * 80 + [1.0] * 20, True),  # accuracy 80%, as the majority's
        ([0] * 80 + [1] * 20, [0.223] * 80 + [1.609] * 20, False),  # its very frequencies
        ([0, 1] * 50, [2.0] * 100, False),  # all wrong
        ([0, 1] * 50, [0.6] * 70 + [9.0] * 30, True),  # 70% right, but the loss is large
    ],
)
def test_a_model_that_learned_nothing_is_flagged(
    labels: list[int], losses: list[float], learned: bool
) -> None:
    (a,) = evidence_of(a=make_fit(labels, losses)).values()
    assert ("learned nothing" not in a.flags) == learned


def test_neighbours_that_may_be_equal_are_named_once() -> None:
    spread = [0.1, 0.5] * 50
    fits = {
        "a": make_fit([0, 1] * 50, spread),
        "b": make_fit([0, 1] * 50, [0.01 + loss for loss in spread]),
        "c": make_fit([0, 1] * 50, [0.4 + loss for loss in spread]),
    }
    names = {name: client.indistinct_from for name, client in evidence_of(**fits).items()}
    assert names == {"a": "b", "b": None, "c": None}


def test_an_error_that_models_share_does_not_hide_a_difference() -> None:
    """Gaps of 0.4 make the intervals wider than the difference of 0.15, but cancel in it."""
    fits = {
        name: make_fit([0, 1] * 50, [0.5 + more] * 100, [0.1 + more] * 100)
        for name, more in (("a", 0.0), ("b", 0.15))
    }
    a, b = evidence_of(**fits).values()
    assert a.interval is not None
    assert b.interval is not None
    assert a.interval[1] > b.interval[0]
    assert a.indistinct_from is None


def test_flags_of_measured_clients() -> None:
    federation = make_noisy({"clean": 100, "coin": 100, "tenth": 20})
    measured = measure_in(federation)
    assert measured.evidence is not None
    flags = {name: client.flags for name, client in measured.evidence.items()}
    assert flags == {"clean": (), "coin": ("learned nothing",), "tenth": ("tiny",)}
    assert list(measured.untrusted) == ["coin"]
    clean = measured.evidence["clean"]
    assert clean.held_out_accuracy == 1.0
    assert clean.interval is not None
    assert clean.interval[0] <= measured.values["clean"] <= clean.interval[1]


@pytest.mark.parametrize("kind", ["paper", "confidence", "ensemble"])
def test_other_measures_have_what_the_labels_tell(kind: str) -> None:
    federation = make_federation({"a": [0, 1] * 20, "b": [1] * 40})
    changes: dict[str, Any] = {"uncertainty": kind, "uncertainty_epochs": 1}
    measured = measure_in(federation, uncertainty_models=2, **changes)
    assert measured.evidence == label_evidence(federation)
    assert list(measured.untrusted) == ["b"]


@pytest.mark.parametrize("size", [1, 2])
def test_one_or_two_examples(size: int) -> None:
    federation = make_federation({"a": [0, 1][:size], "b": [0, 1] * 20})
    measured = measure_in(federation, uncertainty_epochs=3)
    assert measured.evidence is not None
    assert "tiny" in measured.evidence["a"].flags
    assert (measured.evidence["a"].interval is None) == (size == 1)


def test_a_diverged_client_has_the_evidence_of_its_labels() -> None:
    federation = make_federation({"a": [0, 1] * 20})
    nothing = torch.full((40,), math.nan)
    fit = CrossFit(torch.tensor([0, 1] * 20), nothing[:, None], nothing, nothing, math.nan, 0)
    assert cross_fit_evidence(federation, {"a": fit}) == label_evidence(federation)
