"""The server's app: everything comes from the run's configuration, and its mistakes are all reported at once."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from inprocess import InProcessGrid, make_federation, server_data, simulated

from udjfl import DataError, SettingsError, TrainingSettings
from udjfl.flower import server_app
from udjfl.flower import settings as options
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
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app gives udjfl's logger a place and a level, which other tests must not see."""
    logger = logging.getLogger("udjfl")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logger.level)


def run(config: dict[str, Any], data: Any = None) -> None:
    federation = make_federation()
    app = server_app("mlp", data or (lambda context: server_data(federation)))
    app(InProcessGrid(federation), Context(1, 1, {}, RecordDict(), config))


def test_a_run_from_its_configuration_alone(tmp_path: Path) -> None:
    run(
        {
            **QUICK,
            "method": "udj:theory=rawls:beta=2",
            "seed": 3,
            "out": str(tmp_path / "run"),
            "my-own-key": "x",
        }
    )
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    here = simulated(make_federation(), method("rawls", beta=2.0), rounds=2, seed=3)
    assert found["client_accuracy"] == here.client_accuracy
    assert found["label"] == here.method.label


def test_a_run_can_be_resumed(tmp_path: Path) -> None:
    config = {**QUICK, "out": str(tmp_path / "run")}
    run(config)
    before = (tmp_path / "run" / "result.json").read_text()
    run({**config, "resume": True})
    assert (tmp_path / "run" / "result.json").read_text() == before


def test_every_key_has_a_default() -> None:
    settings, rule = options.read({})
    assert rule == method("rawls")
    assert settings.model == ""
    wanted = """method seed rounds lr momentum batch-size local-epochs loss-at participation on-bad-report uncertainty
        uncertainty-epochs uncertainty-lr uncertainty-optimiser eval-every checkpoint-every hidden weight-norm model clients
        quorum round-timeout wait-timeout out resume report-uncertainties max-update-norm reference"""
    known = {name.replace("_", "-") for name in options.FlowerSettings.model_fields} - {
        "drop-out",
        "engine",
        "device",
        "workers",
    }
    assert set(wanted.split()) <= known
    assert known - set(wanted.split()) == {"uncertainty-models"}


def test_all_mistakes_at_once_by_the_keys_as_they_were_written() -> None:
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
    said = str(caught.value)
    for part in (
        "method: unknown name 'rwals'. Did you mean 'rawls'?",
        "batch-size: ",
        "loss-at: unknown value 'never'",
        "round-timeout: ",
        "quorum: ",
        "local-epoch: no such key. Did you mean 'local-epochs'?",
        "model: unknown name 'resnet'",
    ):
        assert part in said
    assert len(caught.value.mistakes) == 7


def test_what_only_the_simulator_has_is_no_key() -> None:
    assert options.read({"workers": 3})[0].workers == TrainingSettings().workers


def test_mistakes_come_before_the_data_are_loaded() -> None:
    def data(context: Context) -> Any:
        raise AssertionError("loaded")

    with pytest.raises(SettingsError, match="rounds"):
        run({"rounds": 0}, data)


def test_a_data_function_that_returns_something_else_is_named() -> None:
    with pytest.raises(DataError, match=r"returned dict; it must return udjfl.flower.ServerData"):
        run(QUICK, lambda context: {})


def test_the_configuration_may_name_the_model() -> None:
    strategy = options.strategy(
        {**QUICK, "model": "logistic"}, "mlp", server_data(make_federation())
    )
    assert (strategy.facts.model, strategy.model) == ("logistic", None)
    strategy = options.strategy(QUICK, "mlp", server_data(make_federation()))
    assert (strategy.facts.model, strategy.model) == ("", "mlp")


def test_zero_and_empty_mean_left_out() -> None:
    strategy = options.strategy(QUICK, "mlp", server_data(make_federation()))
    assert (strategy.quorum, strategy.max_update_norm, strategy.out, strategy.reference) == (
        2,
        None,
        None,
        None,
    )
    strategy = options.strategy(
        {**QUICK, "quorum": 1, "max-update-norm": 2.5}, "mlp", server_data(make_federation())
    )
    assert (strategy.quorum, strategy.max_update_norm) == (1, 2.5)
