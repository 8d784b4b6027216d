"""A run stopped at any point resumes and produces identical bytes; another run is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import Stopped, make_federation, make_older, read_files, stop_after
from stopped_runs import TINY, ServerMomentum
from torch import nn

import udjfl
from udjfl.errors import CheckpointError, DataError, SettingsError, StorageError, UdjflError
from udjfl.report.saved_runs import read_run

# --- stopped at any point


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_run_stopped_after_any_round_ends_in_the_same_bytes(tmp_path: Path, model: str) -> None:
    settings = {
        **TINY,
        "model": model,
        "hidden": 4,
        "participation": 0.7,
        "drop_out": 0.3,
        "eval_every": 2,
    }
    whole = udjfl.simulate(make_federation(), "rawls", out=tmp_path / "whole", **settings)
    for round in range(1, 8):
        out = tmp_path / f"stopped-{round}"
        with pytest.raises(Stopped):
            udjfl.simulate(
                make_federation(), "rawls", out=out, on_progress=stop_after(round), **settings
            )
        again = udjfl.simulate(make_federation(), "rawls", out=out, resume=True, **settings)
        assert read_files(out) == read_files(tmp_path / "whole"), round
        assert again.metrics == whole.metrics
        assert again.history == whole.history
        assert all(
            torch.equal(a, b)
            for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True)
        )


def test_a_run_stopped_while_uncertainties_are_measured_ends_in_the_same_bytes(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    def stop(event: udjfl.Progress) -> None:
        raise Stopped

    settings = {**TINY, "uncertainty": "ensemble", "uncertainty_models": 2}
    udjfl.simulate(federation, "rawls", out=tmp_path / "whole", **settings)
    with pytest.raises(Stopped):
        udjfl.simulate(federation, "rawls", out=tmp_path / "run", on_progress=stop, **settings)
    udjfl.simulate(federation, "rawls", out=tmp_path / "run", resume=True, **settings)
    assert read_files(tmp_path / "run") == read_files(tmp_path / "whole")


def test_only_the_rounds_after_the_checkpoint_are_run(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    with pytest.raises(Stopped):
        udjfl.simulate(federation, "rawls", out=tmp_path, on_progress=stop_after(5), **TINY)
    seen: list[tuple[str, int]] = []
    udjfl.simulate(
        federation,
        "rawls",
        out=tmp_path,
        resume=True,
        on_progress=lambda e: seen.append((e.stage, e.done)),
        **TINY,
    )
    assert seen.pop(0) == ("resumed", 3)
    # The checkpoint was at round 3.
    assert seen == [("training", 4), ("training", 5), ("training", 6), ("training", 7)]


def test_resume_without_a_run_starts_one(tmp_path: Path, federation: udjfl.Federation) -> None:
    udjfl.simulate(federation, "rawls", out=tmp_path / "a", **TINY)
    udjfl.simulate(federation, "rawls", out=tmp_path / "b", resume=True, **TINY)
    assert read_files(tmp_path / "a") == read_files(tmp_path / "b")


def test_resuming_a_finished_run_changes_nothing(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    first = udjfl.simulate(federation, "rawls", out=tmp_path, **TINY)
    before = read_files(tmp_path)
    again = udjfl.simulate(federation, "rawls", out=tmp_path, resume=True, **TINY)
    assert read_files(tmp_path) == before
    assert (again.metrics, again.history) == (first.metrics, first.history)


def test_resuming_a_finished_run_without_its_reference_keeps_psi(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    """A run of a comparison that is resumed on its own has no reference."""
    reference = udjfl.simulate(federation, "fedavg", **TINY)
    udjfl.simulate(federation, "rawls", reference=reference, out=tmp_path, **TINY)
    before = read_files(tmp_path)
    assert b'"psi"' in before["result.json"]
    udjfl.simulate(federation, "rawls", out=tmp_path, resume=True, **TINY)
    assert read_files(tmp_path) == before


# --- method state, buffers, model functions


@pytest.mark.parametrize("round", [2, 3, 5])
def test_the_state_of_a_method_is_restored(
    tmp_path: Path, federation: udjfl.Federation, round: int
) -> None:
    settings = {**TINY, "participation": 0.7}
    method = ServerMomentum(memory=0.9)
    whole = udjfl.simulate(federation, method, out=tmp_path / "whole", **settings)
    with pytest.raises(Stopped):
        udjfl.simulate(
            federation, method, out=tmp_path / "run", on_progress=stop_after(round), **settings
        )
    udjfl.simulate(federation, method, out=tmp_path / "run", resume=True, **settings)
    assert read_files(tmp_path / "run") == read_files(tmp_path / "whole")
    # Each of 7 rounds asks round(0.7 * 3) = 2 of the 3 clients: the last counts add up to 14.
    last = [list(whole.history.series("times", client).values())[-1] for client in federation.ids]
    assert sum(float(count or 0) for count in last) == 14


def build_with_batch_norm_and_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))


@pytest.mark.filterwarnings("ignore:The model is trained one client at a time")
def test_buffers_and_random_layers_of_a_model_are_restored(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    settings = {**TINY, "model": build_with_batch_norm_and_dropout}
    udjfl.simulate(federation, "rawls", out=tmp_path / "whole", **settings)
    with pytest.raises(Stopped):
        udjfl.simulate(
            federation, "rawls", out=tmp_path / "run", on_progress=stop_after(5), **settings
        )
    torch.manual_seed(1)  # a new process would have another state of the global generator
    udjfl.simulate(federation, "rawls", out=tmp_path / "run", resume=True, **settings)
    assert read_files(tmp_path / "run") == read_files(tmp_path / "whole")


def test_per_client_parameters_are_restored_from_json(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    for beta in ((1.0, 2.0, 3.0), {"client-1": 1.0, "client-2": 2.0, "client-3": 3.0}):
        out = tmp_path / type(beta).__name__
        method = udjfl.UDJ(beta=beta, gamma=1.0)
        with pytest.raises(Stopped):
            udjfl.simulate(federation, method, out=out, on_progress=stop_after(4), **TINY)
        udjfl.simulate(federation, method, out=out, resume=True, **TINY)
        assert (out / "result.json").exists()


# --- refused


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"data": make_federation(seed=1)},
            DataError,
            "other data; resume it with the federation it was started on",
        ),
        ({"data": make_federation(n_clients=2)}, DataError, "other data"),
        ({"method": "desert"}, StorageError, "another params"),
        ({"method": "fedavg"}, StorageError, "another method"),
        ({"seed": 1}, StorageError, "another seed"),
        ({"lr": 0.2}, StorageError, "another .*"),
        ({"rounds": 9}, StorageError, "another .*"),
        ({"model": "mlp"}, StorageError, "another .*"),
        (
            {"uncertainty": {"client-1": 1.0, "client-2": 2.0, "client-3": 3.0}},
            UdjflError,
            "uncertaint",
        ),
    ],
    ids=["data", "clients", "theory", "method", "seed", "lr", "rounds", "model", "uncertainty"],
)
def test_resuming_as_another_run_is_refused_and_changes_nothing(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    call = {"data": make_federation(), "method": "rawls", "out": tmp_path, **TINY}
    with pytest.raises(Stopped):
        udjfl.simulate(**call, on_progress=stop_after(5))
    before = read_files(tmp_path)
    with pytest.raises(error, match=message):
        udjfl.simulate(**{**call, **change}, resume=True)
    assert read_files(tmp_path) == before


@pytest.mark.parametrize("change", [{"lr": 0.2}, {"rounds": 9}, {"model": "mlp"}])
def test_the_error_names_the_setting_that_differs(
    tmp_path: Path, federation: udjfl.Federation, change: dict[str, Any]
) -> None:
    udjfl.simulate(federation, "rawls", out=tmp_path, **TINY)
    with pytest.raises(StorageError, match=rf"\b{next(iter(change))}\b"):
        udjfl.simulate(federation, "rawls", out=tmp_path, resume=True, **{**TINY, **change})


def test_other_given_uncertainties_are_refused(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    """Given uncertainties decide the numbers as much as any setting does."""
    one = {"client-1": 1.0, "client-2": 2.0, "client-3": 3.0}
    udjfl.simulate(federation, "rawls", uncertainty=one, out=tmp_path, **TINY)
    before = read_files(tmp_path)
    with pytest.raises(UdjflError, match="uncertaint"):
        udjfl.simulate(
            federation,
            "rawls",
            uncertainty={**one, "client-1": 9.0},
            out=tmp_path,
            resume=True,
            **TINY,
        )
    udjfl.simulate(
        federation,
        "rawls",
        uncertainty=dict(reversed(one.items())),
        out=tmp_path,
        resume=True,
        **TINY,
    )
    # Without the argument, those in the folder are used.
    again = udjfl.simulate(federation, "rawls", out=tmp_path, resume=True, **TINY)
    assert again.uncertainty == one
    assert read_files(tmp_path) == before


def test_a_folder_with_the_older_name_of_a_measure_is_resumed_and_reported(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    """`paper` was called `entropy` before there was another default, and crossfit's folds."""
    how = {**TINY, "uncertainty": "paper"}
    whole = udjfl.simulate(federation, "rawls", out=tmp_path, **how)
    make_older(tmp_path)
    path = tmp_path / "settings.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["training"]["uncertainty"] = "entropy"
    del settings["training"]["uncertainty_folds"]
    path.write_text(json.dumps(settings), encoding="utf-8")
    again = udjfl.simulate(federation, "rawls", out=tmp_path, resume=True, **how)
    assert again.uncertainty == whole.uncertainty
    assert read_run(tmp_path).uncertainty == whole.uncertainty
    with pytest.raises(StorageError, match="started with another uncertainty;"):
        udjfl.simulate(federation, "rawls", out=tmp_path, resume=True, **TINY)


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped"])
def test_a_run_without_its_damaged_checkpoint_ends_in_the_same_bytes(
    tmp_path: Path, federation: udjfl.Federation, damage: str
) -> None:
    udjfl.simulate(federation, "rawls", out=tmp_path / "whole", **TINY)
    out = tmp_path / "run"
    with pytest.raises(Stopped):
        udjfl.simulate(federation, "rawls", out=out, on_progress=stop_after(5), **TINY)
    checkpoint = out / "checkpoint.safetensors"
    data = bytearray(checkpoint.read_bytes())
    data[-3] ^= 16
    checkpoint.write_bytes(
        {"empty": b"", "truncated": bytes(data[:-1]), "flipped": bytes(data)}[damage]
    )
    before = read_files(out)
    with pytest.raises(
        CheckpointError, match=r"checkpoint\.safetensors is damaged .*delete that file and resume"
    ):
        udjfl.simulate(federation, "rawls", out=out, resume=True, **TINY)
    assert read_files(out) == before
    checkpoint.unlink()
    udjfl.simulate(federation, "rawls", out=out, resume=True, **TINY)
    assert read_files(out) == read_files(tmp_path / "whole")


def test_the_reference_is_checked_before_anything_is_trained(federation: udjfl.Federation) -> None:
    other = udjfl.simulate(make_federation(n_clients=2), "fedavg", **TINY)
    seen: list[int] = []
    with pytest.raises(SettingsError, match="reference"):
        udjfl.simulate(
            federation,
            "rawls",
            reference=other,
            on_progress=lambda e: seen.append(e.done),
            **TINY,
        )
    assert seen == []
