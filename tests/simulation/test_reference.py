"""Runs with a budget: what they are measured from, and where they start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import make_federation, train_briefly

import udjfl
from udjfl.errors import NotDefinedError, SettingsError, StorageError
from udjfl.report.saved_runs import read_run

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
    assert comparison.rows[1].client_scores["client-1"].mean == pytest.approx(
        alone.client_scores["client-1"]
    )


def test_if_fedavg_fails_a_budget_says_why() -> None:
    settings = {"rounds": 3, "hidden": 5, "uncertainty_epochs": 2, "uncertainty_lr": 0.1}
    with pytest.raises(NotDefinedError, match=r"did not finish: .*client-\d.*diverged"):
        udjfl.simulate(make_federation(), BUDGET, lr=1e30, **settings)


def test_a_finished_fedavg_run_with_scores_serves_as_the_reference(tmp_path: Path) -> None:
    federation = make_federation()
    fedavg = fedavg_with_scores(federation, tmp_path / "comparison")
    given = train_briefly(federation, BUDGET, rounds=3, reference=fedavg)
    measured = train_briefly(federation, BUDGET, rounds=3)
    vectors = [torch.cat([p.flatten() for p in r.model.parameters()]) for r in (given, measured)]
    assert torch.equal(*vectors)


class Stop(Exception):
    """The end of a process, half-way."""


def stop_in_round(round: int) -> Callable[[udjfl.Progress], None]:
    def stop(event: udjfl.Progress) -> None:
        if "budget" in event.label and event.stage == "training" and event.done == round:
            raise Stop

    return stop


def fedavg_with_scores(federation: udjfl.Federation, folder: Path, **settings: Any) -> Path:
    """Run FedAvg so that it can be the reference of a budget; return its folder."""
    settings = {"seeds": 1, "rounds": 3, "hidden": 5, "uncertainty_epochs": 2, **settings}
    udjfl.compare(federation, ["fedavg", BUDGET], out=folder, **settings)
    (fedavg,) = (folder / "seed-0").glob("fedavg*")
    return fedavg


def test_a_reference_on_other_data_is_refused(tmp_path: Path) -> None:
    """Same ids, method and seed: only the data tell them apart."""
    ours, other = make_federation(), make_federation(seed=1)
    assert ours.ids == other.ids
    message = "reference:.* was made with other data"
    with pytest.raises(SettingsError, match=message):
        train_briefly(ours, BUDGET, rounds=3, reference=fedavg_with_scores(other, tmp_path / "a"))
    result = train_briefly(other, "fedavg", rounds=1)
    with pytest.raises(SettingsError, match=message):
        train_briefly(ours, "rawls", rounds=1, reference=result)
    with pytest.raises(SettingsError, match=message):
        train_briefly(other, "rawls", rounds=1, reference=result, holdout=0.2)
    assert train_briefly(other, "rawls", rounds=1, reference=result).metrics["psi"] is not None


@pytest.mark.parametrize("round", [1, 3])  # before and after the checkpoint in round 2
def test_a_run_is_resumed_with_the_reference_it_was_started_with(
    tmp_path: Path, round: int
) -> None:
    federation, out = make_federation(), tmp_path / "run"
    settings = {"rounds": 4, "checkpoint_every": 2}
    first = fedavg_with_scores(federation, tmp_path / "first", rounds=4)
    other = fedavg_with_scores(federation, tmp_path / "other", rounds=4, lr=0.5)
    whole = train_briefly(federation, BUDGET, reference=first, **settings)
    with pytest.raises(Stop):
        train_briefly(
            federation,
            BUDGET,
            reference=first,
            out=out,
            on_progress=stop_in_round(round),
            **settings,
        )
    with pytest.raises(StorageError, match="another reference"):
        train_briefly(federation, BUDGET, reference=other, out=out, resume=True, **settings)
    if round == 1:
        with pytest.raises(StorageError, match="another reference"):
            train_briefly(federation, BUDGET, out=out, resume=True, **settings)
    resumed = train_briefly(federation, BUDGET, reference=first, out=out, resume=True, **settings)
    assert resumed.client_scores == whole.client_scores


@pytest.mark.parametrize("floor", ["", ":floor=alone"])
def test_a_resumed_budget_does_not_train_fedavg_again(tmp_path: Path, floor: str) -> None:
    federation, out = make_federation(), tmp_path / "run"
    settings = {"rounds": 4, "checkpoint_every": 2, "holdout": 0.3}
    whole = train_briefly(federation, BUDGET + floor, **settings)
    with pytest.raises(Stop):
        train_briefly(federation, BUDGET + floor, out=out, on_progress=stop_in_round(3), **settings)
    trained: set[str] = set()
    resumed = train_briefly(
        federation,
        BUDGET + floor,
        out=out,
        resume=True,
        on_progress=lambda event: trained.add(event.label),
        **settings,
    )
    assert trained == {resumed.method.label}
    assert resumed.client_scores == whole.client_scores


def test_the_scores_alone_that_a_floor_was_held_to_are_in_the_result(tmp_path: Path) -> None:
    federation = make_federation()
    spec = f"{BUDGET}:floor=alone"
    result = train_briefly(federation, spec, rounds=2, holdout=0.4, out=tmp_path)
    assert result.score_alone is not None
    assert list(result.score_alone) == list(federation.ids)
    assert all(0 <= value <= 100 for value in result.score_alone.values())
    assert read_run(tmp_path).score_alone == result.score_alone
    assert train_briefly(federation, BUDGET, rounds=1).score_alone is None


def test_scores_alone_need_held_out_data() -> None:
    federation = make_federation()
    with pytest.raises(SettingsError, match="holdout"):
        train_briefly(federation, f"{BUDGET}:floor=alone", rounds=1)
    result = train_briefly(federation, f"{BUDGET}:floor=alone", rounds=2, holdout=0.3)
    assert scores(result, 2)


def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    federation = make_federation()
    settings = {"rounds": 6, "checkpoint_every": 2, "participation": 0.7, "drop_out": 0.1}

    whole = train_briefly(federation, BUDGET, out=tmp_path / "whole", **settings)
    with pytest.raises(Stop):
        train_briefly(
            federation, BUDGET, out=tmp_path / "cut", on_progress=stop_in_round(5), **settings
        )
    resumed = train_briefly(federation, BUDGET, out=tmp_path / "cut", resume=True, **settings)
    for name in ("model.safetensors", "records.jsonl", "result.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert resumed.client_scores == whole.client_scores


def test_several_seeds_together_are_the_same_as_one_by_one() -> None:
    settings = {"rounds": 3, "hidden": 5, "uncertainty_epochs": 2}
    together = udjfl.compare(make_federation(), ["fedavg", BUDGET], seeds=3, **settings)
    for number, seed in enumerate(together.seeds):
        alone = udjfl.compare(make_federation(), ["fedavg", BUDGET], seeds=[seed], **settings)
        for client, accuracy in alone.rows[1].client_scores.items():
            assert accuracy.values[0] == together.rows[1].client_scores[client].values[number]


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
