"""As much justice as it may cost: a theory's direction, with prices for what it must not cost.

A budget of B points says: the clients' mean score may end at most B points below FedAvg's. Write
A_i for client i's score of the received model (a fraction), a_i for FedAvg's in the same round, and
w_i for FedAvg's own weights. The server steps along

    step = sum_i v_i (theta - theta_i) / sum_i v_i        v_i = d_i + lambda w_i + mu_i

    lambda <- lambda + kappa (mean a - B + min(z e, B) - mean A)    within 0 and LARGEST_PRICE
    mu_i   <- mu_i + kappa (floor_i - A_i)                          the same; only with a floor

d is the theory's direction, which sums to 1:

    rawls         all weight on the least advantaged client (of more than 20 clients: on the least
                  advantaged tenth, since one client's number is noise)
    egalitarian   w_i exp(t_i) / sum_j w_j exp(t_j),  t_i <- t_i + kappa (mean A - A_i)
    utilitarian   (w_i/u_i) / sum_j (w_j/u_j), the paper's coefficients at beta = 0, gamma = -1
    desert        (w_i/u_i^2) / sum_j (w_j/u_j^2): good data counts more than in proportion

This is dual ascent on: minimise sum_i d_i H_i subject to the limits, with accuracies in place of
losses as the measure of each limit. lambda is the price of the promise about the mean, mu_i that of
the promise to client i: 0 where a promise costs nothing. Where it settles, the model is stationary
for sum_i v_i H_i, and each limit is met exactly or has the price 0. As lambda grows the step
becomes FedAvg's, so with FedAvg as the reference the limit on the mean can always be met; limits
that cannot be met end at the largest price, which is the least violation this rule can reach, and
the run says so.

A score is a sample: a promise about scores not yet seen has to allow for that. z e does: e is the
standard error of the mean score, e^2 = sum_i A_i (1 - A_i) / n_i / N^2 with n_i examples scored,
and z is `caution`. In a regression A_i is R^2 = 1 - M_i / V_i, the mean squared error by the
variance of the labels, and its own variance is 2 (1 - A_i)^2 / n_i: with V_i as given and normal
errors that of M_i is 2 M_i^2 / n_i. Measured from FedAvg, z e is at most B, so that no more than
FedAvg's own mean is asked for. Scores are smoothed by half from round to round; means are over the
clients that have reported so far.

No client has more than the cap of all v; what it would have beyond goes to the others, in
proportion to their own v, or by size if they have none.

Every sum here is over clients: with lambda and the sums of scores known to all, a client can
compute its own v_i, keep its own mu_i and t_i, and add v_i (theta - theta_i) to a sum
(budget_sums.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from udjfl._measures import count_least_advantaged
from udjfl.methods._udj_math import floor_uncertainties, log_cap
from udjfl.methods.base import Diagnostics, Reports, Setup, State, weighted_sum

RATE = 5.0  # kappa
SMOOTHING = 0.5
FIRST_PRICE, LARGEST_PRICE = 1.0, 20.0
# Too small to move a model, but above zero: where one client is capped, others get the rest.
TINY_PRICE = 1e-100
LARGEST_TILT = 5.0


@dataclass(frozen=True)
class BudgetLimits:
    """Limits on what a theory may cost, in fractions.

    mean       the mean score may end this much below the reference's
    client     no client's score may end this much below its own reference; None: no limit
    absolute   the mean score to keep in place of the reference's less the budget
    alone      no client's score may end below that of its own model, trained alone
    caution    standard errors of the mean score by which its limit is kept
    """

    mean: float
    client: float | None = None
    absolute: float | None = None
    alone: bool = False
    caution: float = 2.0


def initial_state(setup: Setup) -> State:
    """Return the prices, and what is known of each client, before round 1."""
    n = len(setup)
    unknown = torch.full((n,), float("nan"), dtype=torch.float64)
    reference = setup.reference
    return {
        "price": torch.tensor(FIRST_PRICE, dtype=torch.float64),
        "client_prices": torch.zeros(n, dtype=torch.float64),
        "tilts": torch.zeros(n, dtype=torch.float64),
        "scores": unknown,
        "score_sizes": unknown.clone(),
        "reference_scores": unknown.clone(),
        "uncertainties": unknown.clone(),
        "reference": torch.empty(0, n, dtype=torch.float64) if reference is None else reference,
        "alone": unknown.clone() if setup.alone is None else setup.alone,
        "least_margin": torch.tensor(float("inf"), dtype=torch.float64),
    }


def budgeted_step(
    state: State,
    reports: Reports,
    theory: str,
    advantage: str,
    limits: BudgetLimits,
    largest: float,
) -> tuple[State, Tensor, Diagnostics]:
    """Return the next state, the step, and diagnostics of a round under a budget.

    No client's share of the step is above `largest`.
    """
    state = observe(state, reports)
    rows = reports.client_indices
    state, violation = update_prices(state, rows, limits, reports.is_regression)
    direction, state = DIRECTIONS[theory](state, reports, advantage)
    base = reports.sizes / reports.sizes.sum()
    v = direction + state["price"].clamp_min(TINY_PRICE) * base + state["client_prices"][rows]
    log_largest = log_cap(v.log(), largest)
    weights = v.log().clamp_max(log_largest).softmax(dim=0)
    diagnostics = {
        "weight": weights,
        "direction": direction,
        "client_price": state["client_prices"][rows],
        "price": state["price"],
        "violation": violation,
        "capped": (v.log() > log_largest).to(torch.float64),
    }
    return state, weighted_sum(weights, reports.deltas), diagnostics


def observe(state: State, reports: Reports) -> State:
    """Take in the scores of a round, and the reference's of the same round."""
    rows = reports.client_indices
    scores, uncertainties = state["scores"].clone(), state["uncertainties"].clone()
    sizes = state["score_sizes"].clone()
    scores[rows] = _smooth(scores[rows], reports.extras["scores"].to(torch.float64))
    sizes[rows] = reports.extras["score_sizes"].to(torch.float64)
    uncertainties[rows] = reports.uncertainties
    table, before = state["reference"], state["reference_scores"]
    reference = before
    if len(table):
        reference = _smooth(before, table[min(reports.round or 1, len(table)) - 1])
    return {
        **state,
        "scores": scores,
        "score_sizes": sizes,
        "reference_scores": reference,
        "uncertainties": uncertainties,
    }


