"""udjfl itself, through `udjfl.simulate`: the variant is the engine.

Only what `udjfl` exports is used, so that other versions of it can be measured, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import udjfl
import udjfl.engine
from benchmarks.counting import Contender
from benchmarks.work import CLASSES, MODELS, Work, make_data

_SETUP = (
    "Clients report the running loss: at the received model it would cost a pass that no peer "
    "makes. malloc keeps freed memory, as on the command line."
)
SETUP = {"stacked": _SETUP, "serial": _SETUP, "auto": _SETUP}
# A federation has a global test set, on which no peer is tested: as small as possible.
GLOBAL_TEST = 10


def start(work: Work, variant: str) -> Simulation:
    tune_allocator()
    return Simulation(work, variant)


def tune_allocator() -> None:
    """Do what the command line does; versions without this function do so in `simulate`."""
    getattr(udjfl.engine, "tune_allocator", lambda: None)()


def make_federation(work: Work) -> udjfl.Federation:
    data = make_data(work)
    return udjfl.Federation.from_arrays(
        {i: (d.x, d.y, d.x_test, d.y_test) for i, d in enumerate(data)},
        test=(data[0].x_test[:GLOBAL_TEST], data[0].y_test[:GLOBAL_TEST]),
        class_names=[str(c) for c in range(CLASSES)],
    )


def final_outcome(result: udjfl.Result, rounds: int) -> dict[str, float]:
    """Return the mean loss and accuracy over clients after the last round."""
    losses = result.history.by_client("test_loss", rounds).values()
    # An older checkout, measured with `--against`, has them under their former name.
    name = "client_scores" if hasattr(result, "client_scores") else "client_accuracy"
    accuracies = getattr(result, name).values()
    return {"loss": sum(losses) / len(losses), "accuracy": sum(accuracies) / len(accuracies) / 100}


class Simulation(Contender):
    """Every run starts from the initial model and includes its own set-up."""

    def __init__(self, work: Work, engine: str, workers: int = 0) -> None:
        self.work, self.engine, self.workers = work, engine, workers
        self.federation = make_federation(work)
        self.uncertainty = dict.fromkeys(self.federation.ids, 1.0)

    def run(self, rounds: int) -> dict[str, float]:
        return final_outcome(self.simulate("fedavg", rounds), rounds)

    def simulate(self, method: udjfl.Method | str, rounds: int) -> udjfl.Result:
        work = self.work
        return udjfl.simulate(
            self.federation,
            method,
            MODELS[work.model],
            rounds=rounds,
            lr=work.lr,
            momentum=work.momentum,
            batch_size=work.batch,
            loss_at="running",
            uncertainty=self.uncertainty,
            engine=self.engine,
            workers=self.workers,
        )

    def check(self, rounds: int) -> dict[str, float]:
        """Count the steps that clients report: engines have no torch optimiser to hook."""
        with count_reported_work() as counts:
            outcome = self.run(rounds)
        tests = sum(len(client.test) for client in self.federation.clients)
        tested = rounds * (tests + len(self.federation.test))
        return {**outcome, **counts, "tested": tested}


@contextlib.contextmanager
def count_reported_work() -> Iterator[dict[str, float]]:
    """Add up steps and examples of all reports that reach a method's `aggregate`."""
    from udjfl.methods import METHODS

    counts = {"steps": 0.0, "examples": 0.0}
    plain = {cls: cls.aggregate for cls in METHODS.values()}
    for cls, aggregate in plain.items():
        cls.aggregate = _counting(aggregate, counts)
    try:
        yield counts
    finally:
        for cls, aggregate in plain.items():
            cls.aggregate = aggregate


def _counting(aggregate: Callable[..., Any], counts: dict[str, float]) -> Callable[..., Any]:
    def aggregate_and_count(method: udjfl.Method, state: Any, reports: udjfl.Reports) -> Any:
        counts["steps"] += float(reports.steps.sum())
        counts["examples"] += float(reports.sizes.sum())
        return aggregate(method, state, reports)

    return aggregate_and_count
