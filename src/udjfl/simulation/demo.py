"""The comparison that `udjfl demo` runs."""

from __future__ import annotations

from udjfl.methods import THEORIES
from udjfl.settings import CompareSettings, validate_settings

BUDGET = 2


def demo_settings(seeds: int, rounds: int, jobs: int) -> CompareSettings:
    """Return the demo's settings: the theories within a budget, then at the paper's points."""
    within_budget = [f"udj:theory={theory}:budget={BUDGET}" for theory in THEORIES]
    return validate_settings(
        CompareSettings,
        {
            "data": "scanners",
            "methods": ["fedavg", *within_budget, *THEORIES],
            "seeds": seeds,
            "jobs": jobs,
            "rounds": rounds,
            "eval_every": rounds,
            "batch_size": 32,
            "momentum": 0.0,
        },
    )
