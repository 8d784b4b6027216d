"""Resumed runs on Flower end in the same bytes; another run is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from in_process_grid import InProcessGrid, client_data, make_strategy, run_strategy, simulate_small
from tampered_replies import BAD, changed_uncertainty, in_training

import udjfl
from udjfl.errors import QuorumError, ReportError, StorageError
from udjfl.flower.strategy import read_members
from udjfl.training.run_folder import RunFolder


@pytest.mark.parametrize("name", ["afl", "focus", "fedeba", "e2fl", "fedfair3"])
def test_a_killed_server_resumes_to_the_same_bytes(
    federation: udjfl.Federation, tmp_path: Path, name: str
) -> None:
    class KilledError(BaseException):
        """Not handled anywhere, like a killed process."""

    def kill(message: Message, reply: Message) -> Message:
        """End the server while it waits for round 4, and for the evaluation of round 3."""
        is_training = message.metadata.message_type == "train"
        if is_training and message.content["config"]["round"] == 4:
            raise KilledError
        return reply

    changes = {"rounds": 5, "checkpoint_every": 2, "participation": 0.7, "quorum": 1}
    run_strategy(federation, name, out=tmp_path / "whole", **changes)
    grid = InProcessGrid(federation, tamper=kill)
    strategy = make_strategy(federation, name, out=tmp_path / "run", **changes)
    strategy.prepare(grid)
    for _ in range(3):
        strategy.run_round()  # without `start`, which would write a checkpoint
    with pytest.raises(KilledError):
        strategy.run_round()
    strategy.log.folder.unlock()  # as the operating system does when a process ends
    assert RunFolder.open(tmp_path / "run").rewind()[0].round == 2
    run_strategy(federation, name, out=tmp_path / "run", resume=True, **changes)
    kept = ["records.jsonl", "checkpoint.safetensors", "result.json"]
    for file in kept:
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), (
            file
        )


def test_resuming_a_finished_run_returns_its_result(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    first = run_strategy(federation, "rawls", out=tmp_path / "run").result
    before = (tmp_path / "run" / "records.jsonl").read_bytes()
    again = run_strategy(federation, "rawls", out=tmp_path / "run", resume=True).result
    assert again.metrics == first.metrics
    assert again.client_scores == first.client_scores
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == before


def test_a_resumed_run_accepts_only_its_own_clients_and_settings(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    changes = {"out": tmp_path / "run", "rounds": 2}
    grid = InProcessGrid(federation, tamper=in_training(lambda _: None, rounds=(2,)))
    with pytest.raises(QuorumError):
        run_strategy(federation, "rawls", grid, quorum=3, **changes)
    stranger = InProcessGrid(federation)
    stranger.add(BAD, client_data(federation, "client-2", id="stranger"))
    with pytest.raises(
        ReportError,
        match="client 'stranger': id is of no client of this run, which has client-1, client-2",
    ):
        run_strategy(federation, "rawls", stranger, resume=True, **changes)
    changed = InProcessGrid(
        federation, tamper=in_training(changed_uncertainty, kind="query.uncertainty")
    )
    records = (tmp_path / "run" / "records.jsonl").read_bytes()
    with pytest.raises(ReportError, match="client 'client-2': uncertainties was"):
        run_strategy(federation, "rawls", changed, resume=True, **changes)
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == records
    with pytest.raises(StorageError, match="was started with another seed"):
        run_strategy(federation, "rawls", resume=True, seed=1, **changes)
    with pytest.raises(
        StorageError, match="was started with another report_uncertainties, max_update_norm"
    ):
        run_strategy(
            federation,
            "rawls",
            resume=True,
            report_uncertainties=True,
            max_update_norm=5.0,
            **changes,
        )
    with pytest.raises(StorageError, match="already holds a run; continue it with resume = true"):
        run_strategy(federation, "rawls", **changes)
    missing = InProcessGrid(federation)
    missing.remove(BAD)
    strategy = run_strategy(federation, "rawls", missing, resume=True, **changes)
    assert strategy.result.history.by_client("absent", 2) == {"client-2": "is not connected"}
    assert any("client-2" in note for note in strategy.result.notes)
    assert set(strategy.result.client_scores) == {"client-1", "client-3"}


def test_a_run_of_the_simulator_is_not_resumed(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    simulate_small(federation, "fedavg", out=tmp_path / "run")
    with pytest.raises(StorageError, match="not made across machines"):
        run_strategy(federation, "fedavg", out=tmp_path / "run", resume=True)


def test_settings_that_were_changed_are_not_believed(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    run_strategy(federation, "fedavg", out=tmp_path / "run")
    path = tmp_path / "run" / "settings.json"
    path.write_text(path.read_text().replace("client-2", "client-9"))
    with pytest.raises(StorageError, match=r"settings.json is damaged \(its SHA-256"):
        read_members(tmp_path / "run")
