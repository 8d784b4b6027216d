"""Runs with a budget: what they are measured from, and where they start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import make_federation, train_briefly

import udjfl
from udjfl.errors import SettingsError

BUDGET = "udj:theory=rawls:budget=2"


def scores(result: udjfl.Result, round: int) -> dict[str, float | str | None]:
    return result.history.by_client("score", round)


def test_a_budget_starts_from_the_same_model_as_fedavg() -> None:
    federation = make_federation()
    fedavg = train_briefly(federation, "fedavg", rounds=1)
    budget = train_briefly(federation, BUDGET, rounds=1)
    reference = train_briefly(federation, "udj:theory=rawls:budget=2:limit=50", rounds=1)
    assert scores(budget, 1) == scores(reference, 1)
    assert scores(budget, 1)
    assert not scores(fedavg, 1)  # nobody needs them


def test_fedavg_is_trained_first_and_its_scores_are_the_reference() -> None:
    federation = make_federation()
    alone = train_briefly(federation, BUDGET, rounds=3)
    comparison = udjfl.compare(
        federation, ["fedavg", BUDGET], seeds=1, rounds=3, hidden=5, uncertainty_epochs=2
    )
    assert comparison.rows[1].client_accuracy["client-1"].mean == pytest.approx(
        alone.client_accuracy["client-1"]
    )


def test_a_finished_fedavg_run_with_scores_serves_as_the_reference(tmp_path: Path) -> None:
    federation = make_federation()
    folder = tmp_path / "comparison"
    udjfl.compare(
        federation,
        ["fedavg", BUDGET],
        seeds=1,
        rounds=3,
        hidden=5,
        uncertainty_epochs=2,
        out=folder,
    )
    (fedavg,) = (folder / "seed-0").glob("fedavg*")
    given = train_briefly(federation, BUDGET, rounds=3, reference=fedavg)
    measured = train_briefly(federation, BUDGET, rounds=3)
    vectors = [torch.cat([p.flatten() for p in r.model.parameters()]) for r in (given, measured)]
    assert torch.equal(*vectors)


def test_scores_alone_need_held_out_data() -> None:
    federation = make_federation()
    with pytest.raises(SettingsError, match="holdout"):
        train_briefly(federation, f"{BUDGET}:floor=alone", rounds=1)
    result = train_briefly(federation, f"{BUDGET}:floor=alone", rounds=2, holdout=0.3)
    assert scores(result, 2)
