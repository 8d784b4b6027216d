"""A method of your own: the coordinate-wise trimmed mean.

Run it: python examples/my_method.py [rounds]
Or by name: PYTHONPATH=examples udjfl run --method my_method:TrimmedMean:drop=1
"""

from __future__ import annotations

import sys
from typing import Annotated

from pydantic import Field

import udjfl


# start of the method
@udjfl.parameters
class TrimmedMean(udjfl.Method):
    """Drop the lowest and highest values of every parameter, and average the rest."""

    name = "trimmed-mean"
    title = "Trimmed mean"
    paper = "Yin et al., ICML 2018"
    grade = "recalled"

    drop: Annotated[int, Field(ge=0, description="how many values to drop at each end")] = 1

    def aggregate(self, state, reports):  # type: ignore[no-untyped-def]
        ordered = reports.deltas.sort(dim=0).values
        return state, ordered[self.drop : len(reports) - self.drop].mean(dim=0), {}


# end of the method


def main(rounds: int = 30) -> None:
    federation = udjfl.load("dirty-digits", seed=0)
    fedavg = udjfl.simulate(federation, "fedavg", rounds=rounds)
    ours = udjfl.simulate(
        federation,
        TrimmedMean(drop=1),
        rounds=rounds,
        reference=fedavg,
        uncertainty=fedavg.uncertainty,
    )
    for key, value in ours.metrics.items():
        print(f"{key:26} {value:8.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
