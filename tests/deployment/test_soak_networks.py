"""Networks that break without telling anybody. Run by `make soak`.

Two clients reach the coordinator through a link that the test breaks; one of them runs Flower's
own programs. The third one is connected as usual.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

pytest.importorskip("flwr")

from broken_network import Link
from deployed_nodes import DeployedNodes, wait_until
from shared_deployment import DeployedRun

import udjfl
from udjfl.deployment.node import CONNECTED, STARTING

pytestmark = [
    pytest.mark.processes,
    pytest.mark.soak,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux"),
]
ROUND_TIMEOUT = 45.0  # seconds
LATE, GONE = "did not reply in time", "is not connected"
HEARTBEATS = 60.0  # seconds after which the SuperLink considers a silent node gone


@dataclass
class Federation:
    nodes: DeployedNodes
    links: dict[str, Link]
    connected: str
    warm: str
    stock: str

    def break_at(self, run: DeployedRun, round: int) -> None:
        """Wait until a run has come to the gate before a round, which the test opens."""
        assert run.wait_for(f"waiting-{round}"), self.nodes.log("")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    data = udjfl.load("dirty-digits", clients=3, seed=0)
    connected, warm, stock = data.ids
    folder = tmp_path_factory.mktemp("networks")
    with ExitStack() as stack:
        nodes = stack.enter_context(DeployedNodes(folder, data))
        nodes.start_coordinator()
        links = {name: stack.enter_context(Link("127.0.0.1", nodes.port)) for name in (warm, stock)}
        nodes.start_nodes({name: link.address for name, link in links.items()}, stock=stock)
        yield Federation(nodes, links, connected, warm, stock)
        nodes.stop()  # before the links, so that nodes can sign off
        assert nodes.left_behind() == {}
        assert nodes.notes() == []


def submit(federation: Federation, rounds: int) -> tuple[DeployedRun, str]:
    """Submit a run that stops before every round but the first."""
    run = federation.nodes.new_run(rounds=rounds, quorum=1, round_timeout=ROUND_TIMEOUT)
    for t in range(2, rounds + 1):
        run.close_gate(t)
    return run, run.submit()


def absences(run: DeployedRun) -> dict[int, dict[str, str]]:
    rounds, absent = range(1, int(run.settings["rounds"]) + 1), run.history.by_client
    return {t: {name: str(why) for name, why in absent("absent", t).items()} for t in rounds}


def test_a_black_hole_costs_its_rounds_and_the_nodes_come_back(federation: Federation) -> None:
    """It opens before round 2 and lasts for two rounds; in round 4 all take part again."""
    nodes, links = federation.nodes, federation.links.values()
    run, run_id = submit(federation, 4)
    federation.break_at(run, 2)
    for link in links:
        link.passing = False
    begin = time.monotonic()
    run.open_gate(2)
    federation.break_at(run, 3)
    run.open_gate(3)
    federation.break_at(run, 4)
    print(f"two rounds in a black hole took {time.monotonic() - begin:.0f} s")
    for link in links:
        link.passing = True
    nodes.wait_online()
    run.open_gate(4)
    assert nodes.wait_for_run(run_id) == "completed", nodes.log(run_id)
    found = absences(run)
    print(found)
    lost = {federation.warm, federation.stock}
    assert [set(found[t]) for t in (1, 2, 3, 4)] == [set(), lost, lost, set()]
    assert run.history.by_client("weight", 4).keys() == nodes.nodes.keys()


def test_a_delay_of_thirty_seconds_ends_and_nothing_is_counted_twice(
    federation: Federation,
) -> None:
    """Every byte takes 30 seconds in round 2, so that requests are given up and sent again."""
    nodes, links = federation.nodes, federation.links.values()
    run, run_id = submit(federation, 3)
    federation.break_at(run, 2)
    for link in links:
        link.delay = 30.0
    run.open_gate(2)
    federation.break_at(run, 3)
    for link in links:
        link.delay = 0.0
    time.sleep(HEARTBEATS)  # what is under way arrives; the SuperLink has noticed who is gone
    nodes.wait_online()
    run.open_gate(3)
    assert nodes.wait_for_run(run_id) == "completed", nodes.log(run_id)
    found = absences(run)
    print(found)
    assert set(found[2]) == {federation.warm, federation.stock}
    assert found[1] == found[3] == {}
    for t in (1, 2, 3):
        assert not run.history.by_client("weight", t).keys() & found[t].keys()


def test_nodes_that_are_cut_off_in_the_middle_of_tls_come_back(federation: Federation) -> None:
    """Flower's SuperNode does not try again then, but comes to its end: it is started again."""
    nodes, links = federation.nodes, federation.links
    run, run_id = submit(federation, 2)
    federation.break_at(run, 2)

    def count(words: str) -> dict[str, int]:
        logs = {name: nodes.log_of(name) for name in links}
        return {name: log.count(words) for name, log in logs.items()}

    started, admitted = count(STARTING), count(CONNECTED)
    for link in links.values():
        link.cutting = True
        link.forget()
    wait_until(lambda: all(now > started[name] for name, now in count(STARTING).items()))
    for link in links.values():
        link.cutting = False
    wait_until(lambda: all(now > admitted[name] for name, now in count(CONNECTED).items()))
    nodes.wait_online()
    run.open_gate(2)
    assert nodes.wait_for_run(run_id) == "completed", nodes.log(run_id)
    assert absences(run) == {1: {}, 2: {}}


def test_half_open_connections_are_given_up_within_a_round(federation: Federation) -> None:
    """Old connections are dead, new ones work: requests time out after 30 s, and are repeated."""
    nodes, links = federation.nodes, federation.links.values()
    run, run_id = submit(federation, 3)
    federation.break_at(run, 2)
    for link in links:
        link.forget()
    run.open_gate(2)
    federation.break_at(run, 3)
    nodes.wait_online()
    run.open_gate(3)
    assert nodes.wait_for_run(run_id) == "completed", nodes.log(run_id)
    found = absences(run)
    print(found)
    assert found[1] == found[3] == {}
    assert set(found[2]) <= {federation.warm, federation.stock}
    wait_until(lambda: nodes.notes() == [])
