"""Clients that are absent, come back or send unusable replies; resuming; the run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from in_process_grid import (
    FIRST_NODE,
    InProcessGrid,
    client_data,
    make_federation,
    make_strategy,
    run_strategy,
    simulate_small,
    tensors_of,
    with_groups,
    with_tensors,
)

from udjfl.errors import (
    DataError,
    NotDefinedError,
    QuorumError,
    ReportError,
    SettingsError,
    StorageError,
)
from udjfl.flower import ServerData
from udjfl.flower.strategy import read_members
from udjfl.methods import FedAvg, parameters
from udjfl.training.folder_check import check_folder
from udjfl.training.run_folder import RunFolder

BAD = FIRST_NODE + 1  # the node of client-2


@pytest.fixture
def federation() -> Any:
    return make_federation()


def in_training(
    change: Any, node: int = BAD, rounds: tuple[int, ...] = (2,), kind: str = "train"
) -> Any:
    """Return a `tamper` that changes the replies of one node in some rounds."""

    def tamper(message: Message, reply: Message) -> Message | None:
        metadata = message.metadata
        at = message.content["config"]["round"]
        if metadata.message_type != kind or metadata.dst_node_id != node or at not in rounds:
            return reply
        changed = change(reply)
        if isinstance(changed, RecordDict | Error):
            return Message(changed, reply_to=message)
        return changed

    return tamper


def with_arrays(**changes: Any) -> Any:
    def change(reply: Message) -> RecordDict:
        arrays = {name: tensor.numpy() for name, tensor in tensors_of(reply.content).items()}
        for name, value in changes.items():
            arrays[name] = value(arrays[name]) if callable(value) else value
        return with_tensors(reply.content, safetensors.numpy.save(arrays))

    return change


def with_metrics(**changes: Any) -> Any:
    return lambda reply: RecordDict(
        {**reply.content, "metrics": MetricRecord({**reply.content["metrics"], **changes})}
    )


def with_config(**changes: Any) -> Any:
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return lambda reply: RecordDict(
        {**reply.content, "config": ConfigRecord({**reply.content["config"], **named})}
    )


def with_bytes(packed: bytes) -> Any:
    return lambda reply: with_tensors(reply.content, packed)


def without_update(reply: Message) -> RecordDict:
    tensors = tensors_of(reply.content)
    del tensors["delta"]
    return with_tensors(reply.content, tensors)


def make_header(text: str) -> bytes:
    """Return a header of tensors that may claim anything, without any numbers after it."""
    return len(text).to_bytes(8, "little") + text.encode()


def without(record: str, name: str) -> Any:
    def change(reply: Message) -> RecordDict:
        kept = {key: value for key, value in reply.content[record].items() if key != name}
        return RecordDict({**reply.content, record: type(reply.content[record])(kept)})

    return change


BROKEN = {
    "NaN": (with_arrays(delta=lambda d: d * np.float32("nan")), "deltas has values that are NaN"),
    "infinite": (
        with_arrays(delta=lambda d: np.full(d.shape, np.float32(np.inf))),
        "deltas has values that are NaN or infinite",
    ),
    "another dtype": (
        with_arrays(delta=lambda d: np.full(d.shape, 1e300)),
        "deltas has dtype float64; it must have float32",
    ),
    "complex": (
        with_arrays(delta=lambda d: (d[: len(d) // 2] + 1j).astype(np.complex64)),
        "deltas has dtype C64; it must have float32",
    ),
    "too many numbers": (
        with_arrays(delta=lambda d: np.tile(d, 50)),
        "deltas has .* numbers; it may have",
    ),
    "not asked for": (with_arrays(gift=np.zeros(3)), "gift was not asked for"),
    "an extra not asked for": (
        with_arrays(**{"extra.gradients": np.zeros(3)}),
        "gradients was not asked for",
    ),
    "a record not asked for": (
        lambda reply: RecordDict({**reply.content, "gift": ArrayRecord({})}),
        "gift was not asked for",
    ),
    "wrong shape": (with_arrays(delta=lambda d: d[:-1]), "deltas has shape"),
    "a table": (with_arrays(delta=lambda d: d[None]), "deltas has shape"),
    "no delta": (without_update, r"deltas has shape \[0\]"),
    "no tensors": (with_bytes(b"no tensors"), "reply cannot be read"),
    "a dtype that does not exist": (
        with_bytes(make_header('{"delta": {"dtype": "U1", "shape": [], "data_offsets": [0, 1]}}')),
        "deltas has dtype U1",
    ),
    "numbers that are not there": (
        with_bytes(
            make_header('{"delta": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}')
        ),
        "reply cannot be read",
    ),
    "a header that does not end": (with_bytes(b"\xff" * 16), "end before their header does"),
    "a header that is too long": (
        with_bytes(make_header(" " * 10**6 + "{}")),
        "the header of the tensors has 1000002 bytes; it may have",
    ),
    "another id": (
        with_config(client_id="client-3"),
        "id is 'client-3' in its reply, and was 'client-2' before",
    ),
    "an unknown id": (with_config(client_id="stranger"), "id is 'stranger' in its reply"),
    "no id": (without("config", "client-id"), "reply cannot be read"),
    "another round": (with_config(round=1), "round is 1 in its reply; the server is in round 2"),
    "no loss": (without("metrics", "loss"), "losses is missing"),
    "negative loss": (with_metrics(loss=-1.0), "a loss cannot be negative"),
    "a loss beyond float32": (with_metrics(loss=1e300), "losses is 1e.300; it may be at most"),
    "impossible loss": (with_metrics(loss=1e30), "losses is 1e.30, more than a million times"),
    "list of losses": (with_metrics(loss=[1.0, 2.0]), "reply cannot be read"),
    "no steps": (with_metrics(steps=0.0), "steps is 0"),
    "a long list": (with_metrics(loss=[1.0] * 10**5), "reply cannot be read"),
    "far longer than the others": (
        with_arrays(delta=lambda d: np.full_like(d, 1e30)),
        "above max_update_ratio, 100, times the round's median",
    ),
    "no records": (lambda reply: RecordDict({}), "reply cannot be read"),
    "buffers": (with_arrays(buffers=np.zeros(3)), "buffers was not asked for"),
    "an error in Flower's format": (
        lambda reply: Error(
            2, "<class 'udjfl.errors.DataError'>:<'train: 3 labels\ntest: is empty'>"
        ),
        r"is an error \(code 2\): DataError: train: 3 labels; test: is empty",
    ),
    "an error without a reason": (
        lambda reply: Error(2, ""),
        r"is an error \(code 2\): the client gave no reason",
    ),
    "an error": (
        lambda reply: Error(2, "Traceback\nValueError: no disk"),
        r"is an error \(code 2\): ValueError: no disk",
    ),
}


@pytest.mark.parametrize(("change", "problem"), BROKEN.values(), ids=list(BROKEN))
def test_an_unusable_reply_stops_the_run_or_is_excluded(
    federation: Any, change: Any, problem: str
) -> None:
    grid = InProcessGrid(federation, tamper=in_training(change))
    with pytest.raises(ReportError, match=problem) as caught:
        run_strategy(federation, "rawls", grid)
    assert (caught.value.client, caught.value.round) == ("client-2", 2)
    grid = InProcessGrid(federation, tamper=in_training(change))
    history = run_strategy(federation, "rawls", grid, on_bad_report="exclude").result.history
    assert list(history.by_client("excluded", 2)) == ["client-2"]
    assert list(history.by_client("weight", 2)) == ["client-1", "client-3"]
    assert list(history.by_client("weight", 3)) == ["client-1", "client-2", "client-3"]


LIES = {
    "uncertainty": (with_metrics(uncertainty=1e30), "query.uncertainty", "rawls"),
    "loss": (with_metrics(loss=1e300), "train", "rawls"),
    "smaller loss": (with_metrics(loss=1e30), "train", "rawls"),
    "update": (with_arrays(delta=lambda d: np.full_like(d, 1e30)), "train", "rawls"),
    "size": (with_metrics(**{"num-examples": 1e30}), "train", "fedavg"),
    "steps": (with_metrics(steps=1e6), "train", "fednova"),
}


@pytest.mark.parametrize("case", ["uncertainty", "loss", "smaller loss", "update", "steps"])
def test_a_round_survives_a_lie_as_if_the_liar_were_away(federation: Any, case: str) -> None:
    change, kind, rule = LIES[case]
    rounds = {"rounds": 1, "on_bad_report": "exclude"}
    grid = InProcessGrid(federation, tamper=in_training(change, rounds=(1,), kind=kind))
    lied = run_strategy(federation, rule, grid, **rounds)
    grid = InProcessGrid(federation, tamper=in_training(lambda _: None, rounds=(1,)))
    away = run_strategy(federation, rule, grid, **rounds)
    assert list(lied.result.history.by_client("excluded", 1)) == ["client-2"]
    assert torch.equal(lied.log.server.vector, away.log.server.vector)


def test_a_size_counts_only_if_it_was_told_at_registration(federation: Any) -> None:
    change, kind, rule = LIES["size"]
    grid = InProcessGrid(federation, tamper=in_training(change, kind=kind))
    lied, honest = run_strategy(federation, rule, grid), run_strategy(federation, rule)
    assert torch.equal(lied.log.server.vector, honest.log.server.vector)


HUGE = with_arrays(delta=lambda d: d * np.float32(1e6))
STOPPING = {
    **{case: BROKEN[case] for case in ("NaN", "wrong shape", "another id", "an error")},
    "too long": (HUGE, "above max_update_norm, 1000"),
}


@pytest.mark.parametrize(("change", "problem"), STOPPING.values(), ids=list(STOPPING))
def test_a_run_that_stops_in_round_1_has_no_records_and_its_first_model(
    federation: Any, tmp_path: Path, change: Any, problem: str
) -> None:
    first = make_strategy(federation)
    first.prepare(InProcessGrid(federation))
    strategy = make_strategy(federation, out=tmp_path / "run", max_update_norm=1000.0)
    with pytest.raises(ReportError, match=problem) as caught:
        strategy.start(InProcessGrid(federation, tamper=in_training(change, rounds=(1,))))
    assert (caught.value.client, caught.value.round) == ("client-2", 1)
    assert list(RunFolder.open(tmp_path / "run").read_records()) == []
    assert torch.equal(strategy.log.server.vector, first.log.server.vector)


def test_a_huge_update_is_used_unless_there_is_a_limit(federation: Any) -> None:
    tamper = in_training(HUGE)
    grid = InProcessGrid(federation, tamper=tamper)
    strategy = run_strategy(federation, "fedavg", grid, rounds=2, max_update_ratio=None)
    assert strategy.result.history.by_client("excluded", 2) == {}
    grid = InProcessGrid(federation, tamper=tamper)
    strategy = run_strategy(
        federation, "fedavg", grid, max_update_norm=1000.0, on_bad_report="exclude"
    )
    assert "above max_update_norm, 1000" in str(
        strategy.result.history.by_client("excluded", 2)["client-2"]
    )
    assert strategy.result.history.by_client("excluded", 1) == {}


def test_a_client_with_a_bad_probe_is_excluded_before_training(federation: Any) -> None:
    change = with_arrays(**{"extra.gradients": lambda g: g * np.nan})
    grid = InProcessGrid(federation, tamper=in_training(change, kind="query.probe"))
    history = run_strategy(federation, "fedeba", grid, on_bad_report="exclude").result.history
    assert "gradients has values" in str(history.by_client("excluded", 2)["client-2"])
    trained = [node for node, content, _ in grid.sent("train") if content["config"]["round"] == 2]
    assert sorted(trained) == [FIRST_NODE, FIRST_NODE + 2]


@pytest.mark.parametrize("code", [None, 3, 4, 5, 8])
def test_an_absent_client_misses_a_round_and_comes_back(federation: Any, code: int | None) -> None:
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


def test_replies_without_a_node_are_assigned_by_their_message(federation: Any) -> None:
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


def test_a_client_may_come_back_as_another_node(federation: Any) -> None:
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


def test_a_new_node_replaces_a_dead_one_that_is_still_listed(federation: Any) -> None:
    grid = InProcessGrid(federation)
    strategy = make_strategy(federation, "fedavg")
    strategy.prepare(grid)
    grid.apps[BAD] = lambda message, context: None  # type: ignore[assignment, return-value]
    grid.add(777, client_data(federation, "client-2"))
    strategy.registry.register_new()
    assert strategy.registry.nodes["client-2"] == 777


def test_two_nodes_with_one_id_are_refused(federation: Any) -> None:
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


def changed_uncertainty(reply: Message) -> RecordDict:
    return with_metrics(uncertainty=2 * reply.content["metrics"]["uncertainty"])(reply)


def coming_back_changed() -> Any:
    """Return a `tamper`: client-2 misses round 1 and sends another uncertainty in round 2."""
    away, other = (
        in_training(lambda _: None, rounds=(1,)),
        in_training(changed_uncertainty, kind="query.uncertainty"),
    )
    return lambda message, reply: other(message, kept) if (kept := away(message, reply)) else None


def test_an_uncertainty_that_changes_is_refused(federation: Any) -> None:
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


def test_a_client_whose_data_changed_is_refused(federation: Any) -> None:
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


def test_too_few_reports_stop_the_run_and_lose_nothing(federation: Any, tmp_path: Path) -> None:
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


def test_a_node_that_signed_off_counts_as_missing_for_the_quorum(federation: Any) -> None:
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


@pytest.mark.parametrize("name", ["afl", "focus", "fedeba", "e2fl", "fedfair3"])
def test_a_killed_server_resumes_to_the_same_bytes(
    federation: Any, tmp_path: Path, name: str
) -> None:
    class KilledError(BaseException):
        """Not handled anywhere, like a killed process."""

    def kill(message: Message, reply: Message) -> Message:
        """End the server while it waits for round 4, and for the evaluation of round 3."""
        is_training = message.metadata.message_type == "train"
        if is_training and message.content["config"]["round"] == 4:
            raise KilledError
        return reply

    changes = {"rounds": 5, "checkpoint_every": 2, "participation": 0.7, "quorum": 1}
    run_strategy(federation, name, out=tmp_path / "whole", **changes)
    grid = InProcessGrid(federation, tamper=kill)
    strategy = make_strategy(federation, name, out=tmp_path / "run", **changes)
    strategy.prepare(grid)
    for _ in range(3):
        strategy.run_round()  # without `start`, which would write a checkpoint
    with pytest.raises(KilledError):
        strategy.run_round()
    strategy.log.folder.unlock()  # as the operating system does when a process ends
    assert RunFolder.open(tmp_path / "run").rewind()[0].round == 2
    run_strategy(federation, name, out=tmp_path / "run", resume=True, **changes)
    kept = ["records.jsonl", "checkpoint.safetensors", "result.json"]
    for file in kept:
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), (
            file
        )


def test_resuming_a_finished_run_returns_its_result(federation: Any, tmp_path: Path) -> None:
    first = run_strategy(federation, "rawls", out=tmp_path / "run").result
    before = (tmp_path / "run" / "records.jsonl").read_bytes()
    again = run_strategy(federation, "rawls", out=tmp_path / "run", resume=True).result
    assert again.metrics == first.metrics
    assert again.client_scores == first.client_scores
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == before


def test_a_resumed_run_accepts_only_its_own_clients_and_settings(
    federation: Any, tmp_path: Path
) -> None:
    changes = {"out": tmp_path / "run", "rounds": 2}
    grid = InProcessGrid(federation, tamper=in_training(lambda _: None, rounds=(2,)))
    with pytest.raises(QuorumError):
        run_strategy(federation, "rawls", grid, quorum=3, **changes)
    stranger = InProcessGrid(federation)
    stranger.add(BAD, client_data(federation, "client-2", id="stranger"))
    with pytest.raises(
        ReportError,
        match="client 'stranger': id is of no client of this run, which has client-1, client-2",
    ):
        run_strategy(federation, "rawls", stranger, resume=True, **changes)
    changed = InProcessGrid(
        federation, tamper=in_training(changed_uncertainty, kind="query.uncertainty")
    )
    records = (tmp_path / "run" / "records.jsonl").read_bytes()
    with pytest.raises(ReportError, match="client 'client-2': uncertainties was"):
        run_strategy(federation, "rawls", changed, resume=True, **changes)
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == records
    with pytest.raises(StorageError, match="was started with another seed"):
        run_strategy(federation, "rawls", resume=True, seed=1, **changes)
    with pytest.raises(
        StorageError, match="was started with another report_uncertainties, max_update_norm"
    ):
        run_strategy(
            federation,
            "rawls",
            resume=True,
            report_uncertainties=True,
            max_update_norm=5.0,
            **changes,
        )
    with pytest.raises(StorageError, match="already holds a run; continue it with resume = true"):
        run_strategy(federation, "rawls", **changes)
    missing = InProcessGrid(federation)
    missing.remove(BAD)
    strategy = run_strategy(federation, "rawls", missing, resume=True, **changes)
    assert strategy.result.history.by_client("absent", 2) == {"client-2": "is not connected"}
    assert any("client-2" in note for note in strategy.result.notes)
    assert set(strategy.result.client_scores) == {"client-1", "client-3"}


def test_a_run_of_the_simulator_is_not_resumed(federation: Any, tmp_path: Path) -> None:
    simulate_small(federation, "fedavg", out=tmp_path / "run")
    with pytest.raises(StorageError, match="not made across machines"):
        run_strategy(federation, "fedavg", out=tmp_path / "run", resume=True)


def test_settings_that_were_changed_are_not_believed(federation: Any, tmp_path: Path) -> None:
    run_strategy(federation, "fedavg", out=tmp_path / "run")
    path = tmp_path / "run" / "settings.json"
    path.write_text(path.read_text().replace("client-2", "client-9"))
    with pytest.raises(StorageError, match=r"settings.json is damaged \(its SHA-256"):
        read_members(tmp_path / "run")


def test_a_new_run_waits_for_all_clients(federation: Any) -> None:
    grid = InProcessGrid(federation)
    grid.remove(BAD)
    with pytest.raises(
        QuorumError,
        match=r"2 of 3 clients came within 0.1 seconds \(client-1, client-3\); start the others",
    ):
        run_strategy(federation, "fedavg", grid)
    assert grid.sent("train") == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"n_classes": 4}, "n_classes is 4, elsewhere 3"),
        (
            {"train": (np.ones((4, 5)), [0, 1, 2, 0]), "test": (np.zeros((2, 5)), [0, 1])},
            r"input_shape is \[5\], elsewhere",
        ),
    ],
)
def test_clients_must_agree_on_classes_and_shapes(
    federation: Any, changes: dict[str, Any], problem: str
) -> None:
    grid = InProcessGrid(federation)
    grid.add(BAD, client_data(federation, "client-2", **changes))
    with pytest.raises(ReportError, match=f"client 'client-2': {problem}"):
        run_strategy(federation, "fedavg", grid)
    with pytest.raises(QuorumError, match="2 of 3 clients"):
        run_strategy(federation, "fedavg", grid, on_bad_report="exclude")


def test_all_clients_have_a_sensitive_attribute_or_none(federation: Any) -> None:
    grid = InProcessGrid(federation)
    grid.add(BAD, client_data(with_groups(federation), "client-2"))
    with pytest.raises(
        ReportError, match="client 'client-2': sensitive attribute has to be there for every client"
    ):
        run_strategy(federation, "mfairfl", grid)


def test_all_clients_must_have_the_servers_model(federation: Any) -> None:
    grid = InProcessGrid(federation)
    grid.add(BAD, client_data(federation, "client-2"), "logistic")
    with pytest.raises(ReportError, match="client 'client-2': model differs from the server's"):
        run_strategy(federation, "fedavg", grid)


def test_a_client_whose_data_cannot_be_loaded_stops_the_run_with_its_error(federation: Any) -> None:
    grid = InProcessGrid(federation)

    def broken(message: Message, context: Any) -> Message:
        raise DataError("client 'client-2', train part: is empty: give at least one example")

    grid.apps[BAD] = broken  # type: ignore[assignment]
    with pytest.raises(
        ReportError,
        match=r"introduction is an error \(code 2\): DataError: client 'client-2', train part",
    ):
        run_strategy(federation, "fedavg", grid)


def test_unsupported_settings_are_refused_before_anything_is_sent(federation: Any) -> None:
    with pytest.raises(
        NotDefinedError,
        match=r"cffl: scores clients' models .* give ServerData\(validation=\(x, y\)\)",
    ):
        make_strategy(federation, "cffl")
    with pytest.raises(SettingsError, match="drop-out: leave it at 0"):
        make_strategy(federation, "fedavg", drop_out=0.1)
    with pytest.raises(SettingsError, match="quorum: is 4; give a number from 1 to 3"):
        make_strategy(federation, "fedavg", quorum=4)


@parameters
class UniformMean(FedAvg):
    """A method of somebody's own, which clients import by name."""

    name = "uniform-mean"


