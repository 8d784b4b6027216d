"""Eight settings that share their data, with udjfl: one by one, or together."""

from __future__ import annotations

import udjfl
from benchmarks.contenders.udjfl_runs import Simulated, final_outcome
from benchmarks.work import MODELS, Work
from udjfl.settings import TrainingSettings
from udjfl.simulation import simulate as simulation
from udjfl.uncertainty import Uncertainty

METHODS = ("fedavg", "rawls", "egalitarian", "utilitarian", "desert", "qffl", "term", "afl")
SETUP = {
    "one by one": f"One `simulate` after the other: {', '.join(METHODS)}.",
    "together": "The same methods through `udjfl.simulation.simulate.run_together`.",
}


def start(work: Work, variant: str) -> Simulated:
    return {"one by one": OneByOne, "together": Together}[variant](work, "auto")


def train_many(grid: Simulated, rounds: int) -> list[udjfl.Result]:
    """All methods in one call. The only place that knows how udjfl is asked for that."""
    settings = TrainingSettings(
        rounds=rounds,
        lr=grid.work.lr,
        momentum=grid.work.momentum,
        batch_size=grid.work.batch,
        loss_at="running",
        engine=grid.engine,
    )
    entries = [simulation.Entry(udjfl.method(name)) for name in METHODS[: grid.work.settings]]
    results = simulation.run_together(
        grid.federation,
        entries,
        settings,
        0,
        model=MODELS[grid.work.model],
        uncertainty=Uncertainty("given", grid.uncertainty),
    )
    for failure in (result for result in results if not isinstance(result, udjfl.Result)):
        raise failure
    return results


class OneByOne(Simulated):
    def run(self, rounds: int) -> dict[str, float]:
        results = [self._simulate(name, rounds) for name in METHODS[: self.work.settings]]
        return final_outcome(results[0], rounds)

    def check(self, rounds: int) -> dict[str, float]:
        outcome = super().check(rounds)
        return {**outcome, "tested": outcome["tested"] * self.work.settings}


class Together(OneByOne):
    def run(self, rounds: int) -> dict[str, float]:
        return final_outcome(train_many(self, rounds)[0], rounds)
