"""A hundred clients on one SuperLink: the run ends, everybody is in every round, and the server's memory does not grow."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from deploying import APP, Deployment, flower_demo

pytestmark = pytest.mark.processes

CLIENTS, ROUNDS = 100, 20
FEATURES, CLASSES, HIDDEN = 8, 2, 2400
# An update is at least the weights of the two layers, in float32: 96 kB, so a round's replies are some 10 MB.
REPLIES_OF_A_ROUND = CLIENTS * (FEATURES + CLASSES) * HIDDEN * 4
# What is compared is the most memory a process ever had: what it has at a moment depends on how far the next round is. The
# first rounds raise it, then nothing may. Whoever kept every reply, or every message, would have 9 rounds of them (86 MB) more.
# The server app may be gone before anybody looks after the last round.
SETTLED, LAST = 10, ROUNDS - 1
ALLOWED = 2 * REPLIES_OF_A_ROUND
PATIENCE = (
    3 * 3600.0
)  # the SuperLink takes part in some 50,000 requests, and others may be at work on the machine
PAUSE = 5.0
SERVER_APP, SUPERLINK = "flwr-serverapp", "flower-superlink"


@dataclass
class Load:
    """What was seen of the run. `memory` is the most that processes had by the end of a round, in bytes."""

    status: str = ""
    output: str = ""
    records: list[dict] = field(default_factory=list)
    memory: dict[int, Counter[str]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    seen = Load()
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

        def look() -> None:
            done = flower_demo.rounds_done(out)
            if done and done not in seen.memory:
                seen.memory[done] = memory(superlink.family())

        finished = deployment.run(APP, settings, PATIENCE, watch=look)
        seen.status, seen.output = finished.status, finished.output
        if finished.completed:
            seen.records = [
                json.loads(line)
                for line in (out / "records.jsonl").read_text(encoding="utf-8").splitlines()
            ]
        yield seen


def write_data(folder: Path) -> dict[str, Path]:
    """Twelve examples for each client; the server knows their shape."""
    generator = np.random.default_rng(0)
    files = {}
    folder.mkdir()
    for number in range(CLIENTS):
        x, y = generator.normal(size=(12, FEATURES)).astype(np.float32), np.arange(12) % CLASSES
        path = files[f"client{number}"] = folder / f"client{number}.npz"
        np.savez(path, x_train=x[:8], y_train=y[:8], x_test=x[8:], y_test=y[8:], n_classes=CLASSES)
    np.savez(folder / "server.npz", input_shape=[FEATURES], n_classes=CLASSES)
    return files


def memory(pids: list[int]) -> Counter[str]:
    """The most resident bytes that these had so far: the server app, and everything else that belongs to the SuperLink."""
    found: Counter[str] = Counter()
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:  # there is no /proc, or the process has just ended
            continue
        most = [
            int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")
        ]
        found[SERVER_APP if SERVER_APP in command else SUPERLINK] += sum(most)
    return found


def test_a_hundred_clients_finish_twenty_rounds(load: Load) -> None:
    assert load.status == "finished:completed", load.output


def test_everybody_is_in_every_round(load: Load) -> None:
    """A weight is recorded for each report that was used; who is absent or excluded is recorded as that."""
    used = Counter(record["round"] for record in load.records if record["metric"] == "weight")
    assert used == dict.fromkeys(range(1, ROUNDS + 1), CLIENTS)
    assert [record for record in load.records if record["metric"] in ("absent", "excluded")] == []
    tested = {
        record["client"] for record in load.records if record["metric"] == "test_accuracy"
    } - {None}
    assert len(tested) == CLIENTS


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="only /proc tells how much memory another process has",
)
@pytest.mark.parametrize("process", [SERVER_APP, SUPERLINK])
def test_the_servers_memory_does_not_grow_with_rounds(process: str, load: Load) -> None:
    by_round = {t: round(seen[process] / 1e6, 1) for t, seen in load.memory.items()}
    print(f"{process}, MB by round: {by_round}")
    assert {SETTLED, LAST} <= by_round.keys(), "rounds went by unseen"
    settled, last = load.memory[SETTLED][process], load.memory[LAST][process]
    assert 0 < last < settled + ALLOWED, by_round
