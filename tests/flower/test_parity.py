"""The same federation, seed and settings give the same numbers on Flower and in the simulator; and the same replies, the same
bits as the method alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from inprocess import (
    InProcessGrid,
    made,
    make_federation,
    played,
    simulated,
    with_groups,
    with_validation,
)
from torch import nn

import udjfl
from udjfl.methods import ALIASES, METHODS, Method, Reports, method
from udjfl.methods.base import EXTRAS
from udjfl.training.rounds import Server, Steps

NAMES = [*ALIASES, *(name for name in METHODS if name != "udj")]
LOOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture(scope="module")
def digits() -> udjfl.Federation:
    """Three clients of dirty-digits, one of them with ambiguous data, and a server that has data too."""
    return with_validation(udjfl.load("dirty-digits", clients=3))


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Collects the server's model after each round, wherever it is made."""
    seen: list[torch.Tensor] = []
    stepped = Steps.stepped

    def spy(self: Steps, server: Server, answers: Any) -> Any:
        found = stepped(self, server, answers)
        seen.append(found[0].vector.clone())
        return found

    monkeypatch.setattr(Steps, "stepped", spy)
    return seen


def compare(models: list[torch.Tensor], rounds: int) -> None:
    """The first half of the models is of the simulator, the second of Flower; and training went somewhere."""
    assert len(models) == 2 * rounds
    for here, there in zip(models[:rounds], models[rounds:], strict=True):
        torch.testing.assert_close(there, here, **LOOSE)
    assert not torch.equal(models[0], models[rounds - 1])


@pytest.mark.parametrize("name", NAMES)
def test_every_round_ends_with_the_simulators_model(
    name: str, digits: udjfl.Federation, models: list[torch.Tensor]
) -> None:
    changes = {"rounds": 3, "hidden": 8, "batch_size": 64, "lr": 0.4, "local_epochs": 2}
    here = simulated(digits, name, **changes)
    there = played(digits, name, **changes).result
    compare(models, 3)
    assert there.client_accuracy == pytest.approx(here.client_accuracy, abs=1.0)
    assert (there.global_accuracy is None) == (here.global_accuracy is None)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedfair3", {"participation": 0.5}),
        ("fedavg", {"participation": 0.5, "seed": 3}),
        ("udj:theory=desert:step=paper", {"momentum": 0.0}),
        ("focus:models=3", {"local_epochs": 2}),
        ("cffl:theta=0.5:aggregation=mean:download=topk", {}),
        ("fedeba:theta=0:prior=size", {}),  # gradients are aligned: a pull in every round
        ("fedavg", {"model": "logistic"}),
        ("rawls", {"uncertainty": "confidence", "uncertainty_optimiser": "adam"}),
        ("rawls", {"uncertainty": "ensemble", "uncertainty_models": 2}),
        ("term", {"loss_at": "final"}),
    ],
)
def test_so_does_every_way_of_asking(
    name: str, changes: dict[str, Any], models: list[torch.Tensor]
) -> None:
    federation = with_validation(make_federation(4))
    model = changes.pop("model", "mlp")
    simulated(federation, name, model=model, **changes)
    played(federation, name, InProcessGrid(federation, model), model=model, **changes)
    compare(models, 3)


@pytest.mark.parametrize("name", ["mfairfl", "effl"])
def test_a_sensitive_attribute_comes_along(name: str, models: list[torch.Tensor]) -> None:
    federation = with_groups(make_federation())
    simulated(federation, name)
    strategy = played(federation, name)
    compare(models, 3)
    assert strategy.ground.roster.has_groups


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def test_buffers_are_averaged_by_examples(models: list[torch.Tensor]) -> None:
    federation = make_federation()
    here = simulated(federation, "rawls", model=normed)
    strategy = played(federation, "rawls", InProcessGrid(federation, normed), model=normed)
    compare(models, 3)
    assert strategy.result is not None
    for mine, theirs in zip(strategy.result.model.buffers(), here.model.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_records_and_result_are_the_simulators(tmp_path: Any) -> None:
    federation = make_federation()
    here = simulated(federation, "rawls", out=tmp_path / "here")
    there = played(federation, "rawls", out=tmp_path / "there").result
    mine, theirs = there.history.records, here.history.records
    assert [record[:3] for record in mine] == [record[:3] for record in theirs]
    assert [record.value for record in mine] == pytest.approx(
        [record.value for record in theirs], rel=1e-4, abs=1e-6
    )
    results = [
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("here", "there")
    ]
    assert results[0].keys() == results[1].keys()
    assert results[0]["client_accuracy"] == results[1]["client_accuracy"]
    assert results[0]["uncertainty"] == pytest.approx(results[1]["uncertainty"], rel=1e-5)
    assert {path.name for path in (tmp_path / "here").iterdir()} == {
        path.name for path in (tmp_path / "there").iterdir()
    }


def by_hand(rule: Method, strategy: Any, replies: list[Any], round: int) -> Reports:
    """What the replies say, read without the code under test."""
    rows = []
    for reply in replies:
        content = reply.content
        arrays = {
            name: torch.from_numpy(array.numpy()) for name, array in content["arrays"].items()
        }
        name = content["config"]["client-id"]
        position = strategy.ground.ids.index(name)
        rows.append((name, arrays, dict(content["metrics"]), position))
    rows.sort(key=lambda row: row[3])
    extras = [name for name in EXTRAS if f"extra.{name}" in rows[0][1]]
    given: dict[str, Any] = {}
    if "losses" in rule.asked:
        given["losses"] = [metrics["loss"] for _, _, metrics, _ in rows]
    if "steps" in rule.asked:
        given["steps"] = [metrics["steps"] for _, _, metrics, _ in rows]
    if "sizes" in rule.asked:
        given["sizes"] = [strategy.ground.roster.sizes[position] for *_, position in rows]
    if "uncertainties" in rule.asked:
        given["uncertainties"] = [strategy.meeting.uncertainties[name] for name, *_ in rows]
    return Reports(
        [row[0] for row in rows],
        torch.stack([arrays["delta"] for _, arrays, _, _ in rows]),
        lr=strategy.settings.lr,
        momentum=0.0 if strategy.current.plan.one_full_step else strategy.settings.momentum,
        client_indices=[position for *_, position in rows],
        model=strategy.server.vector,
        round=round,
        extras={
            name: torch.stack([arrays[f"extra.{name}"] for _, arrays, _, _ in rows])
            for name in extras
        },
        **given,
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_same_replies_give_the_methods_own_bits(name: str) -> None:
    federation, rule = with_validation(make_federation()), method(name)
    strategy, grid = made(federation, name), InProcessGrid(federation)
    strategy.prepare(grid)
    for t in (1, 2):
        messages = strategy.configure_train(t, strategy.arrays, {}, grid)
        replies = strategy.post.exchange(grid, messages, 1.0)
        reports, state = by_hand(rule, strategy, replies, t), strategy.current.state
        if "validation_accuracies" in rule.needs:
            ground = strategy.ground
            scoring = ground.scoring
            reports = ground.terms.scored(
                reports, state, strategy.server.buffers, scoring.engine, scoring.validation
            )
        before = strategy.server.vector
        after, step, _ = rule.aggregate(state, reports)
        strategy.aggregate_train(t, reversed(replies))  # in whatever order they come
        assert torch.equal(strategy.server.vector, before - step.to(before))
        assert after.keys() == strategy.server.state.keys()
        assert all(torch.equal(after[key], strategy.server.state[key]) for key in after)
