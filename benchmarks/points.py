"""Points of a frontier trained together: against the limit of their arithmetic, and one by one.

One by one is `simulate` for each point and seed, together `compare` with a process for each core.
Everything takes turns in one process. "On the clock" is the time that passes, with all cores; "CPU
time" is that of one core, which other processes hardly change: quote the first only if they kept no
core busy.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

import udjfl
from benchmarks import machine
from benchmarks.contenders.udjfl_runs import make_federation, tune_allocator
from benchmarks.markdown import describe_machine, show, table
from benchmarks.tricks import BUSY_CORES
from benchmarks.work import MODELS, PRODUCTS, Work
from udjfl._threads import thread_limit
from udjfl.engine import (
    EvaluationJob,
    EvaluationSet,
    LocalTraining,
    StackedEngine,
    TrainJob,
    one_thread,
)
from udjfl.methods import UDJ, FedAvg
from udjfl.models import to_vector

REPETITIONS = 9
WORK = Work(settings=8)
SIZE, PRODUCTS_AT_LIMIT = 2048, 4
# Points, and FedAvg beside them, on some seeds of a small federation.
POINTS = tuple(
    UDJ(theory="rawls", beta=beta, gamma=gamma) for beta in (1, 2, 5) for gamma in (0, 1)
)
SEEDS, ROUNDS = 4, 50
SMALL: dict[str, dict[str, Any]] = {
    "dirty-digits": {},
    "scanners": {"batch_size": 32, "momentum": 0.0},
}
ALONE, FROM_THE_START = ", one by one", ", from the start"
CLOCKS: dict[str, Callable[[], float]] = {
    "on the clock": time.perf_counter,
    "CPU time": time.process_time,
}
# What is to be reached on the clock; the last of each is True if more is better.
GOALS: dict[str, tuple[str, float, str, bool]] = {
    "together": ("8 points together, of the limit of their arithmetic", 0.78, "%", True),
    "received": ("losses at the received models, against their arithmetic", 1.3, "x", False),
    **{
        data: (f"{data}, seeds x points together, against one by one", 6, "x", True)
        for data in SMALL
    },
    **{
        f"{data}{FROM_THE_START}": (
            f"{data}, the same where every run measures the uncertainties",
            6,
            "x",
            True,
        )
        for data in SMALL
    },
}


def measure(repetitions: int) -> dict[str, Any]:
    """Return the seconds of everything by clock, and the rate of the machine."""
    tune_allocator()
    others, about = machine.OtherProcesses(), machine.describe()
    measured = {clock: _measure_round(clock, repetitions) for clock in CLOCKS}
    for data in SMALL:
        for clock in CLOCKS:
            measured[clock] |= _measure_small(data, clock, max(1, repetitions // 3))
    return {
        "machine": about,
        "repetitions": repetitions,
        "others": others.busy_cores(),
        "measured": measured,
    }


def _measure_round(clock: str, repetitions: int) -> dict[str, list[float]]:
    """Return rates of large products, and seconds of a round and of its received losses."""
    workers = _workers(clock)
    clients = make_federation(WORK).clients
    engine = StackedEngine(MODELS["mlp"](), clients, workers=workers)
    train_set = EvaluationSet([client.train for client in clients], is_kept=True)
    a, b, product = (torch.randn(SIZE, SIZE) for _ in range(3))
    measured: dict[str, list[float]] = defaultdict(list)
    with closing(engine):
        for number in range(repetitions + 1):
            jobs = _make_jobs(to_vector(engine.module), number)
            losses = [EvaluationJob([(job.vector, job.buffers) for job in jobs], train_set)]
            threads, seconds = torch.get_num_threads(), []
            torch.set_num_threads(workers)
            for _ in range(PRODUCTS_AT_LIMIT):
                seconds.append(_seconds(clock, lambda: torch.mm(a, b, out=product)))
            torch.set_num_threads(threads)
            measured["rate"].append(2 * SIZE**3 / min(seconds))
            with one_thread(), thread_limit(workers):
                measured["together"].append(_seconds(clock, lambda: engine.train_many(jobs)))  # noqa: B023
                measured["received"].append(_seconds(clock, lambda: engine.evaluate_jobs(losses)))  # noqa: B023
    return {name: values[1:] for name, values in measured.items()}  # the first warms up


def _make_jobs(start: Tensor, round: int) -> list[TrainJob]:
    local = LocalTraining(WORK.lr, WORK.momentum, WORK.batch, 1, "received")
    indices, no_buffers = list(range(WORK.clients)), torch.zeros(0, dtype=torch.float64)
    return [
        TrainJob(start * (1 + setting / 100), no_buffers, indices, local, (0, "points", round))
        for setting in range(WORK.settings)
    ]


def _measure_small(data: str, clock: str, repetitions: int) -> dict[str, list[float]]:
    """Return the seconds of all points on all seeds of a small federation: together, one by one."""
    cores = _workers(clock)
    settings = {"rounds": ROUNDS, "eval_every": ROUNDS, "workers": 1, **SMALL[data]}
    federations = {seed: udjfl.load(data, seed=seed) for seed in range(SEEDS)}
    given = {client: 1.0 + number for number, client in enumerate(federations[0].ids)}
    measured: dict[str, list[float]] = defaultdict(list)

    def together(uncertainty: Any) -> None:
        udjfl.compare(
            data,  # by name: a function of the caller's could not be forked
            POINTS,
            seeds=SEEDS,
            jobs=cores,
            uncertainty=uncertainty,
            **settings,
        )

    def one_by_one(uncertainty: Any) -> None:
        for seed, federation in federations.items():
            for method in (FedAvg(), *POINTS):
                udjfl.simulate(federation, method, seed=seed, uncertainty=uncertainty, **settings)

    for name, uncertainty in ((data, given), (f"{data}{FROM_THE_START}", "crossfit")):
        for _ in range(repetitions):
            measured[name].append(_seconds(clock, partial(together, uncertainty)))
            measured[name + ALONE].append(_seconds(clock, partial(one_by_one, uncertainty)))
    return measured


def _workers(clock: str) -> int:
    return 1 if clock == "CPU time" else len(os.sched_getaffinity(0))


def _seconds(clock: str, call: Callable[[], object]) -> float:
    begin = CLOCKS[clock]()
    call()
    return CLOCKS[clock]() - begin


def figure(name: str, measured: Mapping[str, Sequence[float]]) -> float:
    """Return a figure of `GOALS` from what one clock measured."""
    seconds = median(measured[name])
    if name + ALONE in measured:
        return median(measured[name + ALONE]) / seconds
    first, *others = PRODUCTS["mlp"]
    examples = WORK.settings * WORK.clients * WORK.train
    forward = 2 * (first + sum(others)) * examples
    training = 2 * (2 * first + 3 * sum(others)) * examples
    rate = median(measured["rate"])
    at_limit = (forward + (training if name == "together" else 0)) / rate
    return at_limit / seconds if name == "together" else seconds / at_limit


def report(results: Mapping[str, Any]) -> str:
    """Return the figures as Markdown. Every number comes from the results."""
    rows = []
    for name, (title, goal, unit, more_is_better) in GOALS.items():
        figures = {clock: figure(name, values) for clock, values in results["measured"].items()}
        value = figures["on the clock"]
        reached = value >= goal if more_is_better else value <= goal
        limit = f"{'at least' if more_is_better else 'at most'} {show(goal, unit)}"
        cells = [show(value, unit) for value in figures.values()]
        rows.append([title, limit, *cells, "yes" if reached else "no"])
    busy = " **Other processes kept cores busy: not to be quoted.**"
    return (
        f"{describe_machine(results['machine'])}. Medians of {results['repetitions']} repetitions "
        f"in turns (small federations: a third as many). Other processes kept "
        f"{results['others']:.2f} cores busy.{busy if results['others'] > BUSY_CORES else ''}\n\n"
        + table(["", "goal", *CLOCKS, "reached on the clock"], rows)
    )
