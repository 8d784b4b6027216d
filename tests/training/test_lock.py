"""The lock of a run folder: one process writes, and a killed process blocks no other."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command import Command, mistakes_of
from small_runs import Stopped, create_folder, make_federation, read_files, stop_after

import udjfl
from udjfl._processes import start_time
from udjfl.errors import StorageError
from udjfl.training import folder_lock
from udjfl.training.folder_lock import LOCK, OWNER, FolderLock
from udjfl.training.run_folder import RunFolder

TINY: dict[str, Any] = {
    "model": "logistic",
    "rounds": 6,
    "checkpoint_every": 2,
    "uncertainty_epochs": 1,
}
FLAGS = "--model logistic --rounds 40 --checkpoint-every 3 --uncertainty-epochs 1"
BUSY = f"is being written by process {os.getpid()} on {socket.gethostname()}; wait until it ends"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return the command `udjfl`, called in this process, which does not wait for a lock."""
    monkeypatch.setattr(folder_lock, "TIMEOUT", 0.05)
    return Command(monkeypatch, capsys)


@contextmanager
def hold(folder: RunFolder) -> Iterator[None]:
    """Hold the lock for a block of code."""
    folder.lock()
    try:
        yield
    finally:
        folder.unlock()


def interrupt_run(out: Path, round: int = 5) -> None:
    """Start the run that `FLAGS` describe, on data that a command can load, and stop it."""
    settings = {**TINY, "rounds": 40, "checkpoint_every": 3}
    with pytest.raises(Stopped):
        udjfl.simulate("dirty-digits", "rawls", out=out, on_progress=stop_after(round), **settings)


def count_records(folder: Path) -> Counter[tuple[int, str | None, str]]:
    lines = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return Counter((record["round"], record["client"], record["metric"]) for record in records)


# --- one process


def test_the_owner_is_named_while_the_lock_is_held(tmp_path: Path) -> None:
    folder = create_folder(tmp_path)
    owner = FolderLock(folder.path).read_owner()
    pid = os.getpid()
    assert owner == {"pid": pid, "host": socket.gethostname(), "started": start_time(pid)}
    folder.unlock()
    assert set(read_files(tmp_path)) == {LOCK, "manifest.json", "settings.json", "versions.json"}


def test_a_second_writer_is_refused_until_the_first_unlocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "TIMEOUT", 0.05)
    first = create_folder(tmp_path)
    second = RunFolder.open(tmp_path)
    with pytest.raises(StorageError, match=BUSY):
        second.lock()
    second.unlock()  # it holds nothing: the first still does
    assert FolderLock(first.path).read_owner()
    with pytest.raises(StorageError, match=BUSY):
        create_folder(tmp_path)
    first.unlock()
    with hold(second):
        assert FolderLock(second.path).read_owner()["pid"] == os.getpid()


def test_the_lock_is_released_after_an_error(tmp_path: Path) -> None:
    create_folder(tmp_path).unlock()
    folder = RunFolder.open(tmp_path)
    with pytest.raises(ZeroDivisionError), hold(folder):
        raise ZeroDivisionError
    with pytest.raises(StorageError, match="already holds a run"):
        create_folder(tmp_path)
    with hold(RunFolder.open(tmp_path)):
        pass


def test_the_lock_is_released_if_its_owner_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while a caller holds the exception, which refers to the folder."""

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(StorageError, match="the disk is full") as caught:
            create_folder(tmp_path)
    monkeypatch.setattr(folder_lock, "TIMEOUT", 0.05)
    create_folder(tmp_path).unlock()
    del caught


def test_a_run_on_its_own_federation_holds_the_lock_and_releases_it(tmp_path: Path) -> None:
    """Also when it fails: the same process resumes it at once."""
    owners: list[Any] = []

    def on_progress(event: udjfl.Progress) -> None:
        owners.append(FolderLock(tmp_path).read_owner()["pid"])
        if event.stage == "training" and event.done == 3:
            raise Stopped

    federation = make_federation()
    with pytest.raises(Stopped):
        udjfl.simulate(federation, "rawls", out=tmp_path, on_progress=on_progress, **TINY)
    assert set(owners) == {os.getpid()}
    assert OWNER not in read_files(tmp_path)
    udjfl.simulate(federation, "rawls", out=tmp_path, resume=True, **TINY)
    assert OWNER not in read_files(tmp_path)


# --- commands while another process writes


def test_resume_is_refused_while_another_process_writes(tmp_path: Path) -> None:
    """The command runs in a process of its own; this process holds the lock."""
    out = tmp_path / "run"
    interrupt_run(out)
    with hold(RunFolder.open(out)):
        before = read_files(tmp_path)
        done = subprocess.run(
            [sys.executable, "-m", "udjfl", "resume", str(out)], capture_output=True, text=True
        )
        assert read_files(tmp_path) == before
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"udjfl: {out} {BUSY}, or stop it"


@pytest.mark.parametrize("name", ["run", "compare"])
def test_a_new_run_is_refused_while_another_process_writes(
    tmp_path: Path, command: Command, name: str
) -> None:
    """The other process has the lock and has not written its settings yet."""
    folder = RunFolder(tmp_path / "run")
    folder.lock()
    before = read_files(tmp_path)
    (line,) = mistakes_of(command(name, FLAGS, "--out", folder.path))
    assert BUSY in line
    assert read_files(tmp_path) == before
    folder.unlock()


@pytest.mark.parametrize("locked", ["the comparison", "one of its runs"])
def test_resuming_a_comparison_is_refused_while_another_process_writes(
    tmp_path: Path, command: Command, locked: str
) -> None:
    out = tmp_path / "compared"
    flags = "--methods rawls --seeds 1 --model logistic --rounds 2 --uncertainty-epochs 1 --out"
    assert command("compare", flags, out).code == 0
    run = next(out.rglob("result.json")).parent
    (run / "result.json").unlink()
    folder = RunFolder.open(out if locked == "the comparison" else run)
    with hold(folder):
        before = read_files(tmp_path)
        (line,) = mistakes_of(command("resume", out))
        assert line == f"{folder.path} {BUSY}, or stop it"
        assert read_files(tmp_path) == before
    assert command("resume", out).code == 0  # nothing else is left locked


# --- a killed process

KILLED = """
import sys, time
from small_runs import make_federation
import udjfl

