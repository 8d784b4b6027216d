"""A federation of your own: three schools, one feature table each.

Run it: python examples/my_data.py [rounds]
"""

from __future__ import annotations

import sys

import numpy as np

import udjfl


def make_school(
    rng: np.random.Generator, pupils: int, noise: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw four marks per pupil; the label (fails, passes) is the sign of their sum plus noise."""
    marks = rng.normal(size=(pupils, 4))
    passes = (marks.sum(axis=1) + noise * rng.normal(size=pupils) > 0).astype(int)
    split = pupils * 4 // 5
    return marks[:split], passes[:split], marks[split:], passes[split:]


def main(rounds: int = 30) -> None:
    """Train FedAvg and Rawls, and print the uncertainty and accuracies of each school."""
    rng = np.random.default_rng(0)
    schools = {
        "north": make_school(rng, 200, 0.2),
        "south": make_school(rng, 100, 1.0),
        "west": make_school(rng, 60, 3.0),
    }
    marks = rng.normal(size=(300, 4))
    federation = udjfl.Federation.from_arrays(
        schools,
        test=(marks, (marks.sum(axis=1) > 0).astype(int)),
        class_names=["fails", "passes"],
        name="schools",
    )
    fedavg = udjfl.simulate(federation, "fedavg", model="logistic", rounds=rounds)
    rawls = udjfl.simulate(
        federation, udjfl.method("udj", theory="rawls", beta=2), model="logistic", rounds=rounds
    )
    for name in federation.ids:
        accuracies = fedavg.client_scores[name], rawls.client_scores[name]
        print(
            f"{name:6} uncertainty {fedavg.uncertainty[name]:.3f}"
            f"  FedAvg {accuracies[0]:5.1f}  Rawls {accuracies[1]:5.1f}"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
