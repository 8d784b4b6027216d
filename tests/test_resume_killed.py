"""A process killed at random moments resumes and produces identical bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_runs import read_files

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
