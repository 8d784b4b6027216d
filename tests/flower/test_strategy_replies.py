"""Clients that send unusable replies, lies or bad probes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from in_process_grid import (
    FIRST_NODE,
    InProcessGrid,
    make_strategy,
    run_strategy,
    tensors_of,
    with_tensors,
)
from tampered_replies import in_training, with_metrics

import udjfl
from udjfl.errors import ReportError
from udjfl.training.run_folder import RunFolder


def with_arrays(**changes: Any) -> Any:
    def change(reply: Message) -> RecordDict:
        arrays = {name: tensor.numpy() for name, tensor in tensors_of(reply.content).items()}
        for name, value in changes.items():
            arrays[name] = value(arrays[name]) if callable(value) else value
        return with_tensors(reply.content, safetensors.numpy.save(arrays))

    return change


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
    federation: udjfl.Federation, change: Any, problem: str
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
def test_a_round_survives_a_lie_as_if_the_liar_were_away(
    federation: udjfl.Federation, case: str
) -> None:
    change, kind, rule = LIES[case]
    rounds = {"rounds": 1, "on_bad_report": "exclude"}
    grid = InProcessGrid(federation, tamper=in_training(change, rounds=(1,), kind=kind))
    lied = run_strategy(federation, rule, grid, **rounds)
    grid = InProcessGrid(federation, tamper=in_training(lambda _: None, rounds=(1,)))
    away = run_strategy(federation, rule, grid, **rounds)
    assert list(lied.result.history.by_client("excluded", 1)) == ["client-2"]
    assert torch.equal(lied.log.server.vector, away.log.server.vector)


def test_a_size_counts_only_if_it_was_told_at_registration(federation: udjfl.Federation) -> None:
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
    federation: udjfl.Federation, tmp_path: Path, change: Any, problem: str
) -> None:
    first = make_strategy(federation)
    first.prepare(InProcessGrid(federation))
    strategy = make_strategy(federation, out=tmp_path / "run", max_update_norm=1000.0)
    with pytest.raises(ReportError, match=problem) as caught:
        strategy.start(InProcessGrid(federation, tamper=in_training(change, rounds=(1,))))
    assert (caught.value.client, caught.value.round) == ("client-2", 1)
    assert list(RunFolder.open(tmp_path / "run").read_records()) == []
    assert torch.equal(strategy.log.server.vector, first.log.server.vector)


def test_a_huge_update_is_used_unless_there_is_a_limit(federation: udjfl.Federation) -> None:
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


def test_a_client_with_a_bad_probe_is_excluded_before_training(
    federation: udjfl.Federation,
) -> None:
    change = with_arrays(**{"extra.gradients": lambda g: g * np.nan})
    grid = InProcessGrid(federation, tamper=in_training(change, kind="query.probe"))
    history = run_strategy(federation, "fedeba", grid, on_bad_report="exclude").result.history
    assert "gradients has values" in str(history.by_client("excluded", 2)["client-2"])
    trained = [node for node, content, _ in grid.sent("train") if content["config"]["round"] == 2]
    assert sorted(trained) == [FIRST_NODE, FIRST_NODE + 2]
