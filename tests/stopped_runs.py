"""Settings and a method of runs that are stopped and resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from small_runs import change_settings
from torch import Tensor

import udjfl
from udjfl.methods import weighted_sum

TINY: dict[str, Any] = {
    "model": "logistic",
    "rounds": 7,
    "checkpoint_every": 3,
    "uncertainty_epochs": 1,
}


COMPARE = change_settings(
    udjfl.CompareSettings(methods=["rawls"], seeds=[0, 1]),
    model="logistic",
    rounds=4,
    checkpoint_every=3,
    uncertainty_epochs=1,
)


@udjfl.parameters
class ServerMomentum(udjfl.Method):
    """A method with state: a velocity, a count of reports per client, and a count of rounds.

    If a part of the state were lost, later rounds would differ.
    """

    name: ClassVar[str] = "server-momentum"
    title: ClassVar[str] = "Server momentum"
    paper: ClassVar[str] = "a test"
    grade: ClassVar[str] = "recalled"  # type: ignore[assignment]

    memory: float = 0.5

    def init(self, setup: udjfl.Setup) -> dict[str, Tensor]:
        return {
            "velocity": torch.zeros(len(setup.model), dtype=torch.float64),
            "times": torch.zeros(len(setup), dtype=torch.int64),
            "round": torch.tensor(0),
        }

    def aggregate(
        self, state: Mapping[str, Tensor], reports: udjfl.Reports
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        mean = weighted_sum(torch.full((len(reports),), 1 / len(reports)), reports.deltas)
        velocity = self.memory * state["velocity"] + mean.to(torch.float64)
        times = state["times"].clone()
        times[reports.client_indices] += 1
        count = state["round"] + 1
        step = (velocity / count).to(reports.deltas.dtype)
        return (
            {"velocity": velocity, "times": times, "round": count},
            step,
            {"times": times[reports.client_indices]},
        )
