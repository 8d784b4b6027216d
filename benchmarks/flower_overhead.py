"""What Flower costs: a round on a real SuperLink against the same round in the simulator, as a ratio.

    python -m benchmarks flower [--repetitions 7] [--out some.json]

Three ways to train the same federation with the same settings, in turns:

    simulator               `udjfl.simulate`
    Flower, warm clients    a SuperLink and its server app over TLS; one process that is up already answers for all clients
    Flower, SuperNodes      the same with a SuperNode for each client, which starts a process for every message

A turn is a run of its own. Its first round warms up; every other is one measurement: the seconds from the end of the round
before to its end. All rounds include evaluation on each client's test part.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

import udjfl
from benchmarks import machine, tables

SIMULATOR, WARM, SUPERNODES = "simulator", "Flower, warm clients", "Flower, SuperNodes"
MEASURED = 3  # rounds of a turn that count
LOOK = 0.005  # seconds between looks at whether a round has ended
PAUSE = 0.1  # seconds between a warm client's questions whether there is work
METHOD, DATA = "fedavg", "dirty-digits"
ROOT = Path(__file__).resolve().parents[1]
Results = Mapping[str, Any]


def measure(repetitions: int) -> dict[str, Any]:
    """Seconds of at least so many rounds of each way, as plain values."""
    if importlib.util.find_spec("flwr") is None:
        sys.exit("Flower is not installed; install it: pip install 'udjfl[flower]'")
    ways: dict[str, Callable[[udjfl.Federation, Path], list[float]]] = {
        SIMULATOR: _simulated,
        WARM: _with_warm_clients,
        SUPERNODES: _with_supernodes,
    }
    about = machine.describe() | {"flwr": version("flwr")}
    federation = udjfl.load(DATA, seed=0)
    records: dict[str, dict[str, Any]] = {name: {"seconds": []} for name in ways}
    turns = math.ceil(repetitions / MEASURED)
    print(
        f"{DATA}, {len(federation.clients)} clients: {turns} turns of {1 + MEASURED} rounds, the first warms up",
        flush=True,
    )
    names = list(ways)
    for turn in range(turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                found = seconds_of_rounds(ways[name](federation, out))
                records[name]["seconds"] += found
                records[name]["accuracies"] = json.loads(
                    (out / "result.json").read_text(encoding="utf-8")
                )["client_accuracy"]
            print(f"  turn {turn + 1}, {name}: {median(found):.3f} s per round", flush=True)
    return {"kind": "flower", "machine": about, "clients": len(federation.clients), "ways": records}


def seconds_of_rounds(ends: list[float]) -> list[float]:
    """From when each round of a turn ended; of the first, the warm-up, nobody knows when it began."""
    if len(ends) != 1 + MEASURED:
        raise RuntimeError(f"{len(ends)} rounds were seen to end, not {1 + MEASURED}")
    return [after - before for before, after in pairwise(ends)]


def _simulated(federation: udjfl.Federation, out: Path) -> list[float]:
    ends: list[float] = []

    def progress(stage: str, done: int, total: int) -> None:  # noqa: ARG001 - that is how it is called
        if stage == "training":
            ends.append(time.perf_counter())

    udjfl.simulate(federation, METHOD, rounds=1 + MEASURED, out=out, progress=progress)
    return ends


def _with_warm_clients(federation: udjfl.Federation, out: Path) -> list[float]:
    return _deployed(federation, out, warm=True)


def _with_supernodes(federation: udjfl.Federation, out: Path) -> list[float]:
    return _deployed(federation, out, warm=False)


def _deployed(federation: udjfl.Federation, out: Path, warm: bool) -> list[float]:
    """A deployment for this turn alone: even idle, it would take a part of the machine from the others."""
    scripts = str(ROOT / "scripts")
    if scripts not in sys.path:
        sys.path.insert(0, scripts)
    import flower_demo  # these need Flower
    from flower_deployment import Deployment

    with Deployment() as deployment:
        files = flower_demo.write_data(federation, deployment.folder / "data")
        if warm:
            deployment.start_superlink()
            deployment.start_swarm(files, PAUSE)
        else:
            flower_demo.start(deployment, files, lambda _: None)
        settings = {
            "method": METHOD,
            "rounds": 1 + MEASURED,
            "clients": len(files),
            "out": str(out),
            "server-data": str(deployment.folder / "data" / "server" / "data.npz"),
        }
        with RoundEnds(out / "records.jsonl") as ends:
            finished = deployment.run(flower_demo.APP, settings)
        if not finished.completed:
            raise RuntimeError(f"the run ended as {finished.status}:\n{finished.output[-2000:]}")
        return ends.seen


class RoundEnds:
    """When rounds end: whenever a run's records, to which each round's are added at once, have grown."""

    def __init__(self, records: Path) -> None:
        self.records, self.seen = records, list[float]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> RoundEnds:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        length, over = 0, False
        while not over:
            over = self._stop.wait(LOOK)  # one more look when told to stop
            now = self.records.stat().st_size if self.records.exists() else 0
            if now > length:
                length = now
                self.seen.append(time.perf_counter())


def report(results: Results) -> str:
    """As Markdown. Every number comes from the results."""
    about, ways = results["machine"], results["ways"]
    fastest = median(ways[SIMULATOR]["seconds"])
    rows = []
    for name, record in ways.items():
        seconds = record["seconds"]
        spread = f"{tables.shown(min(seconds), 'ms')} to {tables.shown(max(seconds), 'ms')}"
        same = (
            "yes"
            if same_accuracies(record["accuracies"], ways[SIMULATOR]["accuracies"])
            else "**no**"
        )
        ratio = tables.shown(median(seconds) / fastest, "x")
        rows.append(
            [name, tables.shown(median(seconds), "ms"), spread, ratio, str(len(seconds)), same]
        )
    head = ["", "ms per round", "all rounds", "against the simulator", "rounds", "same accuracies"]
    return (
        f"Taken on {about['taken']}: {about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, {about['system']}; "
        f"Python {about['python']}, torch {about['torch']}, udjfl {about['udjfl']}, flwr {about['flwr']}. Medians, in turns; "
        f"{results['clients']} clients. Load of the machine before anything was started: {about['load_before']} (0: idle).\n\n"
    ) + tables.table(head, rows)


def same_accuracies(these: Mapping[str, float], those: Mapping[str, float]) -> bool:
    """Of each client, in percent: all ways do the same work, up to float rounding."""
    return these.keys() == those.keys() and all(
        math.isclose(these[name], those[name], abs_tol=0.5) for name in these
    )
