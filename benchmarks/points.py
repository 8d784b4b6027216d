"""Points of a frontier trained together: against the limit of their arithmetic, and one by one.

Together is `udjfl frontier` as it comes: all its points and FedAvg on some seeds, a process for
each core. One by one is `udjfl.simulate` for each of these points and seeds, which measures the
clients' uncertainties and, for a budget, trains FedAvg each time; like the frontier it evaluates
the last round only. Every fourth point is timed, and counts four times. README.md says why these
two.

Everything takes turns in one process. "On the clock" is the time that passes, with all cores; "CPU
time" is that of one core, which other processes hardly change: quote the first only if they kept no
core busy.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
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
from udjfl.models import to_vector
from udjfl.search.frontier import make_points
from udjfl.search.point_runs import run_points
from udjfl.search.run_table import RunTable
from udjfl.search.settings import FrontierSettings
from udjfl.settings import validate_settings
from udjfl.uncertainty import Uncertainty

REPETITIONS = 9
WORK = Work(settings=8)
SIZE, PRODUCTS_AT_LIMIT = 2048, 4
# Small federations with the settings of experiments/JUSTICE.md, and the number of seeds.
SEEDS = 2
ONE_IN = 4  # points are timed one by one; the time of all is so many times theirs
SMALL: dict[str, dict[str, Any]] = {
    "dirty-digits": {"rounds": 100},
    "scanners": {"rounds": 50, "batch_size": 32, "momentum": 0.0},
}
PARTS = ("round", *SMALL)
ALONE, GIVEN = ", one by one", ", uncertainties given"
BUSY = " **Other processes kept cores busy: what is on the clock is not to be quoted.**"
CLOCKS: dict[str, Callable[[], float]] = {
    "on the clock": time.perf_counter,
    "CPU time": time.process_time,
}
# What is to be reached on the clock (None: nothing is promised), and whether more is better.
GOALS: dict[str, tuple[str, float | None, str, bool]] = {
    "together": ("8 points together, of the limit of their arithmetic", 0.78, "%", True),
    "received": ("losses at the received models, against their arithmetic", 1.3, "x", False),
    **{data: (f"{data}, a frontier against its points one by one", 6, "x", True) for data in SMALL},
    **{
        f"{data}{GIVEN}": (
            f"{data}, the same, every run being given uncertainties",
            None,
            "x",
            True,
        )
        for data in SMALL
    },
}
PART_OF = {
    name: name.removesuffix(GIVEN) if name.startswith(tuple(SMALL)) else "round" for name in GOALS
}


def measure(repetitions: int, only: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Measure all parts, or some by name; yield their results by name after each.

    Small federations are measured a third as often.
    """
    tune_allocator()
    for part in PARTS:
        if only and part not in only:
            continue
        others, about = machine.OtherProcesses(), machine.describe()
        count = repetitions if part == "round" else max(1, repetitions // 3)
        measured = {
            clock: _measure_round(clock, count)
            if part == "round"
            else _measure_small(part, clock, count)
            for clock in CLOCKS
        }
        yield {
            part: {
                "machine": about,
                "repetitions": count,
                "others": others.busy_cores(),
                "measured": measured,
            }
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
    """Return the seconds of a frontier of a small federation: together, and one by one."""
    cores = _workers(clock)
    workers = 1 if cores == 1 else 0  # 0, the default: as many as there are cores
    settings = {**SMALL[data], "eval_every": SMALL[data]["rounds"], "workers": workers}
    values = {"data": data, "seeds": list(range(SEEDS)), "jobs": cores, **settings}
    frontier = validate_settings(FrontierSettings, values)
    methods = [point.method for point in make_points(frontier)]
    sample = methods[::ONE_IN]  # some of every kind; runs do not depend on each other
    scale = len(methods) / len(sample)
    federations = [udjfl.load(data, seed=seed) for seed in range(SEEDS)]
    given = {client: 1.0 + number for number, client in enumerate(federations[0].ids)}
    known = {seed: Uncertainty("given", given) for seed in range(SEEDS)}
    measured: dict[str, list[float]] = defaultdict(list)

    def together(uncertainties: Mapping[int, Uncertainty]) -> None:
        first = federations[0]
        run_points(frontier, methods, RunTable(first.ids), first, uncertainties=uncertainties)

    def one_by_one(uncertainty: Any) -> None:
        for seed, federation in enumerate(federations):
            for method in sample:
                udjfl.simulate(federation, method, seed=seed, uncertainty=uncertainty, **settings)

    udjfl.simulate(federations[0], "rawls", **{**settings, "rounds": 2})  # imports, first products
    for _ in range(repetitions):
        measured[data].append(_seconds(clock, lambda: together({})))
        measured[data + ALONE].append(scale * _seconds(clock, lambda: one_by_one("crossfit")))
        measured[data + GIVEN].append(_seconds(clock, lambda: together(known)))
        measured[data + GIVEN + ALONE].append(scale * _seconds(clock, lambda: one_by_one(given)))
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
        part = results.get(PART_OF[name])
        if part is None:
            continue
        figures = {clock: figure(name, values) for clock, values in part["measured"].items()}
        value = figures["on the clock"]
        limit, reached = "–", "–"
        if goal is not None:
            limit = f"{'at least' if more_is_better else 'at most'} {show(goal, unit)}"
            reached = "yes" if (value >= goal if more_is_better else value <= goal) else "no"
        cells = [show(value, unit) for value in figures.values()]
        rows.append([title, limit, *cells, reached, f"{part['others']:.2f}"])
    parts = results.values()
    counts = ", ".join(f"{name} {part['repetitions']}" for name, part in results.items())
    busy = any(part["others"] > BUSY_CORES for part in parts)
    return (
        f"{describe_machine(next(iter(parts))['machine'])}. Medians of repetitions in turns: "
        f"{counts}.{BUSY if busy else ''}\n\n"
        + table(["", "goal", *CLOCKS, "reached on the clock", "others' cores"], rows)
    )
