"""The same federation, seed and settings give the same numbers on Flower and in the simulator.

And the strategy's step is, bit for bit, that of the method given the same replies.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import safetensors.torch
import torch

pytest.importorskip("flwr")

from in_process_grid import (
    InProcessGrid,
    make_federation,
    make_strategy,
    run_strategy,
    simulate_small,
    with_groups,
    with_validation,
)
from torch import nn

import udjfl
from udjfl.flower import exchange
from udjfl.flower.sending import send_and_receive
from udjfl.methods import ALIASES, METHODS, Method, Plan, Reports, method
from udjfl.methods.base import EXTRAS
from udjfl.simulation import lockstep
from udjfl.training import round as rounds

NAMES = [*ALIASES, *(name for name in METHODS if name != "udj")]
LOOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture(scope="module")
def digits() -> udjfl.Federation:
    """Three clients of dirty-digits, one with ambiguous data, and a server with data."""
    return with_validation(udjfl.load("dirty-digits", clients=3))


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Collect the server's model after each round, of the simulator and of Flower."""
    seen: list[torch.Tensor] = []
    close_round = rounds.close_round

    def watch(*arguments: Any) -> Any:
        result = close_round(*arguments)
        seen.append(result.server.vector.clone())
        return result

    monkeypatch.setattr(rounds, "close_round", watch)  # Flower
    monkeypatch.setattr(lockstep, "close_round", watch)  # the simulator
    return seen


def assert_equal_halves(models: list[torch.Tensor], rounds: int) -> None:
    """Compare the first half (the simulator) with the second (Flower); training must move."""
    assert len(models) == 2 * rounds
    for here, there in zip(models[:rounds], models[rounds:], strict=True):
        torch.testing.assert_close(there, here, **LOOSE)
    assert not torch.equal(models[0], models[rounds - 1])


@pytest.mark.parametrize("name", NAMES)
def test_every_round_ends_with_the_simulators_model(
    name: str, digits: udjfl.Federation, models: list[torch.Tensor]
) -> None:
    changes = {"rounds": 3, "hidden": 8, "batch_size": 64, "lr": 0.4, "local_epochs": 2}
    here = simulate_small(digits, name, **changes)
    there = run_strategy(digits, name, **changes).result
    assert_equal_halves(models, 3)
    assert there.client_scores == pytest.approx(here.client_scores, abs=1.0)
    assert (there.global_accuracy is None) == (here.global_accuracy is None)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedfair3", {"participation": 0.5}),
        ("fedavg", {"participation": 0.5, "seed": 3}),
        ("udj:theory=desert:step=paper", {"momentum": 0.0}),
        ("focus:models=3", {"local_epochs": 2}),
        ("cffl:theta=0.5:aggregation=mean:download=topk", {}),
        ("fedeba:theta=0:prior=size", {}),  # gradients are aligned in every round
        ("fedavg", {"model": "logistic"}),
        ("rawls", {"uncertainty": "confidence", "uncertainty_optimiser": "adam"}),
        ("rawls", {"uncertainty": "ensemble", "uncertainty_models": 2}),
        ("term", {"loss_at": "final"}),
        ("fedavg", {"server_optimizer": "adam:lr=0.05"}),
        ("scaffold", {"server_optimizer": "momentum:b1=0.5", "participation": 0.5}),
        ("ditto:lam=1", {"participation": 0.5, "batch_size": 8}),
        ("feddyn", {"drop_out": 0.0, "batch_size": 8}),
    ],
)
def test_every_setting_gives_the_simulators_model(
    name: str, changes: dict[str, Any], models: list[torch.Tensor]
) -> None:
    federation = with_validation(make_federation(4))
    model = changes.pop("model", "mlp")
    simulate_small(federation, name, model=model, **changes)
    run_strategy(federation, name, InProcessGrid(federation, model), model=model, **changes)
    assert_equal_halves(models, 3)


@pytest.mark.parametrize("name", ["mfairfl", "effl"])
def test_methods_with_groups_give_the_simulators_model(
    name: str, models: list[torch.Tensor]
) -> None:
    federation = with_groups(make_federation())
    simulate_small(federation, name)
    strategy = run_strategy(federation, name)
    assert_equal_halves(models, 3)
    assert strategy.run.federation.has_groups


