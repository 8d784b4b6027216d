"""Twenty minutes, twenty nodes, and something killed every minute. Run by `make soak`.

UDJFL_SOAK_CLIENTS and UDJFL_SOAK_MINUTES (at least 8) make it smaller.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from deployed_nodes import wait_until
from deployed_soak import Soak, growth
from shared_deployment import DeployedRun

import udjfl
from udjfl.simulation.local_clients import LocalClients
from udjfl.training.clients import Attendance

pytestmark = [
    pytest.mark.processes,
    pytest.mark.soak,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux"),
]

CLIENTS = int(os.environ.get("UDJFL_SOAK_CLIENTS", "20"))
MINUTES = float(os.environ.get("UDJFL_SOAK_MINUTES", "20"))
KILL_EVERY = 60.0  # seconds
PACE = 6.0  # seconds that a round takes at least
# A model without kinks: at a ReLU's, a last bit can decide on which side an example is, and after a
# hundred rounds the simulator's model can differ by more than rounding.
TRAINING: dict[str, Any] = {"model": "logistic", "lr": 0.1, "uncertainty_epochs": 2}
# Seconds after a kill within which a round in which the client is absent may begin. A SuperNode
# counts as online for a minute, and tries to come back in pauses of up to half a minute. One whose
# TLS handshake breaks off with a killed proxy ends, and is started again like a killed one.
RECOVERY = {"supernode": 150.0, "proxy": 150.0}
OTHER_RECOVERY = 30.0
ALLOWED_MEMORY, ALLOWED_FILES = 16 << 20, 8


@pytest.fixture(scope="module")
def soak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soak]:
    federation = udjfl.load("dirty-digits", clients=CLIENTS, seed=0)
    with Soak(tmp_path_factory.mktemp("soak"), federation) as soak:
        soak.start_coordinator()
        soak.start_nodes()
        yield soak


@dataclass(frozen=True)
class Trained:
    """A run that was stopped after its last round."""

    run: DeployedRun
    rounds: int


@pytest.fixture(scope="module")
def trained(soak: Soak) -> Trained:
    # A killed proxy can lose every reply that is under way, so that few are left in that round.
    others = {"method": "rawls", "round_timeout": 60.0, "eval_every": 10, "quorum": 1}
    run = soak.new_run(**TRAINING, **others, pace=PACE, rounds=10_000)
    return Trained(run, soak.run(run, MINUTES, KILL_EVERY))


def test_every_round_is_explained(soak: Soak, trained: Trained) -> None:
    """A client's report was used, or the record says why not; and something of it was killed."""
    history, rounds = trained.run.history, trained.rounds
    ends = {int(path.stem): path.stat().st_mtime for path in trained.run.models.glob("*.npy")}
    assert sorted(ends) == list(range(1, rounds + 1))
    absences: list[tuple[int, str, str]] = []
    unexplained: list[tuple[int, str, str]] = []
    longest: Counter[str] = Counter()
    for t in range(1, rounds + 1):
        used = set(history.by_client("weight", t))
        absent = history.by_client("absent", t)
        assert history.by_client("excluded", t) == {}
        assert used | set(absent) == set(soak.nodes)
        assert not used & set(absent)
        begin = ends.get(t - 1, 0.0)
        for client, reason in absent.items():
            assert reason
            absences.append((t, client, str(reason)))
            since = {
                kill.kind: max(0.0, begin - kill.at)
                for kill in soak.kills
                if kill.client in (client, None) and kill.at < ends[t]
            }
            kind = min(since, key=since.__getitem__, default="none")
            longest[kind] = max(longest[kind], round(since.get(kind, 0.0)))
            if all(wait >= RECOVERY.get(kind, OTHER_RECOVERY) for kind, wait in since.items()):
                unexplained.append(absences[-1])
    lasted = ends[rounds] - ends[1]
    print(f"{rounds} rounds in {lasted / 60:.1f} minutes, {len(soak.nodes)} clients")
    print(f"killed: {dict(Counter(kill.kind for kill in soak.kills))}")
    print(f"absent: {dict(Counter(reason for _, _, reason in absences))}")
    print(f"seconds from the last kill to an absence, at most: {dict(longest)}")
    print(f"rounds with all clients: {rounds - len({t for t, *_ in absences})}")
    assert len(soak.kills) >= MINUTES - 2
    assert absences
    assert unexplained == []


def test_the_final_model_is_that_of_the_surviving_reports(
    soak: Soak, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator, in which the same clients are absent in the same rounds."""
    history = trained.run.history

    def reach(clients: LocalClients, round: int, client_indices: Any) -> Attendance:
        absent = {name: str(why) for name, why in history.by_client("absent", round).items()}
        there = [index for index in client_indices if clients.run.ids[index] not in absent]
        return Attendance(there, absent)

    monkeypatch.setattr(LocalClients, "reach", reach)
    simulated = udjfl.simulate(soak.federation, "rawls", **TRAINING, rounds=trained.rounds)
    expected = torch.nn.utils.parameters_to_vector(simulated.model.parameters()).detach()
    found = trained.run.model_after(trained.rounds)
    print(f"largest difference {float((found - expected).abs().max()):.1e}")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("trained")
def test_memory_and_open_files_do_not_grow(soak: Soak) -> None:
    memory = list(growth(soak.samples, lambda sample: sample.memory))
    files = list(growth(soak.samples, lambda sample: sample.files))
    assert len(memory) > len(soak.nodes)
    largest: dict[str, str] = {}
    for key, settled, last in sorted(memory, key=lambda row: row[2] - row[1]):
        growth_of = f"{(last - settled) / 2**20:.1f} of {settled >> 20}"
        largest[soak.names[key].split()[1]] = growth_of
    print(f"largest growth, in MiB: {largest}")
    print(f"open files, at most {max(last - settled for _, settled, last in files)} more")
    grown = {soak.names[k]: (s, e) for k, s, e in memory if e > s + ALLOWED_MEMORY}
    assert grown == {}
    opened = {soak.names[k]: (s, e) for k, s, e in files if e > s + ALLOWED_FILES}
    assert opened == {}


def test_nothing_is_left_behind(soak: Soak) -> None:
    wait_until(lambda: soak.notes() == [])
    assert len(soak.left_behind()) >= 3 * len(soak.nodes)
    soak.stop()
    assert soak.left_behind() == {}
    assert list(soak.folder.rglob("running.json")) == []
