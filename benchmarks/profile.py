"""Where the time of the round goes: on the clock, and within training by kind of operation."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.environments import child_environment
from benchmarks.work import Work, flops

ROUNDS = 20
PRODUCTS = ("aten::baddbmm", "aten::baddbmm_", "aten::bmm")
GATHERING = ("aten::index_select",)


def measure(repetitions: int) -> dict[str, Any]:
    """In a process of its own; milliseconds a round."""
    print(f"Where the time goes: {repetitions} repetitions of {ROUNDS} rounds", flush=True)
    command = [sys.executable, "-m", "benchmarks.profile", str(repetitions)]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment())
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    from benchmarks.contenders import gemm, udjfl_runs

    work = Work()
    contender, limit = udjfl_runs.start(work, "stacked"), gemm.start(work, "all cores")
    on_the_clock: dict[str, list[float]] = defaultdict(list)
    one_core: dict[str, list[float]] = defaultdict(list)
    contender.run(2)
    for _ in range(int(sys.argv[1])):
        on_the_clock["the arithmetic at the limit"].append(
            1000 * flops(work) / limit.run(1)["rate"]
        )
        for name, value in _timed(contender).items():
            on_the_clock[name].append(value)
        for name, value in _operations(contender).items():
            one_core[name].append(value)
    print(json.dumps({"clock": _medians(on_the_clock), "one core": _medians(one_core)}))


def _medians(columns: dict[str, list[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in columns.items()}


def _timed(contender: Any) -> dict[str, float]:
    """Milliseconds a round of one run, by what this process was doing."""
    from udjfl.engine import stacked
    from udjfl.simulation import lockstep as playing
    from udjfl.training import rounds

    spent: dict[str, float] = defaultdict(float)
    watched = [
        (
            stacked.StackedEngine,
            "train_many",
            "training, until the last core is done, and evaluation beside it",
        ),
        (playing._Late, "settle", "waiting for that evaluation, recording"),
        (rounds.Loop, "finish", "checking reports, averaging"),
    ]
    plain = [(owner, name, getattr(owner, name)) for owner, name, _ in watched]
    for owner, name, what in watched:
        setattr(owner, name, _watched(getattr(owner, name), what, spent))
    begin = time.perf_counter()
    try:
        contender.run(ROUNDS)
    finally:
        for owner, name, function in plain:
            setattr(owner, name, function)
    whole = 1000 * (time.perf_counter() - begin) / ROUNDS
    found = {what: 1000 * spent[what] / ROUNDS for _, _, what in watched}
    return {
        **found,
        "the rest: setting up, forking, the last evaluation": whole - sum(found.values()),
        "the round": whole,
    }


def _watched(
    function: Callable[..., Any], what: str, spent: dict[str, float]
) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[what] += time.perf_counter() - begin

    return watched


def _operations(contender: Any) -> dict[str, float]:
    """Milliseconds of training all clients once on one core, by kind of operation, and of evaluating all of them there."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from benchmarks.work import MODELS
    from udjfl.engine import LocalTraining, StackedEngine, one_thread
    from udjfl.engine.base import EvaluationSet
    from udjfl.models import to_vector

    module, work = MODELS["mlp"](), contender.work
    engine = StackedEngine(module, contender.federation.clients, workers=1)
    asked = LocalTraining(work.lr, work.momentum, work.batch, 1, "running")
    rows, nothing = list(range(work.clients)), torch.zeros(0, dtype=torch.float64)
    with one_thread():
        engine.train(to_vector(module), nothing, rows, asked, (0, "profile", 0))
        begin = time.perf_counter()
        engine.train(to_vector(module), nothing, rows, asked, (0, "profile", 1))
        whole = 1000 * (time.perf_counter() - begin)
        pool = EvaluationSet([client.test for client in contender.federation.clients])
        begin = time.perf_counter()
        engine.evaluate(to_vector(module), nothing, pool)
        evaluated = 1000 * (time.perf_counter() - begin)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            engine.train(to_vector(module), nothing, rows, asked, (0, "profile", 2))
    spent = {event.key: event.self_cpu_time_total / 1000 for event in seen.key_averages()}
    return {
        "matrix products": sum(spent.get(name, 0.0) for name in PRODUCTS),
        "gathering batches": sum(spent.get(name, 0.0) for name in GATHERING),
        "all other operations": sum(
            ms for name, ms in spent.items() if name not in (*PRODUCTS, *GATHERING)
        ),
        "training in all, without the profiler": whole,
        "evaluating all clients": evaluated,
    }


if __name__ == "__main__":
    main()
