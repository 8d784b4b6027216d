"""On a small convex federation a budget ends at scipy's constrained optimum, its prices included.

Budgets are about scores. Here a score is 1 - loss, which is smooth, and clients take one step on
all their data a round, so updates are exact gradients; there is no simulator. Then a round is one
of primal-dual descent on: minimise a client's loss subject to limits on the scores. Clients count
alike: FedAvg's weights are those of the mean that is limited.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from convex import Array, constrained_minimum, losses_at, minimiser

from udjfl.methods import Reports, Setup
from udjfl.methods._udj_math import largest_share
from udjfl.methods.budget import LARGEST_PRICE, BudgetLimits, budgeted_step, initial_state

IDS = ("large", "middle", "small")
MEAN = np.full(3, 1 / 3)
BEST = minimiser(lambda F: MEAN @ F, lambda F: MEAN)  # the model with the highest mean score
BEST_MEAN = 1 - losses_at(BEST)[0].mean()


def descend(
    client: int,
    limits: BudgetLimits,
    reference: Array | None = None,
    rounds: int = 400,
    cap: float = 1.0,
) -> tuple[Array, dict[str, Any]]:
    """Return the model and the state after so many rounds for the least advantaged client."""
    table = None if reference is None else torch.from_numpy(reference)[None]
    state = initial_state(Setup(IDS, torch.ones(3), torch.zeros(4), reference=table))
    uncertainties = np.where(np.arange(3) == client, 2.0, 1.0)
    w = np.zeros(4)
    for round in range(1, rounds + 1):
        losses, gradients = losses_at(w)
        extras = {"scores": torch.from_numpy(1 - losses), "score_sizes": torch.ones(3)}
        reports = Reports(
            IDS,
            torch.from_numpy(1.0 * gradients),
            sizes=[1, 1, 1],
            uncertainties=uncertainties,
            round=round,
            extras=extras,
        )
        largest = largest_share(cap, len(reports))
        state, step, _ = budgeted_step(state, reports, "rawls", "uncertainty", limits, largest)
        w = w - step.numpy()
    return w, state


@pytest.mark.parametrize("client", [0, 1, 2], ids=IDS)
@pytest.mark.parametrize("cost", [0.02, 0.05])
def test_it_rests_at_the_constrained_optimum_and_the_price_is_the_multiplier(client, cost):
    """The mean score may end so far below the best; the client's loss falls by 8% to 27%."""
    limit = BEST_MEAN - cost
    expected, (multiplier,) = constrained_minimum(client, MEAN[None], np.array([1 - limit]))
    found, state = descend(client, BudgetLimits(mean=0.0, absolute=limit, caution=0.0))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert float(state["price"]) == pytest.approx(multiplier, abs=1e-5)
    losses = losses_at(found)[0]
    assert 1 - losses.mean() == pytest.approx(limit, abs=1e-6)  # the budget is spent, all of it
    assert losses[client] < 0.92 * losses_at(BEST)[0][client]  # and the client has gained
    assert 0 < multiplier < LARGEST_PRICE


@pytest.mark.parametrize("client", [0, 1, 2], ids=IDS)
def test_a_budget_measured_from_a_reference_is_the_same(client):
    """Each client has a reference of its own; only their mean counts, less the budget."""
    reference = 1 - losses_at(BEST)[0]
    expected, (multiplier,) = constrained_minimum(
        client, MEAN[None], np.array([1 - BEST_MEAN + 0.03])
    )
    found, state = descend(client, BudgetLimits(mean=0.03, caution=0.0), reference)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert float(state["price"]) == pytest.approx(multiplier, abs=1e-5)


def test_a_limit_that_costs_nothing_has_the_price_zero():
    """At the own minimum of `small` the mean is 0.051 below the best, so 0.06 is no limit."""
    expected, (multiplier,) = constrained_minimum(2, MEAN[None], np.array([1 - BEST_MEAN + 0.06]))
    found, state = descend(2, BudgetLimits(mean=0.0, absolute=BEST_MEAN - 0.06, caution=0.0))
    assert float(state["price"]) == multiplier == 0
    np.testing.assert_allclose(found, minimiser(lambda F: F[2], lambda F: np.eye(3)[2]), atol=1e-5)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_limit_that_cannot_be_met_ends_at_the_largest_price():
    """Where H_k + 20 mean H is least: the mean score is 0.0004 below the best, and no higher."""
    found, state = descend(1, BudgetLimits(mean=0.0, absolute=BEST_MEAN + 0.05, caution=0.0))
    weights = np.eye(3)[1] + LARGEST_PRICE * MEAN
    np.testing.assert_allclose(
        found, minimiser(lambda F: weights @ F, lambda F: weights), atol=1e-5
    )
    assert float(state["price"]) == LARGEST_PRICE
    assert BEST_MEAN - 0.001 < 1 - losses_at(found)[0].mean() < BEST_MEAN


def test_limits_of_single_clients_have_prices_of_their_own():
    """`large` and `small` may each end 0.05 below the reference; the mean may fall as it will."""
    reference = losses_at(BEST)[0]
    expected, multipliers = constrained_minimum(1, np.eye(3)[[0, 2]], reference[[0, 2]] + 0.05)
    limits = BudgetLimits(mean=1.0, client=0.05, caution=0.0)
    found, state = descend(1, limits, 1 - reference, rounds=800)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert float(state["price"]) == 0
    prices = state["client_prices"].numpy()
    np.testing.assert_allclose(prices, (multipliers[0], 0, multipliers[1]), atol=1e-5)
    assert (multipliers > 0.1).all()


def test_the_cap_keeps_the_theory_from_the_whole_of_its_budget():
    """At the optimum `small` has (1 + 0.01/3) / 1.01 of all weight; two thirds are allowed.

    So the mean ends above its limit, the price falls to 0, and the others share a third alike.
    """
    limits = BudgetLimits(mean=0.0, absolute=BEST_MEAN - 0.05, caution=0.0)
    found, state = descend(2, limits, cap=0.5)
    weights = np.array([1 / 6, 1 / 6, 2 / 3])
    np.testing.assert_allclose(
        found, minimiser(lambda F: weights @ F, lambda F: weights), atol=1e-5
    )
    assert float(state["price"]) == 0
    assert 1 - losses_at(found)[0].mean() > limits.absolute + 0.01
