"""Methods that select clients or plan their local training; each has a known effect."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from recording_methods import Plain, make_method, model_vector, seen
from small_runs import make_federation, train_briefly
from torch import Tensor

import udjfl
from udjfl.errors import SettingsError
from udjfl.methods import Plan


@pytest.fixture(autouse=True)
def _forget_reports() -> None:
    seen.clear()


# --- selection


def test_a_method_may_select_the_clients(federation: udjfl.Federation) -> None:
    calls: list[tuple[int, int]] = []

    def select(
        self: Any, state: Any, n_clients: int, count: int, generator: np.random.Generator
    ) -> list[int]:
        calls.append((n_clients, count))
        return [2, 0]

    train_briefly(federation, make_method(Plain, select=select), participation=0.67)
    assert calls == [(3, 2)] * 3
    assert [reports.ids for reports in seen] == [("client-1", "client-3")] * 3
    assert [reports.client_indices.tolist() for reports in seen] == [[0, 2]] * 3


def test_with_full_participation_nothing_is_selected(federation: udjfl.Federation) -> None:
    train_briefly(
        federation, make_method(Plain, select=lambda *_: pytest.fail("nothing to select"))
    )
    assert len(seen[0]) == 3


@pytest.mark.parametrize("indices", [[], [7], [0, 0], [-1]])
def test_a_wrong_selection_is_refused(federation: udjfl.Federation, indices: list[int]) -> None:
    with pytest.raises(SettingsError, match="plain: select returned the indices"):
        train_briefly(federation, make_method(Plain, select=lambda *_: indices), participation=0.67)


# --- local training


def test_a_method_may_change_the_local_objective(federation: udjfl.Federation) -> None:
    """Half the loss at twice the learning rate is the plain mean again."""

    def objective(
        self: Any, losses: Tensor, weights: Tensor, groups: Any, multipliers: Any
    ) -> Tensor:
        return 0.5 * (losses * weights).sum(dim=1)

    half = train_briefly(federation, make_method(Plain, objective=objective), lr=0.2)
    torch.testing.assert_close(
        model_vector(half),
        model_vector(train_briefly(federation, make_method(Plain))),
        rtol=1e-4,
        atol=1e-5,
    )


def test_multipliers_go_to_the_clients_they_are_for(federation: udjfl.Federation) -> None:
    """Client 2 has multiplier 0 and does not move; client 1 is not asked, so client 2 is row 0."""

    def objective(
        self: Any, losses: Tensor, weights: Tensor, groups: Any, multipliers: Tensor
    ) -> Tensor:
        return multipliers * (losses * weights).sum(dim=1)

    slots = {
        "objective": objective,
        "plan": lambda self, state, probe: (
            state,
            Plan(multipliers=torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)),
        ),
        "select": lambda self, state, n, count, generator: [1, 2],
    }
    for engine in ("serial", "stacked", "mapped"):
        train_briefly(
            federation, make_method(Plain, **slots), participation=0.67, rounds=1, engine=engine
        )
    for reports in seen:
        assert reports.ids == ("client-2", "client-3")
        assert torch.equal(reports.deltas[0], torch.zeros_like(reports.deltas[0]))
        assert reports.deltas[1].abs().max() > 0


def test_one_full_step_is_a_step_along_the_gradient(federation: udjfl.Federation) -> None:
    plan = {
        "plan": lambda self, state, probe: (state, Plan(one_full_step=True)),
        "needs": frozenset({"gradients"}),
    }
    train_briefly(federation, make_method(Plain, **plan), rounds=1, batch_size=4, local_epochs=3)
    torch.testing.assert_close(
        seen[0].deltas.double() / 0.1, seen[0].extras["gradients"], rtol=1e-3, atol=1e-5
    )
    assert seen[0].steps.tolist() == [1, 1, 1]
    assert (seen[0].lr, seen[0].momentum) == (0.1, 0.0)


def plan_of(**changes: Any) -> dict[str, Any]:
    """Return the slot `plan` of a method that plans the same in every round."""
    return {"plan": lambda self, state, probe: (state, Plan(**changes))}


def test_a_correction_reaches_the_clients_by_their_index(federation: udjfl.Federation) -> None:
    """Without the gradient one step on all examples is lr times the client's own shift."""
    shift = torch.arange(3.0)[:, None].expand(3, 46) + 1  # of an mlp 4-5-3
    slots = plan_of(gradient_share=0.0, shift=shift)
    train_briefly(
        federation, make_method(Plain, **slots), rounds=6, batch_size=100, participation=0.67
    )
    for reports in seen:
        expected = 0.1 * (reports.client_indices + 1.0)
        assert reports.deltas[:, 0].tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    assert len({tuple(reports.client_indices.tolist()) for reports in seen}) > 1


