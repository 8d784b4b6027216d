"""A stopped run resumes and produces identical bytes, however it was stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from command import Command, mistakes_of
from small_runs import (
    Stopped,
    change_settings,
    compare,
    make_federation,
    make_older,
    read_files,
    stop_after,
)
from torch import Tensor, nn

import udjfl
from udjfl.errors import CheckpointError, DataError, SettingsError, StorageError, UdjflError
from udjfl.methods import weighted_sum
from udjfl.report.saved_runs import read_run
from udjfl.simulation.programs import folder_name

TINY: dict[str, Any] = {
    "model": "logistic",
    "rounds": 7,
    "checkpoint_every": 3,
    "uncertainty_epochs": 1,
}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return the command `udjfl`, called in this process."""
    return Command(monkeypatch, capsys)


# --- killed processes

KILLS = 10
LONG = (
    "--rounds 200 --checkpoint-every 7 --uncertainty-epochs 40 --method rawls -p beta=2 "
    "--participation 0.8 --drop-out 0.1"
)


def start(*arguments: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "udjfl.cli.main", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def start_or_resume(folder: Path) -> subprocess.Popen[bytes]:
    """Resume the run in a folder, or start it if it was killed before its settings were written."""
    return (
        start("resume", folder)
        if (folder / "settings.json").exists()
        else start("run", *LONG.split(), "--out", folder)
    )


def list_moments(
    folder: Path, full_length: int, chance: random.Random
) -> Iterator[Callable[[], bool]]:
    """Yield ten conditions that become true at random moments.

    Two in start-up, one while uncertainties are measured, six in the rounds, one at the end.
    """

    def after(seconds: float) -> Callable[[], bool]:
        until = time.monotonic() + seconds
        return lambda: time.monotonic() > until

    def when(name: str, size: int) -> Callable[[], bool]:
        path, pause = folder / name, chance.uniform(0, 0.03)

        def reached() -> bool:
            is_large_enough = path.exists() and path.stat().st_size >= size
            if is_large_enough:
                time.sleep(pause)
            return is_large_enough

        return reached

    yield after(chance.uniform(0.1, 0.6))
    yield after(chance.uniform(0.6, 1.5))
    yield when("settings.json", 1)
    for share in sorted(chance.uniform(0.02, 0.95) for _ in range(6)):
        yield when("records.jsonl", int(share * full_length))
    yield when("model.safetensors", 1)


def kill_when(process: subprocess.Popen[bytes], moment: Callable[[], bool]) -> bool:
    """Kill a process at a moment; return whether it was still running then."""
    while process.poll() is None and not moment():
        time.sleep(0.001)
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_run_killed_at_ten_random_moments_ends_in_the_same_bytes(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start_or_resume(whole))
    full = (whole / "records.jsonl").stat().st_size
    hits, hits_in_rounds = 0, 0
    for moment in list_moments(killed, full, random.Random(20250)):
        hit = kill_when(start_or_resume(killed), moment)
        records = killed / "records.jsonl"
        hits += hit
        hits_in_rounds += hit and records.exists() and 0 < records.stat().st_size < full
    finish(start_or_resume(killed))
    assert hits >= KILLS - 2
    assert hits_in_rounds >= 3
    # Model, records, result, checkpoint, settings; and nothing left over.
    assert read_files(killed) == read_files(whole)
    lines = [
        json.loads(line)
        for line in (killed / "records.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    times = Counter((line["round"], line["client"], line["metric"]) for line in lines)
    assert set(times.values()) == {1}
    assert {line["round"] for line in lines} == set(range(1, 201))


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


@udjfl.parameters
class ServerMomentum(udjfl.Method):
    """A method with state: a velocity, a count of reports per client, and a count of rounds.

    If a part of the state were lost, later rounds would differ.
    """

    name: ClassVar[str] = "server-momentum"
    title: ClassVar[str] = "Server momentum"
    paper: ClassVar[str] = "a test"
    grade: ClassVar[str] = "recalled"  # type: ignore[assignment]

    memory: float = 0.5

    def init(self, setup: udjfl.Setup) -> dict[str, Tensor]:
        return {
            "velocity": torch.zeros(len(setup.model), dtype=torch.float64),
            "times": torch.zeros(len(setup), dtype=torch.int64),
            "round": torch.tensor(0),
        }

    def aggregate(
        self, state: Mapping[str, Tensor], reports: udjfl.Reports
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        mean = weighted_sum(torch.full((len(reports),), 1 / len(reports)), reports.deltas)
        velocity = self.memory * state["velocity"] + mean.to(torch.float64)
        times = state["times"].clone()
        times[reports.client_indices] += 1
        count = state["round"] + 1
        step = (velocity / count).to(reports.deltas.dtype)
        return (
            {"velocity": velocity, "times": times, "round": count},
            step,
            {"times": times[reports.client_indices]},
        )


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


# --- comparisons

COMPARE = change_settings(
    udjfl.CompareSettings(methods=["rawls"], seeds=[0, 1]),
    model="logistic",
    rounds=4,
    checkpoint_every=3,
    uncertainty_epochs=1,
)


@pytest.mark.parametrize("calls", [1, 6, 10, 13, 17])
def test_a_stopped_comparison_ends_in_the_same_bytes(
    tmp_path: Path, tiny_source: str, calls: int
) -> None:
    """Stop at one of 18 events: 2 seeds x 2 methods x 4 rounds, and one uncertainty per seed."""
    settings = change_settings(COMPARE, data=tiny_source, clients=2)
    whole = compare(settings, out=tmp_path / "whole")
    count = 0

    def stop(event: udjfl.Progress) -> None:
        nonlocal count
        count += 1
        if count == calls:
            raise Stopped

    with pytest.raises(Stopped):
        compare(settings, out=tmp_path / "run", on_progress=stop)
    again = compare(settings, out=tmp_path / "run", resume=True)
    assert again.as_dict() == whole.as_dict()
    assert read_files(tmp_path / "run") == read_files(tmp_path / "whole")


def test_finished_runs_of_a_comparison_are_not_run_again(tmp_path: Path, tiny_source: str) -> None:
    settings = change_settings(COMPARE, data=tiny_source, clients=2)
    compare(settings, out=tmp_path)
    before = read_files(tmp_path)
    trained: list[int] = []

    def on_progress(event: udjfl.Progress) -> None:
        if event.done < event.total:  # the event of a finished run is allowed
            trained.append(event.done)

    compare(settings, out=tmp_path, resume=True, on_progress=on_progress)
    assert trained == []
    assert read_files(tmp_path) == before


def test_a_comparison_with_a_method_that_diverges_resumes_with_the_same_failure(
    tmp_path: Path, tiny_source: str
) -> None:
    settings = change_settings(COMPARE, data=tiny_source, clients=2)

    @udjfl.parameters
    class Diverging(ServerMomentum):
        name: ClassVar[str] = "diverging"

        def aggregate(self, state: Any, reports: udjfl.Reports) -> Any:
            state, step, diagnostics = super().aggregate(state, reports)
            return state, step / 0 if reports.round == 3 else step, diagnostics

    first = compare(settings, methods=[Diverging()], out=tmp_path)
    assert "round 3" in first.rows[1].failed[0]
    before = read_files(tmp_path)
    again = compare(settings, methods=[Diverging()], out=tmp_path, resume=True)
    assert again.as_dict() == first.as_dict()
    assert read_files(tmp_path) == before


def test_a_comparison_with_other_settings_is_refused(tmp_path: Path, tiny_source: str) -> None:
    settings = change_settings(COMPARE, data=tiny_source, clients=2)
    compare(settings, out=tmp_path)
    before = read_files(tmp_path)
    with pytest.raises(
        StorageError, match=r"already holds a comparison; continue it with `udjfl resume"
    ):
        compare(settings, out=tmp_path)
    with pytest.raises(StorageError, match="other settings; resume it with the same"):
        compare(change_settings(settings, rounds=5), out=tmp_path, resume=True)
    with pytest.raises(UdjflError):  # a comparison is not a run
        udjfl.simulate(make_federation(), "rawls", out=tmp_path, resume=True, **TINY)
    assert read_files(tmp_path) == before


def test_a_comparison_of_other_methods_is_refused(tmp_path: Path, tiny_source: str) -> None:
    """Method objects replace those in the settings, so the folder has to record them too."""
    settings = change_settings(COMPARE, data=tiny_source, clients=2)
    compare(settings, methods=[ServerMomentum()], out=tmp_path)
    before = read_files(tmp_path)
    with pytest.raises(StorageError, match="method"):
        compare(settings, out=tmp_path, resume=True)
    assert read_files(tmp_path) == before


def test_reasons_for_undefined_metrics_have_one_order(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    """The order of a set would differ between processes, and with it comparison.json."""
    comparison = compare(COMPARE, federation=make_federation(n_clients=1))
    reasons = comparison.as_dict()["methods"][1]["undefined"]
    assert list(reasons) == ["gain_others", "gap", "pearson_r", "psi", "slope"]


# --- the command line


def test_the_command_resumes_a_run(
    tmp_path: Path,
    tiny_source: str,
    command: Command,
) -> None:
    flags = (
        "--data tiny --clients 2 --method udj:theory=rawls -p beta=1,2 --seed 3 --model logistic "
        "--rounds 5 --checkpoint-every 2 --uncertainty-epochs 1 --json --out"
    )
    output = command("run", flags, tmp_path / "whole")
    assert output.code == 0
    first = json.loads(output.out)
    assert command("run", flags, tmp_path / "run").code == 0
    for name in ("checkpoint.safetensors", "model.safetensors", "result.json"):
        (tmp_path / "run" / name).unlink()
    output = command("resume", tmp_path / "run", "--json")
    assert output.code == 0
    again = json.loads(output.out)
    assert {**again, "folder": None} == {**first, "folder": None}
    assert read_files(tmp_path / "run") == read_files(tmp_path / "whole")


def test_the_command_resumes_a_comparison(
    tmp_path: Path,
    tiny_source: str,
    command: Command,
) -> None:
    flags = (
        "--data tiny --clients 2 --methods rawls,desert --seeds 2 --model logistic --rounds 3 "
        "--uncertainty-epochs 1 --json --out"
    )
    first = command("compare", flags, tmp_path)
    assert first.code == 0
    before = read_files(tmp_path)
    (tmp_path / "comparison.json").unlink()
    desert = tmp_path / "seed-1" / folder_name(udjfl.UDJ(theory="desert"))
    (desert / "checkpoint.safetensors").unlink()
    again = command("resume", tmp_path, "--json")
    assert (again.code, again.out) == (0, first.out)
    assert read_files(tmp_path) == before


def test_the_command_refuses_a_run_started_from_python_on_its_own_federation(
    tmp_path: Path,
    federation: udjfl.Federation,
    command: Command,
) -> None:
    with pytest.raises(Stopped):
        udjfl.simulate(federation, "rawls", out=tmp_path, on_progress=stop_after(5), **TINY)
    before = read_files(tmp_path)
    (line,) = mistakes_of(command("resume", tmp_path))
    assert "started from Python with data of its own; call udjfl.simulate(" in line
    assert f"out={str(tmp_path)!r}, resume=True) with the same federation" in line
    assert read_files(tmp_path) == before


@pytest.mark.parametrize("argument", ["federation", "methods"])
def test_the_command_refuses_a_comparison_started_from_python(
    tmp_path: Path,
    tiny_source: str,
    command: Command,
    argument: str,
) -> None:
    """The folder does not hold that federation or those methods."""
    settings = change_settings(COMPARE, data=tiny_source, clients=2)
    given: Any = (
        {"federation": make_federation()}
        if argument == "federation"
        else {"methods": [ServerMomentum()]}
    )

    def stop(event: udjfl.Progress) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        compare(settings, **given, out=tmp_path, on_progress=stop)
    (line,) = mistakes_of(command("resume", tmp_path))
    assert "started from Python" in line
    assert "udjfl.compare(" in line


@pytest.mark.parametrize(
    "content", ["", "{", "null", "[]", '{"origin": {"data": "tiny"}}', '{"comparison": 3}']
)
def test_the_command_refuses_damaged_settings(
    tmp_path: Path,
    command: Command,
    content: str,
) -> None:
    (tmp_path / "settings.json").write_text(content)
    assert "settings.json" in "\n".join(mistakes_of(command("resume", tmp_path)))


def test_the_command_refuses_a_folder_without_a_run(tmp_path: Path, command: Command) -> None:
    assert "holds no run" in "\n".join(mistakes_of(command("resume", tmp_path / "nowhere")))
    assert not (tmp_path / "nowhere").exists()


def test_the_command_resumes_a_run_on_named_data_started_from_python(
    tmp_path: Path, tiny_source: str, command: Command
) -> None:
    """`load` records how it was called, so the folder alone is enough."""
    federation = udjfl.load(tiny_source, clients=2, seed=0)
    udjfl.simulate(federation, "rawls", out=tmp_path / "whole", **TINY)
    with pytest.raises(Stopped):
        udjfl.simulate(federation, "rawls", out=tmp_path / "run", on_progress=stop_after(5), **TINY)
    assert command("resume", tmp_path / "run").code == 0
    assert read_files(tmp_path / "run") == read_files(tmp_path / "whole")
