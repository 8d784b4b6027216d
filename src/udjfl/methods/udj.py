"""UDJ-FL: one family of server rules, four theories of distributive justice.

Carey, Wu. Achieving Distributive Justice in Federated Learning via Uncertainty Quantification. FAccT 2025.

    objective   sum_i u_i^gamma H_i(theta)^p_i        u_i: the client's uncertainty, normalised to sum to 1;  p = r*beta

    theory        r          beta                              gamma    exponent p
    rawls         1+1/beta   5                                 1        1+beta      lift the most uncertain client
    egalitarian   1          1                                 1        1           serve all alike
    utilitarian   1+1/beta   -> 0                              -1       1+beta      best on the whole
    desert        1          (1/u_i) / sum_j (1/u_j)           0        -beta_i     reward good data

With D_i = L (theta - theta_i), an estimate of client i's gradient, the paper steps along
sum_i p w_i H_i^(p-1) D_i and divides by sum_i of the curvature p w_i (L H_i^(p-1) + (p-1) H_i^(p-2) |D_i|^2), w_i = u_i^gamma.
Dividing both by L and pulling out the client's coefficient c_i = |p_i| u_i^gamma H_i^(p_i-1) leaves

    step = sum_i s_i c_i (theta - theta_i)  /  sum_i s'_i c_i (1 + k_i)        k_i = (p_i-1) |D_i|^2 / (L H_i)

and the step rules differ only in the signs s, s', in k and in L (docs/steps.md measures them). The first is the paper's, the
second the authors' code; the others are ours, the default among them, so the default is not the algorithm as published:

    paper        s = s' = sign(p), L = 1/lr: as printed. For p < 1 it is no bound, and for desert it can point uphill.
    authors      paper with the denominator's terms times sign(p-1), as in the authors' code; p = 1 divides by zero there.
    safe         |p-1| in place of p-1 and no signs: the curvature term becomes a bound, the step never points uphill.
    calibrated   safe with L = (1-momentum) / (lr * steps), which makes D_i the mean gradient of the whole local training;
                 one L for all, from the clients' mean number of steps, so that p = 1 stays the plain average.
    normalised   no curvature term: a weighted average with weights c_i.

For p >= 1 paper and safe are the same. With p = 1 every rule is the plain average with weights u^gamma (but for authors).
With gamma = 0 and p = 1+q the paper's rule is q-FedAvg (Li et al., ICLR 2020).
Desert's exponent is negative, so its objective falls as losses grow: to minimise it would be to harm the clients. The rule
only makes sense as a descent on every H_i with weights c_i, which is what the last three rules do and the paper means.
As beta grows the objective tends to the largest H_i; the uncertainties drop out (the paper says otherwise).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from udjfl.errors import SettingsError
from udjfl.methods._linalg import combination, dots, squared_norms
from udjfl.methods.base import (
    Diagnostics,
    Grade,
    Method,
    Reports,
    Setup,
    State,
    parameters,
    weighted_sum,
)

Theory = Literal["rawls", "egalitarian", "utilitarian", "desert"]
StepRule = Literal["paper", "authors", "safe", "calibrated", "normalised"]
Beta = float | tuple[float, ...] | dict[str, float]
Number = TypeVar("Number", float, Tensor)

# Chosen by measurement: docs/steps.md.
DEFAULT_STEP: StepRule = "calibrated"
SMALLEST_LOSS = 1e-10
LARGEST_POWER = 1e6  # beyond it, logarithms of powers overflow in the end
# A client whose uncertainty is below this share of the largest is treated as if it had this share wherever 1/u enters.
UNCERTAINTY_FLOOR = 0.01

PAPER_GAMMA = {"rawls": 1.0, "egalitarian": 1.0, "utilitarian": -1.0, "desert": 0.0}
PAPER_BETA = {"rawls": 5.0, "egalitarian": 1.0, "utilitarian": 0.0}


@parameters
class UDJ(Method):
    name: ClassVar[str] = "udj"
    title: ClassVar[str] = "UDJ-FL"
    paper: ClassVar[str] = "Carey & Wu, FAccT 2025"
    grade: ClassVar[Grade] = "verified"
    idea: ClassVar[str] = (
        "Weigh each client's loss by a power of its uncertainty and a power of the loss itself."
    )
    cost: ClassVar[str] = (
        "a forward pass over the client's data; once, training alone to measure its uncertainty"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"losses", "steps", "uncertainties"})
    needs_if: ClassVar[Mapping[str, tuple[str, str]]] = {"steps": ("step", "calibrated")}

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
            description="exponent = r*beta; left out: as the theory has it, else 1",
        ),
    ] = None
    step: Annotated[
        StepRule,
        Field(
            description="how long the step is: paper is as published, the default is ours (docs/steps.md)"
        ),
    ] = DEFAULT_STEP

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
        """The best model on the whole."""
        return cls(theory="utilitarian", beta=beta, gamma=gamma, step=step)

    @classmethod
    def desert(
        cls, beta: Beta | None = None, gamma: float = 0.0, step: StepRule = DEFAULT_STEP
    ) -> UDJ:
        """Reward the clients that bring good data."""
        return cls(theory="desert", beta=beta, gamma=gamma, step=step)

    @field_validator("beta", mode="before")
    @classmethod
    def _beta_from_text(cls, value: Any) -> Any:
        """`beta=1,2,3` on a command line is one number per client; `1;2;3` where commas separate methods."""
        return (
            tuple(re.split("[,;]", value))
            if isinstance(value, str) and re.search("[,;]", value)
            else value
        )

    @model_validator(mode="after")
    def _is_a_point_of_the_family(self) -> UDJ:
        """Fill in the theory's beta and gamma, so that `params` says what is computed; refuse what is no point at all."""
        if self.theory is None and (self.beta is None or self.gamma is None):
            raise ValueError(
                "needs theory (rawls, egalitarian, utilitarian or desert), or both beta and gamma for a point by hand"
            )
        if self.gamma is None:
            object.__setattr__(self, "gamma", PAPER_GAMMA[self.theory or ""])
        if self.beta is None:
            object.__setattr__(self, "beta", PAPER_BETA.get(self.theory or ""))
        if self.theory in ("rawls", "utilitarian") and any(
            beta < 0 for beta in _numbers(self.beta)
        ):
            raise ValueError(f"beta is {self.beta}; {self.theory} needs beta >= 0")
        betas = _numbers(self.beta)
        if any(abs(beta) > LARGEST_POWER for beta in betas):
            raise ValueError(
                f"beta is {self.beta}; it must be between -{LARGEST_POWER:g} and {LARGEST_POWER:g}"
            )
        if self.step == "authors" and betas and all(self._exponent(beta) == 1 for beta in betas):
            raise ValueError(
                "step='authors' divides by zero at exponent 1, as the authors' code does; use step='calibrated' or 'normalised'"
            )
        return self

    @property
    def changed(self) -> dict[str, Any]:
        """The parameters that differ from the theory's own."""
        usual = (
            UDJ(theory=self.theory).params
            if self.theory
            else {"theory": None, "r": None, "step": DEFAULT_STEP}
        )
        return {
            name: value
            for name, value in self.params.items()
            if name not in usual or value != usual[name]
        }

    @property
    def short(self) -> str:
        return self.theory.capitalize() if self.theory else self.title

    @property
    def label(self) -> str:
        name = f"{self.title} {self.theory}" if self.theory else self.title
        return super().label.replace(self.title, name, 1)

    @property
    def theories(self) -> tuple[str, ...]:  # type: ignore[override]  # those of a point of the family
        return (self.theory,) if self.theory else ()

    def init(self, setup: Setup) -> State:
        if isinstance(self.beta, tuple) and len(self.beta) != len(setup):
            raise SettingsError(
                f"udj: beta has {len(self.beta)} values for {len(setup)} clients; give one for each"
            )
        return {}

    def exponents(self, reports: Reports) -> Tensor:
        """p_i for each reporting client."""
        return self._exponent(self._betas(reports))

    def _exponent(self, beta: Number) -> Number:
        if self.r is None and self.theory in ("rawls", "utilitarian"):
            return beta + 1.0  # r = 1 + 1/beta; this form also holds in the limit beta -> 0
        sign = -1.0 if self.theory == "desert" else 1.0
        return beta * (sign * (1.0 if self.r is None else self.r))

    def _betas(self, reports: Reports) -> Tensor:
        beta = self.beta
        if beta is None:  # desert: the paper's beta_i, over the clients of this round
            inverse = 1.0 / floored(reports.uncertainties)
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
                    f"udj: beta: has {len(beta)} values, fewer than there are clients; give one for each"
                )
            beta = tuple(beta[place] for place in reports.client_indices.tolist())
        return torch.as_tensor(beta, dtype=torch.float64).expand(len(reports))

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        reports.require("losses", "uncertainties")
        p = self.exponents(reports)
        gamma = self.gamma or 0.0
        u = floored(reports.uncertainties) if gamma < 0 else reports.uncertainties
        H = reports.losses.clamp_min(SMALLEST_LOSS)

        # In logarithms, less the largest: a common factor cancels, and no power can overflow.
        log_c = p.abs().log() + gamma * (u / u.sum()).log() + (p - 1) * H.log()
        if torch.isneginf(log_c).all():
            raise SettingsError(
                "udj: beta: the exponent r*beta is 0 for every client, so no loss enters; choose another"
            )
        c = (log_c - log_c.max()).exp()

        k = self._curvature(p, H, reports)
        sign = p.sign() if self.step in ("paper", "authors") else torch.ones_like(p)
        repair = (p - 1).sign() if self.step == "authors" else torch.ones_like(p)
        length = (sign * repair * c * (1 + k)).sum()
        if length == 0:
            raise SettingsError(
                f"udj: step={self.step!r} divides by zero here; use step='calibrated' or 'normalised'"
            )
        factors = sign * c / length
        step = weighted_sum(factors, reports.deltas)
        uses_inverse = gamma < 0 or self.beta is None
        below = reports.uncertainties < floored(reports.uncertainties)
        return state, step, diagnostics(reports.deltas, step, c, factors, k, below & uses_inverse)

    @property
    def additive(self) -> UDJSums:
        return UDJSums(self)

    def _curvature(self, p: Tensor, H: Tensor, reports: Reports) -> Tensor:
        """k_i as this rule has it: (p-1) |D|^2 / (L H), where |D|^2 / L = L |theta - theta_i|^2."""
        if self.step == "normalised":
            return torch.zeros_like(p)
        L = calibrated(reports) if self.step == "calibrated" else 1 / reports.lr
        k = (p - 1) * L * squared_norms(reports.deltas) / H
        return k if self.step in ("paper", "authors") else k.abs()