def test_personal_models_train_on_the_same_batches(federation: udjfl.Federation) -> None:
    """From the received model, and not drawn to it, the change is that of the common model."""

    def plan(self: Any, state: Any, probe: Any) -> Any:
        return state, Plan(personal=state["model"].repeat(3, 1))

    slots = {"plan": plan, "init": lambda self, setup: {"model": setup.model}}
    needs = {"needs": frozenset({"personal_deltas"})}
    train_briefly(federation, make_method(Plain, **slots, **needs), rounds=1)
    torch.testing.assert_close(seen[0].extras["personal_deltas"], seen[0].deltas)


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({"multipliers": torch.ones(2)}, "multipliers of shape [2]; it must be [3]"),
        ({"mu": 1.0, "anchor": torch.ones(2, 46)}, "anchor of shape [2, 46]"),
        ({"shift": torch.ones(45)}, "shift of shape [45]; it must be [46] or [3, 46]"),
        ({"personal": torch.ones(46)}, "personal of shape [46]; it must be [3, 46]"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(reversed(value)),
)
def test_a_plan_with_a_wrong_shape_is_refused(
    federation: udjfl.Federation, changes: dict[str, Any], shape: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(shape)):
        train_briefly(federation, make_method(Plain, **plan_of(**changes)), rounds=1)


def test_a_plan_can_build_on_a_probe(federation: udjfl.Federation) -> None:
    """The plan replaces the gradient by the probed mean gradient: one step of lr times that."""

    def plan(self: Any, state: Any, probe: udjfl.Reports) -> Any:
        assert torch.equal(probe.deltas, torch.zeros_like(probe.deltas))
        assert probe.losses.min() > 0.5
        return {"probed": state["probed"] + 1}, Plan(
            shift=probe.extras["gradients"].mean(dim=0), gradient_share=0.0
        )

    slots = {
        "probes": frozenset({"losses", "gradients"}),
        "plan": plan,
        "init": lambda self, setup: {"probed": torch.zeros(())},
        "needs": frozenset({"gradients"}),
    }
    result = train_briefly(
        federation, make_method(Plain, **slots), rounds=1, batch_size=100, momentum=0.0
    )
    expected = 0.1 * seen[0].extras["gradients"].mean(dim=0)
    for row in range(3):
        torch.testing.assert_close(seen[0].deltas[row].double(), expected, rtol=1e-3, atol=1e-6)
    assert result.history.series("test_loss")[1] is not None


def test_the_state_of_a_plan_is_passed_to_the_next_round(federation: udjfl.Federation) -> None:
    counts: list[float] = []

    def plan(self: Any, state: Any, probe: Any) -> Any:
        counts.append(float(state["count"]))
        return {"count": state["count"] + 1}, Plan()

    train_briefly(
        federation,
        make_method(Plain, plan=plan, init=lambda self, setup: {"count": torch.zeros(())}),
    )
    assert counts == [0.0, 1.0, 2.0]


def test_what_plan_returns_is_checked_and_told_in_words() -> None:
    method = make_method(Plain, plan=lambda self, state, probe: state)
    with pytest.raises(SettingsError, match="Plain: plan returned a dict; return"):
        train_briefly(make_federation(), method)


def test_a_client_with_an_unusable_probe_is_excluded() -> None:
    federation = make_federation()
    federation.clients[1].train.x[:] = float("inf")  # after the federation was checked
    slots = {"probes": frozenset({"losses", "gradients"})}
    result = train_briefly(
        federation,
        make_method(Plain, **slots),
        on_bad_report="exclude",
        uncertainty=dict.fromkeys(federation.ids, 0.1),
        rounds=1,
    )
    assert seen[0].ids == ("client-1", "client-3")
    assert list(result.history.by_client("excluded", 1)) == ["client-2"]
