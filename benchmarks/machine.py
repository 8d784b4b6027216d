"""The machine that measures, without names and paths."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.environments import PEERS, TORCH, child_environment


def describe() -> dict[str, Any]:
    """Return CPU, cores, memory, versions, and the load before anything is measured."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(
            int((_field("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 1e6, 1
        ),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "udjfl": version("udjfl"),
        "peers": {peer.name: f"{peer.package} {peer.version}" for peer in PEERS.values()}
        | {"torch of the peers": TORCH},
        "load_before": load(),
        "taken": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def load() -> float:
    """Return the number of processes that wanted to run, on average over the last minute."""
    return round(os.getloadavg()[0], 2)


class OtherProcesses:
    """The cores that other processes keep busy, on average since this object was made.

    Children of this process count as its own once they have ended.
    """

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.all_before, self.own_before = _busy_seconds(), _own_seconds()

    def busy_cores(self) -> float:
        used = (_busy_seconds() - self.all_before) - (_own_seconds() - self.own_before)
        return round(max(used, 0.0) / (time.perf_counter() - self.began), 2)


def _busy_seconds() -> float:
    """Return the seconds in which cores were busy since the machine started; stolen time too."""
    first = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _, _, irq, softirq, steal = (int(ticks) for ticks in first)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _field(path: str, name: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def measure_start_up(repetitions: int) -> dict[str, list[float]]:
    """Return the seconds of `udjfl --help` and of `import torch`, in turns.

    The first of each, which reads from the disk, is left out.
    """
    commands = {
        "udjfl --help": [str(Path(sys.executable).parent / "udjfl"), "--help"],
        "import torch": [sys.executable, "-c", "import torch"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repetitions + 1):
        for name, command in commands.items():
            begin = time.perf_counter()
            subprocess.run(
                command,
                env=child_environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
            seconds[name].append(time.perf_counter() - begin)
    print(
        "; ".join(f"{name}: {median(times[1:]):.2f} s" for name, times in seconds.items()),
        flush=True,
    )
    return {name: times[1:] for name, times in seconds.items()}
