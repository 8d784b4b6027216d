"""FedFa: clients with low accuracy or frequent participation count more; momentum on the server.

Huang, Li, Wang, Du, Zhang. Fairness and Accuracy in Federated Learning. arXiv:2012.10069, 2020.
Not to be taken for FedFA, feature augmentation (arXiv:2301.12995).

Client i has training accuracy Acc_i and has taken part f_i times, this round included. Over the
clients of the round:

    A_i = -log2(Acc_i / sum Acc)          B_i = -log2(1 - f_i / sum f)     each divided by its sum
    omega_i = (1-beta) A_i + beta B_i     D = sum_i omega_i (theta - theta_i)

    heavy_ball    m <- gamma m + D                  step = m
    flgo          m <- gamma m + (1-gamma) D        step = D - lr m     lr: the clients' learning
                  rate

The weights are those of two independent implementations; neither the authors' code nor the full
text was read. The two disagree on the server's momentum, and which one the paper means is not
known: the heavy ball (FedLF's) is the default; flgo's, which takes a little of the progress back,
is the other. FedLF divides Acc_i and f_i themselves by the sums of A and B, which reverses the
preference: taken for a mistake and not offered. The defaults 0.5 and 0.9 are those of both
implementations. Deviations:
- Acc_i is of the received model, as in flgo; FedLF has the trained one. It counts as at least 1e-6,
  so that 0 is allowed.
- Clients train with the momentum of the run; the paper's clients use gamma there too (set
  momentum=0.9 for that).
- One client alone has A = 0 and infinite B; its weight is 1.
Partial participation: f of a client that does not report stays. The UDJ-FL paper did not run FedFa.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods._linalg import combination
from udjfl.methods.base import Diagnostics, Method, Reports, Setup, State, parameters

SMALLEST_ACCURACY = 1e-6


@parameters
class FedFa(Method):
    name = "fedfa"
    title = "FedFa"
    theories = ("egalitarian",)
    paper = "Huang et al. 2020, arXiv:2012.10069"
    grade = "partial"
    idea = (
        "Give more weight to clients with low accuracy and to those that take part often; "
        "add server momentum."
    )
    cost = "a forward pass over the client's data; server: D of memory"
    needs = frozenset({"accuracies"})

    beta: Annotated[
        float,
        Field(
            ge=0, le=1, description="share of participation in the weights; accuracy has the rest"
        ),
    ] = 0.5
    gamma: Annotated[
        float, Field(ge=0, lt=1, description="server momentum; 0 is none with heavy_ball")
    ] = 0.9
    server_momentum: Annotated[
        Literal["heavy_ball", "flgo"],
        Field(description="how momentum enters the step: two published codes disagree"),
    ] = "heavy_ball"

    def init(self, setup: Setup) -> State:
        return {
            "counts": torch.zeros(len(setup), dtype=torch.int64),
            "momentum": torch.zeros(len(setup.model), dtype=torch.float64),
        }

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        counts = state["counts"].clone()
        counts[reports.client_indices] += 1
        f = counts[reports.client_indices].to(torch.float64)
        accuracies = reports.extras["accuracies"].to(torch.float64).clamp_min(SMALLEST_ACCURACY)

        A = information(accuracies / accuracies.sum())
        B = information((f.sum() - f) / f.sum())
        omega = (1 - self.beta) * A + self.beta * B

        D = combination(omega, reports.deltas)
        fresh = 1.0 if self.server_momentum == "heavy_ball" else 1 - self.gamma
        m = (self.gamma * state["momentum"]).add_(D, alpha=fresh)
        step = m if self.server_momentum == "heavy_ball" else D.sub_(m, alpha=reports.lr)
        diagnostics = {
            "weight": omega,
            "accuracy_information": A,
            "participation_information": B,
            "participations": f,
        }
        state = {"counts": counts, "momentum": m}
        return state, step.to(reports.deltas.dtype, copy=True), diagnostics


def information(p: Tensor) -> Tensor:
    """Return -log2 of each, divided by the sum; 1 for one client alone."""
    if len(p) == 1:
        return torch.ones_like(p)
    bits = -p.log2()
    return bits / bits.sum()
