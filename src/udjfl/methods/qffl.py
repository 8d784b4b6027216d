"""q-FFL, solved by q-FedAvg: a client counts the more, the larger its loss.

Li, Sanjabi, Beirami, Smith. Fair Resource Allocation in Federated Learning. ICLR 2020. arXiv:1905.10497.

    objective   sum_k p_k F_k(w)^(q+1) / (q+1)          q = 0: the average; as q grows, the largest loss

    With d_k = w - w_k, D_k = L d_k:    Delta_k = F_k^q D_k      h_k = q F_k^(q-1) |D_k|^2 + L F_k^q
    step = sum_k p_k Delta_k / sum_k p_k h_k

Dividing both sums by L leaves, with c_k = p_k F_k^q,

    step = sum_k c_k d_k / sum_k c_k (1 + r_k)          r_k = q L |d_k|^2 / F_k

which is UDJ-FL's rule with gamma = 0 and exponent 1 + q. Powers are taken in logarithms, less the largest, so that no q
overflows; a loss below 1e-10 counts as 1e-10, where the authors' code adds that much.

What L is changes the length of the step, not the clients' shares in it, and nothing at q = 0:

    paper        L = 1/lr, as published and in the authors' code: right for one plain step of SGD. After an epoch with momentum
                 r_k is in the hundreds, and the model hardly moves: it is under-trained, which is easily taken for fair.
    calibrated   L = (1 - momentum) / (lr * steps), with the clients' mean number of steps: D_k is the mean gradient of the
                 local training. Ours, and the default, as it is UDJ-FL's (docs/steps.md): so what sets the two apart
                 in a comparison is what they minimise.
    a number     L itself.

p_k: the paper draws clients by size and then sums without weights, so with everybody asked its sums treat clients alike. That
is `uniform`, the default, for which q = 0 is the mean of the models; `size` puts p_k = n_k / sum_j n_j into both sums.
The default q is ours: the middle of the range that the UDJ-FL paper searched.
Partial participation: the sums are over the clients that report. There is no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator
from torch import Tensor

from udjfl.methods._linalg import squared_norms
from udjfl.methods.base import Diagnostics, Grade, Method, Reports, State, parameters, weighted_sum
from udjfl.methods.udj import SMALLEST_LOSS, calibrated

Lipschitz = Literal["calibrated", "paper"] | float


@parameters
class QFFL(Method):
    name: ClassVar[str] = "qffl"
    title: ClassVar[str] = "q-FFL"
    theories = ("utilitarian", "rawls")
    paper: ClassVar[str] = "Li et al., ICLR 2020, arXiv:1905.10497"
    grade: ClassVar[Grade] = "verified"
    idea: ClassVar[str] = (
        "Weigh each client by a power of its loss; the power sets how much the worst-off count."
    )
    cost: ClassVar[str] = "a forward pass over the client's data"
    needs: ClassVar[frozenset[str]] = frozenset({"losses", "sizes", "steps"})
    needs_if: ClassVar[Mapping[str, tuple[str, str]]] = {
        "sizes": ("weights", "size"),
        "steps": ("lipschitz", "calibrated"),
    }

    q: Annotated[
        float,
        Field(
            ge=0,
            le=1e6,
            description="power of the loss; 0 is the plain average (searched in the UDJ-FL paper: 0, 0.1, 1, 2, 5)",
        ),
    ] = 1.0
    lipschitz: Annotated[
        Lipschitz,
        Field(
            description="how long the step is: paper is as published, the default is ours (docs/steps.md), or a number"
        ),
    ] = "calibrated"
    weights: Annotated[
        Literal["uniform", "size"], Field(description="all alike, or by number of examples")
    ] = "uniform"

    @field_validator("lipschitz")
    @classmethod
    def _above_zero(cls, value: Lipschitz) -> Lipschitz:
        if isinstance(value, float) and value <= 0:
            raise ValueError(
                f"is {value:g}; a number must be above zero (or choose 'calibrated' or 'paper')"
            )
        return value

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        reports.require("losses", *(["sizes"] if self.weights == "size" else []))
        F = reports.losses.clamp_min(SMALLEST_LOSS)
        log_c = self.q * F.log()
        if self.weights == "size":
            log_c = log_c + reports.sizes.log()
        c = (log_c - log_c.max()).exp()
        r = self.q * self._lipschitz(reports) * squared_norms(reports.deltas) / F
        factors = c / (c * (1 + r)).sum()
        notes = {"weight": c / c.sum(), "curvature": r, "step_scale": factors.sum()}
        return state, weighted_sum(factors, reports.deltas), notes

    def _lipschitz(self, reports: Reports) -> float:
        if self.lipschitz == "paper":
            return 1 / reports.lr
        if self.lipschitz == "calibrated":
            return calibrated(reports)
        return self.lipschitz