class UDJSums:
    """UDJ-FL from sums over clients: numerator and denominator of the step are sums of terms that each client knows by itself.

    The normalisation of u cancels, so it is left out. What has to be told to clients, over all of them that report, is
        largest_uncertainty     for the floor, which is used where 1/u enters (gamma < 0, or desert's own beta)
        inverse_uncertainties   sum_j 1/u_j, for desert's own beta: a sum itself; once, if all report in every round
        log_scale               any number: it cancels too, but near the largest log c_i it keeps powers from overflowing
    L comes in only when the sums are there: calibrated's mean number of steps is sum_i steps_i / sum_i 1.
    """

    def __init__(self, rule: UDJ) -> None:
        self.rule = rule

    def common(self, reports: Reports) -> dict[str, float]:
        u = reports.uncertainties
        told = {
            "largest_uncertainty": float(u.max()),
            "inverse_uncertainties": float((1 / floored(u)).sum()),
        }
        return {**told, "log_scale": float(self._log_c(reports, told)[0].max())}

    def _log_c(
        self, reports: Reports, common: Mapping[str, float]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """log c_i, p_i and H_i."""
        rule = self.rule
        at_least = reports.uncertainties.clamp_min(
            UNCERTAINTY_FLOOR * common["largest_uncertainty"]
        )
        own_beta = 1 / (at_least * common["inverse_uncertainties"])
        p = rule._exponent(own_beta) if rule.beta is None else rule.exponents(reports)
        gamma = rule.gamma or 0.0
        H = reports.losses.clamp_min(SMALLEST_LOSS)
        u = at_least if gamma < 0 else reports.uncertainties
        return p.abs().log() + gamma * u.log() + (p - 1) * H.log(), p, H

    def client_terms(self, report: Reports, common: Mapping[str, float]) -> dict[str, Tensor]:
        report.require("losses", "uncertainties")
        log_c, p, H = self._log_c(report, common)
        c, step = (log_c - common["log_scale"]).exp(), self.rule.step
        sign = p.sign() if step in ("paper", "authors") else torch.ones_like(p)
        repair = (p - 1).sign() if step == "authors" else torch.ones_like(p)
        bend = (p - 1) if step in ("paper", "authors") else (p - 1).abs()
        return {
            "direction": combination(sign * c, report.deltas),
            "weight": (sign * repair * c).sum(),
            "curvature": (
                sign * repair * c * bend * squared_norms(report.deltas) / H
            ).sum(),  # times L
            "steps": report.steps.sum(),
            "clients": torch.tensor(float(len(report)), dtype=torch.float64),
        }

    def step_from_sums(self, sums: Mapping[str, Tensor], lr: float, momentum: float) -> Tensor:
        L = 1 / lr
        if self.rule.step == "calibrated":
            L = (1 - momentum) / (lr * float(sums["steps"] / sums["clients"]))
        length = sums["weight"] + (0 if self.rule.step == "normalised" else L * sums["curvature"])
        if length == 0:
            raise SettingsError(
                f"udj: step={self.rule.step!r} divides by zero here; use step='calibrated' or 'normalised'"
            )
        return sums["direction"] / length


def calibrated(reports: Reports) -> float:
    """The L that makes L (theta - theta_i) the mean gradient of a whole local training, by the clients' mean steps."""
    return (1 - reports.momentum) / (reports.lr * float(reports.steps.mean()))


def _numbers(beta: Beta | None) -> tuple[float, ...]:
    """Every number in a beta, however it was given."""
    if beta is None:
        return ()
    return (
        tuple(beta.values())
        if isinstance(beta, dict)
        else beta
        if isinstance(beta, tuple)
        else (beta,)
    )


def floored(uncertainties: Tensor) -> Tensor:
    """Uncertainties with none below a hundredth of the largest, so that 1/u cannot hand one client everything."""
    return uncertainties.clamp_min(UNCERTAINTY_FLOOR * float(uncertainties.max()))


def diagnostics(
    deltas: Tensor, step: Tensor, c: Tensor, factors: Tensor, k: Tensor, was_floored: Tensor
) -> Diagnostics:
    """Per client: weight (sums to 1), share of the step (projection on it, sums to 1), curvature term; and the scale."""
    direction = step.to(torch.float64)
    along = dots(deltas, direction)
    length = direction @ direction
    return {
        "weight": c / c.sum(),
        "step_share": factors * along / length if length > 0 else torch.zeros_like(c),
        "curvature": k,
        "floored": was_floored.to(torch.float64),
        "step_scale": factors.sum(),
    }
