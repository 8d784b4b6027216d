"""udjfl itself, through `udjfl.simulate`: the variant is the engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import udjfl
from benchmarks.counting import Contender
from benchmarks.work import CLASSES, MODELS, Work, make_data
from udjfl.methods import METHODS

_SAME = "The loss that clients report is the running one: at the received model it would cost a pass that no peer makes."
SETUP = {"stacked": _SAME, "serial": _SAME, "auto": _SAME}
GLOBAL_TEST = (
    10  # a federation has a global test set, which no peer is tested on: as small as can be
)


def start(work: Work, variant: str) -> Simulated:
    return Simulated(work, variant)


def federation_of(work: Work) -> udjfl.Federation:
    data = make_data(work)
    return udjfl.Federation.from_arrays(
        {i: (d.x, d.y, d.x_test, d.y_test) for i, d in enumerate(data)},
        test=(data[0].x_test[:GLOBAL_TEST], data[0].y_test[:GLOBAL_TEST]),
        class_names=[str(c) for c in range(CLASSES)],
    )


def final_outcome(result: udjfl.Result, rounds: int) -> dict[str, float]:
    """Mean over clients after the last round."""
    losses = result.history.by_client("test_loss", rounds).values()
    accuracies = result.client_accuracy.values()
    return {"loss": sum(losses) / len(losses), "accuracy": sum(accuracies) / len(accuracies) / 100}


class Simulated(Contender):
    """Every run starts from the initial model and pays for its own setting up."""

    def __init__(self, work: Work, engine: str) -> None:
        self.work, self.engine = work, engine
        self.federation = federation_of(work)
        self.uncertainty = dict.fromkeys(self.federation.ids, 1.0)

    def run(self, rounds: int) -> dict[str, float]:
        return final_outcome(self._simulate("fedavg", rounds), rounds)

    def _simulate(self, method: udjfl.Method | str, rounds: int) -> udjfl.Result:
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
        )

    def check(self, rounds: int) -> dict[str, float]:
        """The engines have no torch optimiser to hook: the steps are those that clients report to the server."""
        with reported_work() as counts:
            outcome = self.run(rounds)
        tests = sum(len(client.test) for client in self.federation.clients) + len(
            self.federation.test
        )
        return {**outcome, **counts, "tested": rounds * tests}


@contextlib.contextmanager
def reported_work() -> Iterator[dict[str, float]]:
    """Adds up steps and examples of all reports that reach a method's `aggregate`."""
    counts = {"steps": 0.0, "examples": 0.0}
    plain = {kind: kind.aggregate for kind in METHODS.values()}
    for kind, aggregate in plain.items():
        kind.aggregate = _counting(aggregate, counts)
    try:
        yield counts
    finally:
        for kind, aggregate in plain.items():
            kind.aggregate = aggregate


def _counting(aggregate: Callable[..., Any], counts: dict[str, float]) -> Callable[..., Any]:
    def counting(method: udjfl.Method, state: Any, reports: udjfl.Reports) -> Any:
        counts["steps"] += float(reports.steps.sum())
        counts["examples"] += float(reports.sizes.sum())
        return aggregate(method, state, reports)

    return counting
