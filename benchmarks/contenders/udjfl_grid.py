"""Eight settings that share their data, with udjfl: one by one, or together."""

from __future__ import annotations

import udjfl
from benchmarks.contenders.udjfl_runs import Simulation, final_outcome, tune_allocator
from benchmarks.work import MODELS, Work
from udjfl.settings import TrainingSettings
from udjfl.simulation.run_methods import MethodTask
from udjfl.simulation.simulate import run_methods
from udjfl.uncertainty import Uncertainty

METHODS = ("fedavg", "rawls", "egalitarian", "utilitarian", "desert", "qffl", "term", "afl")
SETUP = {
    "one by one": f"One `simulate` after the other: {', '.join(METHODS)}.",
    "together": "The same methods, trained round by round side by side as `compare` does.",
}


def start(work: Work, variant: str) -> Simulation:
    tune_allocator()
    return {"one by one": OneByOne, "together": Together}[variant](work, "auto")


def train_together(grid: Simulation, rounds: int) -> list[udjfl.Result]:
    """Train all methods in one call; the only place that knows how udjfl does that."""
    settings = TrainingSettings(
        rounds=rounds,
        lr=grid.work.lr,
        momentum=grid.work.momentum,
        batch_size=grid.work.batch,
        loss_at="running",
        engine=grid.engine,
    )
    tasks = [MethodTask(udjfl.method(name)) for name in METHODS[: grid.work.settings]]
    results = run_methods(
        grid.federation,
        tasks,
        settings,
        0,
        model=MODELS[grid.work.model],
        uncertainty=Uncertainty("given", grid.uncertainty),
    )
    for failure in (result for result in results if not isinstance(result, udjfl.Result)):
        raise failure
    return results


class OneByOne(Simulation):
    def run(self, rounds: int) -> dict[str, float]:
        results = [self.simulate(name, rounds) for name in METHODS[: self.work.settings]]
        return final_outcome(results[0], rounds)

    def check(self, rounds: int) -> dict[str, float]:
        outcome = super().check(rounds)
        return {**outcome, "tested": outcome["tested"] * self.work.settings}


class Together(OneByOne):
    def run(self, rounds: int) -> dict[str, float]:
        return final_outcome(train_together(self, rounds)[0], rounds)