def batch_norm_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def test_buffers_are_averaged_by_examples(models: list[torch.Tensor]) -> None:
    federation = make_federation()
    here = simulate_small(federation, "rawls", model=batch_norm_model)
    strategy = run_strategy(
        federation, "rawls", InProcessGrid(federation, batch_norm_model), model=batch_norm_model
    )
    assert_equal_halves(models, 3)
    assert strategy.result is not None
    for mine, theirs in zip(strategy.result.model.buffers(), here.model.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_records_and_result_equal_the_simulators(tmp_path: Any) -> None:
    federation = make_federation()
    here = simulate_small(federation, "rawls", out=tmp_path / "here")
    there = run_strategy(federation, "rawls", out=tmp_path / "there").result
    mine, theirs = there.history.records, here.history.records
    assert [record[:3] for record in mine] == [record[:3] for record in theirs]
    assert [record.value for record in mine] == pytest.approx(
        [record.value for record in theirs], rel=1e-4, abs=1e-6
    )
    results = [
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("here", "there")
    ]
    # A server on Flower does not learn how many test examples its clients have.
    assert results[1]["test_sizes"] is None
    # The accuracy of clients alone stays with them, and what follows from it is not known here.
    alone = {"accuracy_alone", "gain_by_joining", "least_gain_by_joining", "share_better_alone"}
    assert results[0].keys() - alone - {"corrected_std"} == results[1].keys()
    assert results[0]["client_scores"] == results[1]["client_scores"]
    assert results[0]["uncertainty"] == pytest.approx(results[1]["uncertainty"], rel=1e-5)
    assert {path.name for path in (tmp_path / "here").iterdir()} == {
        path.name for path in (tmp_path / "there").iterdir()
    }


def read_reports(
    rule: Method, strategy: Any, replies: list[Any], round: int, model: torch.Tensor, plan: Plan
) -> Reports:
    """Read the replies without the code under test."""
    rows = []
    for reply in replies:
        content = reply.content
        arrays = safetensors.torch.load(content["config"].get("tensors"))
        name = content["config"]["client-id"]
        position = strategy.run.ids.index(name)
        rows.append((name, arrays, dict(content["metrics"]), position))
    rows.sort(key=lambda row: row[3])
    extras = [name for name in EXTRAS if f"extra.{name}" in rows[0][1]]
    given: dict[str, Any] = {}
    if "losses" in rule.needs:
        given["losses"] = [metrics["loss"] for _, _, metrics, _ in rows]
    if "steps" in rule.needs:
        given["steps"] = [metrics["steps"] for _, _, metrics, _ in rows]
    if "sizes" in rule.needs:
        given["sizes"] = [strategy.run.federation.sizes[position] for *_, position in rows]
    if "uncertainties" in rule.needs:
        readings = strategy.registry.known_uncertainty(strategy.run.ids).readings
        given["uncertainties"] = [readings[name] for name, *_ in rows]
    return Reports(
        [row[0] for row in rows],
        torch.stack([arrays["delta"] for _, arrays, _, _ in rows]),
        lr=strategy.spec.settings.lr,
        momentum=strategy.run.momentum(plan),
        client_indices=[position for *_, position in rows],
        model=model,
        round=round,
        extras={
            name: torch.stack([arrays[f"extra.{name}"] for _, arrays, _, _ in rows])
            for name in extras
        },
        **given,
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_same_replies_give_the_methods_step_bit_for_bit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, rule = with_validation(make_federation()), method(name)
    strategy = make_strategy(federation, name)
    strategy.prepare(InProcessGrid(federation))
    replies: list[Any] = []
    opened: list[Any] = []
    close_round = rounds.close_round

    def watch_replies(grid: Any, messages: Any, timeout: float) -> Any:
        pairs = send_and_receive(grid, messages, timeout)
        trained = [node for node, m in messages.items() if m.metadata.message_type == "train"]
        if trained:
            replies[:] = [message for node, message in pairs if node in trained]
        return list(reversed(pairs))  # the order must not matter

    def watch_round(run: Any, server: Any, clients: Any, half: Any, columns: Any) -> Any:
        opened[:] = [half]
        return close_round(run, server, clients, half, columns)

    monkeypatch.setattr(exchange, "send_and_receive", watch_replies)
    monkeypatch.setattr(rounds, "close_round", watch_round)
    for t in (1, 2):
        before = strategy.log.server
        strategy.run_round()
        plan, state = opened[0].request.plan, opened[0].state
        reports = read_reports(rule, strategy, replies, t, before.vector, plan)
        if "validation_accuracies" in rule.needs:
            models = rule.models_to_score(state, reports)
            scores = strategy.remote.score(models, before.buffers)
            reports = reports.with_extra("validation_accuracies", scores)
        after, step, _ = rule.aggregate(state, reports)
        server = strategy.log.server
        assert torch.equal(server.vector, before.vector - step.to(before.vector))
        assert after.keys() == server.state.keys()
        assert all(torch.equal(after[key], server.state[key]) for key in after)