def _smooth(before: Tensor, now: Tensor) -> Tensor:
    """Average with the value before; where one of the two is unknown, return the other."""
    mixed = SMOOTHING * before + (1 - SMOOTHING) * now
    return torch.where(before.isnan(), now, torch.where(now.isnan(), before, mixed))


def update_prices(
    state: State, rows: Tensor, limits: BudgetLimits, is_regression: bool = False
) -> tuple[State, Tensor]:
    """Raise the price of a limit that is violated, lower that of one with slack.

    Also return by how much the mean score is below its limit. A client's own price changes in the
    rounds that it reports in (`rows`).
    """
    scores, reference = state["scores"], state["reference_scores"]
    known = ~scores.isnan() & (~reference.isnan() if limits.absolute is None else True)
    violation = torch.zeros((), dtype=torch.float64)
    price, least_margin = state["price"], _least_margin(state)
    if known.any():
        error = standard_error(state, known, is_regression)
        least_margin = least_margin.clamp_max(limits.caution * error)
        goal = mean_goal(limits, float(reference[known].mean()), error)
        violation = goal - scores[known].mean()
        price = (price + RATE * violation).clamp(0.0, LARGEST_PRICE)
    state = update_client_prices(state, rows, limits)
    return {**state, "price": price, "least_margin": least_margin}, violation


def _least_margin(state: State) -> Tensor:
    """Return the smallest z e of all rounds so far; checkpoints of version 0.1.0 have none."""
    return state.get("least_margin", torch.tensor(float("inf"), dtype=torch.float64))


def swallowed_by_caution(state: State, limits: BudgetLimits) -> tuple[int, float] | None:
    """Return how many examples were scored, and the smallest z e of all rounds, if it is above B.

    The goal was then FedAvg's own mean in every round, and any budget below that z e would have
    done the same. None otherwise.
    """
    margin = float(_least_margin(state))
    if limits.absolute is not None or not limits.mean < margin < float("inf"):
        return None
    return int(state["score_sizes"].nansum()), margin


def mean_goal(limits: BudgetLimits, reference: float, error: float) -> float:
    """Return the mean score to reach, from the reference's mean and the standard error of ours."""
    margin = limits.caution * error
    if limits.absolute is not None:
        return limits.absolute + margin
    return reference - limits.mean + min(margin, limits.mean)


