"""The interface of a method: what one is unless it says otherwise, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from udjfl.errors import ReportError, SettingsError
from udjfl.methods import FedAvg, Method, Plan, Reports, Setup, method, parameters
from udjfl.methods.base import size_shares

ONE = Reports(["a"], [[1.0]])


def mine(**attributes: Any) -> Any:
    """Return the class of a method that steps along the first update, with these attributes."""

    class Mine(Method):
        name, title, paper, grade = "mine", "Mine", "none", "own"
        factor: float = 1.0

        def aggregate(self, state: Any, reports: Reports) -> Any:
            return state, self.factor * reports.deltas[0], {}

    for name, value in attributes.items():
        setattr(Mine, name, value)
    return parameters(Mine)


def test_a_method_is_plain_unless_it_says_otherwise() -> None:
    rule, setup, module = mine()(), Setup.of(ONE), nn.Linear(1, 1)
    assert rule.needs_reference is False
    assert rule.needs_alone is False
    assert rule.needs == frozenset()
    assert rule.additive is None
    assert rule.n_models == 1
    assert rule.adapt(module, torch.Generator()) is module
    assert rule.init(setup) == {}
    assert rule.notes(setup) == []
    assert rule.initial_models({}, torch.tensor([0])) is None
    assert rule.plan({}, None) == ({}, Plan())
    assert rule.warning(["a"], {}) is None
    assert rule.scores_alone({}) is None
    assert rule.served({}, torch.zeros(1)) is None
    assert rule.parameters_beside({}) == {"factor"}
    assert rule.short == "Mine"


def test_clients_are_asked_at_random_and_each_once() -> None:
    draws = [mine()().select({}, 9, 6, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    for draw in draws:
        assert len(set(draw)) == len(draw) == 6
        assert all(type(index) is int and 0 <= index < 9 for index in draw)


def test_clients_minimise_the_mean_loss_of_a_batch() -> None:
    # The third example of the second client is padding.
    losses = torch.tensor([[1.0, 2.0, 6.0], [1.0, 3.0, 99.0]])
    weights = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0]])
    assert mine()().objective(losses, weights, None, None).tolist() == pytest.approx([3.0, 2.0])


def test_scores_on_validation_data_need_models() -> None:
    with pytest.raises(NotImplementedError, match="mine needs validation_accuracies"):
        mine()().models_to_score({}, ONE)


def test_shares_by_size_and_alike() -> None:
    sizes = torch.tensor([1.0, 3.0], dtype=torch.float64)
    assert size_shares(sizes, "size").tolist() == [0.25, 0.75]
    assert size_shares(sizes, "uniform").tolist() == [0.5, 0.5]


def test_a_method_shows_what_differs_from_its_defaults() -> None:
    plain, changed = mine()(), mine()(factor=2.5)
    assert (repr(plain), plain.label, plain.changed_text) == ("Mine()", "Mine", "")
    assert (repr(changed), changed.label) == ("Mine(factor=2.5)", "Mine (factor=2.5)")
    assert FedAvg(weights="uniform").label == "FedAvg (weights=uniform)"


def test_several_changed_parameters_are_separated_by_commas() -> None:
    assert method("term:t=2:weights=uniform").changed_text == "t=2, weights=uniform"


def test_a_notebook_shows_the_parameters_as_a_table() -> None:
    shown = mine()(factor=2.5)._repr_html_()
    assert all(f">{text}<" in shown for text in ("Parameter", "Value", "factor", "2.5"))
    assert "Mine (factor=2.5) (none)" in shown


# --- what a class is checked for ---


def test_parameters_are_checked_and_frozen() -> None:
    cls = mine()
    with pytest.raises(dataclasses.FrozenInstanceError):
        cls().factor = 2.0
    assert cls(factor="2").factor == 2.0
    for wrong in ({"factor": math.nan}, {"factor": math.inf}, {"factor": "much"}):
        with pytest.raises(SettingsError, match=r"^mine: factor"):
            cls(**wrong)
    with pytest.raises(SettingsError, match=r"^mine: facto: no such parameter"):
        cls(facto=1.0)


def test_unknown_declarations_are_refused() -> None:
    with pytest.raises(SettingsError, match="mine: theories has 'rawl'"):
        mine(theories=("rawl",))
    with pytest.raises(SettingsError, match="mine: needs has 'loss'"):
        mine(needs=frozenset({"loss"}))()


def test_every_slot_that_reads_reports_refuses_incomplete_ones() -> None:
    class Reads(Method):
        name = title = "reads"
        needs = probes = frozenset({"losses"})

        def plan(self, state: Any, probe: Any) -> Any:
            return state, Plan()

        def models_to_score(self, state: Any, reports: Any) -> Any:
            return reports.deltas

        def aggregate(self, state: Any, reports: Any) -> Any:
            return state, reports.deltas[0], {}

    for slot in ("plan", "models_to_score", "aggregate"):
        with pytest.raises(ReportError, match="losses was left out"):
            getattr(Reads(), slot)({}, ONE)
        assert getattr(Reads(), slot)({}, Reports(["a"], [[1.0]], losses=[1.0])) is not None


def test_a_class_beside_method_learns_of_its_subclasses() -> None:
    seen = []

    class Watcher:
        def __init_subclass__(cls) -> None:
            seen.append(cls.__name__)

    class Both(Method, Watcher):
        def aggregate(self, state: Any, reports: Any) -> Any:
            return state, reports.deltas[0], {}

    assert seen == ["Both"]
