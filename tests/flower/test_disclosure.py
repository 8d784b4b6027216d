"""A node's own configuration says what may leave it, and what left is written down there."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import RecordDict
from in_process_grid import FIRST_NODE, InProcessGrid, make_federation, run_strategy, with_groups
from torch import nn

from udjfl.errors import (
    DataError,
    DeploymentError,
    ReportError,
    SettingsError,
    UdjflError,
    quote_values,
)
from udjfl.flower import client_app
from udjfl.flower.client_app import MessageHandler
from udjfl.flower.disclosure import (
    DISCLOSES,
    EVALUATIONS,
    Disclosure,
    needed_disclosures,
    releasing_errors,
)
from udjfl.flower.messages import EVALUATION_ERROR, make_reply
from udjfl.flower.tensors import EXTRA, tensors_of, values_of
from udjfl.methods import method
from udjfl.settings import TrainingSettings
from udjfl.training.federation_info import FederationInfo
from udjfl.training.state import Run, RunSpec

BAD = FIRST_NODE + 1  # the node of client-2


def make_grid(**node_config: Any) -> InProcessGrid:
    """Make a grid whose second node has this configuration."""
    grid = InProcessGrid(make_federation())
    grid.contexts[BAD].node_config.update(node_config)
    return grid


def test_a_node_that_discloses_enough_takes_part_with_the_same_numbers() -> None:
    federation = make_federation()
    names = "updates, losses, steps, uncertainties, evaluations"
    restricted = run_strategy(federation, "rawls", make_grid(disclose=names))
    free = run_strategy(federation, "rawls")
    assert torch.equal(restricted.log.server.vector, free.log.server.vector)
    assert restricted.result.client_scores == free.result.client_scores


def test_a_run_that_needs_more_is_refused_before_anything_is_sent() -> None:
    federation = make_federation()
    with pytest.raises(ReportError, match="disclose: this node does not send losses, steps;"):
        run_strategy(federation, "rawls", make_grid(disclose="updates,uncertainties,evaluations"))
    grid = make_grid(disclose="updates")
    with pytest.raises(ReportError, match="does not send evaluations, sizes"):
        run_strategy(federation, "fedavg", grid)
    assert all(reply.has_error() for node, _, reply in grid.sent("query.introduce") if node == BAD)


def test_a_client_that_discloses_no_evaluation_trains_and_is_not_evaluated() -> None:
    grid = make_grid(disclose="updates,sizes")
    result = run_strategy(make_federation(), "fedavg", grid, on_bad_report="exclude").result
    assert set(result.client_scores) == {"client-1", "client-3"}
    assert list(result.history.by_client("weight", 3)) == ["client-1", "client-2", "client-3"]


def test_a_reply_with_anything_else_in_it_is_not_sent(tmp_path: Path) -> None:
    log = tmp_path / "sent.jsonl"
    disclosure = Disclosure.of({"disclose": "updates", "disclose-log": str(log)})

    def reply(tensors: dict[str, Any], numbers: dict[str, float]) -> RecordDict:
        return make_reply("a", tensors, numbers, {"round": 1})

    good = reply({"delta": torch.zeros(3)}, {})
    assert disclosure.release("train", good) is good
    for tensors, numbers in (
        ({"extra.gradients": torch.zeros(3)}, {}),
        ({"gift": torch.zeros(3)}, {}),
        ({}, {"num-examples": 3.0}),
        ({}, {"epistemic": 0.1}),
        ({}, {"test-accuracy": 0.5}),
    ):
        with pytest.raises(SettingsError, match="this node does not send"):
            disclosure.release("train", reply(tensors, numbers))
    assert len(log.read_text().splitlines()) == 1  # what was not sent is not in it
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_what_left_is_written_down(tmp_path: Path) -> None:
    log = tmp_path / "sent.jsonl"
    grid = make_grid(**{"disclose-log": str(log)})
    run_strategy(make_federation(), "rawls", grid, rounds=1)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    sent = [(kind, reply) for kind, node, _, reply in grid.log if node == BAD]
    assert [line["message"] for line in lines] == [kind for kind, _ in sent]
    for line, (_, reply) in zip(lines, sent, strict=True):
        assert line["numbers"] == dict(reply.content["metrics"])
        assert set(line["tensors"]) == set(tensors_of(reply.content))
    assert {"loss", "steps"} == set(lines[2]["numbers"])


def test_the_text_of_an_error_that_can_quote_the_data_stays_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "sent.jsonl"
    grid = make_grid(**{"disclose-log": str(log)})

    def read(context: Any) -> Any:
        return float("J. Smith")

    grid.apps[BAD] = client_app("mlp", read)
    with pytest.raises(ReportError, match=r"ValueError \(its text is in the log of the node\)"):
        run_strategy(make_federation(), "fedavg", grid)
    (reply,) = [reply for _, node, _, reply in grid.log if node == BAD]
    assert "Smith" not in str(reply.error.reason) + log.read_text()
    (line,) = map(json.loads, log.read_text().splitlines())
    assert (line["message"], line["error"].split()[0]) == ("query.introduce", "ValueError")
    assert "could not convert string to float: 'J. Smith'" in caplog.text


def test_the_text_of_an_error_of_udjfl_is_sent_and_written_down(tmp_path: Path) -> None:
    log = tmp_path / "sent.jsonl"
    grid = make_grid(**{"disclose-log": str(log), "disclose": "updates,evaluations"})
    with pytest.raises(ReportError, match="SettingsError: disclose: this node does not send sizes"):
        run_strategy(make_federation(), "fedavg", grid)
    assert "this node does not send sizes" in json.loads(log.read_text())["error"]


def test_values_that_an_error_of_udjfl_quotes_stay_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any) -> Any:
        raise DataError(f"column 'name': 1 value is no number ({quote_values(['J. Smith'])})")

    monkeypatch.setattr(MessageHandler, "train", fail)
    log = tmp_path / "sent.jsonl"
    grid = make_grid(**{"disclose-log": str(log)})
    words = r"DataError.*column 'name': 1 value is no number \(…\)"
    with pytest.raises(ReportError, match=words) as caught:
        run_strategy(make_federation(), "fedavg", grid)
    for sent in (str(caught.value), log.read_text(), *map(str, grid.sent("train"))):
        assert "Smith" not in sent
    assert "no number ('J. Smith')" in caplog.text  # of the node itself


def test_an_error_while_evaluating_on_the_way_is_sent_without_its_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: MessageHandler, tensors: Any) -> dict[str, float]:
        raise ValueError("'J. Smith'")

    monkeypatch.setattr(MessageHandler, "_evaluate", fail)
    grid = make_grid()
    with pytest.raises(ReportError, match="its text is in the log of the node"):
        run_strategy(make_federation(), "fedavg", grid)
    sent = [values_of(reply.content) for *_, reply in grid.sent("train")]
    errors = [values[EVALUATION_ERROR] for values in sent if EVALUATION_ERROR in values]
    assert set(errors) == {"ValueError (its text is in the log of the node)"}


def test_an_error_whose_line_cannot_be_written_is_sent_without_its_text(tmp_path: Path) -> None:
    config = {"disclose-log": str(tmp_path)}  # a folder
    with (
        pytest.raises(DeploymentError, match=r"disclose-log: IsADirectoryError \(its") as caught,
        releasing_errors("train", config),
    ):
        raise SettingsError("own words")
    assert str(tmp_path) not in str(caught.value)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(SettingsError, match="disclose: unknown weights; known are updates"):
        Disclosure.of({"disclose": "updates,weights"})
    assert Disclosure.of({"disclose": ""}).allowed == frozenset()  # nothing at all
    assert Disclosure.of({}).allowed is None


def test_a_run_names_what_it_needs() -> None:
    def needed(name: str, reports: bool = False, **settings: Any) -> set[str]:
        spec = RunSpec(method(name), TrainingSettings(**settings), 0, None, reports)
        return needed_disclosures(Run(spec, FederationInfo.of(make_federation())), False)

    least = {"updates", "evaluations"}
    assert needed("fedavg") == {*least, "sizes"}
    assert needed("fedavg", on_bad_report="exclude") == {"updates", "sizes"}
    assert needed("fedavg", reports=True) == {*least, "sizes", "uncertainties"}
    assert needed("rawls") == {*least, "losses", "steps", "uncertainties"}


def norm_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedavg", {}),
        ("fedavg", {"record_scores": True}),
        ("fedavg", {"service": "prior-rawls"}),
        ("fedavg", {"service": "checkpoints", "on_bad_report": "exclude"}),
        ("fedavg", {"model": norm_model}),
        ("rawls", {"report_uncertainties": True}),
        ("rawls:budget=50:limit=10", {}),
        ("effl", {}),
        ("qffl", {"score": "balanced-accuracy"}),
        ("fedfair3", {}),
        ("ditto", {}),
    ],
)
def test_what_a_run_needs_is_what_its_clients_send(name: str, changes: dict[str, Any]) -> None:
    """No less, or a run would be refused after training; no more, or needlessly."""
    federation = with_groups(make_federation())
    model = changes.get("model", "mlp")
    free = InProcessGrid(federation, model)
    strategy = run_strategy(federation, name, free, **changes)
    sent = {
        DISCLOSES.get(field, field)
        for *_, reply in free.log
        for field in (
            *(text.removeprefix(EXTRA) for text in tensors_of(reply.content)),
            *reply.content["metrics"],
        )
    }
    has_buffers = any(buffer.numel() for buffer in strategy.module.buffers())
    needed = needed_disclosures(strategy.run, has_buffers)
    assert sent == needed | {EVALUATIONS}  # which a run that excludes can do without
    for missing in sorted(needed):
        grid = InProcessGrid(federation, model)
        for context in grid.contexts.values():
            context.node_config["disclose"] = ",".join(needed - {missing})
        with pytest.raises(UdjflError, match=f"does not send {missing}"):
            run_strategy(federation, name, grid, **changes)
        assert {kind for kind, *_ in grid.log} == {"query.introduce"}
