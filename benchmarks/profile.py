"""The parts of a round's time: on the clock, and within training by kind of operation."""

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
from benchmarks.work import MODELS, Work, flops

ROUNDS = 20
PRODUCTS = ("aten::baddbmm", "aten::baddbmm_", "aten::bmm")
GATHERING = ("aten::index_select",)
TRAINING = "training, until the last core has finished, and evaluation beside it"
WAITING = "evaluation after training"
AGGREGATING = "averaging"
OTHER = "the rest: set-up, forking, checks, records, the last evaluation"


def measure(repetitions: int) -> dict[str, Any]:
    """Measure in another process; milliseconds per round."""
    print(f"Where the time goes: {repetitions} repetitions of {ROUNDS} rounds", flush=True)
    command = [sys.executable, "-m", "benchmarks.profile", str(repetitions)]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment())
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> None:
    from benchmarks.contenders import gemm, udjfl_runs

    work = Work()
    contender, limit = udjfl_runs.start(work, "stacked"), gemm.start(work, "all cores")
    on_the_clock: dict[str, list[float]] = defaultdict(list)
    one_core: dict[str, list[float]] = defaultdict(list)
    contender.run(2)
    for _ in range(int(sys.argv[1])):
        at_limit = 1000 * flops(work) / limit.run(1)["rate"]
        on_the_clock["the arithmetic at the limit"].append(at_limit)
        for name, value in _time_parts(contender).items():
            on_the_clock[name].append(value)
        for name, value in _profile_operations(contender).items():
            one_core[name].append(value)
    print(json.dumps({"clock": _medians(on_the_clock), "one core": _medians(one_core)}))


def _medians(columns: dict[str, list[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in columns.items()}


def _time_parts(contender: Any) -> dict[str, float]:
    """Return the milliseconds per round of one run, by what this process does."""
    from udjfl.engine import StackedEngine
    from udjfl.methods import METHODS

    spent: dict[str, float] = dict.fromkeys((TRAINING, WAITING, AGGREGATING), 0.0)
    fedavg, evaluate_async = METHODS["fedavg"], StackedEngine.evaluate_async

    def evaluate(*args: Any) -> Callable[[], Any]:
        begin = time.perf_counter()
        wait = evaluate_async(*args)
        spent[WAITING] += time.perf_counter() - begin
        return _timed(wait, WAITING, spent)

    plain = [
        (owner, name, getattr(owner, name))
        for owner, name in (
            (StackedEngine, "train_many"),
            (StackedEngine, "evaluate_async"),
            (fedavg, "aggregate"),
        )
    ]
    StackedEngine.train_many = _timed(StackedEngine.train_many, TRAINING, spent)  # type: ignore[method-assign]
    StackedEngine.evaluate_async = evaluate  # type: ignore[method-assign,assignment]
    fedavg.aggregate = _timed(fedavg.aggregate, AGGREGATING, spent)  # type: ignore[method-assign]
    begin = time.perf_counter()
    try:
        contender.run(ROUNDS)
    finally:
        for owner, name, function in plain:
            setattr(owner, name, function)
    whole = 1000 * (time.perf_counter() - begin) / ROUNDS
    parts = {name: 1000 * seconds / ROUNDS for name, seconds in spent.items()}
    return {**parts, OTHER: whole - sum(parts.values()), "the round": whole}


def _timed(function: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - begin

    return call


def _profile_operations(contender: Any) -> dict[str, float]:
    """Return the milliseconds of training all clients on one core, by kind of operation."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from udjfl.engine import EvaluationSet, LocalTraining, StackedEngine, TrainJob, one_thread
    from udjfl.models import to_vector

    module, work = MODELS["mlp"](), contender.work
    engine = StackedEngine(module, contender.federation.clients, workers=1)
    local = LocalTraining(work.lr, work.momentum, work.batch, 1, "running")
    indices, no_buffers = list(range(work.clients)), torch.zeros(0, dtype=torch.float64)
    tests = EvaluationSet([client.test for client in contender.federation.clients])

    def train(round: int) -> float:
        begin = time.perf_counter()
        engine.train(TrainJob(to_vector(module), no_buffers, indices, local, (0, "profile", round)))
        return 1000 * (time.perf_counter() - begin)

    with one_thread():
        train(0)
        whole = train(1)
        begin = time.perf_counter()
        engine.evaluate(to_vector(module), no_buffers, tests)
        evaluation = 1000 * (time.perf_counter() - begin)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            train(2)
    spent = {event.key: event.self_cpu_time_total / 1000 for event in profiler.key_averages()}
    others = [ms for name, ms in spent.items() if name not in (*PRODUCTS, *GATHERING)]
    return {
        "matrix products": sum(spent.get(name, 0.0) for name in PRODUCTS),
        "gathering batches": sum(spent.get(name, 0.0) for name in GATHERING),
        "all other operations": sum(others),
        "training in all, without the profiler": whole,
        "evaluating all clients": evaluation,
    }


if __name__ == "__main__":
    main()
