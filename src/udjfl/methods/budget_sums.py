"""A budget from sums over clients: the rule of budget.py where no server sees a client's numbers.

A client keeps what concerns it alone: its smoothed score A_i and FedAvg's a_i, its price mu_i, its
tilt t_i. The server keeps lambda and running totals. A round has four exchanges; in each, clients
add terms to sums, and the results are the same for all:

    scores       1, A_i, a_i, A_i (1 - A_i) / n_i    the mean scores and e, hence lambda
    directions   number of examples, d_i             the normalisation of w and d
    largest      v_i if it is not the largest        the cap on one client's share
    updates      v_i (theta - theta_i), v_i          the step

Means are over all clients that have reported so far: a client adds what changed since it last did.
Two results are not sums but maxima over clients: the largest uncertainty (or the threshold of the
least advantaged), which stays the same from round to round, and the largest v_i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from udjfl.methods import budget
from udjfl.methods._linalg import combination
from udjfl.methods._udj_math import floor_uncertainties
from udjfl.methods.reports import Reports
from udjfl.methods.values import Setup, State

if TYPE_CHECKING:
    from udjfl.methods.udj import UDJ

Sums = dict[str, Tensor]
POWERS = {"utilitarian": 1, "desert": 2}  # of the certainty of a client's data


class BudgetSums:
    """The exchanges of a round; methods that begin with `client` run on a client.

    A client's state is that of `budget.initial_state` for a federation of itself alone.
    """

    def __init__(self, rule: UDJ) -> None:
        assert rule.limits is not None
        assert rule.theory is not None
        self.rule, self.limits, self.theory = rule, rule.limits, rule.theory

    def client_start(self, setup: Setup) -> State:
        """Return the state of a client before round 1; `setup` has this client alone."""
        return {**budget.initial_state(setup), "added": torch.zeros(4, dtype=torch.float64)}

    def server_start(self) -> State:
        """Return the state of the server before round 1."""
        price = torch.tensor(budget.FIRST_PRICE, dtype=torch.float64)
        return {"price": price, "totals": torch.zeros(4, dtype=torch.float64)}

    def client_scores(self, own: State, report: Reports) -> tuple[State, Tensor]:
        """Take in a score; return the change of the client's terms 1, A_i, a_i and its error's."""
        own = {**own, **budget.observe(own, report)}
        score, reference = own["scores"][0], own["reference_scores"][0]
        known = ~reference.isnan() | (self.limits.absolute is not None)
        error = budget.score_variance(score, own["score_sizes"][0], report.is_regression)
        terms = torch.stack([torch.ones_like(score), score, reference.nan_to_num(), error])
        terms = torch.where(known, terms, torch.zeros_like(terms))
        return {**own, "added": terms}, terms - own["added"]

    def update_price(self, server: State, changes: Tensor) -> tuple[State, Sums]:
        """Return the next price, from the sum of the changes; and what all clients learn."""
        totals = server["totals"] + changes
        clients, scores, references, errors = totals
        price = server["price"]
        if clients > 0:
            goal = budget.mean_goal(
                self.limits, float(references / clients), float(errors.sqrt() / clients)
            )
            change = budget.RATE * (goal - scores / clients)
            price = (price + change).clamp(0.0, budget.LARGEST_PRICE)
        server = {"price": price, "totals": totals}
        return server, {"price": price, "mean_score": scores / clients}

    def client_direction(
        self, own: State, report: Reports, common: Mapping[str, Tensor]
    ) -> tuple[State, Sums]:
        """Move the client's own price and tilt; return its size and its direction, not normalised.

        `common` has `largest_uncertainty`; for rawls `threshold`, the value of the least advantaged
        client, or of the last of several.
        """
        own = {**own, **budget.update_client_prices(own, torch.tensor([0]), self.limits)}
        n = report.sizes[0]
        if self.theory == "rawls":
            values = budget.disadvantages(own, self.rule.advantage or "uncertainty")
            return own, {"size": n, "direction": (values[0] >= common["threshold"]).double()}
        if self.theory == "egalitarian":
            own = {**own, **budget.update_tilts(own, torch.tensor([0]), common["mean_score"])}
            return own, {"size": n, "direction": n * own["tilts"][0].exp()}
        largest = float(common["largest_uncertainty"])
        certainty = largest / floor_uncertainties(report.uncertainties, largest)[0]
        return own, {"size": n, "direction": n * certainty ** POWERS[self.theory]}

    def client_weight(
        self, own: State, terms: Mapping[str, Tensor], common: Mapping[str, Tensor]
    ) -> Tensor:
        """Return v_i; `common` has the price and the sums of sizes and directions.

        If the least advantaged are absent, the directions sum to 0 and are FedAvg's.
        """
        share = terms["size"] / common["size"]
        absent = common["direction"] == 0
        direction = share if absent else terms["direction"] / common["direction"]
        price = common["price"].clamp_min(budget.TINY_PRICE)
        return direction + price * share + own["client_prices"][0]

    def client_below(self, v: Tensor, largest: Tensor) -> Sums:
        """Return v_i if it is not the largest, and whether it is."""
        at = (v == largest).double()
        return {"below": v * (1 - at), "at": at}

    def client_update(
        self, v: Tensor, report: Reports, common: Mapping[str, Tensor], limit: float
    ) -> Sums:
        """Return the terms of the step, v_i (theta - theta_i) and v_i, where v_i is capped."""
        others = common["below"] + (common["at"] - 1) * common["largest"]
        if others > 0:
            v = torch.minimum(v, others * limit / (1 - limit))  # infinite at a limit of 1
        return {"direction": combination(v.reshape(1), report.deltas), "weight": v}

    def step_from_sums(self, sums: Mapping[str, Tensor]) -> Tensor:
        """Return the step [D]."""
        return sums["direction"] / sums["weight"]


def play_round(
    form: BudgetSums,
    server: State,
    clients: Sequence[State],
    reports: Sequence[Reports],
    maxima: Mapping[str, Tensor],
) -> tuple[State, list[State], Tensor]:
    """Run the exchanges of a round in order, in one process; return both states and the step.

    `clients` and `reports` are those of the reporting clients, each a `Reports` of one; `maxima`
    has the largest uncertainty or the threshold.
    """
    scored = [form.client_scores(own, report) for own, report in zip(clients, reports, strict=True)]
    server, common = form.update_price(server, torch.stack([terms for _, terms in scored]).sum(0))
    common = {**maxima, **common}
    pairs = [
        form.client_direction(own, report, common)
        for (own, _), report in zip(scored, reports, strict=True)
    ]
    common = {**common, **_add([terms for _, terms in pairs])}
    weights = [form.client_weight(own, terms, common) for own, terms in pairs]
    largest = torch.stack(weights).max()
    common = {**common, "largest": largest}
    common |= _add([form.client_below(v, largest) for v in weights])
    limit = form.rule.largest_share(len(reports))
    updates = [
        form.client_update(v, report, common, limit)
        for v, report in zip(weights, reports, strict=True)
    ]
    return server, [own for own, _ in pairs], form.step_from_sums(_add(updates))


def _add(terms: Sequence[Sums]) -> Sums:
    """Return the sums of the clients' terms: all that secure aggregation tells."""
    return {name: torch.stack([own[name] for own in terms]).sum(dim=0) for name in terms[0]}
