"""The server's app reads the run's configuration and reports all mistakes in it at once."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from in_process_grid import InProcessGrid, make_federation, server_data, simulate_small

from udjfl import DataError, SettingsError, TrainingSettings
from udjfl.flower import server_app
from udjfl.flower.settings import FlowerSettings, make_strategy, read_settings
from udjfl.methods import method

QUICK = {
    "rounds": 2,
    "hidden": 5,
    "uncertainty-epochs": 2,
    "batch-size": 8,
    "clients": 3,
    "wait-timeout": 0.1,
}


@pytest.fixture(autouse=True)
def _restore_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the handler and level that the app gives to udjfl's logger."""
    logger = logging.getLogger("udjfl")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logger.level)


def run(config: dict[str, Any], data: Any = None) -> None:
    federation = make_federation()
    app = server_app("mlp", data or (lambda context: server_data(federation)))
    app(InProcessGrid(federation), Context(1, 1, {}, RecordDict(), config))


def test_a_run_needs_only_its_configuration(tmp_path: Path) -> None:
    run(
        {
            **QUICK,
            "method": "udj:theory=rawls:beta=2",
            "seed": 3,
            "out": str(tmp_path / "run"),
            "my-own-key": "x",
        }
    )
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    here = simulate_small(make_federation(), method("rawls", beta=2.0), rounds=2, seed=3)
    assert result["client_scores"] == here.client_scores
    assert result["label"] == here.method.label


def test_a_run_can_be_resumed(tmp_path: Path) -> None:
    config = {**QUICK, "out": str(tmp_path / "run")}
    run(config)
    before = (tmp_path / "run" / "result.json").read_text()
    run({**config, "resume": True})
    assert (tmp_path / "run" / "result.json").read_text() == before


def test_every_key_has_a_default() -> None:
    _, rule = read_settings({})
    assert rule == method("rawls")
    wanted = """method seed rounds lr momentum batch-size local-epochs loss-at participation
        on-bad-report uncertainty uncertainty-epochs uncertainty-lr uncertainty-optimiser
        service eval-every checkpoint-every hidden weight-norm model clients quorum round-timeout
        wait-timeout out resume report-uncertainties max-update-norm max-update-ratio reference
        holdout record-scores task loss score optimiser lr-schedule nesterov weight-decay clip-norm
        class-weights local-steps server-optimizer"""
    known = {name.replace("_", "-") for name in FlowerSettings.flat_fields()} - {
        "drop-out",
        "engine",
        "device",
        "workers",
    }
    assert set(wanted.split()) <= known
    assert known - set(wanted.split()) == {"uncertainty-folds", "uncertainty-models"}


def test_all_mistakes_are_reported_at_once_with_their_keys() -> None:
    wrong = {
        "method": "rwals",
        "batch-size": 0,
        "loss-at": "never",
        "round-timeout": -1,
        "quorum": "many",
        "local-epoch": 3,
        "model": "resnet",
    }
    with pytest.raises(SettingsError) as caught:
        run({**QUICK, **wrong})
    message = str(caught.value)
    for part in (
        "method: unknown name 'rwals'. Did you mean 'rawls'?",
        "batch-size: ",
        "loss-at: unknown value 'never'",
        "round-timeout: ",
        "quorum: ",
        "local-epoch: no such key. Did you mean 'local-epochs'?",
        "model: unknown name 'resnet'",
    ):
        assert part in message
    assert len(caught.value.mistakes) == 7


def test_settings_of_the_simulator_are_ignored() -> None:
    assert read_settings({"workers": 3})[0].training.workers == TrainingSettings().workers


def test_mistakes_are_reported_before_data_are_loaded() -> None:
    def data(context: Context) -> Any:
        raise AssertionError("loaded")

    with pytest.raises(SettingsError, match="rounds"):
        run({"rounds": 0}, data)


def test_a_data_function_with_a_wrong_return_type_is_reported() -> None:
    with pytest.raises(DataError, match=r"returned dict; it must return udjfl.flower.ServerData"):
        run(QUICK, lambda context: {})


def test_the_model_in_the_configuration_replaces_the_apps() -> None:
    strategy = make_strategy({**QUICK, "model": "logistic"}, "mlp", server_data(make_federation()))
    assert (strategy.spec.settings.model, strategy.spec.model) == ("logistic", None)
    strategy = make_strategy(QUICK, "mlp", server_data(make_federation()))
    assert (strategy.spec.settings.model, strategy.spec.model) == ("mlp", "mlp")


def test_zero_and_empty_mean_left_out() -> None:
    strategy = make_strategy(QUICK, "mlp", server_data(make_federation()))
    assert (
        strategy.spec.quorum,
        strategy.spec.max_update_norm,
        strategy.out,
        strategy.reference,
    ) == (
        2,
        None,
        None,
        None,
    )
    strategy = make_strategy(
        {**QUICK, "quorum": 1, "max-update-norm": 2.5}, "mlp", server_data(make_federation())
    )
    assert (strategy.spec.quorum, strategy.spec.max_update_norm) == (1, 2.5)