def wait(event):
    if event.stage == "training" and event.done == 3:
        print("waiting", flush=True)
        time.sleep(600)

udjfl.simulate(make_federation(), "rawls", "logistic", rounds=6, checkpoint_every=2,
               uncertainty_epochs=1, engine="serial", workers=2, out=sys.argv[1], on_progress=wait)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_lock_left_by_a_killed_process_does_not_block(tmp_path: Path) -> None:
    """Its forked workers have inherited the lock; they end when it does."""
    settings = {**TINY, "engine": "serial"}
    udjfl.simulate(make_federation(), "rawls", out=tmp_path / "whole", **settings)
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(out)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"waiting\n"
    with pytest.raises(StorageError, match=f"is being written by process {process.pid} on "):
        udjfl.simulate(make_federation(), "rawls", out=out, resume=True, **settings)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert json.loads(read_files(out)[OWNER])["pid"] == process.pid
    udjfl.simulate(make_federation(), "rawls", out=out, resume=True, **settings)
    whole = read_files(tmp_path / "whole")
    files = read_files(out)
    settings_of_both = [json.loads(each.pop("settings.json")) for each in (files, whole)]
    for each in (files, whole):  # these repeat the SHA-256 of the settings
        del each["manifest.json"], each["checkpoint.safetensors"]
    assert files == whole
    assert settings_of_both[0]["training"].pop("workers") == 2
    assert settings_of_both[1]["training"].pop("workers") == 0
    assert settings_of_both[0] == settings_of_both[1]


# --- two processes at once

START_TOGETHER = """
import sys, time
from pathlib import Path
from udjfl.cli.main import main
import udjfl.cli.commands, udjfl.engine, udjfl.report.comparison_table, udjfl.simulation.compare

folder = Path(sys.argv.pop(1))
(folder / f"ready-{sys.argv.pop(1)}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
main()
"""


def run_together(folder: Path, *arguments: str | Path) -> list[tuple[int, str]]:
    """Run one command in two processes that start at the same time; return codes and errors."""
    folder.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", START_TOGETHER, str(folder), name, *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    while not all((folder / f"ready-{name}").exists() for name in ("a", "b")):
        if any(process.poll() is not None for process in processes):
            break  # its error is returned
        time.sleep(0.005)
    (folder / "go").touch()
    errors = [process.communicate()[1] for process in processes]
    return [(process.returncode, error) for process, error in zip(processes, errors, strict=True)]


def test_two_resumes_at_once_write_every_record_once(tmp_path: Path, command: Command) -> None:
    """The second waits for the first and finds a finished run, or is refused."""
    assert command("run --method rawls", FLAGS, "--out", tmp_path / "whole").code == 0
    interrupt_run(tmp_path / "run")
    outcomes = run_together(tmp_path / "start", "resume", tmp_path / "run")
    assert min(code for code, _ in outcomes) == 0, outcomes
    for code, errors in outcomes:
        assert code == 0 or (code == 2 and "is being written by process" in errors), errors
    assert set(count_records(tmp_path / "run").values()) == {1}
    assert read_files(tmp_path / "run") == read_files(tmp_path / "whole")


def test_two_comparisons_at_once_in_one_folder_make_one(tmp_path: Path, command: Command) -> None:
    """The second is refused: while the first writes, and when it has finished."""
    flags = ("compare --methods rawls --seeds 2", FLAGS, "--out")
    assert command(*flags, tmp_path / "whole").code == 0
    words = [word for flag in flags for word in flag.split()]
    outcomes = run_together(tmp_path / "start", *words, tmp_path / "run")
    assert sorted(code for code, _ in outcomes) == [0, 2], outcomes
    (refusal,) = [errors for code, errors in outcomes if code == 2]
    assert "is being written by process" in refusal or "already holds a" in refusal
    runs = sorted(path.parent for path in (tmp_path / "run").rglob("records.jsonl"))
    assert len(runs) == 4
    for run in runs:
        assert set(count_records(run).values()) == {1}
    assert read_files(tmp_path / "run") == read_files(tmp_path / "whole")
