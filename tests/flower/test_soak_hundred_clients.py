"""A hundred clients on one SuperLink: none is missing, and memory does not grow.

Run by `make soak`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from deploy import APP
from deploy.local import Deployment

from udjfl.training.follow import FollowedRun

pytestmark = [pytest.mark.processes, pytest.mark.soak]

CLIENTS, ROUNDS = 100, 20
FEATURES, CLASSES, HIDDEN = 8, 2, 2400
# An update is at least the weights of two layers in float32, 96 kB: 10 MB of replies in a round.
REPLIES_OF_A_ROUND = CLIENTS * (FEATURES + CLASSES) * HIDDEN * 4
# Peak memory is compared, because the current memory depends on the moment within a round. The
# first rounds raise the peak, later ones may not: keeping every reply, or every message, would add
# 9 rounds of them (86 MB). The server app may have ended before a look after the last round.
SETTLED, LAST = 10, ROUNDS - 1
ALLOWED = 2 * REPLIES_OF_A_ROUND
TIMEOUT = 3 * 3600.0  # the SuperLink serves some 50,000 requests
PAUSE = 5.0
SERVER_APP, SUPERLINK = "flwr-serverapp", "flower-superlink"


@dataclass
class Observations:
    """The run as observed. `memory` is the processes' peak by the end of a round, in bytes."""

    status: str = ""
    output: str = ""
    records: list[dict] = field(default_factory=list)
    memory: dict[int, Counter[str]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def observed() -> Iterator[Observations]:
    seen = Observations()
    with Deployment() as deployment:
        files = write_data(deployment.folder / "data")
        superlink = deployment.start_superlink()
        deployment.start_swarm(files, PAUSE)
        out = deployment.folder / "run"
        settings = {
            "method": "fedavg",
            "clients": CLIENTS,
            "quorum": CLIENTS,
            "rounds": ROUNDS,
            "hidden": HIDDEN,
            "eval-every": ROUNDS,
            "out": str(out),
            "server-data": str(deployment.folder / "data" / "server.npz"),
        }

        followed = FollowedRun(out)

        def record_memory() -> None:
            followed.update()
            done = followed.reached
            if done and done not in seen.memory:
                seen.memory[done] = peak_memory(superlink.alive())

        finished = deployment.run(APP, settings, TIMEOUT, watch=record_memory)
        seen.status, seen.output = finished.status, finished.output
        if finished.completed:
            seen.records = [
                json.loads(line)
                for line in (out / "records.jsonl").read_text(encoding="utf-8").splitlines()
            ]
        yield seen


def write_data(folder: Path) -> dict[str, Path]:
    """Write twelve examples for each client; the server's file has their shape only."""
    generator = np.random.default_rng(0)
    files = {}
    folder.mkdir()
    for number in range(CLIENTS):
        x, y = generator.normal(size=(12, FEATURES)).astype(np.float32), np.arange(12) % CLASSES
        path = files[f"client{number}"] = folder / f"client{number}.npz"
        np.savez(path, x_train=x[:8], y_train=y[:8], x_test=x[8:], y_test=y[8:], n_classes=CLASSES)
    np.savez(folder / "server.npz", input_shape=[FEATURES], n_classes=CLASSES)
    return files


def peak_memory(pids: list[int]) -> Counter[str]:
    """Return the peak resident bytes of the server app, and of the SuperLink's other processes."""
    peaks: Counter[str] = Counter()
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:  # there is no /proc, or the process has just ended
            continue
        peak = [
            int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")
        ]
        peaks[SERVER_APP if SERVER_APP in command else SUPERLINK] += sum(peak)
    return peaks


def test_a_hundred_clients_finish_twenty_rounds(observed: Observations) -> None:
    assert observed.status == "finished:completed", observed.output


def test_every_client_is_in_every_round(observed: Observations) -> None:
    """A weight is recorded for each report that was used; absences and exclusions are too."""
    used = Counter(record["round"] for record in observed.records if record["metric"] == "weight")
    assert used == dict.fromkeys(range(1, ROUNDS + 1), CLIENTS)
    assert [
        record for record in observed.records if record["metric"] in ("absent", "excluded")
    ] == []
    tested = {
        record["client"] for record in observed.records if record["metric"] == "test_accuracy"
    } - {None}
    assert len(tested) == CLIENTS


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="only /proc tells how much memory another process has",
)
@pytest.mark.parametrize("process", [SERVER_APP, SUPERLINK])
def test_the_servers_memory_does_not_grow_with_rounds(process: str, observed: Observations) -> None:
    by_round = {t: round(seen[process] / 1e6, 1) for t, seen in observed.memory.items()}
    print(f"{process}, MB by round: {by_round}")
    assert {SETTLED, LAST} <= by_round.keys(), "rounds were missed"
    settled, last = observed.memory[SETTLED][process], observed.memory[LAST][process]
    assert 0 < last < settled + ALLOWED, by_round
