"""A run between rounds: which clients are asked, what they receive, and how they train."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from small_runs import make_federation
from torch import Tensor

import udjfl
from udjfl.errors import NotDefinedError, SettingsError
from udjfl.methods import Plan, ServedModels
from udjfl.settings import TrainingSettings
from udjfl.training.federation_info import FederationInfo
from udjfl.training.server_state import ServerState, initial_state
from udjfl.training.state import Run, RunSpec, count_selected

SIZES = (10.0, 30.0, 20.0)


class Stub(udjfl.Method):
    """A method whose slots the tests replace."""

    name: ClassVar[str] = "stub"
    title: ClassVar[str] = "Stub"
    paper: ClassVar[str] = "none"
    grade: ClassVar[Any] = "recalled"

    def aggregate(self, state: Any, reports: udjfl.Reports) -> Any:
        raise AssertionError("no round is run here")


def make_run(
    slots: dict[str, Any] | None = None, sizes: tuple[float, ...] = SIZES, **settings: Any
) -> Run:
    """Make a run of a method with these slots, on clients a, b and c of these sizes."""
    method = udjfl.parameters(type("Stub", (Stub,), slots or {}))()
    info = FederationInfo(("a", "b", "c"), sizes, torch.zeros(2, 4), 3)
    return Run(RunSpec(method, TrainingSettings(**settings)), info)


# --- which clients are asked


@pytest.mark.parametrize(
    ("participation", "n_clients", "count"),
    [(1.0, 7, 7), (0.5, 4, 2), (0.4, 3, 1), (0.5, 5, 2), (0.7, 3, 2), (0.01, 10, 1)],
)
def test_the_share_of_clients_is_rounded_and_at_least_one(
    participation: float, n_clients: int, count: int
) -> None:
    """Halves are rounded to the even number: 0.5 of 5 clients are 2."""
    assert count_selected(TrainingSettings(participation=participation), n_clients) == count


def test_all_clients_are_asked_without_a_selection() -> None:
    run = make_run({"select": lambda *_: pytest.fail("there is nothing to select")})
    assert run.select_clients(1, {}) == [0, 1, 2]


def test_a_selection_is_sorted_and_depends_on_seed_and_round_alone() -> None:
    run = make_run(participation=0.7)
    chosen = [run.select_clients(round, {}) for round in range(1, 20)]
    assert chosen == [run.select_clients(round, {}) for round in range(1, 20)]
    assert all(indices == sorted(set(indices)) and len(indices) == 2 for indices in chosen)
    assert len({tuple(indices) for indices in chosen}) == 3
    other = Run(RunSpec(run.method, run.settings, seed=1), run.federation)
    assert chosen != [other.select_clients(round, {}) for round in range(1, 20)]


def test_a_method_selects_with_its_state_and_the_number_of_clients() -> None:
    calls: list[tuple[Any, ...]] = []

    def select(
        self: Any, state: Any, n_clients: int, count: int, generator: np.random.Generator
    ) -> list[int]:
        calls.append((state, n_clients, count))
        return [2, 0]

    state = {"x": torch.zeros(1)}
    assert make_run({"select": select}, participation=0.7).select_clients(1, state) == [0, 2]
    assert calls == [(state, 3, 2)]


@pytest.mark.parametrize("indices", [[], [3], [-1], [0, 0], [1, 2, 1]])
def test_a_selection_of_other_clients_is_refused(indices: list[int]) -> None:
    run = make_run({"select": lambda *_: indices}, participation=0.7)
    with pytest.raises(
        SettingsError,
        match=r"stub: select returned the indices \[.*\]; return some of 0 to 2, each once",
    ):
        run.select_clients(1, {})


# --- what clients receive


def test_clients_receive_the_servers_model() -> None:
    (model,) = make_run().models_to_send(torch.tensor([1.0, 2.0]), {}, [0, 2])
    assert model.tolist() == [1, 2]


def test_several_models_are_sent_one_by_one() -> None:
    run = make_run({"n_models": 2})
    first, second = run.models_to_send(torch.tensor([1.0, 2.0, 3.0, 4.0]), {}, [0, 1, 2])
    assert (first.tolist(), second.tolist()) == ([1, 2], [3, 4])


def test_each_client_may_receive_its_own_model() -> None:
    def initial_models(self: Any, state: Any, client_indices: Tensor) -> Tensor:
        models: Tensor = state["models"][client_indices]
        return models

    run = make_run({"initial_models": initial_models})
    state = {"models": torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])}
    (models,) = run.models_to_send(torch.zeros(2), state, [0, 2])
    assert models.tolist() == [[0, 1], [4, 5]]


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 3), (1, 2, 2)])
def test_initial_models_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    run = make_run({"initial_models": lambda *_: torch.zeros(shape)})
    with pytest.raises(
        SettingsError, match=r"initial_models returned shape .*each of these clients, \[2, 2\]"
    ):
        run.models_to_send(torch.zeros(2), {}, [0, 2])


# --- how they train


def test_local_training_follows_the_settings() -> None:
    run = make_run(lr=0.2, momentum=0.5, batch_size=4, local_epochs=3)
    training = run.local_training(Plan(), [0, 1, 2])
    assert (training.lr, training.momentum, training.batch_size, training.epochs) == (
        0.2,
        0.5,
        4,
        3,
    )
    assert (training.objective, training.multipliers, training.correction) == (None, None, None)
    assert run.momentum(Plan()) == 0.5


def test_multipliers_are_those_of_the_selected_clients() -> None:
    plan = Plan(multipliers=torch.tensor([1.0, 2.0, 3.0]))
    training = make_run().local_training(plan, [0, 2])
    assert training.multipliers is not None
    assert training.multipliers.tolist() == [1, 3]


def test_one_full_step_is_one_batch_of_the_largest_client_without_momentum() -> None:
    run = make_run(momentum=0.9, batch_size=4, local_epochs=3, sizes=(10.0, math.nan, 20.0))
    training = run.local_training(Plan(one_full_step=True), [0])
    assert (training.momentum, training.epochs, training.batch_size) == (0.0, 1, 20)
    assert run.momentum(Plan(one_full_step=True)) == 0.0
    assert run.momentum(Plan()) == 0.9


def test_one_full_step_is_plain_whatever_the_settings_are() -> None:
    plain = make_run().local_training(Plan(one_full_step=True), [0])
    for settings in (
        {"optimiser": "adam"},
        {"optimiser": "adamw", "weight_decay": 0.1},
        {"clip_norm": 0.5, "weight_decay": 0.1, "nesterov": True, "momentum": 0.9},
        {"local_steps": 3},
    ):
        run = make_run(**settings)
        assert run.local_training(Plan(one_full_step=True), [0]) == plain


@pytest.mark.parametrize(
    ("needs", "loss_at", "expected"),
    [
        ([], "auto", "running"),
        (["sizes"], "auto", "running"),
        (["losses"], "auto", "received"),
        (["losses_of_each"], "auto", "received"),
        (["losses"], "final", "final"),
        ([], "received", "received"),
    ],
)
def test_the_loss_is_that_of_the_received_model_if_the_method_reads_it(
    needs: list[str], loss_at: str, expected: str
) -> None:
    run = make_run({"needs": frozenset(needs)}, loss_at=loss_at)
    assert run.local_training(Plan(), [0]).loss_at == expected


def test_the_first_step_is_recorded_if_the_method_reads_it() -> None:
    assert not make_run().local_training(Plan(), [0]).first_step
    run = make_run({"needs": frozenset({"first_deltas"})})
    assert run.local_training(Plan(), [0]).first_step


# --- what is chosen


def test_extras_of_groups_are_read_where_there_are_groups() -> None:
    slots = {"needs": frozenset({"sizes", "accuracies"}), "needs_groups": frozenset({"group_gaps"})}
    run = make_run(slots)
    assert run.extras == {"accuracies"}
    with_groups = FederationInfo(run.ids, SIZES, torch.zeros(2, 4), 3, has_groups=True)
    assert Run(run.spec, with_groups).extras == {"accuracies", "group_gaps"}


@pytest.mark.parametrize("slot", ["needs", "probes"])
def test_several_models_cannot_be_probed(slot: str) -> None:
    with pytest.raises(
        SettingsError, match=r"stub: trains 2 models side by side; .*losses_of_each"
    ):
        make_run({"n_models": 2, slot: frozenset({"gradients"})})
    make_run({"n_models": 2, "needs": frozenset({"losses_of_each"})})


@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize("needed", [True, False])
def test_uncertainties_are_reported_if_chosen_or_needed(reported: bool, needed: bool) -> None:
    run = make_run({"needs": frozenset({"uncertainties"} if needed else ())})
    spec = RunSpec(run.method, run.settings, report_uncertainties=reported)
    assert spec.needs_uncertainties == (reported or needed)


def test_a_model_that_does_not_fit_is_refused() -> None:
    run = make_run(model="cnn")
    with pytest.raises(SettingsError, match="model: cnn needs images"):
        run.spec.build_model(run.federation)
    with pytest.raises(SettingsError, match="device"):
        make_run(device="no such device").spec.build_model(run.federation)


def test_the_given_model_replaces_the_one_in_the_settings() -> None:
    run = make_run(model="mlp")
    spec = RunSpec(run.method, run.settings, model=lambda: torch.nn.Linear(4, 3))
    assert isinstance(spec.build_model(run.federation), torch.nn.Linear)


# --- federation and server


def test_a_federation_is_described() -> None:
    info = FederationInfo.of(make_federation())
    assert info.ids == ("client-1", "client-2", "client-3")
    assert info.sizes == (24, 29, 34)
    assert (info.input_shape, info.n_classes, len(info.sample)) == ((4,), 3, 2)
    assert (info.has_groups, info.has_validation) == (False, False)


def test_a_server_is_restored_from_its_tensors() -> None:
    state = {"velocity": torch.tensor([1.0]), "state.x": torch.tensor([2.0])}
    server = ServerState(3, torch.tensor([1.0, 2.0]), torch.zeros(0), state)
    tensors = server.to_tensors()
    assert set(tensors) == {"vector", "buffers", "state.velocity", "state.state.x"}
    restored = ServerState.from_tensors(3, tensors)
    assert restored.round == 3
    assert restored.vector is server.vector
    assert restored.buffers is server.buffers
    assert restored.state == state


def test_the_server_starts_with_all_models_end_to_end() -> None:
    run = make_run({"n_models": 2}, model="logistic")
    module, server, notes = initial_state(run, run.spec.build_model(run.federation))
    assert sum(p.numel() for p in module.parameters()) == 15
    assert (server.round, server.vector.shape, server.buffers.shape) == (0, (30,), (0,))
    assert not torch.equal(*server.vector.view(2, -1))
    assert (server.state, notes) == ({}, [])


def test_several_served_models_cannot_share_buffers() -> None:
    def served(self: Any, state: Any, model: Tensor) -> ServedModels:
        return ServedModels(model.repeat(3, 1), torch.eye(3))

    run = make_run({"served": served})
    with_buffers = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    with pytest.raises(NotDefinedError, match=r"model: has buffers .* Stub trains several models"):
        initial_state(run, with_buffers)
    initial_state(make_run(), with_buffers)
