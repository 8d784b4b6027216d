"""Runs on Flower: which clients and settings fit, what a run returns, writes and keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Error, Message
from in_process_grid import (
    InProcessGrid,
    client_data,
    make_strategy,
    run_strategy,
    simulate_small,
    with_groups,
)
from tampered_replies import BAD, in_training, with_metrics

import udjfl
from udjfl.errors import DataError, NotDefinedError, QuorumError, ReportError, SettingsError
from udjfl.flower import ServerData
from udjfl.methods import FedAvg, parameters
from udjfl.training.folder_check import check_folder


def test_a_new_run_waits_for_all_clients(
    federation: udjfl.Federation, caplog: pytest.LogCaptureFixture
) -> None:
    grid = InProcessGrid(federation)
    grid.remove(BAD)
    with (
        caplog.at_level("INFO", logger="udjfl"),
        pytest.raises(
            QuorumError,
            match=r"2 of 3 clients came within 1 seconds \(client-1, client-3\); start the others",
        ),
    ):
        run_strategy(federation, "fedavg", grid, wait_timeout=1.0)
    assert grid.sent("train") == []
    assert caplog.text.count("2 of 3 clients are here; waiting 1 s more") == 1


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
    federation: udjfl.Federation, changes: dict[str, Any], problem: str
) -> None:
    grid = InProcessGrid(federation)
    grid.add(BAD, client_data(federation, "client-2", **changes))
    with pytest.raises(ReportError, match=f"client 'client-2': {problem}"):
        run_strategy(federation, "fedavg", grid)
    with pytest.raises(QuorumError, match="2 of 3 clients"):
        run_strategy(federation, "fedavg", grid, on_bad_report="exclude")


def test_all_clients_have_a_sensitive_attribute_or_none(federation: udjfl.Federation) -> None:
    grid = InProcessGrid(federation)
    grid.add(BAD, client_data(with_groups(federation), "client-2"))
    with pytest.raises(
        ReportError, match="client 'client-2': sensitive attribute has to be there for every client"
    ):
        run_strategy(federation, "mfairfl", grid)


def test_all_clients_must_have_the_servers_model(federation: udjfl.Federation) -> None:
    grid = InProcessGrid(federation)
    grid.add(BAD, client_data(federation, "client-2"), "logistic")
    with pytest.raises(ReportError, match="client 'client-2': model differs from the server's"):
        run_strategy(federation, "fedavg", grid)


def test_a_client_whose_data_cannot_be_loaded_stops_the_run_with_its_error(
    federation: udjfl.Federation,
) -> None:
    grid = InProcessGrid(federation)

    def broken(message: Message, context: Any) -> Message:
        raise DataError("client 'client-2', train part: is empty: give at least one example")

    grid.apps[BAD] = broken  # type: ignore[assignment]
    with pytest.raises(
        ReportError,
        match=r"introduction is an error \(code 2\): DataError: client 'client-2', train part",
    ):
        run_strategy(federation, "fedavg", grid)


def test_unsupported_settings_are_refused_before_anything_is_sent(
    federation: udjfl.Federation,
) -> None:
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


def test_a_method_of_ones_own_runs_on_flower(federation: udjfl.Federation) -> None:
    """It is written in messages as package.module:Class."""
    strategy = run_strategy(federation, UniformMean(), rounds=1)
    assert strategy.spec.method.spec_name == f"{__name__}:UniformMean"
    assert strategy.result.method == UniformMean()


def test_flowers_own_arguments_are_refused(federation: udjfl.Federation) -> None:
    with pytest.raises(SettingsError, match="num_rounds: leave it out"):
        make_strategy(federation).start(InProcessGrid(federation), num_rounds=3)
    with pytest.raises(SettingsError, match=r"call start\(grid\)"):
        make_strategy(federation).aggregate_train(1, [])


def test_flowers_result_contains_the_model(federation: udjfl.Federation) -> None:
    strategy = make_strategy(federation, "fedavg")
    flower_result = strategy.start(InProcessGrid(federation))
    for name, value in strategy.result.model.state_dict().items():
        assert torch.equal(flower_result.arrays.to_torch_state_dict()[name], value)
    assert flower_result.train_metrics_clientapp == {}


def test_uncertainties_can_be_requested_where_the_method_needs_none(
    federation: udjfl.Federation,
) -> None:
    plain = run_strategy(federation, "fedavg").result
    assert plain.undefined["pearson_r"] == "No client has an uncertainty."
    asked = run_strategy(federation, "fedavg", report_uncertainties=True).result
    assert asked.uncertainty == pytest.approx(
        simulate_small(federation, "fedavg").uncertainty, rel=1e-5
    )
    assert asked.metrics["pearson_r"] is not None


def test_psi_is_measured_from_a_finished_run_of_fedavg(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
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


def test_a_server_without_data_gets_the_shape_from_its_clients(
    federation: udjfl.Federation,
) -> None:
    result = run_strategy(federation, "rawls", server_data=None).result
    assert result.global_accuracy is None
    assert result.undefined["global_accuracy"] == "The server has no test data."
    assert result.client_scores == simulate_small(federation, "rawls").client_scores
    only_shape = ServerData(None, None, federation.input_shape, federation.n_classes)
    assert (
        run_strategy(federation, "rawls", server_data=only_shape).result.client_scores
        == result.client_scores
    )


def test_a_client_that_is_not_evaluated_is_in_no_metric(federation: udjfl.Federation) -> None:
    tamper = in_training(lambda _: None, rounds=(3,), kind="evaluate")
    result = run_strategy(federation, "rawls", InProcessGrid(federation, tamper=tamper)).result
    assert set(result.client_scores) == {"client-1", "client-3"}
    assert result.notes[-1] == "Not evaluated after the last round, and in no metric: client-2."
    assert result.history.by_client("not_evaluated", 3) == {"client-2": "did not reply in time"}
    assert result.metrics["mean_accuracy"] == pytest.approx(sum(result.client_scores.values()) / 2)
    bad = in_training(with_metrics(**{"test-accuracy": 3.0}), rounds=(3,), kind="evaluate")
    with pytest.raises(ReportError, match=r"test accuracy is 3\.0; it must be from 0 to 1"):
        run_strategy(federation, "rawls", InProcessGrid(federation, tamper=bad))


def test_nothing_of_a_round_stays_in_memory(federation: udjfl.Federation, tmp_path: Path) -> None:
    strategy = make_strategy(federation, "rawls", out=tmp_path / "run")
    grid = InProcessGrid(federation)
    strategy.prepare(grid)
    for _ in range(3):
        strategy.run_round()
    assert strategy.log._memory.records == []
    assert strategy.registry.excluded == {}


def test_a_model_for_all_clients_is_in_memory_once(federation: udjfl.Federation) -> None:
    grid = InProcessGrid(federation)
    run_strategy(federation, "fedavg", grid, rounds=1)
    for kind in ("train", "evaluate"):
        assert len({id(content["config"]["tensors"]) for _, content, _ in grid.sent(kind)}) == 1


def test_the_settings_file_contains_only_what_clients_sent(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    run_strategy(federation, "rawls", out=tmp_path / "rawls")
    run_strategy(federation, "fedavg", out=tmp_path / "fedavg")
    clients = {
        name: json.loads((tmp_path / name / "settings.json").read_text())["federation"]["clients"]
        for name in ("rawls", "fedavg")
    }
    assert clients["rawls"] == [{"id": f"client-{i}", "train": None} for i in (1, 2, 3)]
    assert clients["fedavg"] == [{"id": f"client-{i + 1}", "train": 24 + 5 * i} for i in range(3)]
