"""Twenty nodes as `udjfl flower node` runs them, for minutes; something is killed every minute."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deployed_nodes import DeployedNodes, wait_until
from shared_deployment import DeployedRun

import udjfl
from udjfl.deployment.coordinator import Coordinator
from udjfl.deployment.node import Node
from udjfl.deployment.processes import process_table

SUPERNODE, EXECUTOR = b"udjfl.deployment.supernode", b"udjfl.deployment.warm"
PROXY, SERVER_APP = b"udjfl.deployment.proxy", b"flwr-serverapp"
SUPERLINK, SUPEREXEC = b"flower-superlink", b"flower-superexec"
# What is killed, in turn. The proxy is every node's connection; the rest is one node's.
KINDS = ("message", "supernode", "executor", "superexec", "proxy")


@dataclass(frozen=True)
class Kill:
    """What was killed, of which client (None: of the coordinator), and when (time.time)."""

    kind: str
    client: str | None
    at: float


@dataclass
class Sample:
    """Resident bytes and open files of every process that stays, by process and start time."""

    memory: dict[tuple[int, str], int] = field(default_factory=dict)
    files: dict[tuple[int, str], int] = field(default_factory=dict)


class Soak(DeployedNodes):
    """Nodes that train while their processes are killed."""

    def __init__(self, folder: Path, federation: udjfl.Federation) -> None:
        super().__init__(folder, federation)
        self.kills: list[Kill] = []
        self.samples: list[Sample] = []
        self.names: dict[tuple[int, str], str] = {}

    def run(self, run: DeployedRun, minutes: float, kill_every: float) -> int:
        """Train for so many minutes, and kill something now and then; return the last round."""
        run_id, rng, number = run.submit(), random.Random(0), 0
        wait_until((run.models / "2.npy").exists)
        begin = time.time()
        while (since := time.time() - begin) < 60 * minutes:
            assert self.outcome(run_id) is None, self.log(run_id)
            if since > (number + 1) * kill_every:
                self.samples.append(self.sample())
                kind, client = KINDS[number % len(KINDS)], rng.choice(list(self.nodes))
                self.kill(kind, client, lambda: self.outcome(run_id) is not None)
                number += 1
            time.sleep(1)
        with self.coordinator.control() as control:
            control.stop(int(run_id))
        wait_until(lambda: self.outcome(run_id) is not None)
        return max(int(path.stem) for path in run.models.glob("*.npy"))

    def kill(self, kind: str, client: str, ended: Callable[[], bool]) -> None:
        """Kill a process of one kind, of this client or of the coordinator, once there is one."""
        find: dict[str, Callable[[], Sequence[int]]] = {
            "proxy": lambda: children_with(self._supervisor(self.coordinator), PROXY),
            "supernode": lambda: children_with(self._supervisor(self.nodes[client]), SUPERNODE),
            "executor": lambda: self._executor(client),
            "superexec": lambda: by_age(self._executor(client))[:1],
            "message": lambda: by_age(self._executor(client))[1:],
        }
        looks = 0
        while not (pids := find[kind]()):
            looks += 1
            if looks % 1000 == 0 and ended():
                return
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError):  # the process of a message ends by itself
            os.kill(pids[0], signal.SIGKILL)
            self.kills.append(Kill(kind, None if kind == "proxy" else client, time.time()))

    def _executor(self, client: str) -> list[int]:
        return children_with(self._supervisor(self.nodes[client]), EXECUTOR)

    def _supervisor(self, member: Coordinator | Node) -> int:
        running = json.loads((member.state / "running.json").read_text(encoding="utf-8"))
        return int(running["pid"])

    def sample(self) -> Sample:
        """Measure every process but those of messages."""
        sample, table = Sample(), process_table()
        members: dict[str, Coordinator | Node] = {"study": self.coordinator, **self.nodes}
        for name, member in members.items():
            tree = [self._supervisor(member)]
            for pid in tree:
                tree += [other for other, (parent, _) in table.items() if parent == pid]
            for pid in tree:
                with contextlib.suppress(OSError, KeyError, ValueError):
                    key = pid, table[pid][1]
                    kind = describe(pid)
                    self.names[key] = f"{name} {kind}"
                    sample.memory[key] = resident(pid)
                    sample.files[key] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return sample


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        listing = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
        return [int(child) for child in listing.split()]
    return []


def children_with(pid: int, mark: bytes) -> list[int]:
    """Return the children of a process that have this in their command line."""
    return [child for child in children(pid) if mark in command_of(child)]


def by_age(executor: Sequence[int]) -> list[int]:
    """Return the children of an executor, if there is one: SuperExec, then those of messages."""
    table = process_table()
    found = [child for pid in executor for child in children(pid) if child in table]
    return sorted(found, key=lambda pid: int(table[pid][1]))


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def describe(pid: int) -> str:
    marks = (SUPERNODE, EXECUTOR, PROXY, SERVER_APP, SUPERLINK, SUPEREXEC)
    found = [mark.decode().rpartition(".")[2] for mark in marks if mark in command_of(pid)]
    return found[0] if found else "supervisor"


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def growth(
    samples: Sequence[Sample], values: Callable[[Sample], dict[tuple[int, str], int]]
) -> Iterator[tuple[tuple[int, str], int, int]]:
    """Yield each process that is in the last sample, its value when settled, and its last one.

    Settled means a third of the samples in which it is, but not before the third.
    """
    for key in values(samples[-1]):
        own = [values(sample)[key] for sample in samples if key in values(sample)]
        if len(own) > 5:
            yield key, max(own[2 : 2 + len(own) // 3]), own[-1]
