"""Services on Flower: the simulator's numbers, and nothing sent that is not needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Message
from in_process_grid import (
    FIRST_NODE,
    InProcessGrid,
    make_federation,
    make_strategy,
    run_strategy,
    simulate_small,
    tensors_of,
    with_tensors,
)

import udjfl
from udjfl.errors import NotDefinedError, ReportError, SettingsError
from udjfl.flower.service import CLASS_TERM, KAPPA, PRIOR, SCORE
from udjfl.training.result import read_served
from udjfl.training.run_folder import RunFolder
from udjfl.training.service import class_term

SERVICES = ("prior-rawls", "prior-egalitarian", "prior-all", "checkpoints:rho=0.5")
LAST = 6
TRAINING: dict[str, Any] = {"rounds": LAST, "hidden": 8, "batch_size": 64, "lr": 0.4}


@pytest.fixture(scope="module")
def digits() -> udjfl.Federation:
    return udjfl.load("dirty-digits", clients=3)


@pytest.mark.parametrize("method", ["fedavg", "rawls"])
@pytest.mark.parametrize("service", SERVICES)
def test_clients_are_served_what_the_simulator_serves_them(
    digits: udjfl.Federation, service: str, method: str, tmp_path: Path
) -> None:
    changes = {**TRAINING, "local_epochs": 2, "service": service}
    here = simulate_small(digits, method, out=tmp_path / "here", **changes)
    there = run_strategy(digits, method, out=tmp_path / "there", **changes).result
    assert there.client_scores == here.client_scores
    assert there.common_scores == here.common_scores
    losses = [there.history.by_client(name, LAST) for name in ("served_loss", "test_loss")]
    assert losses[0] != losses[1]
    assert there.global_accuracy == here.global_accuracy
    assert there.notes[0] == here.notes[0]
    served = [read_served(RunFolder.open(tmp_path / name)) for name in ("here", "there")]
    assert served[0] is not None
    assert served[1] is not None
    torch.testing.assert_close(served[1].models, served[0].models, rtol=1e-4, atol=1e-6)
    assert torch.equal(served[1].shares, served[0].shares)
    if service.startswith("prior"):
        torch.testing.assert_close(served[1].offsets, served[0].offsets, rtol=1e-5, atol=1e-6)
    for metric in ("served_accuracy", "kappa", "target", "served_round"):
        expected = here.history.by_client(metric, LAST)
        assert there.history.by_client(metric, LAST) == pytest.approx(expected, rel=1e-5)


def test_the_client_computes_its_offset_from_its_own_labels(digits: udjfl.Federation) -> None:
    grid = InProcessGrid(digits)
    run_strategy(digits, "fedavg", grid, **TRAINING, service="prior-rawls")
    sent = [
        (node, tensors_of(content))
        for node, content, _ in grid.sent("evaluate")
        if PRIOR in tensors_of(content)
    ]
    assert [node for node, _ in sent] == [FIRST_NODE + 2]  # the most uncertain client alone
    assert float(sent[0][1][KAPPA]) == 1
    terms = torch.stack([class_term(c.train.y, digits.n_classes) for c in digits.clients])
    mean = terms.sum(dim=0) / sum(digits.sizes)
    torch.testing.assert_close(sent[0][1][PRIOR], mean)


@pytest.mark.parametrize(
    ("service", "field"), [("prior-all", CLASS_TERM), ("checkpoints", SCORE), ("none", None)]
)
def test_what_a_service_needs_is_sent_once_after_the_last_round(
    service: str, field: str | None
) -> None:
    federation = make_federation()
    grid = InProcessGrid(federation)
    run_strategy(federation, "fedavg", grid, rounds=3, service=service)
    extra = [
        (reply.content["config"]["round"], set(tensors_of(reply.content)))
        for _, _, reply in grid.sent("evaluate")
        if reply is not None and tensors_of(reply.content)
    ]
    assert extra == ([] if field is None else [(3, {field})] * 3)
    asks = bool(grid.sent("query.uncertainty"))
    assert asks == (service != "none")
    scores = ["extra.scores" in tensors_of(reply.content) for _, _, reply in grid.sent("train")]
    assert all(scores) if service == "checkpoints" else not any(scores)


def test_a_resumed_run_is_served_the_same(digits: udjfl.Federation, tmp_path: Path) -> None:
    for service in ("prior-egalitarian", "checkpoints:rho=0.5"):
        changes = {**TRAINING, "service": service, "checkpoint_every": 2}
        whole = run_strategy(digits, "fedavg", out=tmp_path / service / "whole", **changes)
        folder = tmp_path / service / "stopped"
        strategy = make_strategy(digits, "fedavg", out=folder, **changes)
        strategy.prepare(InProcessGrid(digits))
        for _ in range(4):
            strategy.run_round()
        strategy.log.folder.unlock()
        resumed = run_strategy(digits, "fedavg", out=folder, resume=True, **changes)
        assert resumed.result.client_scores == whole.result.client_scores
        names = ("served.safetensors", "model.safetensors", "records.jsonl", "result.json")
        for name in names:
            assert (folder / name).read_bytes() == (
                tmp_path / service / "whole" / name
            ).read_bytes()


def tampering(value: list[float] | None, name: str) -> Any:
    """Return a `tamper` that changes what the first client reports for a service."""

    def tamper(message: Message, reply: Message) -> Message:
        tensors = tensors_of(reply.content)
        if message.metadata.dst_node_id != FIRST_NODE or name not in tensors:
            return reply
        del tensors[name]
        if value is not None:
            tensors[name] = torch.tensor(value, dtype=torch.float64)
        return Message(with_tensors(reply.content, tensors), reply_to=message)

    return tamper


@pytest.mark.parametrize(
    ("service", "name", "value", "problem"),
    [
        ("prior-all", CLASS_TERM, None, "must have 3 numbers"),
        ("prior-all", CLASS_TERM, [1.0, 2.0], "must have 3 numbers"),
        ("prior-all", CLASS_TERM, [1.0, 2.0, float("nan")], "NaN or infinite"),
        ("prior-all", CLASS_TERM, [1.0, 2.0, 0.0], "must be above zero for every class"),
        ("checkpoints", SCORE, [1.5], "is 1.5; it must be from 0 to 1"),
    ],
)
def test_what_cannot_be_used_stops_the_run_or_leaves_the_client_out(
    service: str, name: str, value: list[float] | None, problem: str
) -> None:
    federation = make_federation()
    with pytest.raises(ReportError, match=problem):
        run_strategy(
            federation,
            "fedavg",
            InProcessGrid(federation, tamper=tampering(value, name)),
            service=service,
        )
    result = run_strategy(
        federation,
        "fedavg",
        InProcessGrid(federation, tamper=tampering(value, name)),
        service=service,
        on_bad_report="exclude",
    ).result
    honest = run_strategy(federation, "fedavg", service=service).result
    # It keeps the common model, and is in no sum.
    assert result.client_scores["client-1"] == honest.common_scores["client-1"]
    assert result.history.by_client("kappa", 3).get("client-1", 0) == 0


def test_a_client_that_leaves_before_it_is_served_is_not_evaluated() -> None:
    federation = make_federation()

    def tamper(message: Message, reply: Message) -> Message | None:
        served = PRIOR in tensors_of(message.content)
        gone = message.metadata.dst_node_id == FIRST_NODE and served
        return None if gone else reply

    grid = InProcessGrid(federation, tamper=tamper)
    result = run_strategy(federation, "fedavg", grid, service="prior-all").result
    assert list(result.client_scores) == ["client-2", "client-3"]
    assert list(result.common_scores or {}) == ["client-2", "client-3"]
    assert any("Not evaluated after the last round" in note for note in result.notes)


def test_refused_before_anything_is_sent() -> None:
    federation = make_federation()
    with pytest.raises(SettingsError, match="service: unknown value 'best'"):
        make_strategy(federation, service="best")
    with pytest.raises(NotDefinedError, match="focus: serves clients models of its own"):
        make_strategy(federation, "focus", service="prior-all")


def test_the_folder_and_the_log_name_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = make_federation()
    caplog.set_level("INFO", "udjfl")
    run_strategy(federation, "fedavg", out=tmp_path / "run", service="prior-all")
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["training"]["service"] == "prior-all"
    sentence = "clients also send their uncertainty and, after the last round, how many examples of"
    assert sentence in caplog.text
