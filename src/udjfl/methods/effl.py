"""EFFL: first limit bias and inequality, then lower all losses at once. Recalled in its core.

Gao, Huang, Tang, Tan, Yao, Wei. EFFL: Egalitarian Fairness in Federated Learning for Mitigating
Matthew Effect. 2023, arXiv:2309.16338; a later version is Anti-Matthew FL, ECAI 2024.

    objective   lower all of (l_1, ..., l_N) together, subject for all k to
                f_k <= eps_b      |f_k - mean f| <= eps_vb      |l_k - mean l| <= eps_vl

l_k is the client's loss and f_k its bias between groups of a sensitive attribute. Each stage steps
along the shortest vector d in the hull of some gradients, which is downhill for each of them (the
multiple-gradient descent algorithm) as far as the solver's precision goes: 1e-4 of the longest, so
that beside a gradient 1e7 times as long a short one's may be missed:

    stage 1   while a bias is over its limit:    all loss gradients, and that of the largest f_k
    stage 2   while a spread is over its limit:  the gradient of each such spread max_k |. - mean|,
                                                 that of the largest loss, and those of limits
                                                 nearly reached
    stage 3   else:                              all loss gradients, and those of limits nearly
                                                 reached
    step      server_lr * lr * d                 lr: the clients' learning rate

From secondary sources: the problem, that there are three stages with a largest value in place of
many constraints, and that gradients have to be exact and of all clients. Recalled: which gradients
each stage takes. No code of the authors was found.
Ours: the bias is the gap between the mean losses of the best and the worst served group (the
paper's surrogates, also recalled, need a binary target); "nearly" is 9/10 of a limit; the stage is
chosen afresh each round, so that a limit broken later is mended; a limit that no step can change
(its gradient is zero) is passed over; all default values.

Limits that cannot be met are not an error: steps shrink where nothing improves all that the stage
looks at, and the diagnostics show by how much the limits are still exceeded. With limits far away
only stage 3 is left, plain descent for all. Without a sensitive attribute there are no f_k. Every
client has to report in every round: partial participation is refused before round 1, and so is a
round from which a report had to be excluded. The UDJ-FL paper did not run EFFL.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from udjfl.errors import NotDefinedError
from udjfl.methods import _linalg
from udjfl.methods._solvers import min_norm_weights
from udjfl.methods.base import Diagnostics, Method, Plan, Reports, Setup, State, parameters

NEARLY = 0.9  # of a limit
# Of the longest gradient: the root of what rounding leaves of its square where gradients cancel.
NO_GRADIENT = 1e-6


@dataclass(frozen=True)
class Limit:
    """A value and its limit; the value's gradient is `row` times the table of gradients."""

    value: Tensor
    limit: float
    row: Tensor


