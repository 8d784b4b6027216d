"""Random schedules of faults against the real round, and what must hold of each.

A seed decides the method, the clients, and for every round and client whether its reply is lost,
late, repeated, reordered, damaged, dishonest or whole, and when the server is started anew. The
model must be what the surviving reports give when they are fed to the method directly. A failing
seed is in the message; `check_seed(SEED)` plays it again.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from scripted_clients import (
    Fault,
    Script,
    ScriptedClients,
    as_client,
    lost,
    twice,
    with_delta,
    with_numbers,
    without,
)
from torch import Tensor

from udjfl import Reports, method
from udjfl.settings import TrainingSettings
from udjfl.training.federation_info import FederationInfo
from udjfl.training.lifecycle import RunLog
from udjfl.training.replies import ClientReply
from udjfl.training.round import run_round
from udjfl.training.run_folder import RunFolder
from udjfl.training.server_state import ServerState
from udjfl.training.state import Run, RunSpec
from udjfl.training.tensor_file import pack, unpack_content

METHODS = {name: method(name) for name in ("fedavg", "rawls", "utilitarian", "qffl", "term", "afl")}
LR = 0.1
# Faults after which the reply cannot be used.
FATAL: dict[str, Fault] = {
    "lost": lost,
    "nan": with_delta(lambda delta: delta * torch.nan),
    "infinite": with_delta(lambda delta: delta + torch.inf),
    "short": with_delta(lambda delta: delta[:1]),
    "table": with_delta(lambda delta: delta[None]),
    "negative loss": with_numbers(losses=-1.0),
    "nan loss": with_numbers(losses=float("nan")),
    "no examples": with_numbers(sizes=0.0),
    "too many examples": with_numbers(sizes=1e300),
    "no uncertainty": without("uncertainties"),
    "stranger": as_client("stranger"),
}
# Faults after which it counts: as it is, or as the liar says.
HARMLESS: dict[str, Fault] = {
    "twice": twice,
    "three times the update": with_delta(lambda delta: 3 * delta),
    "another loss": with_numbers(losses=0.25),
}
WEIGHTS = {"": 12, "away": 2, **dict.fromkeys(FATAL, 1), **dict.fromkeys(HARMLESS, 2)}


@dataclass
class Schedule:
    """What a seed decides."""

    seed: int
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = chance = random.Random(self.seed)
        self.method = METHODS[chance.choice(sorted(METHODS))]
        self.n_clients, self.rounds = chance.randint(1, 5), chance.randint(1, 3)
        names, weights = list(WEIGHTS), list(WEIGHTS.values())
        self.ids = tuple(f"client-{i + 1}" for i in range(self.n_clients))
        self.kinds = {
            (round, name): chance.choices(names, weights)[0]
            for round in range(1, self.rounds + 1)
            for name in self.ids
        }
        self.restarts = {r for r in range(1, self.rounds) if chance.random() < 0.3}
        self.targets = torch.tensor(
            [[chance.uniform(-2, 2), chance.uniform(-2, 2)] for _ in self.ids]
        )

    def script(self) -> Script:
        """Return the schedule as a script for the clients."""
        faults = {**FATAL, **HARMLESS}
        away = {r: [n for n in self.ids if self.kinds[r, n] == "away"] for r, _ in self.kinds}
        return Script(
            away=away,
            faults={key: faults[kind] for key, kind in self.kinds.items() if kind in faults},
            order=self._shuffle,
        )

    def _shuffle(self, replies: list[ClientReply]) -> list[ClientReply]:
        order = random.Random(self.seed).sample(range(len(replies)), len(replies))
        # Of two replies of one client the first counts: those keep their order.
        first = {reply.id: index for index, reply in reversed(list(enumerate(replies)))}
        return [
            replies[i] for i in sorted(order, key=lambda i: (order.index(first[replies[i].id]), i))
        ]

    def survives(self, round: int, name: str) -> bool:
        kind = self.kinds[round, name]
        return kind == "" or kind in HARMLESS


def expected_model(schedule: Schedule, clients: ScriptedClients, initial: ServerState) -> Tensor:
    """Feed the surviving reports of each round to the method: no round loop, no replies."""
    vector, state = initial.vector, initial.state
    for round in range(1, schedule.rounds + 1):
        rows = [i for i, name in enumerate(schedule.ids) if schedule.survives(round, name)]
        if not rows:
            continue
        gradients = vector - schedule.targets[rows]
        deltas, losses = LR * gradients, gradients.square().sum(dim=1).double() / 2
        for row, index in enumerate(rows):
            kind = schedule.kinds[round, schedule.ids[index]]
            if kind == "three times the update":
                deltas[row] *= 3
            if kind == "another loss":
                losses[row] = 0.25
        reports = Reports(
            ids=[schedule.ids[i] for i in rows],
            deltas=deltas,
            losses=losses,
            sizes=[10.0 * (i + 1) for i in rows],
            uncertainties=[0.1 * (i + 1) for i in rows],
            steps=[1.0] * len(rows),
            client_indices=rows,
            lr=LR,
            round=round,
            model=vector,
        )
        state, step, _ = schedule.method.aggregate(state, reports)
        vector = vector - step.to(vector)
    return vector


def restart_in_memory(server: ServerState) -> ServerState:
    """Return the server as a new process reads it from a checkpoint."""
    content = pack(server.to_tensors(), {"round": server.round})
    tensors, metadata = unpack_content(content, Path("checkpoint"))
    return ServerState.from_tensors(metadata["round"], tensors)


def check_seed(seed: int, folder: Path | None = None) -> Counter[str]:
    """Play the schedule of a seed; with a folder, every restart reads it again."""
    schedule = Schedule(seed)
    training = TrainingSettings(
        rounds=schedule.rounds, lr=LR, momentum=0.0, on_bad_report="exclude", checkpoint_every=1
    )
    sizes = tuple(10.0 * (i + 1) for i in range(schedule.n_clients))
    info = FederationInfo(schedule.ids, sizes, torch.zeros(2, 2), 2)
    run = Run(RunSpec(schedule.method, training), info)
    clients = ScriptedClients(run, schedule.targets, schedule.script())
    state = {"weights": torch.full((schedule.n_clients,), 1 / schedule.n_clients).double()}
    initial = ServerState(0, torch.zeros(2), torch.zeros(0), make_state(schedule, state))
    disk = None if folder is None else RunFolder.create(folder, {"seed": seed}, {})
    log = RunLog(training, initial, disk)
    try:
        while log.server.round < schedule.rounds:
            result = run_round(run, log.server, clients)
            log.write(result.server, result.records)
            if log.server.round not in schedule.restarts:
                continue
            if disk is None:
                log.server = restart_in_memory(log.server)
            else:
                disk.unlock()
                disk = RunFolder.open(disk.path)
                disk.lock()
                log = RunLog(training, initial, disk)
        expected = expected_model(schedule, clients, initial)
        assert torch.equal(log.server.vector, expected), f"seed {seed}: {schedule.kinds}"
        records = log.history().records
        assert {r.round for r in records} <= set(range(1, schedule.rounds + 1)), f"seed {seed}"
    finally:
        if disk is not None:
            disk.unlock()
    return Counter(schedule.kinds.values())


def make_state(schedule: Schedule, default: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of the method before round 1."""
    from udjfl.methods import Setup

    sizes = torch.tensor([10.0 * (i + 1) for i in range(schedule.n_clients)], dtype=torch.float64)
    setup = Setup(schedule.ids, sizes, torch.zeros(2), layers=(2,), has_validation=False)
    return dict(schedule.method.init(setup))


def check_seeds(seeds: range, check: Callable[[int], Counter[str]] = check_seed) -> None:
    kinds: Counter[str] = Counter()
    for seed in seeds:
        kinds += check(seed)
    print(f"{len(seeds)} schedules, {sum(kinds.values())} replies: {dict(kinds)}")
    assert set(kinds) == set(WEIGHTS)  # every fault happened


@pytest.fixture(autouse=True)
def _no_warnings_of_methods(caplog: pytest.LogCaptureFixture) -> None:
    """Methods warn of clients that would have too much of a step: there are very many here."""
    caplog.set_level(logging.ERROR, logger="udjfl")


@pytest.mark.parametrize("start", range(0, 10_000, 2_500))
def test_the_model_is_what_the_surviving_reports_give(start: int) -> None:
    check_seeds(range(start, start + 2_500))


def test_the_same_with_restarts_from_disk(tmp_path: Path) -> None:
    check_seeds(range(60), lambda seed: check_seed(seed, tmp_path / str(seed)))


@pytest.mark.soak
@pytest.mark.parametrize("start", range(10_000, 1_010_000, 100_000))
def test_a_million_schedules(start: int) -> None:
    check_seeds(range(start, start + 100_000))
