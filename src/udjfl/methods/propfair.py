"""PropFair: proportional fairness. Clients train on minus the logarithm of their utility M - loss.

Zhang, Malekmohammadi, Chen, Yu. Proportional Fairness in Federated Learning. TMLR 2023.
arXiv:2202.01666.

    objective   max over w of sum_k p_k log(M - F_k(w))          (Nash's bargaining product)

    client      in place of a batch's mean loss b it minimises
                    -log(1 - b/M)      where M - b >= epsilon: the gradient of b, over M - b
                    b/M                elsewhere; b/epsilon with huber, whose slope continues the
                                       logarithm's
    step        sum_k p_k (w - w_k), as FedAvg     p_k = n_k / sum_j n_j, or 1/K, weights="uniform"

Without huber, the authors' default and ours, the slope falls from 1/epsilon to 1/M where the
branches meet. With M = 2 the first batches of a problem with ten classes (loss 2.3) are all beyond
that: PropFair starts as FedAvg at the learning rate lr/M. The authors' code has M = 2; our default
is 3, for which an untrained model of up to 16 classes is on the logarithm's side (its loss is the
logarithm of their number). The UDJ-FL paper chose both, 2 for Rawls and 3 for utilitarian.
The logarithm is taken batch by batch: where all batches are on the logarithm's side, by Jensen's
inequality what clients minimise is at least minus the objective's term.
The factor 1/(M - b) rescales the learning rate, so a comparison at one lr also compares lengths of
steps.
Partial participation: the step is over the clients that report. There is no state.
"""

from typing import Annotated

import torch
from pydantic import Field, model_validator
from torch import Tensor

from udjfl.methods._checks import check_epsilon
from udjfl.methods.base import BySize, Diagnostics, Method, Reports, Setup, State, parameters
from udjfl.methods.fedavg import FedAvg


@parameters
class PropFair(Method):
    name = "propfair"
    title = "PropFair"
    theories = ("utilitarian", "rawls")
    paper = "Zhang et al., TMLR 2023, arXiv:2202.01666"
    grade = "verified"
    idea = (
        "Train each client on minus the logarithm of its utility, "
        "so that the worse off learn faster."
    )
    cost = "none"

    M: Annotated[
        float,
        Field(
            gt=0,
            description="utility is M minus the loss (searched in the UDJ-FL paper: 2, 3, 4, 5)",
        ),
    ] = 3.0
    epsilon: Annotated[
        float,
        Field(
            gt=0,
            description="utility below which a straight line replaces the logarithm; below M",
        ),
    ] = 0.2
    huber: Annotated[
        bool,
        Field(description="let that line continue the logarithm's slope; without, it is b/M"),
    ] = False
    weights: BySize = "size"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"sizes"} if self.weights == "size" else ())

    _check_epsilon = model_validator(mode="after")(check_epsilon)

    def notes(self, setup: Setup) -> list[str]:
        return [
            f"{self.title} divides local gradients by M - loss: "
            "its lr means something else than FedAvg's."
        ]

    def objective(
        self, losses: Tensor, weights: Tensor, groups: Tensor | None, multipliers: Tensor | None
    ) -> Tensor:
        b = (losses * weights).sum(dim=1)
        utility = self.M - b
        inside = utility >= self.epsilon
        # The branch not taken must be finite too: its NaN would reach the gradient as 0 * NaN.
        logarithm = -(torch.where(inside, utility, torch.full_like(utility, self.M)) / self.M).log()
        return torch.where(inside, logarithm, b / (self.epsilon if self.huber else self.M))

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        return FedAvg(weights=self.weights).aggregate(state, reports)
