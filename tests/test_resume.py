"""A run that was stopped, by whatever means, goes on as if nothing had happened."""

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
from conftest import make_federation
from torch import Tensor, nn

import udjfl
from udjfl.cli import main as cli
from udjfl.errors import CheckpointError, DataError, SettingsError, StorageError, UdjflError
from udjfl.methods import weighted_sum
from udjfl.simulation.oneseed import folder_name

TINY: dict[str, Any] = {
    "model": "logistic",
    "rounds": 7,
    "checkpoint_every": 3,
    "uncertainty_epochs": 1,
}


class Stopped(Exception):
    pass


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def stop_after(round: int) -> Callable[[str, int, int], None]:
    def progress(stage: str, done: int, total: int) -> None:
        if stage == "training" and done == round:
            raise Stopped

    return progress


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> object:
    """What the command leaves with: 0 if all went well."""
    monkeypatch.setattr(sys, "argv", ["udjfl", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as left:
        return left.code or 0
    return 0


# --- killed, really ----------------------------------------------------------------------------------------------

KILLS = 10
LONG = "--rounds 200 --checkpoint-every 7 --uncertainty-epochs 40 --method rawls -p beta=2 --participation 0.8 --drop-out 0.1"


def start(*arguments: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "udjfl.cli.main", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def start_or_resume(folder: Path) -> subprocess.Popen[bytes]:
    """What a person does: resume if there is a run, start it if it was killed before it became one."""
    return (
        start("resume", folder)
        if (folder / "settings.json").exists()
        else start("run", *LONG.split(), "--out", folder)
    )


def moments(folder: Path, full_length: int, chance: random.Random) -> Iterator[Callable[[], bool]]:
    """Ten conditions that come true at random moments: in start-up, while measuring, six in the rounds, in the finish."""

    def after(seconds: float) -> Callable[[], bool]:
        until = time.monotonic() + seconds
        return lambda: time.monotonic() > until

    def when(name: str, size: int) -> Callable[[], bool]:
        path, pause = folder / name, chance.uniform(0, 0.03)

        def reached() -> bool:
            there = path.exists() and path.stat().st_size >= size
            if there:
                time.sleep(pause)
            return there

        return reached

    yield after(chance.uniform(0.1, 0.6))
    yield after(chance.uniform(0.6, 1.5))
    yield when("settings.json", 1)
    for share in sorted(chance.uniform(0.02, 0.95) for _ in range(6)):
        yield when("records.jsonl", int(share * full_length))
    yield when("model.safetensors", 1)


def kill_when(process: subprocess.Popen[bytes], moment: Callable[[], bool]) -> bool:
    """Whether the process was still at work when it was killed."""
    while process.poll() is None and not moment():
        time.sleep(0.001)
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def finish(process: subprocess.Popen[bytes]) -> None:
    _, said = process.communicate()
    assert process.returncode == 0, said.decode()


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_killed_at_ten_random_moments(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start_or_resume(whole))
    full = (whole / "records.jsonl").stat().st_size
    landed, in_the_rounds = 0, 0
    for moment in moments(killed, full, random.Random(20250)):
        hit = kill_when(start_or_resume(killed), moment)
        records = killed / "records.jsonl"
        landed += hit
        in_the_rounds += hit and records.exists() and 0 < records.stat().st_size < full
    finish(start_or_resume(killed))
    assert landed >= KILLS - 2
    assert in_the_rounds >= 3
    assert contents(killed) == contents(
        whole
    )  # model, records, result, checkpoint, settings; and nothing left over
    lines = [
        json.loads(line)
        for line in (killed / "records.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    times = Counter((line["round"], line["client"], line["metric"]) for line in lines)
    assert set(times.values()) == {1}
    assert {line["round"] for line in lines} == set(range(1, 201))


# --- stopped at every round --------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_stopped_after_any_round(tmp_path: Path, model: str) -> None:
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
                make_federation(), "rawls", out=out, progress=stop_after(round), **settings
            )
        again = udjfl.simulate(make_federation(), "rawls", out=out, resume=True, **settings)
        assert contents(out) == contents(tmp_path / "whole"), round
        assert again.metrics == whole.metrics
        assert again.history == whole.history
        assert all(
            torch.equal(a, b)
            for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True)
        )


def test_stopped_while_the_uncertainty_is_measured(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        raise Stopped

    settings = {**TINY, "uncertainty": "ensemble", "uncertainty_models": 2}
    udjfl.simulate(federation, "rawls", out=tmp_path / "whole", **settings)
    with pytest.raises(Stopped):
        udjfl.simulate(federation, "rawls", out=tmp_path / "run", progress=stop, **settings)
    udjfl.simulate(federation, "rawls", out=tmp_path / "run", resume=True, **settings)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_only_the_rounds_that_are_left_are_played(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    with pytest.raises(Stopped):
        udjfl.simulate(federation, "rawls", out=tmp_path, progress=stop_after(5), **TINY)
    seen: list[tuple[str, int]] = []
    udjfl.simulate(
        federation,
        "rawls",
        out=tmp_path,
        resume=True,
        progress=lambda s, d, t: seen.append((s, d)),
        **TINY,
    )
    assert seen.pop(0) == ("resumed", 3)
    assert seen == [
        ("training", 4),
        ("training", 5),
        ("training", 6),
        ("training", 7),
    ]  # the checkpoint was at round 3


def test_resume_without_a_run_starts_one(tmp_path: Path, federation: udjfl.Federation) -> None:
    udjfl.simulate(federation, "rawls", out=tmp_path / "a", **TINY)
    udjfl.simulate(federation, "rawls", out=tmp_path / "b", resume=True, **TINY)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_finished_run_is_left_as_it_is(tmp_path: Path, federation: udjfl.Federation) -> None:
    first = udjfl.simulate(federation, "rawls", out=tmp_path, **TINY)
    before = contents(tmp_path)
    again = udjfl.simulate(federation, "rawls", out=tmp_path, resume=True, **TINY)
    assert contents(tmp_path) == before
    assert (again.metrics, again.history) == (first.metrics, first.history)


def test_a_finished_run_does_not_lose_its_psi(tmp_path: Path, federation: udjfl.Federation) -> None:
    """A run of a comparison, looked at again on its own, has no reference at hand."""
    reference = udjfl.simulate(federation, "fedavg", **TINY)
    udjfl.simulate(federation, "rawls", reference=reference, out=tmp_path, **TINY)
    before = contents(tmp_path)
    assert b'"psi"' in before["result.json"]
    udjfl.simulate(federation, "rawls", out=tmp_path, resume=True, **TINY)
    assert contents(tmp_path) == before


# --- state, buffers, models of one's own -------------------------------------------------------------------------


@udjfl.parameters
class ServerMomentum(udjfl.Method):
    """Keeps a velocity, how often each client came, and a count: if any were lost, later rounds would differ."""

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
def test_the_state_of_a_method_survives(
    tmp_path: Path, federation: udjfl.Federation, round: int
) -> None:
    settings = {**TINY, "participation": 0.7}
    method = ServerMomentum(memory=0.9)
    whole = udjfl.simulate(federation, method, out=tmp_path / "whole", **settings)
    with pytest.raises(Stopped):
        udjfl.simulate(
            federation, method, out=tmp_path / "run", progress=stop_after(round), **settings
        )
    udjfl.simulate(federation, method, out=tmp_path / "run", resume=True, **settings)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    # Each of 7 rounds asks round(0.7 * 3) = 2 of the 3 clients: the last count of every client adds up to 14.
    last = [list(whole.history.series("times", client).values())[-1] for client in federation.ids]
    assert sum(float(count or 0) for count in last) == 14


def with_batch_norm_and_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))


@pytest.mark.filterwarnings("ignore:The model is trained one client at a time")
def test_buffers_and_randomness_inside_a_model_survive(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    settings = {**TINY, "model": with_batch_norm_and_dropout}
    udjfl.simulate(federation, "rawls", out=tmp_path / "whole", **settings)
    with pytest.raises(Stopped):
        udjfl.simulate(
            federation, "rawls", out=tmp_path / "run", progress=stop_after(5), **settings
        )
    torch.manual_seed(1)  # a new process would have another state of the global generator
    udjfl.simulate(federation, "rawls", out=tmp_path / "run", resume=True, **settings)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_per_client_parameters_survive_the_way_through_json(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    for beta in ((1.0, 2.0, 3.0), {"client-1": 1.0, "client-2": 2.0, "client-3": 3.0}):
        out = tmp_path / type(beta).__name__
        method = udjfl.UDJ(beta=beta, gamma=1.0)
        with pytest.raises(Stopped):
            udjfl.simulate(federation, method, out=out, progress=stop_after(4), **TINY)
        udjfl.simulate(federation, method, out=out, resume=True, **TINY)
        assert (out / "result.json").exists()


# --- what cannot be resumed --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (
            {"federation": make_federation(seed=1)},
            DataError,
            "other data; resume it with the federation it was started on",
        ),
        ({"federation": make_federation(n_clients=2)}, DataError, "other data"),
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
def test_another_run_is_refused_and_the_folder_left_alone(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], says: str
) -> None:
    call = {"federation": make_federation(), "method": "rawls", "out": tmp_path, **TINY}
    with pytest.raises(Stopped):
        udjfl.simulate(**call, progress=stop_after(5))
    before = contents(tmp_path)
    with pytest.raises(error, match=says):
        udjfl.simulate(**{**call, **change}, resume=True)
    assert contents(tmp_path) == before


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
    """They decide the numbers as much as any setting does."""
    one = {"client-1": 1.0, "client-2": 2.0, "client-3": 3.0}
    udjfl.simulate(federation, "rawls", uncertainty=one, out=tmp_path, **TINY)
    before = contents(tmp_path)
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
    again = udjfl.simulate(
        federation, "rawls", out=tmp_path, resume=True, **TINY
    )  # left out: those in the folder
    assert again.uncertainty == one
    assert contents(tmp_path) == before


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped"])
def test_a_damaged_checkpoint_deleted_gives_the_same_result(
    tmp_path: Path, federation: udjfl.Federation, damage: str
) -> None:
    udjfl.simulate(federation, "rawls", out=tmp_path / "whole", **TINY)
    out = tmp_path / "run"
    with pytest.raises(Stopped):
        udjfl.simulate(federation, "rawls", out=out, progress=stop_after(5), **TINY)
    checkpoint = out / "checkpoint.safetensors"
    data = bytearray(checkpoint.read_bytes())
    data[-3] ^= 16
    checkpoint.write_bytes(
        {"empty": b"", "truncated": bytes(data[:-1]), "flipped": bytes(data)}[damage]
    )
    before = contents(out)
    with pytest.raises(
        CheckpointError, match=r"checkpoint\.safetensors is damaged .*delete that file and resume"
    ):
        udjfl.simulate(federation, "rawls", out=out, resume=True, **TINY)
    assert contents(out) == before
    checkpoint.unlink()
    udjfl.simulate(federation, "rawls", out=out, resume=True, **TINY)
    assert contents(out) == contents(tmp_path / "whole")


def test_the_reference_is_checked_before_the_work(federation: udjfl.Federation) -> None:
    """A hundred rounds and then "has other clients" is a bad time to hear it."""
    other = udjfl.simulate(make_federation(n_clients=2), "fedavg", **TINY)
    seen: list[int] = []
    with pytest.raises(SettingsError, match="reference"):
        udjfl.simulate(
            federation,
            "rawls",
            reference=other,
            progress=lambda s, done, t: seen.append(done),
            **TINY,
        )
    assert seen == []


# --- comparisons -------------------------------------------------------------------------------------------------

COMPARE = udjfl.CompareSettings(
    methods=["rawls"],
    seeds=[0, 1],
    model="logistic",
    rounds=4,
    checkpoint_every=3,
    uncertainty_epochs=1,
)


@pytest.mark.parametrize("calls", [1, 6, 10, 13, 17])
def test_a_comparison_stopped_half_way(tmp_path: Path, tiny_source: str, calls: int) -> None:
    """2 seeds x 2 methods x 4 rounds = 16 calls, and one for each seed's uncertainty."""
    settings = COMPARE.model_copy(update={"data": tiny_source, "clients": 2})
    whole = udjfl.compare(settings, out=tmp_path / "whole")
    count = 0

    def stop(method: udjfl.Method, seed: int, stage: str, done: int, total: int) -> None:
        nonlocal count
        count += 1
        if count == calls:
            raise Stopped

    with pytest.raises(Stopped):
        udjfl.compare(settings, out=tmp_path / "run", progress=stop)
    again = udjfl.compare(settings, out=tmp_path / "run", resume=True)
    assert again.as_dict() == whole.as_dict()
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_finished_runs_of_a_comparison_are_not_run_again(tmp_path: Path, tiny_source: str) -> None:
    settings = COMPARE.model_copy(update={"data": tiny_source, "clients": 2})
    udjfl.compare(settings, out=tmp_path)
    before = contents(tmp_path)
    played: list[int] = []

    def progress(method: udjfl.Method, seed: int, stage: str, done: int, total: int) -> None:
        if done < total:  # that all is done may be said
            played.append(done)

    udjfl.compare(settings, out=tmp_path, resume=True, progress=progress)
    assert played == []
    assert contents(tmp_path) == before


def test_a_comparison_with_a_method_that_diverges_is_resumed_with_the_same_words(
    tmp_path: Path, tiny_source: str
) -> None:
    settings = COMPARE.model_copy(update={"data": tiny_source, "clients": 2})

    @udjfl.parameters
    class Diverging(ServerMomentum):
        name: ClassVar[str] = "diverging"

        def aggregate(self, state: Any, reports: udjfl.Reports) -> Any:
            state, step, diagnostics = super().aggregate(state, reports)
            return state, step / 0 if reports.round == 3 else step, diagnostics

    first = udjfl.compare(settings, methods=[Diverging()], out=tmp_path)
    assert "round 3" in first.rows[1].failed[0]
    before = contents(tmp_path)
    again = udjfl.compare(settings, methods=[Diverging()], out=tmp_path, resume=True)
    assert again.as_dict() == first.as_dict()
    assert contents(tmp_path) == before


def test_a_comparison_with_other_settings_is_refused(tmp_path: Path, tiny_source: str) -> None:
    settings = COMPARE.model_copy(update={"data": tiny_source, "clients": 2})
    udjfl.compare(settings, out=tmp_path)
    before = contents(tmp_path)
    with pytest.raises(
        StorageError, match=r"already holds a comparison; continue it with `udjfl resume"
    ):
        udjfl.compare(settings, out=tmp_path)
    with pytest.raises(StorageError, match="other settings; resume it with the same"):
        udjfl.compare(settings.model_copy(update={"rounds": 5}), out=tmp_path, resume=True)
    with pytest.raises(UdjflError):  # a comparison is not a run
        udjfl.simulate(make_federation(), "rawls", out=tmp_path, resume=True, **TINY)
    assert contents(tmp_path) == before


def test_a_comparison_of_other_methods_is_refused(tmp_path: Path, tiny_source: str) -> None:
    """`methods=` replaces those in the settings: what was compared must be written down too."""
    settings = COMPARE.model_copy(update={"data": tiny_source, "clients": 2})
    udjfl.compare(settings, methods=[ServerMomentum()], out=tmp_path)
    before = contents(tmp_path)
    with pytest.raises(StorageError, match="method"):
        udjfl.compare(settings, out=tmp_path, resume=True)
    assert contents(tmp_path) == before


def test_reasons_have_one_order(tmp_path: Path, federation: udjfl.Federation) -> None:
    """Taken from a set, their order in comparison.json would change from process to process."""
    comparison = udjfl.compare(COMPARE, federation=make_federation(n_clients=1))
    reasons = comparison.as_dict()["methods"][1]["undefined"]
    assert list(reasons) == ["pearson_r", "psi"]


# --- from the command line ---------------------------------------------------------------------------------------


def test_command_resumes_a_run(
    tmp_path: Path,
    tiny_source: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = "--data tiny --clients 2 --method udj:theory=rawls -p beta=1,2 --seed 3 --model logistic --rounds 5 "
    flags = [*(chosen + "--checkpoint-every 2 --uncertainty-epochs 1 --json --out").split()]
    assert command(monkeypatch, "run", *flags, tmp_path / "whole") == 0
    first = json.loads(capsys.readouterr().out)
    assert command(monkeypatch, "run", *flags, tmp_path / "run") == 0
    for name in ("checkpoint.safetensors", "model.safetensors", "result.json"):
        (tmp_path / "run" / name).unlink()
    capsys.readouterr()
    assert command(monkeypatch, "resume", tmp_path / "run", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert {**again, "folder": None} == {**first, "folder": None}
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_command_resumes_a_comparison(
    tmp_path: Path,
    tiny_source: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = "--data tiny --clients 2 --methods rawls,desert --seeds 2 --model logistic --rounds 3 --uncertainty-epochs 1"
    assert command(monkeypatch, "compare", *chosen.split(), "--json", "--out", tmp_path) == 0
    first = capsys.readouterr().out
    before = contents(tmp_path)
    (tmp_path / "comparison.json").unlink()
    (
        tmp_path / "seed-1" / folder_name(udjfl.UDJ(theory="desert")) / "checkpoint.safetensors"
    ).unlink()
    assert command(monkeypatch, "resume", tmp_path, "--json") == 0
    assert capsys.readouterr().out == first
    assert contents(tmp_path) == before


def test_command_and_a_run_with_data_of_its_own(
    tmp_path: Path,
    federation: udjfl.Federation,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(Stopped):
        udjfl.simulate(federation, "rawls", out=tmp_path, progress=stop_after(5), **TINY)
    before = contents(tmp_path)
    assert command(monkeypatch, "resume", tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "started from Python with data of its own; call udjfl.simulate(" in line
    assert f"out={str(tmp_path)!r}, resume=True) with the same federation" in line
    assert contents(tmp_path) == before


@pytest.mark.parametrize("own", ["federation", "methods"])
def test_command_and_a_comparison_with_something_of_its_own(
    tmp_path: Path,
    tiny_source: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    own: str,
) -> None:
    """The command cannot know that federation or those methods; running the settings' own in their place would be wrong."""
    settings = COMPARE.model_copy(update={"data": tiny_source, "clients": 2})
    given: Any = (
        {"federation": make_federation()}
        if own == "federation"
        else {"methods": [ServerMomentum()]}
    )

    def stop(*anything: object) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        udjfl.compare(settings, **given, out=tmp_path, progress=stop)
    assert command(monkeypatch, "resume", tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "started from Python" in line
    assert "udjfl.compare(" in line


@pytest.mark.parametrize(
    "content", ["", "{", "null", "[]", '{"origin": {"data": "tiny"}}', '{"comparison": 3}']
)
def test_command_and_damaged_settings(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str,
) -> None:
    (tmp_path / "settings.json").write_text(content)
    assert command(monkeypatch, "resume", tmp_path) == 2
    assert "settings.json" in capsys.readouterr().err


def test_command_and_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "resume", tmp_path / "nowhere") == 2
    assert "holds no run" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_command_resumes_a_named_source_started_from_python(
    tmp_path: Path, tiny_source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`load` writes down how it was called, so the folder alone is enough."""
    made = udjfl.load(tiny_source, clients=2, seed=0)
    udjfl.simulate(made, "rawls", out=tmp_path / "whole", **TINY)
    with pytest.raises(Stopped):
        udjfl.simulate(made, "rawls", out=tmp_path / "run", progress=stop_after(5), **TINY)
    assert command(monkeypatch, "resume", tmp_path / "run") == 0
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
