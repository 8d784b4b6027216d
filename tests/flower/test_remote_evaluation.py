"""The evaluation of a round travels with the next round's training, with the same numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Error, Message, MetricRecord, RecordDict
from in_process_grid import (
    FIRST_NODE,
    InProcessGrid,
    make_federation,
    make_strategy,
    run_strategy,
    simulate_small,
    with_validation,
)

from udjfl.errors import ReportError
from udjfl.flower.messages import Reply
from udjfl.flower.remote_evaluation import _read_scores

BAD = FIRST_NODE + 1


def test_clients_get_one_message_a_round_and_one_after_the_last() -> None:
    federation = make_federation()
    grid = InProcessGrid(federation)
    run_strategy(federation, "fedavg", grid, eval_every=1)
    rounds = [content["config"]["round"] for _, content, _ in grid.sent("train")]
    assert rounds == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [content["config"]["round"] for _, content, _ in grid.sent("evaluate")] == [3, 3, 3]
    evaluated = [content["config"].get("evaluate-round") for _, content, _ in grid.sent("train")]
    assert evaluated == [None, None, None, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("rawls", {}),
        ("fedavg", {"participation": 0.5}),
        ("fedfair3", {"participation": 0.5}),
        ("focus", {}),
        ("cffl", {}),
        ("ditto:lam=1", {"participation": 0.5}),
        ("fedavg", {"eval_every": 2, "rounds": 5}),
    ],
)
def test_records_equal_the_simulators(name: str, changes: dict[str, Any]) -> None:
    """Also with models of clients' own, and with clients that do not train in a round."""
    federation = with_validation(make_federation(4))
    changes = {"eval_every": 1, **changes}
    simulated = simulate_small(federation, name, **changes).history.records
    there = run_strategy(federation, name, **changes).result.history.records
    reported = {record.metric for record in there}  # losses are, only if the method needs them
    here = [record for record in simulated if record.metric in reported]
    assert {"test_accuracy", "test_loss"} <= reported
    assert [record[:3] for record in there] == [record[:3] for record in here]
    for mine, theirs in zip(there, here, strict=True):
        assert (mine.value is None) == (theirs.value is None), mine
        if theirs.value is not None:  # FOCUS has no single model to evaluate
            assert mine.value == pytest.approx(theirs.value, rel=1e-4, abs=1e-6), mine


def test_clients_that_do_not_train_are_asked_at_the_same_time() -> None:
    federation = make_federation(4)
    grid = InProcessGrid(federation)
    run_strategy(federation, "fedavg", grid, participation=0.5, eval_every=1, quorum=1)
    for round in (1, 2):
        trained = {
            node
            for node, content, _ in grid.sent("train")
            if content["config"].get("evaluate-round") == round
        }
        apart = {node for node, c, _ in grid.sent("evaluate") if c["config"]["round"] == round}
        assert len(trained) == len(apart) == 2
        assert trained | apart == set(grid.apps)


def refuse_evaluations() -> InProcessGrid:
    grid = InProcessGrid(make_federation())
    grid.contexts[BAD].node_config["disclose"] = "updates,sizes"
    return grid


def test_a_client_that_cannot_evaluate_trains_all_the_same() -> None:
    strategy = run_strategy(
        make_federation(), "fedavg", refuse_evaluations(), on_bad_report="exclude", eval_every=1
    )
    history = strategy.result.history
    for round in (1, 2, 3):
        assert set(history.by_client("weight", round)) == {"client-1", "client-2", "client-3"}
        assert set(history.by_client("test_accuracy", round)) == {"client-1", "client-3"}
        reason = history.by_client("not_evaluated", round)["client-2"]
        assert "this node does not send evaluations" in reason


def test_or_stops_the_run_and_is_named() -> None:
    with pytest.raises(ReportError, match=r"introduction .*does not send evaluations"):
        run_strategy(make_federation(), "fedavg", refuse_evaluations(), eval_every=1)


def change_reply(change: Any) -> Any:
    """Return a `tamper` that changes the second client's training in round 2."""

    def tamper(message: Message, reply: Message) -> Message | None:
        metadata, config = message.metadata, message.content["config"]
        at = metadata.message_type, metadata.dst_node_id, config["round"]
        return change(message, reply) if at == ("train", BAD, 2) else reply

    return tamper


def test_a_lost_reply_costs_both() -> None:
    federation = make_federation()
    grid = InProcessGrid(federation, tamper=change_reply(lambda *_: None))
    history = run_strategy(federation, "fedavg", grid, eval_every=1).result.history
    assert history.by_client("not_evaluated", 1) == {"client-2": "did not reply in time"}
    assert history.by_client("absent", 2) == {"client-2": "did not reply in time"}
    assert set(history.by_client("test_accuracy", 2)) == set(federation.ids)


def test_a_wrong_accuracy_costs_the_evaluation_only() -> None:
    def change(message: Message, reply: Message) -> Message:
        metrics = MetricRecord({**reply.content["metrics"], "test-accuracy": 3.0})
        return Message(RecordDict({**reply.content, "metrics": metrics}), reply_to=message)

    federation = make_federation()
    strategy = run_strategy(
        federation,
        "fedavg",
        InProcessGrid(federation, tamper=change_reply(change)),
        on_bad_report="exclude",
        eval_every=1,
    )
    history = strategy.result.history
    assert "test accuracy is 3.0" in history.by_client("not_evaluated", 1)["client-2"]
    assert set(history.by_client("weight", 2)) == set(federation.ids)


@pytest.mark.parametrize(
    ("loss", "is_refused"),
    [
        (-1e30, True),
        (-math.inf, True),
        (1e300, True),
        (0.0, False),
        (math.inf, False),
        (math.nan, False),  # the model diverged
    ],
)
def test_a_loss_that_no_model_has_is_refused(loss: float, is_refused: bool) -> None:
    reply = Reply("a", {}, {"test-loss": loss, "test-accuracy": 0.5}, {})
    if is_refused:
        with pytest.raises(ReportError, match=r"test loss is .*; it must be from 0 to"):
            _read_scores(reply, 1, torch.float32, is_regression=False)
    else:
        assert _read_scores(reply, 1, torch.float32, is_regression=False)[1] == 0.5


def test_an_exception_in_training_costs_both() -> None:
    federation = make_federation()
    error = change_reply(lambda message, _: Message(Error(2, "OSError: full"), reply_to=message))
    strategy = run_strategy(
        federation,
        "fedavg",
        InProcessGrid(federation, tamper=error),
        on_bad_report="exclude",
        eval_every=1,
    )
    history = strategy.result.history
    assert "OSError: full" in history.by_client("not_evaluated", 1)["client-2"]
    assert "OSError: full" in history.by_client("excluded", 2)["client-2"]


def test_without_training_the_evaluation_is_asked_for_apart() -> None:
    """Nobody is selected in round 2: its evaluation request has no training to travel with."""
    federation = make_federation()
    grid = InProcessGrid(federation)
    strategy = make_strategy(federation, "fedavg", eval_every=1)
    strategy.prepare(grid)
    strategy.run_round()
    records = strategy.remote.evaluation.take_records()
    assert {record.round for record in records} == {1}
    assert len(grid.sent("evaluate")) == 3
    assert strategy.remote.evaluation.take_records() == []
