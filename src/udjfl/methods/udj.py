"""UDJ-FL: one family of server rules, four theories of distributive justice.

Carey, Wu. Achieving Distributive Justice in Federated Learning via Uncertainty Quantification.
FAccT 2025.

    objective   sum_i u_i^gamma H_i(theta)^p_i      H_i: client i's loss;  p = r*beta
                                                    u_i: its uncertainty, normalised to sum to 1

    theory        r          beta                       gamma    exponent p
    rawls         1+1/beta   5                          1        1+beta     lift the most uncertain
    egalitarian   1          1                          1        1          serve all alike
    utilitarian   1+1/beta   -> 0                       -1       1+beta     best on the whole
    desert        1          (1/u_i) / sum_j (1/u_j)    0        -beta_i    reward good data

With D_i = L (theta - theta_i), an estimate of client i's gradient, and w_i = u_i^gamma, the paper
steps along sum_i p w_i H_i^(p-1) D_i and divides by the sum of the curvatures
p w_i (L H_i^(p-1) + (p-1) H_i^(p-2) |D_i|^2). Dividing both by L and pulling out the client's
coefficient c_i leaves

    step = sum_i s_i c_i (theta - theta_i)  /  sum_i s'_i c_i (1 + k_i)
    c_i  = |p_i| u_i^gamma H_i^(p_i-1)           k_i = (p_i-1) |D_i|^2 / (L H_i)

The step rules differ only in the signs s and s', in k and in L; experiments/STEPS.md measures
them, docs/steps.md says which to use. The first is the paper's, the second the authors' code; the
others are ours, and so is the default: it is not the algorithm as published.

    paper        s = s' = sign(p), L = 1/lr: as printed. For p < 1 the denominator is no bound, and
                 for desert the step can point uphill.
    authors      paper with the denominator's terms times sign(p-1), as in the authors' code; p = 1
                 divides by zero there.
    safe         |p-1| instead of p-1 and no signs: the curvature term becomes a bound, and the step
                 never points uphill.
    calibrated   safe with the L that makes D_i the mean gradient of the whole local training; one L
                 for all, from the clients' mean number of steps, so that p = 1 stays the plain
                 average.
    normalised   k = 0: a weighted average with weights c_i.

Our rules also cap c: no client has more than half of sum_i c_i (`cap`; with fewer than four
clients 2/N), so that an uncertainty that is measured badly, or a lie, moves the model only so far.
With a budget (`budget=2`) the theory is pursued another way, within limits: see budget.py.

For p >= 1 paper and safe are the same. With p = 1 every rule but authors is the plain average with
weights u^gamma. With gamma = 0 and p = 1+q the paper's rule is q-FedAvg (Li et al., ICLR 2020).
Desert's exponent is negative, so its objective falls as losses grow: minimising it would harm the
clients. The rule only makes sense as a descent on every H_i with weights c_i, which is what the
last three rules do and the paper means. As beta grows the objective tends to the largest H_i; the
uncertainties drop out (the paper says otherwise).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from udjfl.errors import SettingsError
from udjfl.methods import budget as budgets
from udjfl.methods._linalg import dots
from udjfl.methods._udj_math import (
    DEFAULT_CAP,
    SMALLEST_LOSS,
    StepRule,
    curvature_factor,
    divide,
    floor_uncertainties,
    largest_share,
    lipschitz,
    log_cap,
    log_coefficients,
    step_signs,
)
from udjfl.methods._udj_parameters import (
    Advantage,
    Budget,
    Cap,
    Caution,
    ClientBudget,
    Floor,
    Limit,
    check_budget,
    without_meaning,
)
from udjfl.methods.base import Diagnostics, Method, Reports, Setup, State, parameters, weighted_sum
from udjfl.methods.budget_notes import note_caution
from udjfl.methods.udj_sums import UDJSums
from udjfl.methods.values import HeldToCap


def udj_step(
    reports: Reports, p: Tensor, gamma: float, rule: StepRule, largest: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return sum_i s_i c_i (theta - theta_i) / sum_i s'_i c_i (1 + k_i), its factors, c and k.

    No c_i is more than the share `largest` of their sum.
    """
    H = reports.losses.clamp_min(SMALLEST_LOSS)
    u = floor_uncertainties(reports.uncertainties) if gamma < 0 else reports.uncertainties
    L = lipschitz(rule, reports.lr, reports.momentum, float(reports.steps.mean()))

    log_c = log_coefficients(p, u, gamma, H)
    log_c = log_c.clamp_max(log_cap(log_c, largest))
    c = (log_c - log_c.max()).exp()  # a common factor cancels, and no power overflows
    k = curvature_factor(p, H, reports.deltas, L, rule)
    s, s_denominator = step_signs(p, rule)
    denominator = (s_denominator * c * (1 + k)).sum()
    factors = divide(s * c, denominator, rule)
    return weighted_sum(factors, reports.deltas), factors, c, k