@parameters
class EFFL(Method):
    name = "effl"
    title = "EFFL"
    theories = ("egalitarian",)
    paper = "Gao et al., 2023, arXiv:2309.16338"
    grade = "recalled"
    idea = (
        "Bring the clients' losses (and biases) near one another, then lower all of them together."
    )
    cost = (
        "a round is one gradient of all the client's data (two, with groups) instead of epochs: "
        "cheap, but more rounds are needed; server: K² D, and a quadratic programme"
    )
    needs = frozenset({"losses"})
    needs_groups = frozenset({"group_gaps", "group_gap_gradients"})

    eps_vl: Annotated[
        float, Field(gt=0, description="how far a client's loss may be from the mean loss")
    ] = 0.2
    eps_b: Annotated[
        float, Field(gt=0, description="how large a client's gap between groups may be")
    ] = 0.1
    eps_vb: Annotated[
        float,
        Field(gt=0, description="how far a client's gap between groups may be from the mean gap"),
    ] = 0.1
    server_lr: Annotated[
        float,
        Field(
            gt=0,
            le=1e6,
            description="step in multiples of the clients' lr; 5 or 10 is faster if stable",
        ),
    ] = 1.0

    def init(self, setup: Setup) -> State:
        if not setup.everyone_answers:
            raise NotDefinedError(
                "effl: compares all clients in every round, so every one has to report; set "
                "participation to 1 and drop_out to 0, or choose another method (fedmgda also "
                "looks for a step that is downhill for all)"
            )
        return {"stage": torch.tensor(0), "clients": torch.tensor(len(setup))}

    def notes(self, setup: Setup) -> list[str]:
        one_step = (
            "EFFL: clients take one step on all their data a round, "
            "so it needs more rounds than others do."
        )
        no_groups = (
            "EFFL: without a sensitive attribute it runs on the clients' losses alone, "
            "with no limits on bias."
        )
        return [one_step] if setup.has_groups else [one_step, no_groups]

    def plan(self, state: State, probe: Reports | None) -> tuple[State, Plan]:
        return state, Plan(one_full_step=True)

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        n = len(reports)
        n_clients = int(state.get("clients", torch.tensor(n)))
        if n < n_clients:
            raise NotDefinedError(
                f"effl: compares all clients in every round, but in round {reports.round} only {n} "
                f"of {n_clients} have a usable report; with on_bad_report = 'fail' the run stops "
                "with what is wrong with the others"
            )
        gap_gradients = reports.extras.get("group_gap_gradients")
        # The gradients are these multiples of what was sent: deltas, and gradients of gaps.
        units = torch.ones(n if gap_gradients is None else 2 * n, dtype=torch.float64)
        units[:n] /= reports.lr
        gram = _linalg.gram(gradient_blocks(reports)) * units[:, None] * units
        limits = self._limits(reports)
        stage, members = hull(reports.losses, limits, gram)
        member_gram = members @ gram @ members.T
        factors = torch.zeros(len(gram), dtype=torch.float64)
        # A gradient of exactly zero in the hull is its shortest vector.
        if not (member_gram.diagonal() <= 0).any():
            factors = min_norm_weights(member_gram) @ members
        scaled = self.server_lr * reports.lr * factors * units
        step = _linalg.combination(scaled[:n], reports.deltas)
        if gap_gradients is not None:
            step += _linalg.combination(scaled[n:], gap_gradients)
        diagnostics = {
            "weight": factors[:n],
            "stage": torch.tensor(float(stage)),
            "direction_length": (factors @ gram @ factors).clamp_min(0).sqrt(),
            **{f"{name}_excess": limit.value - limit.limit for name, limit in limits.items()},
        }
        return {**state, "stage": torch.tensor(stage)}, step.to(reports.deltas.dtype), diagnostics

    def _limits(self, reports: Reports) -> dict[str, Limit]:
        """Return the limits by name, those on bias only where clients report gaps."""
        n, gaps = len(reports), reports.extras.get("group_gaps")
        losses = torch.eye(n, n if gaps is None else 2 * n, dtype=torch.float64)
        limits = {"loss_spread": spread_limit(reports.losses, self.eps_vl, losses)}
        if gaps is not None:
            gaps = gaps.to(torch.float64)
            limits["bias"] = Limit(gaps.max(), self.eps_b, losses.roll(n, 1)[gaps.argmax()])
            limits["bias_spread"] = spread_limit(gaps, self.eps_vb, losses.roll(n, 1))
        return limits


def gradient_blocks(reports: Reports) -> Iterator[Tensor]:
    """Yield blocks of columns of the deltas and, below them, of the gradients of the gaps."""
    deltas, gaps = _linalg.columns(reports.deltas), reports.extras.get("group_gap_gradients")
    if gaps is None:
        return deltas
    return map(torch.cat, zip(deltas, _linalg.columns(gaps), strict=True))


def spread_limit(values: Tensor, limit: float, rows: Tensor) -> Limit:
    """Return the limit on max_k |values_k - mean|; rows[k] picks the gradient of values_k."""
    apart = values - values.mean()
    k = apart.abs().argmax()
    return Limit(apart[k].abs(), limit, apart[k].sign() * (rows[k] - rows.mean(dim=0)))


def hull(losses: Tensor, limits: dict[str, Limit], gram: Tensor) -> tuple[int, Tensor]:
    """Return the stage, and the gradients in its hull: combinations of the rows of `gram`."""
    own = torch.eye(len(losses), len(gram), dtype=torch.float64)
    broken = {name for name, limit in limits.items() if limit.value > limit.limit}
    if "bias" in broken:
        return 1, torch.stack([*own, *changeable([limits["bias"]], gram)])
    near = changeable(
        [limit for limit in limits.values() if limit.value >= NEARLY * limit.limit], gram
    )
    if broken:
        return 2, torch.stack([own[losses.argmax()], *near])
    return 3, torch.stack([*own, *near])


def changeable(limits: list[Limit], gram: Tensor) -> list[Tensor]:
    """Return the rows of those limits whose value some step can change."""
    least = NO_GRADIENT**2 * gram.diagonal().max()
    return [limit.row for limit in limits if limit.row @ gram @ limit.row > least]
