"""What the numbers were taken on: no names, no paths."""

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
    """CPU, cores, memory, versions, and how busy the machine is before anything is measured."""
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
    """Processes that wanted to run, on average over the last minute."""
    return round(os.getloadavg()[0], 2)


class Others:
    """How many cores everybody else kept busy, on average, from when this was made. Our children count when they have ended."""

    def __init__(self) -> None:
        self.began, self.everybody, self.ours = time.perf_counter(), _busy_seconds(), _our_seconds()

    def cores(self) -> float:
        used = (_busy_seconds() - self.everybody) - (_our_seconds() - self.ours)
        return round(max(used, 0.0) / (time.perf_counter() - self.began), 2)


def _busy_seconds() -> float:
    """Of all cores since the machine started: what was not idle and not waiting for the disk; stolen time is busy too."""
    first = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _, _, irq, softirq, steal = (int(ticks) for ticks in first)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _our_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _field(path: str, name: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def light_start(repetitions: int) -> dict[str, list[float]]:
    """Seconds of `udjfl --help` and of `import torch`, in turns; the first of each, which reads from the disk, is left out."""
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
