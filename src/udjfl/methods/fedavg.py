"""FedAvg: the plain average, against which every fair method is measured.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks from Decentralized
Data. AISTATS 2017.

    objective   sum_i p_i H_i(theta)
    step        sum_i p_i (theta - theta_i)          p_i = n_i / sum_j n_j, or 1/N with weights="uniform"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from udjfl.methods.base import Diagnostics, Grade, Method, Reports, State, parameters, weighted_sum


@parameters
class FedAvg(Method):
    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    theories = ("utilitarian",)
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017, arXiv:1602.05629"
    grade: ClassVar[Grade] = "verified"
    idea: ClassVar[str] = "Average the clients' models, each counting by its number of examples."
    cost: ClassVar[str] = "none; the others are compared with it"
    needs: ClassVar[frozenset[str]] = frozenset({"sizes"})
    needs_if: ClassVar[Mapping[str, tuple[str, str]]] = {"sizes": ("weights", "size")}

    weights: Annotated[
        Literal["size", "uniform"], Field(description="by number of examples, or all alike")
    ] = "size"

    def aggregate(self, state: State, reports: Reports) -> tuple[State, Tensor, Diagnostics]:
        if self.weights == "size":
            reports.require("sizes")
        share = reports.sizes if self.weights == "size" else torch.ones_like(reports.sizes)
        share = share / share.sum()
        return state, weighted_sum(share, reports.deltas), {"weight": share}