def test_a_method_of_ones_own_runs_on_flower(federation: Any) -> None:
    """It is written in messages as package.module:Class."""
    strategy = run_strategy(federation, UniformMean(), rounds=1)
    assert strategy.spec.method.spec_name == f"{__name__}:UniformMean"
    assert strategy.result.method == UniformMean()


def test_a_method_that_needs_all_clients_stops_if_one_is_absent(
    federation: Any, tmp_path: Path
) -> None:
    grid = InProcessGrid(federation, tamper=in_training(lambda _: None))
    with pytest.raises(NotDefinedError, match="effl: compares all clients in every round"):
        run_strategy(federation, "effl", grid, out=tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").rewind()[0].round == 1


def test_the_default_quorum_is_more_than_half_of_those_asked(federation: Any) -> None:
    assert make_strategy(federation).spec.quorum == 2
    assert make_strategy(federation, clients=4).spec.quorum == 3
    assert make_strategy(federation, clients=4, participation=0.5).spec.quorum == 2


def test_flowers_own_arguments_are_refused(federation: Any) -> None:
    with pytest.raises(SettingsError, match="num_rounds: leave it out"):
        make_strategy(federation).start(InProcessGrid(federation), num_rounds=3)
    with pytest.raises(SettingsError, match=r"call start\(grid\)"):
        make_strategy(federation).aggregate_train(1, [])


def test_flowers_result_contains_the_model(federation: Any) -> None:
    strategy = make_strategy(federation, "fedavg")
    flower_result = strategy.start(InProcessGrid(federation))
    for name, value in strategy.result.model.state_dict().items():
        assert torch.equal(flower_result.arrays.to_torch_state_dict()[name], value)
    assert flower_result.train_metrics_clientapp == {}


def test_uncertainties_can_be_requested_where_the_method_needs_none(federation: Any) -> None:
    plain = run_strategy(federation, "fedavg").result
    assert plain.undefined["pearson_r"] == "No client has an uncertainty."
    asked = run_strategy(federation, "fedavg", report_uncertainties=True).result
    assert asked.uncertainty == pytest.approx(
        simulate_small(federation, "fedavg").uncertainty, rel=1e-5
    )
    assert asked.metrics["pearson_r"] is not None


def test_psi_is_measured_from_a_finished_run_of_fedavg(federation: Any, tmp_path: Path) -> None:
    run_strategy(federation, "fedavg", out=tmp_path / "fedavg", report_uncertainties=True)
    result = run_strategy(federation, "rawls", reference=tmp_path / "fedavg").result
    expected = simulate_small(
        federation, "rawls", reference=simulate_small(federation, "fedavg")
    ).metrics["psi"]
    assert result.metrics["psi"] == pytest.approx(expected)
    assert "psi" not in run_strategy(federation, "rawls").result.metrics
    with pytest.raises(SettingsError, match=r"reference: .* has seed 0, this run has seed 1"):
        run_strategy(federation, "rawls", reference=tmp_path / "fedavg", seed=1)
    with pytest.raises(SettingsError, match=r"has accuracy as score, this run log-loss"):
        run_strategy(federation, "rawls", reference=tmp_path / "fedavg", score="log-loss")


def test_a_client_that_missed_the_last_evaluation_is_evaluated_by_resuming(
    federation: Any, tmp_path: Path
) -> None:
    def lose(message: Message, reply: Message) -> Message | None:
        gone = message.metadata.message_type == "evaluate" and message.metadata.dst_node_id == BAD
        return Message(Error(8, "gone"), reply_to=message) if gone else reply

    def scores() -> dict[str, float]:
        return json.loads((out / "result.json").read_text())["client_scores"]

    out = tmp_path / "fedavg"
    losing = InProcessGrid(federation, tamper=lose)
    run_strategy(federation, "fedavg", losing, out=out, report_uncertainties=True)
    assert list(scores()) == ["client-1", "client-3"]
    words = r"did not evaluate client-2 after its last round; resume .*run FOLDER --resume NAME`"
    with pytest.raises(SettingsError, match=words):
        run_strategy(federation, "rawls", reference=out)
    again = {"out": out, "report_uncertainties": True, "resume": True}
    result = run_strategy(federation, "fedavg", **again).result
    assert scores() == simulate_small(federation, "fedavg").client_scores == result.client_scores
    assert run_strategy(federation, "rawls", reference=out).result.metrics["psi"] is not None
    whole = (out / "result.json").read_bytes()
    run_strategy(federation, "fedavg", InProcessGrid(federation, tamper=lose), **again)
    assert (out / "result.json").read_bytes() == whole  # fewer clients replace nothing
    (status,) = check_folder(out)
    assert status.is_whole


def test_a_server_without_data_gets_the_shape_from_its_clients(federation: Any) -> None:
    result = run_strategy(federation, "rawls", server_data=None).result
    assert result.global_accuracy is None
    assert result.undefined["global_accuracy"] == "The server has no test data."
    assert result.client_scores == simulate_small(federation, "rawls").client_scores
    only_shape = ServerData(None, None, federation.input_shape, federation.n_classes)
    assert (
        run_strategy(federation, "rawls", server_data=only_shape).result.client_scores
        == result.client_scores
    )


def test_a_client_that_is_not_evaluated_is_in_no_metric(federation: Any) -> None:
    tamper = in_training(lambda _: None, rounds=(3,), kind="evaluate")
    result = run_strategy(federation, "rawls", InProcessGrid(federation, tamper=tamper)).result
    assert set(result.client_scores) == {"client-1", "client-3"}
    assert result.notes[-1] == "Not evaluated after the last round, and in no metric: client-2."
    assert result.history.by_client("not_evaluated", 3) == {"client-2": "did not reply in time"}
    assert result.metrics["mean_accuracy"] == pytest.approx(sum(result.client_scores.values()) / 2)
    bad = in_training(with_metrics(**{"test-accuracy": 3.0}), rounds=(3,), kind="evaluate")
    with pytest.raises(ReportError, match=r"test accuracy is 3\.0; it must be from 0 to 1"):
        run_strategy(federation, "rawls", InProcessGrid(federation, tamper=bad))


def test_nothing_of_a_round_stays_in_memory(federation: Any, tmp_path: Path) -> None:
    strategy = make_strategy(federation, "rawls", out=tmp_path / "run")
    grid = InProcessGrid(federation)
    strategy.prepare(grid)
    for _ in range(3):
        strategy.run_round()
    assert strategy.log._memory.records == []
    assert strategy.registry.excluded == {}


def test_a_model_for_all_clients_is_in_memory_once(federation: Any) -> None:
    grid = InProcessGrid(federation)
    run_strategy(federation, "fedavg", grid, rounds=1)
    for kind in ("train", "evaluate"):
        assert len({id(content["config"]["tensors"]) for _, content, _ in grid.sent(kind)}) == 1


def test_the_settings_file_contains_only_what_clients_sent(federation: Any, tmp_path: Path) -> None:
    run_strategy(federation, "rawls", out=tmp_path / "rawls")
    run_strategy(federation, "fedavg", out=tmp_path / "fedavg")
    clients = {
        name: json.loads((tmp_path / name / "settings.json").read_text())["federation"]["clients"]
        for name in ("rawls", "fedavg")
    }
    assert clients["rawls"] == [{"id": f"client-{i}", "train": None} for i in (1, 2, 3)]
    assert clients["fedavg"] == [{"id": f"client-{i + 1}", "train": 24 + 5 * i} for i in range(3)]
