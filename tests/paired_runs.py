"""Five clients under FedAvg and under a method, on a few seeds, for the tests of verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from udjfl.metrics import Outcome
from udjfl.verdicts import PairedRuns

CLIENTS = ("client-1", "client-2", "client-3", "client-4", "client-5")
UNCERTAINTIES = (0.1, 0.2, 0.3, 0.4, 0.5)
FEDAVG = (94.0, 90.0, 84.0, 74.0, 68.0)
# Added to all clients of a seed, for the method and for FedAvg alike: no difference changes.
LEVELS = (0.0, 0.5, -0.5, 0.25, -0.25)
# Added to the gains of a seed: they have mean 0, so that mean gains are those given.
WIGGLES = (0.2, -0.2, 0.1, -0.1, 0.0)


def make_runs(
    gains: Sequence[float],
    wiggle: float = 1.0,
    seeds: int = 5,
    fedavg: Sequence[float] = FEDAVG,
    uncertainties: Sequence[float] = UNCERTAINTIES,
    shared: Sequence[float | None] = (95.0, 95.0),
    shared_wiggle: float = 0.0,
    test_sizes: Sequence[int] | None = None,
) -> PairedRuns:
    """Make runs where each client gains so many points, up to a wiggle from seed to seed.

    `shared` has the accuracy on the shared test under FedAvg and under the method.
    """
    outcomes, references = [], []
    for seed in range(seeds):
        level, shift = LEVELS[seed % 5], wiggle * WIGGLES[seed % 5]
        before = [accuracy + level for accuracy in fedavg]
        after = [a + gain + shift for a, gain in zip(before, gains, strict=True)]
        old, new = shared
        if new is not None:
            new += shared_wiggle * WIGGLES[seed % 5]
        references.append(Outcome(before, uncertainties, before, old, test_sizes))
        outcomes.append(Outcome(after, uncertainties, before, new, test_sizes))
    names = tuple(f"client-{number + 1}" for number in range(len(fedavg)))
    return PairedRuns(names, tuple(outcomes), tuple(references))