def update_client_prices(state: State, rows: Tensor, limits: BudgetLimits) -> State:
    """Raise the prices of clients that are below their limits, lower those of clients above."""
    scores, reference = state["scores"], state["reference_scores"]
    floors = torch.full_like(scores, float("-inf"))
    if limits.client is not None:
        floors = torch.fmax(floors, reference - limits.client)
    if limits.alone:
        floors = torch.fmax(floors, state["alone"])
    shortfall = (floors - scores)[rows].clamp_min(-1.0)  # also where there is no floor
    client_prices = state["client_prices"].clone()
    client_prices[rows] = (client_prices[rows] + RATE * shortfall).clamp(0.0, LARGEST_PRICE)
    return {**state, "client_prices": client_prices}


def standard_error(state: State, known: Tensor, is_regression: bool = False) -> float:
    """Return the standard error of the mean score over the clients that are `known`."""
    scores, sizes = state["scores"][known], state["score_sizes"][known]
    return float(score_variance(scores, sizes, is_regression).sum().sqrt() / len(scores))


def score_variance(scores: Tensor, sizes: Tensor, is_regression: bool) -> Tensor:
    """Return the sampling variance of scores: accuracies, or R^2 in a regression."""
    if is_regression:
        return 2 * (1 - scores).square() / sizes
    return scores * (1 - scores) / sizes


def least_advantaged(values: Tensor) -> Tensor:
    """Return the indices of the clients with the highest values; those with NaN are unknown.

    One client; of more than 20, the tenth of them with the highest.
    """
    order = values.nan_to_num(nan=float("-inf")).argsort(descending=True, stable=True)
    highest = order[: count_least_advantaged(len(values))]
    return highest[~values[highest].isnan()]


def disadvantages(state: State, advantage: str) -> Tensor:
    """Return a number for each client, highest for the least advantaged; NaN where unknown."""
    return {
        "uncertainty": state["uncertainties"],
        "alone": -state["alone"],
        "fedavg": -state["reference_scores"],
    }[advantage]


def rawls_direction(state: State, reports: Reports, advantage: str) -> tuple[Tensor, State]:
    """Put all weight on the least advantaged; FedAvg's weights in a round they are absent from."""
    values = disadvantages(state, advantage)
    chosen = torch.isin(reports.client_indices, least_advantaged(values))
    direction = chosen.to(torch.float64) if chosen.any() else reports.sizes
    return direction / direction.sum(), state


def egalitarian_direction(state: State, reports: Reports, _: str) -> tuple[Tensor, State]:
    """Tilt FedAvg's weights towards clients whose score stays below the mean."""
    rows, scores = reports.client_indices, state["scores"]
    state = update_tilts(state, rows, scores[~scores.isnan()].mean())
    return torch.softmax(reports.sizes.log() + state["tilts"][rows], dim=0), state


def update_tilts(state: State, rows: Tensor, mean: Tensor) -> State:
    """Tilt further towards clients whose score is below the mean."""
    tilts = state["tilts"].clone()
    behind = mean - state["scores"][rows]
    tilts[rows] = (tilts[rows] + RATE * behind).clamp(-LARGEST_TILT, LARGEST_TILT)
    return {**state, "tilts": tilts}


def utilitarian_direction(state: State, reports: Reports, _: str) -> tuple[Tensor, State]:
    """Weigh clients by the certainty of their data, as the paper's utilitarian point does."""
    direction = reports.sizes * _certainty(reports.uncertainties)
    return direction / direction.sum(), state


def desert_direction(state: State, reports: Reports, _: str) -> tuple[Tensor, State]:
    """Weigh clients by the quality of their data, more than in proportion to it."""
    direction = reports.sizes * _certainty(reports.uncertainties) ** 2
    return direction / direction.sum(), state


def _certainty(u: Tensor) -> Tensor:
    """Return 1/u_i as a multiple of the least, from 1 to 100: its square is finite whatever u."""
    return u.max() / floor_uncertainties(u)


DIRECTIONS: dict[str, Callable[[State, Reports, str], tuple[Tensor, State]]] = {
    "rawls": rawls_direction,
    "egalitarian": egalitarian_direction,
    "utilitarian": utilitarian_direction,
    "desert": desert_direction,
}
