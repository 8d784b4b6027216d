"""What clients say when they register is bounded, and an id stays with its node."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from in_process_grid import (
    FIRST_NODE,
    InProcessGrid,
    client_data,
    make_federation,
    make_strategy,
    run_strategy,
)

from udjfl.errors import ReportError

BAD = FIRST_NODE + 1  # the node of client-2


def saying(kind: str, record: str, **changes: Any) -> Any:
    """Return a `tamper`: client-2 says something else in replies of one type."""
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    make = {"metrics": MetricRecord, "config": ConfigRecord}[record]

    def tamper(message: Message, reply: Message) -> Message:
        metadata = message.metadata
        if (metadata.message_type, metadata.dst_node_id) != (kind, BAD):
            return reply
        changed = make({**reply.content[record], **named})
        return Message(RecordDict({**reply.content, record: changed}), reply_to=message)

    return tamper


class NamedGrid(InProcessGrid):
    """A grid whose nodes are registered under names."""

    names: dict[int, str]

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=n, name=self.names.get(n)) for n in self.get_node_ids()]


@pytest.mark.parametrize(
    ("measure", "largest"),
    [
        ("paper", math.log(3)),
        ("ensemble", math.log(3)),
        ("confidence", 2 / 3),
        ("crossfit", 2 * math.log(3)),
    ],
)
def test_an_uncertainty_beyond_what_the_classes_allow_is_refused(
    measure: str, largest: float
) -> None:
    federation = make_federation()
    settings = {"uncertainty": measure, "rounds": 1, "uncertainty_models": 2}
    changed = saying("query.uncertainty", "metrics", uncertainty=1.01 * largest)
    with pytest.raises(ReportError, match=r"uncertainties is .*; with 3 classes it is at most"):
        run_strategy(federation, "rawls", InProcessGrid(federation, tamper=changed), **settings)
    allowed = saying("query.uncertainty", "metrics", uncertainty=largest)
    strategy = run_strategy(
        federation, "rawls", InProcessGrid(federation, tamper=allowed), **settings
    )
    assert strategy.result.uncertainty["client-2"] == largest  # a lie within bounds is believed


@pytest.mark.parametrize(
    ("record", "changes", "problem"),
    [
        ("metrics", {"num_examples": math.inf}, "sizes is inf"),
        ("metrics", {"num_examples": 1e300}, "sizes is 1e.300; it must be at most 2.53"),
        ("metrics", {"num_examples": -5.0}, "sizes is -5"),
        ("config", {"input_shape": [10**6, 10**6]}, "introduction cannot be read"),
        ("config", {"input_shape": [-1, -4]}, "introduction cannot be read"),
        ("config", {"input_shape": [1] * 1000}, "introduction cannot be read"),
        ("config", {"n_classes": 10**9}, "introduction cannot be read"),
        ("config", {"client_id": "x" * 10**5}, "introduction cannot be read"),
    ],
)
def test_an_introduction_beyond_its_bounds_is_refused(
    record: str, changes: dict[str, Any], problem: str
) -> None:
    federation = make_federation()
    grid = InProcessGrid(federation, tamper=saying("query.introduce", record, **changes))
    with pytest.raises(ReportError, match=problem) as caught:
        make_strategy(federation, "fedavg", server_data=None).prepare(grid)
    assert len(str(caught.value)) < 1000


def test_a_node_cannot_become_another_client() -> None:
    federation = make_federation()
    grid = InProcessGrid(federation)
    strategy = make_strategy(federation, "fedavg", on_bad_report="exclude")
    strategy.prepare(grid)
    strategy.registry.drop("client-2")
    strategy.registry.drop("client-3")
    grid.remove(FIRST_NODE + 2)  # client-3 is away, and client-2 takes its place
    grid.add(BAD, client_data(federation, "client-3"))
    strategy.registry.register_new()
    assert strategy.registry.nodes == {"client-1": FIRST_NODE}
    assert "was 'client-2' and is now 'client-3'" in strategy.registry.excluded["client-2"]


class RestartedGrid(InProcessGrid):
    """A grid that tells how often each node was started."""

    starts: Counter[int]

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(node_id=node, last_activated_at=f"start {self.starts[node]}")
            for node in self.get_node_ids()
        ]


def test_a_node_that_was_started_again_is_asked_again_who_it_is() -> None:
    """It was never missed: between two rounds it came back, with the data of another client."""
    federation = make_federation()
    grid = RestartedGrid(federation)
    grid.starts = Counter()
    strategy = make_strategy(federation, "fedavg", on_bad_report="exclude")
    strategy.prepare(grid)
    registry = strategy.registry
    registry.register_new()
    asked = len(grid.sent("query.introduce"))
    other = client_data(federation, "client-3", id="client-2")
    grid.add(BAD, other)
    registry.register_new()
    assert len(grid.sent("query.introduce")) == asked  # nothing tells that it is another
    grid.starts[BAD] += 1
    registry.register_new()
    assert len(grid.sent("query.introduce")) == asked + 1
    assert "size" in registry.excluded["client-2"] or "examples" in registry.excluded["client-2"]
    assert set(registry.nodes) == {"client-1", "client-3"}
    registry.register_new()
    assert len(grid.sent("query.introduce")) == asked + 1  # rejected, until it is started again
    grid.add(BAD, client_data(federation, "client-2"))
    grid.starts[BAD] += 1
    registry.register_new()
    assert set(registry.nodes) == {"client-1", "client-2", "client-3"}


@pytest.mark.parametrize("changes", [{"num_examples": -1.0}, {"n_classes": 10**9}])
def test_a_node_with_a_name_cannot_have_another_client_blamed(changes: dict[str, Any]) -> None:
    federation = make_federation()
    record = "metrics" if "num_examples" in changes else "config"
    grid = NamedGrid(federation, tamper=saying("query.introduce", record, **changes))
    grid.names = {FIRST_NODE + i: f"client-{i + 1}" for i in range(3)}
    grid.add(BAD, client_data(federation, "client-3"))  # registered as client-2
    strategy = make_strategy(federation, "fedavg", on_bad_report="exclude", clients=2)
    strategy.prepare(grid)
    assert "is 'client-3', and its key is registered" in strategy.registry.rejected_nodes[BAD]
    assert set(strategy.registry.nodes) == {"client-1", "client-3"}
    assert "client-3" not in strategy.registry.excluded


@pytest.mark.parametrize("name", ["uncertainty", "epistemic"])
@pytest.mark.parametrize("value", [-0.5, -math.inf])
def test_a_negative_uncertainty_is_refused(name: str, value: float) -> None:
    federation = make_federation()
    grid = InProcessGrid(federation, tamper=saying("query.uncertainty", "metrics", **{name: value}))
    with pytest.raises(ReportError, match=r"client-2.* is -.*; it cannot be negative"):
        make_strategy(federation, "rawls").prepare(grid)


def test_a_registered_name_is_the_only_id_of_its_node() -> None:
    federation = make_federation()
    grid = NamedGrid(federation)
    grid.names = {FIRST_NODE + i: f"client-{i + 1}" for i in range(3)}
    strategy = make_strategy(federation, "fedavg", on_bad_report="exclude")
    strategy.prepare(grid)
    assert set(strategy.registry.nodes) == {"client-1", "client-2", "client-3"}
    # While client-2 is away, a node without a name and one with another name claim its id.
    strategy.registry.drop("client-2")
    grid.remove(BAD)
    grid.add(777, client_data(federation, "client-2"))
    grid.add(778, client_data(federation, "client-2"))
    grid.names[778] = "client-9"
    strategy.registry.register_new()
    assert "client-2" not in strategy.registry.nodes
    assert "is claimed by node 777" in strategy.registry.excluded["client-2"]
    assert "is 'client-2', and its key is registered as" in strategy.registry.excluded["client-9"]
    # A new machine under the old name is the same client.
    grid.add(779, client_data(federation, "client-2"))
    grid.names[779] = "client-2"
    strategy.registry.register_new()
    assert strategy.registry.nodes["client-2"] == 779
