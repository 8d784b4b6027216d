"""q-FFL, solved by q-FedAvg: a client counts the more, the larger its loss.

Li, Sanjabi, Beirami, Smith. Fair Resource Allocation in Federated Learning. ICLR 2020.
arXiv:1905.10497.

    objective   sum_k p_k F_k(w)^(q+1) / (q+1)          q = 0: the average; large q: the largest
                loss

    With d_k = w - w_k, D_k = L d_k:   Delta_k = F_k^q D_k     h_k = q F_k^(q-1) |D_k|^2 + L F_k^q
    step = sum_k p_k Delta_k / sum_k p_k h_k

Dividing both sums by L leaves, with c_k = p_k F_k^q,

    step = sum_k c_k d_k / sum_k c_k (1 + r_k)          r_k = q L |d_k|^2 / F_k

which is UDJ-FL's rule with gamma = 0, exponent 1 + q and no cap. Powers are taken in logarithms,
less the largest, so that no q overflows; a loss below 1e-10 counts as 1e-10, where the authors'
code adds that much.

L changes the length of the step, not the clients' shares in it, and nothing at q = 0:

    paper        L = 1/lr, as published and in the authors' code: right for one plain step of SGD.
                 After an epoch with momentum r_k is in the hundreds, and the model hardly moves: it
                 is under-trained, which is easily taken for fair.
    calibrated   L = (1 - m) / (lr (s - m (1-m^s) / (1-m))), m the momentum and s the clients' mean
                 number of steps: D_k is the mean gradient of the local training. Ours, and the
                 default, as it is UDJ-FL's (docs/steps.md): so a comparison of the two compares
                 what they minimise. UDJ-FL also caps a client's share; there is no cap here.
    a number     L itself.

p_k: the paper draws clients by size and then sums without weights, so if all are asked its sums
treat clients alike. That is `uniform`, the default, for which q = 0 is the mean of the models;
`size` puts p_k = n_k / sum_j n_j into both sums.
The default q is ours: the middle of the range that the UDJ-FL paper searched.
Partial participation: the sums are over the clients that report. There is no state.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator
from torch import Tensor

from udjfl.methods._linalg import squared_norms
from udjfl.methods._udj_math import SMALLEST_LOSS, lipschitz
from udjfl.methods.base import BySize, Diagnostics, Method, Reports, State, parameters, weighted_sum

Lipschitz = Literal["calibrated", "paper"] | float


@parameters
class QFFL(Method):
    name = "qffl"
    title = "q-FFL"
    theories = ("utilitarian", "rawls")
    paper = "Li et al., ICLR 2020, arXiv:1905.10497"
    grade = "verified"
    idea = "Weigh each client by a power of its loss; the power sets how much the worst-off count."
    cost = "a forward pass over the client's data"

    q: Annotated[
        float,
        Field(
            ge=0,
            le=1e6,
            description="power of the loss; 0 is the plain average "
            "(searched in the UDJ-FL paper: 0, 0.1, 1, 2, 5)",
        ),
    ] = 1.0
    lipschitz: Annotated[
        Lipschitz,
        Field(
            description="sets the length of the step: paper is as published, "
            "the default is ours (docs/steps.md), or a number"
        ),
    ] = "calibrated"
    weights: BySize = "uniform"

    @property
    def needs(self) -> frozenset[str]:
        sizes = {"sizes"} if self.weights == "size" else set()
        steps = {"steps"} if self.lipschitz == "calibrated" else set()
        return frozenset({"losses", *sizes, *steps})

    @field_validator("lipschitz")
    @classmethod
    def _check_positive(cls, value: Lipschitz) -> Lipschitz:
        if isinstance(value, float) and value <= 0:
            raise ValueError(
                f"is {value:g}; a number must be above zero (or choose 'calibrated' or 'paper')"
            )
        return value

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        F = reports.losses.clamp_min(SMALLEST_LOSS)
        log_c = self.q * F.log()
        if self.weights == "size":
            log_c = log_c + reports.sizes.log()
        c = (log_c - log_c.max()).exp()
        L = self.lipschitz
        if isinstance(L, str):
            L = lipschitz(L, reports.lr, reports.momentum, float(reports.steps.mean()))
        r = self.q * L * squared_norms(reports.deltas) / F
        factors = c / (c * (1 + r)).sum()
        diagnostics = {"weight": c / c.sum(), "curvature": r, "step_scale": factors.sum()}
        return state, weighted_sum(factors, reports.deltas), diagnostics
