"""The time of one `aggregate` of each method, as a multiple of FedAvg's.

`python -m benchmarks.aggregation N D`
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

from benchmarks.child import Memory
from benchmarks.environments import child_environment

SIZES = ((5, 51_000), (50, 51_000), (500, 51_000), (5, 5_000_000), (50, 5_000_000))
ENOUGH_SECONDS, MOST_TIMES, LEAST_TIMES = 1.0, 50, 3


def measure(n: int, d: int) -> dict[str, Any]:
    """Measure all methods on the updates of n clients with d parameters, in another process."""
    print(f"Aggregation: {n} clients, {d:,} parameters", flush=True)
    command = [sys.executable, "-m", "benchmarks.aggregation", str(n), str(d)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_environment()
    )
    memory = Memory(process.pid)
    out, errors = process.communicate()
    record: dict[str, Any] = {"clients": n, "parameters": d, "memory": memory.stop()}
    if process.returncode:
        return record | {"failed": (errors.strip().splitlines() or ["no output"])[-1][:200]}
    return record | {"methods": json.loads(out)}


def main() -> None:
    import torch

    from udjfl.engine import one_thread, tune_allocator

    tune_allocator()  # as the command line does
    n, d = int(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    with one_thread():  # as in a simulation
        print(json.dumps(_all_methods(torch.randn(n, d))))


def _all_methods(deltas: Any) -> dict[str, dict[str, Any]]:
    """Return for each method its seconds and FedAvg's, measured in turns."""
    from udjfl.methods import ALIASES, METHODS, method

    # Families need parameters: their short names have them.
    families = {family for family, _ in ALIASES.values()}
    measured: dict[str, dict[str, Any]] = {}
    for name in [*(name for name in METHODS if name not in families), *ALIASES]:
        try:
            measured[name] = _measure_beside_fedavg(method(name), method("fedavg"), deltas)
        except Exception as error:  # the other methods are measured all the same
            measured[name] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    return measured


def _measure_beside_fedavg(rule: Any, fedavg: Any, deltas: Any) -> dict[str, Any]:
    calls = [_make_call(rule, deltas), _make_call(fedavg, deltas)]
    times: tuple[list[float], list[float]] = ([], [])
    begin = time.perf_counter()
    while len(times[0]) < MOST_TIMES and (
        len(times[0]) < LEAST_TIMES or time.perf_counter() - begin < ENOUGH_SECONDS
    ):
        for call, seconds in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    return {"seconds": median(times[0]), "fedavg": median(times[1]), "times": len(times[0])}


def _make_call(rule: Any, deltas: Any) -> Any:
    """Return a function that aggregates these updates as in a method's first round."""
    from udjfl.methods import Setup

    reports = _make_reports(rule, deltas)
    state = rule.init(Setup.of(reports))
    return lambda: rule.aggregate(state, reports)


def _make_reports(rule: Any, deltas: Any) -> Any:
    import torch

    from udjfl.methods import Reports
    from udjfl.methods.base import EXTRAS

    # Several models of a method share the parameters.
    n, d = len(deltas), deltas.shape[1] // rule.n_models * rule.n_models
    deltas = deltas[:, :d]
    extras = {}
    for name in sorted(rule.needs.intersection(EXTRAS)):
        shape = EXTRAS[name].partition("]")[0].strip("[").split(", ")
        sizes = {"N": n, "D": d, "M": rule.n_models}
        extras[name] = torch.rand(*(sizes[axis] for axis in shape)) + 0.1
    rising = torch.linspace(0.2, 0.9, n)
    return Reports(
        ids=[f"client-{i}" for i in range(n)],
        deltas=deltas,
        losses=rising + 1,
        sizes=torch.arange(1, n + 1) * 10,
        uncertainties=rising,
        steps=torch.full((n,), 38),
        model=torch.zeros(d),
        momentum=0.9,
        extras=extras,
    )


if __name__ == "__main__":
    main()
