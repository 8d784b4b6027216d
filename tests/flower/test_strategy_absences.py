"""Clients that are absent, come back, come back changed, or are too few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Error, Message
from in_process_grid import InProcessGrid, client_data, make_strategy, run_strategy, simulate_small
from tampered_replies import BAD, changed_uncertainty, in_training

import udjfl
from udjfl.errors import NotDefinedError, QuorumError, ReportError
from udjfl.training.run_folder import RunFolder


@pytest.mark.parametrize("code", [None, 3, 4, 5, 8])
def test_an_absent_client_misses_a_round_and_comes_back(
    federation: udjfl.Federation, code: int | None
) -> None:
    lost = in_training(lambda reply: None if code is None else Error(code, "gone"))
    grid = InProcessGrid(federation, tamper=lost)
    strategy = run_strategy(
        federation, "rawls", grid
    )  # absence is no bad report: the policy does not matter
    history = strategy.result.history
    assert list(history.by_client("absent", 2)) == ["client-2"]
    assert ("time" in str(history.by_client("absent", 2)["client-2"])) == (code in (None, 3, 4))
    assert list(history.by_client("weight", 2)) == ["client-1", "client-3"]
    assert history.by_client("absent", 3) == {}
    assert list(history.by_client("weight", 3)) == ["client-1", "client-2", "client-3"]
    # It introduced itself again, and sent the uncertainty that it had kept.
    assert [node for node, *_ in grid.sent("query.introduce")].count(BAD) == 2
    sent = [
        reply.content["metrics"]["uncertainty"]
        for node, _, reply in grid.sent("query.uncertainty")
        if node == BAD
    ]
    assert len(sent) == 2
    assert sent[0] == sent[1]


def test_replies_without_a_node_are_assigned_by_their_message(federation: udjfl.Federation) -> None:
    def tamper(message: Message, reply: Message) -> Message:
        if message.metadata.message_type != "train" or message.metadata.dst_node_id != BAD:
            return reply
        unknown = Message(Error(5, "gone"), reply_to=message)
        unknown.metadata.__dict__["_src_node_id"] = 1  # as the SuperLink does
        return unknown

    history = run_strategy(
        federation, "fedavg", InProcessGrid(federation, tamper=tamper), rounds=1
    ).result.history
    assert history.by_client("absent", 1) == {"client-2": "its node is not connected"}


def test_a_client_may_come_back_as_another_node(federation: udjfl.Federation) -> None:
    class Moving(InProcessGrid):
        def push_messages(self, messages: Any) -> list[str]:
            messages = list(messages)
            if (
                messages[0].metadata.message_type == "train"
                and messages[0].content["config"]["round"] == 2
            ):
                self.apps.pop(BAD, None)
                self.add(777, client_data(federation, "client-2"))
            return super().push_messages(messages)

    grid = Moving(federation)
    strategy = run_strategy(federation, "rawls", grid)
    assert list(strategy.result.history.by_client("absent", 2)) == ["client-2"]
    assert list(strategy.result.history.by_client("weight", 3)) == [
        "client-1",
        "client-2",
        "client-3",
    ]
    assert strategy.registry.nodes["client-2"] == 777


def test_a_new_node_replaces_a_dead_one_that_is_still_listed(federation: udjfl.Federation) -> None:
    grid = InProcessGrid(federation)
    strategy = make_strategy(federation, "fedavg")
    strategy.prepare(grid)
    grid.apps[BAD] = lambda message, context: None  # type: ignore[assignment, return-value]
    grid.add(777, client_data(federation, "client-2"))
    strategy.registry.register_new()
    assert strategy.registry.nodes["client-2"] == 777


def test_two_nodes_with_one_id_are_refused(federation: udjfl.Federation) -> None:
    grid = InProcessGrid(federation)
    grid.add(777, client_data(federation, "client-2"))
    with pytest.raises(ReportError, match=f"client 'client-2': id is that of node {BAD} as well"):
        run_strategy(federation, "fedavg", grid)
    strategy = run_strategy(federation, "fedavg", grid, on_bad_report="exclude")
    assert strategy.registry.nodes["client-2"] == BAD
    assert "as well" in str(strategy.result.history.by_client("warning", 1)["client-2"])
    assert strategy.result.history.by_client("excluded", 1) == {}  # its first node takes part
    assert list(strategy.result.history.by_client("weight", 1)) == [
        "client-1",
        "client-2",
        "client-3",
    ]


def coming_back_changed() -> Any:
    """Return a `tamper`: client-2 misses round 1 and sends another uncertainty in round 2."""
    away, other = (
        in_training(lambda _: None, rounds=(1,)),
        in_training(changed_uncertainty, kind="query.uncertainty"),
    )
    return lambda message, reply: other(message, kept) if (kept := away(message, reply)) else None


def test_an_uncertainty_that_changes_is_refused(federation: udjfl.Federation) -> None:
    with pytest.raises(
        ReportError,
        match=r"client 'client-2': uncertainties was .* and is now .*; it is measured once",
    ):
        run_strategy(federation, "rawls", InProcessGrid(federation, tamper=coming_back_changed()))
    grid = InProcessGrid(federation, tamper=coming_back_changed())
    strategy = run_strategy(federation, "rawls", grid, on_bad_report="exclude")
    assert "is measured once" in str(strategy.result.history.by_client("excluded", 2)["client-2"])
    assert list(strategy.result.history.by_client("weight", 3)) == ["client-1", "client-3"]
    first = strategy.result.uncertainty["client-2"]
    assert first == pytest.approx(
        simulate_small(federation, "rawls", rounds=1).uncertainty["client-2"], rel=1e-5
    )


def test_a_client_whose_data_changed_is_refused(federation: udjfl.Federation) -> None:
    grid = InProcessGrid(federation)
    strategy = make_strategy(federation, "fedavg")
    strategy.prepare(grid)
    strategy.registry.drop("client-2")
    client = federation.clients[1]
    grid.add(
        BAD, client_data(federation, "client-2", train=(client.train.x[:-3], client.train.y[:-3]))
    )
    with pytest.raises(ReportError, match=r"client 'client-2': sizes was 29.0 and is now 26.0"):
        strategy.registry.register_new()


def test_too_few_reports_stop_the_run_and_lose_nothing(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    changes = {"rounds": 5, "checkpoint_every": 100}
    whole = run_strategy(federation, "rawls", out=tmp_path / "whole", **changes)
    grid = InProcessGrid(federation, tamper=in_training(lambda _: None, rounds=(4,)))
    with pytest.raises(
        QuorumError,
        match=r"round 4: 2 usable reports, fewer than the quorum of 3 \(client-2: did not reply",
    ) as e:
        run_strategy(federation, "rawls", grid, out=tmp_path / "run", quorum=3, **changes)
    assert "as it was after round 3; start the missing clients and resume" in str(e.value)
    assert RunFolder.open(tmp_path / "run").rewind()[0].round == 3
    resumed = run_strategy(
        federation, "rawls", out=tmp_path / "run", resume=True, quorum=3, **changes
    )
    for name in (
        "records.jsonl",
        "checkpoint.safetensors",
        "model.safetensors",
        "result.json",
        "settings.json",
    ):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), (
            name
        )
    assert torch.equal(resumed.log.server.vector, whole.log.server.vector)


def test_a_node_that_signed_off_counts_as_missing_for_the_quorum(
    federation: udjfl.Federation,
) -> None:
    def sign_off(message: Message, reply: Message) -> Message:
        """Remove the node after its training in round 1."""
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == BAD:
            grid.remove(BAD)
        return reply

    grid = InProcessGrid(federation, tamper=sign_off)
    with pytest.raises(
        QuorumError,
        match=r"round 2: 2 usable reports, fewer than the quorum of 3 \(client-2: is not connected",
    ):
        run_strategy(federation, "fedavg", grid, quorum=3)


def test_a_method_that_needs_all_clients_stops_if_one_is_absent(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    grid = InProcessGrid(federation, tamper=in_training(lambda _: None))
    with pytest.raises(NotDefinedError, match="effl: compares all clients in every round"):
        run_strategy(federation, "effl", grid, out=tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").rewind()[0].round == 1


def test_the_default_quorum_is_more_than_half_of_those_asked(federation: udjfl.Federation) -> None:
    assert make_strategy(federation).spec.quorum == 2
    assert make_strategy(federation, clients=4).spec.quorum == 3
    assert make_strategy(federation, clients=4, participation=0.5).spec.quorum == 2
