"""What one `aggregate` of each method costs, as a multiple of FedAvg's: `python -m benchmarks.aggregation N D`."""

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
    """All methods on the updates of n clients with d parameters; a process of its own, so that its memory can be told."""
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

    from udjfl.engine import one_thread

    n, d = int(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    with one_thread():  # as in a simulation
        print(json.dumps(_all_methods(torch.randn(n, d))))


def _all_methods(deltas: Any) -> dict[str, dict[str, Any]]:
    """For each method its seconds and FedAvg's, measured in turns."""
    from udjfl.methods import ALIASES, METHODS, method

    families = {
        family for family, _ in ALIASES.values()
    }  # these need a point to be chosen: their short names are that
    found: dict[str, dict[str, Any]] = {}
    for name in [*(name for name in METHODS if name not in families), *ALIASES]:
        try:
            found[name] = _beside_fedavg(method(name), method("fedavg"), deltas)
        except Exception as error:  # whatever one method does, the others are measured
            found[name] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    return found


def _beside_fedavg(rule: Any, fedavg: Any, deltas: Any) -> dict[str, Any]:
    calls = [_call(rule, deltas), _call(fedavg, deltas)]
    times: tuple[list[float], list[float]] = ([], [])
    begin = time.perf_counter()
    while len(times[0]) < MOST_TIMES and (
        len(times[0]) < LEAST_TIMES or time.perf_counter() - begin < ENOUGH_SECONDS
    ):
        for call, kept in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            kept.append(time.perf_counter() - start)
    return {"seconds": median(times[0]), "fedavg": median(times[1]), "times": len(times[0])}


def _call(rule: Any, deltas: Any) -> Any:
    """One first round of a method on these updates, with whatever it declares, ready to be called."""
    from udjfl.methods import Setup

    reports = _reports(rule, deltas)
    state = rule.init(Setup.of(reports))
    return lambda: rule.aggregate(state, reports)


def _reports(rule: Any, deltas: Any) -> Any:
    import torch

    from udjfl.methods import Reports
    from udjfl.methods.base import EXTRAS

    n, d = (
        len(deltas),
        deltas.shape[1] // rule.n_models * rule.n_models,
    )  # several models side by side share the D
    deltas = deltas[:, :d]
    extras = {}
    for name in sorted(rule.needs.intersection(EXTRAS)):
        shape = EXTRAS[name].partition("]")[0].strip("[").split(", ")
        wide = {"N": n, "D": d, "M": rule.n_models}
        extras[name] = torch.rand(*(wide[axis] for axis in shape)) + 0.1
    even = torch.linspace(0.2, 0.9, n)
    return Reports(
        ids=[f"client-{i}" for i in range(n)],
        deltas=deltas,
        losses=even + 1,
        sizes=torch.arange(1, n + 1) * 10,
        uncertainties=even,
        steps=torch.full((n,), 38),
        model=torch.zeros(d),
        momentum=0.9,
        extras=extras,
    )


if __name__ == "__main__":
    main()
