"""Rounds in lockstep. Evaluation during the next round's training writes the same records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import make_federation

import udjfl
from udjfl.engine.base import Engine
from udjfl.engine.stacked import StackedEngine
from udjfl.errors import DivergedError
from udjfl.simulation import lockstep
from udjfl.training.evaluation import Evaluation
from udjfl.training.round import close_round
from udjfl.training.run_folder import RunFolder

FAST: dict[str, Any] = {
    "rounds": 4,
    "hidden": 5,
    "batch_size": 8,
    "lr": 0.1,
    "uncertainty_epochs": 2,
    "engine": "stacked",
    "workers": 2,
}
FILES = ("records.jsonl", "model.safetensors", "result.json", "checkpoint.safetensors")


@pytest.mark.parametrize("method", ["fedavg", "rawls", "afl"])
def test_evaluation_during_training_writes_the_same_as_evaluation_after_it(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = make_federation()
    udjfl.simulate(federation, method, out=tmp_path / "during", **FAST)
    monkeypatch.setattr(StackedEngine, "evaluate_async", Engine.evaluate_async)
    udjfl.simulate(federation, method, out=tmp_path / "after", **FAST)
    for name in FILES:
        during, after = tmp_path / "during" / name, tmp_path / "after" / name
        assert during.read_bytes() == after.read_bytes(), name


@pytest.mark.parametrize("error", [DivergedError("round 3 is no good"), KeyboardInterrupt()])
def test_a_finished_round_is_recorded_if_the_next_one_fails(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_in_round_3(run, server, clients, opened, replies):
        if server.round == 2:
            raise error
        return close_round(run, server, clients, opened, replies)

    monkeypatch.setattr(lockstep, "close_round", stop_in_round_3)
    with pytest.raises(type(error)):
        udjfl.simulate(make_federation(), "fedavg", out=tmp_path / "run", **FAST)
    written = RunFolder.open(tmp_path / "run").records
    records = written.parse(written.read() or b"")
    assert {record.round for record in records} == {1, 2}
    evaluated = [r.round for r in records if r.metric == "test_loss" and r.client is None]
    assert evaluated == [1, 2]


def test_a_round_is_recorded_before_the_next_one_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its records come first, and its checkpoint is of its own model."""
    order: list[tuple[str, int]] = []
    records = Evaluation.records

    def watch_close(run, server, clients, opened, replies):
        order.append(("close", server.round + 1))
        return close_round(run, server, clients, opened, replies)

    def watch_records(self, round):
        order.append(("write", round))
        return records(self, round)

    monkeypatch.setattr(lockstep, "close_round", watch_close)
    monkeypatch.setattr(Evaluation, "records", watch_records)
    udjfl.simulate(make_federation(), "fedavg", **FAST)
    assert order == [(what, round) for round in (1, 2, 3, 4) for what in ("close", "write")]