Theory = Literal["rawls", "egalitarian", "utilitarian", "desert"]
Beta = float | tuple[float, ...] | dict[str, float]
Number = TypeVar("Number", float, Tensor)

DEFAULT_CAUTION = 2.0
ROUNDING = 1e-9
DEFAULT_STEP: StepRule = "calibrated"  # chosen by measurement: experiments/STEPS.md
LARGEST_POWER = 1e6  # beyond it, logarithms of powers overflow in the end
PAPER_GAMMA = {"rawls": 1.0, "egalitarian": 1.0, "utilitarian": -1.0, "desert": 0.0}
PAPER_BETA = {"rawls": 5.0, "egalitarian": 1.0, "utilitarian": 0.0}


@parameters
class UDJ(Method):
    name = "udj"
    title = "UDJ-FL"
    paper = "Carey & Wu, FAccT 2025"
    grade = "verified"
    idea = "Weigh each client's loss by a power of its uncertainty and a power of the loss itself."
    cost = "a forward pass over the client's data; once, training alone to measure its uncertainty"

    theory: Annotated[
        Theory | None, Field(description="sets r, beta and gamma as the paper does")
    ] = None
    beta: Annotated[
        Beta | None, Field(description="a number, or one per client (in client order, or by id)")
    ] = None
    gamma: Annotated[
        float | None,
        Field(
            ge=-LARGEST_POWER,
            le=LARGEST_POWER,
            description="power of the uncertainty; any real number",
        ),
    ] = None
    r: Annotated[
        float | None,
        Field(
            ge=-LARGEST_POWER,
            le=LARGEST_POWER,
            description="exponent = r*beta; left out: that of the theory, or 1 without a theory",
        ),
    ] = None
    step: Annotated[
        StepRule,
        Field(description="step rule: paper is as published, the default is ours (docs/steps.md)"),
    ] = DEFAULT_STEP
    cap: Cap = None
    budget: Budget = None
    client_budget: ClientBudget = None
    floor: Floor = None
    limit: Limit = None
    advantage: Advantage = None
    caution: Caution = None

    @property
    def limits(self) -> budgets.BudgetLimits | None:
        """The limits of a budget, in fractions; None without one."""
        if self.budget is None:
            return None
        return budgets.BudgetLimits(
            mean=self.budget / 100,
            client=None if self.client_budget is None else self.client_budget / 100,
            absolute=None if self.limit is None else self.limit / 100,
            alone=self.floor == "alone",
            caution=DEFAULT_CAUTION if self.caution is None else self.caution,
        )

    @property
    def needs_reference(self) -> bool:
        if self.budget is None:
            return False
        return self.limit is None or self.client_budget is not None or self.advantage == "fedavg"

    @property
    def needs_alone(self) -> bool:
        return self.floor == "alone" or self.advantage == "alone"

    def largest_share(self, n_clients: int) -> float:
        """Return the largest share of the step that one of so many clients may have."""
        published = self.step in ("paper", "authors")
        if self.cap is None and published:
            return 1.0
        return largest_share(DEFAULT_CAP if self.cap is None else self.cap, n_clients)

    @property
    def needs(self) -> frozenset[str]:
        if self.budget is not None:
            return frozenset({"scores", "score_sizes", "sizes", "uncertainties"})
        steps = {"steps"} if self.step == "calibrated" else set()
        return frozenset({"losses", "uncertainties", *steps})

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        if self.limits is not None and self.theory is not None:
            advantage, share = self.advantage or "uncertainty", self.largest_share(len(reports))
            return budgets.budgeted_step(state, reports, self.theory, advantage, self.limits, share)
        gamma = self.gamma or 0.0
        p = self.exponents(reports)
        if not p.any():
            raise SettingsError(
                "udj: beta: the exponent r*beta is 0 for every client, so no loss enters; "
                "choose another"
            )
        share = self.largest_share(len(reports))
        step, factors, c, k = udj_step(reports, p, gamma, self.step, share)
        u, direction = reports.uncertainties, step.to(torch.float64)
        floored = (u < floor_uncertainties(u)) & (gamma < 0 or self.beta is None)
        along, square = factors * dots(reports.deltas, direction), direction @ direction
        weights = c / c.sum()
        at_cap = ((weights - share).abs() <= ROUNDING * share) & (share < 1)
        diagnostics = {
            "weight": weights,
            "step_share": along / square if square > 0 else torch.zeros_like(c),
            "curvature": k,
            "floored": floored.to(torch.float64),
            "capped": at_cap.to(torch.float64),
            "step_scale": factors.sum(),
        }
        return state, step, diagnostics

    def exponents(self, reports: Reports) -> Tensor:
        """Return p_i for each reporting client."""
        return self.exponent(self._betas(reports))

    def exponent(self, beta: Number) -> Number:
        """Return p for beta, as the theory and r have it."""
        if self.r is None and self.theory in ("rawls", "utilitarian"):
            return beta + 1.0  # r = 1 + 1/beta; this form also holds in the limit beta -> 0
        sign = -1.0 if self.theory == "desert" else 1.0
        return beta * (sign * (1.0 if self.r is None else self.r))

    def _betas(self, reports: Reports) -> Tensor:
        """Return beta for each reporting client."""
        beta = self.beta
        if beta is None:  # desert: the paper's beta_i, over the clients of this round
            inverse = floor_uncertainties(reports.uncertainties).reciprocal()
            return inverse / inverse.sum()
        if isinstance(beta, dict):
            missing = [name for name in reports.ids if name not in beta]
            if missing:
                raise SettingsError(
                    f"udj: beta: no value for client {missing[0]!r}; give one for each client"
                )
            beta = tuple(beta[name] for name in reports.ids)
        elif isinstance(beta, tuple):
            if len(beta) <= int(reports.client_indices.max()):
                raise SettingsError(
                    f"udj: beta: has {len(beta)} values, fewer than there are clients; "
                    "give one for each"
                )
            beta = tuple(beta[index] for index in reports.client_indices.tolist())
        return torch.as_tensor(beta, dtype=torch.float64).expand(len(reports))

    def warning(
        self, ids: Sequence[str], diagnostics: Mapping[str, Tensor]
    ) -> Sequence[object] | None:
        found: list[object] = []
        names = _marked(ids, diagnostics.get("floored"))
        if names:
            found.append(
                f"{self.label}: the uncertainty of {', '.join(names)} is below a hundredth of the "
                "largest and counts as that hundredth."
            )
        names = _marked(ids, diagnostics.get("capped"))
        if names and self.budget is None:  # a budget's direction may well be one client
            found.append(HeldToCap(self.label, tuple(names), self.largest_share(len(ids))))
        if float(diagnostics.get("price", 0.0)) >= budgets.LARGEST_PRICE:
            found.append(
                f"{self.label}: the limit on the mean score cannot be met, so the step is nearly "
                "FedAvg's."
            )
        prices = diagnostics.get("client_price")
        names = _marked(ids, None if prices is None else prices >= budgets.LARGEST_PRICE)
        if names:
            found.append(
                f"{self.label}: the limit on the score of {', '.join(names)} cannot be met."
            )
        return found or None

    @property
    def additive(self) -> UDJSums | None:
        return UDJSums(self) if self.budget is None else None

    def init(self, setup: Setup) -> State:
        if self.budget is not None:
            self._check_setup(setup)
            return budgets.initial_state(setup)
        if isinstance(self.beta, tuple) and len(self.beta) != len(setup):
            raise SettingsError(
                f"udj: beta has {len(self.beta)} values for {len(setup)} clients; give one for each"
            )
        return {}

    def scores_alone(self, state: State) -> Tensor | None:
        return state["alone"] if self.needs_alone else None

    def final_notes(self, state: State) -> list[str]:
        limits = self.limits
        if limits is None:
            return []
        swallowed = budgets.swallowed_by_caution(state, limits)
        return [] if swallowed is None else [note_caution(100 * limits.mean, *swallowed)]

    def _check_setup(self, setup: Setup) -> None:
        """Raise an error if a limit or the choice of the least advantaged lacks its numbers."""
        if self.needs_reference and setup.reference is None:
            raise SettingsError(
                "udj: budget: is measured from FedAvg's scores by round; give the result or folder "
                "of a FedAvg run as reference, or the mean score to keep as limit"
            )
        if self.needs_alone and setup.alone is None:
            raise SettingsError(
                "udj: the scores of clients alone come from held-out data; set holdout, as in "
                "holdout=0.2"
            )

    @classmethod
    def parameters_beside(cls, given: Mapping[str, Any]) -> set[str]:
        return super().parameters_beside(given) - without_meaning(given)

    @classmethod
    def rawls(cls, beta: Beta = 5.0, gamma: float = 1.0, step: StepRule = DEFAULT_STEP) -> UDJ:
        """Lift the client with the most uncertain data."""
        return cls(theory="rawls", beta=beta, gamma=gamma, step=step)

    @classmethod
    def egalitarian(cls, gamma: float = 1.0, step: StepRule = DEFAULT_STEP) -> UDJ:
        """Serve all clients alike."""
        return cls(theory="egalitarian", gamma=gamma, step=step)

    @classmethod
    def utilitarian(
        cls, beta: Beta = 0.0, gamma: float = -1.0, step: StepRule = DEFAULT_STEP
    ) -> UDJ:
        """Make the model the best on the whole."""
        return cls(theory="utilitarian", beta=beta, gamma=gamma, step=step)

    @classmethod
    def desert(
        cls, beta: Beta | None = None, gamma: float = 0.0, step: StepRule = DEFAULT_STEP
    ) -> UDJ:
        """Reward the clients that bring good data."""
        return cls(theory="desert", beta=beta, gamma=gamma, step=step)

    @field_validator("beta", mode="before")
    @classmethod
    def _split_beta(cls, value: Any) -> Any:
        """Read one number per client from text: `1,2,3`, or `1;2;3` where commas are taken."""
        is_list = isinstance(value, str) and re.search("[,;]", value)
        return tuple(re.split("[,;]", value)) if is_list else value

    @model_validator(mode="after")
    def _complete(self) -> UDJ:
        """Fill in the theory's beta and gamma, so that `params` has all values; check them."""
        check_budget(self.params, DEFAULT_STEP)
        if self.budget is not None:
            return self
        if self.theory is not None:
            gamma = PAPER_GAMMA[self.theory] if self.gamma is None else self.gamma
            beta = PAPER_BETA.get(self.theory) if self.beta is None else self.beta
            object.__setattr__(self, "gamma", gamma)
            object.__setattr__(self, "beta", beta)
        elif self.beta is None or self.gamma is None:
            raise ValueError(
                "needs theory (rawls, egalitarian, utilitarian or desert), "
                "or both beta and gamma for a point by hand"
            )
        betas = _numbers(self.beta)
        if self.theory in ("rawls", "utilitarian") and any(beta < 0 for beta in betas):
            raise ValueError(f"beta is {self.beta}; {self.theory} needs beta >= 0")
        if any(abs(beta) > LARGEST_POWER for beta in betas):
            raise ValueError(
                f"beta is {self.beta}; it must be between -{LARGEST_POWER:g} and {LARGEST_POWER:g}"
            )
        if self.step == "authors" and betas and all(self.exponent(beta) == 1 for beta in betas):
            raise ValueError(
                "step='authors' divides by zero at exponent 1, as the authors' code does; "
                "use step='calibrated' or 'normalised'"
            )
        return self

    @property
    def theories(self) -> tuple[str, ...]:  # type: ignore[override]  # those of this point
        return (self.theory,) if self.theory else ()

    @property
    def changed(self) -> dict[str, Any]:
        """The parameters that differ from the theory's own."""
        usual: dict[str, Any] = {"step": DEFAULT_STEP}
        if self.theory:
            usual = UDJ(theory=self.theory).params
            if self.budget is not None:
                usual |= {"beta": None, "gamma": None}
        return {k: v for k, v in self.params.items() if v != usual.get(k)}

    @property
    def short(self) -> str:
        return self.theory.capitalize() if self.theory else self.title

    @property
    def label(self) -> str:
        name = f"{self.title} {self.theory}" if self.theory else self.title
        return super().label.replace(self.title, name, 1)


def _marked(ids: Sequence[str], marks: Tensor | None) -> list[str]:
    """Return the names of the clients that are marked."""
    values = [] if marks is None else marks.tolist()
    return [client for client, mark in zip(ids, values, strict=False) if mark]


def _numbers(beta: Beta | None) -> tuple[float, ...]:
    """Return every number in a beta, in whichever form it was given."""
    if beta is None:
        return ()
    if isinstance(beta, dict):
        return tuple(beta.values())
    return beta if isinstance(beta, tuple) else (beta,)


__all__ = ["DEFAULT_STEP", "UDJ", "StepRule", "udj_step"]
