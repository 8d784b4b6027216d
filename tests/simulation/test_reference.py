"""Runs with a budget: what they are measured from, and where they start."""

from __future__ import annotations

from dataclasses import replace
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


def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    federation = make_federation()
    settings = {"rounds": 6, "checkpoint_every": 2, "participation": 0.7, "drop_out": 0.1}

    class Stop(Exception):
        pass

    def stop_in_round_5(event: udjfl.Progress) -> None:
        if "budget" in event.label and event.stage == "training" and event.done == 5:
            raise Stop

    whole = train_briefly(federation, BUDGET, out=tmp_path / "whole", **settings)
    with pytest.raises(Stop):
        train_briefly(
            federation, BUDGET, out=tmp_path / "cut", on_progress=stop_in_round_5, **settings
        )
    resumed = train_briefly(federation, BUDGET, out=tmp_path / "cut", resume=True, **settings)
    for name in ("model.safetensors", "records.jsonl", "result.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert resumed.client_accuracy == whole.client_accuracy


def test_several_seeds_together_are_the_same_as_one_by_one() -> None:
    settings = {"rounds": 3, "hidden": 5, "uncertainty_epochs": 2}
    together = udjfl.compare(make_federation(), ["fedavg", BUDGET], seeds=3, **settings)
    for number, seed in enumerate(together.seeds):
        alone = udjfl.compare(make_federation(), ["fedavg", BUDGET], seeds=[seed], **settings)
        for client, accuracy in alone.rows[1].client_accuracy.items():
            assert accuracy.values[0] == together.rows[1].client_accuracy[client].values[number]


def test_shuffled_test_labels_change_nothing_that_is_chosen() -> None:
    federation = make_federation()
    shuffled = replace(
        federation,
        clients=tuple(
            replace(client, test=replace(client.test, y=client.test.y.flip(0)))
            for client in federation.clients
        ),
        test=replace(federation.test, y=federation.test.y.flip(0)),
    )
    for theory in ("rawls", "egalitarian", "utilitarian", "desert"):
        models = [
            train_briefly(data, f"udj:theory={theory}:budget=2", rounds=3).model.state_dict()
            for data in (federation, shuffled)
        ]
        assert all(torch.equal(a, b) for a, b in zip(*map(dict.values, models), strict=True))
