"""The overhead of Flower: a round on a real SuperLink against the same round in the simulator.

    python -m benchmarks flower [--repetitions 7] [--out some.json]

Four ways to train the same federation with the same settings, in turns:

    simulator               `udjfl.simulate`
    Flower, one process     a SuperLink and its server app over TLS; one running process answers for
                            all clients
    Flower, SuperNodes      the same with a SuperNode for each client, as `udjfl flower node` runs
                            them: short pauses, and a fork of a warm process for every message
    Flower, stock SuperNodes    as Flower runs them, with `udjfl flower node --stock` as well:
                            pauses of seconds, and for every message a new Python that imports torch

A turn is a run of its own. Its first round warms up; every other is one measurement: the seconds
from the end of the previous round to its end. All rounds include evaluation on each client's tests.
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
from benchmarks import machine
from benchmarks.markdown import describe_machine, show, table

SIMULATOR, ONE_PROCESS = "simulator", "Flower, one process"
SUPERNODES, STOCK = "Flower, SuperNodes", "Flower, stock SuperNodes"
MEASURED = 3  # rounds of a turn that count
POLL_SECONDS = 0.005  # between checks whether a round has ended
PAUSE = 0.1  # seconds between a client's requests for work
METHOD, DATA = "fedavg", "dirty-digits"
ROOT = Path(__file__).resolve().parents[1]
Results = Mapping[str, Any]


def measure(repetitions: int) -> dict[str, Any]:
    """Measure at least so many rounds of each way."""
    if importlib.util.find_spec("flwr") is None:
        sys.exit("Flower is not installed; install it: pip install 'udjfl[flower]'")
    ways: dict[str, Callable[[udjfl.Federation, Path], list[float]]] = {
        SIMULATOR: _simulate,
        ONE_PROCESS: _run_one_process,
        SUPERNODES: _run_supernodes,
        STOCK: _run_stock_supernodes,
    }
    about = machine.describe() | {"flwr": version("flwr")}
    federation = udjfl.load(DATA, seed=0)
    records: dict[str, dict[str, Any]] = {name: {"seconds": []} for name in ways}
    turns = math.ceil(repetitions / MEASURED)
    print(
        f"{DATA}, {len(federation.clients)} clients: {turns} turns of {1 + MEASURED} rounds, "
        "the first warms up",
        flush=True,
    )
    names = list(ways)
    for turn in range(turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                seconds = seconds_of_rounds(ways[name](federation, out))
                records[name]["seconds"] += seconds
                records[name]["accuracies"] = json.loads(
                    (out / "result.json").read_text(encoding="utf-8")
                )["client_scores"]
            print(f"  turn {turn + 1}, {name}: {median(seconds):.3f} s per round", flush=True)
    return {"kind": "flower", "machine": about, "clients": len(federation.clients), "ways": records}


def seconds_of_rounds(ends: list[float]) -> list[float]:
    """Return the seconds of each round but the first, from the times at which rounds ended."""
    if len(ends) != 1 + MEASURED:
        raise RuntimeError(f"{len(ends)} rounds were seen to end, not {1 + MEASURED}")
    return [after - before for before, after in pairwise(ends)]


def _simulate(federation: udjfl.Federation, out: Path) -> list[float]:
    ends: list[float] = []

    def on_progress(event: udjfl.Progress) -> None:
        if event.stage == "training":
            ends.append(time.perf_counter())

    udjfl.simulate(federation, METHOD, rounds=1 + MEASURED, out=out, on_progress=on_progress)
    return ends


def _run_one_process(federation: udjfl.Federation, out: Path) -> list[float]:
    return _run_deployment(federation, out, one_process=True, warm=False)


def _run_supernodes(federation: udjfl.Federation, out: Path) -> list[float]:
    return _run_deployment(federation, out, one_process=False, warm=True)


def _run_stock_supernodes(federation: udjfl.Federation, out: Path) -> list[float]:
    return _run_deployment(federation, out, one_process=False, warm=False)


def _run_deployment(
    federation: udjfl.Federation, out: Path, *, one_process: bool, warm: bool
) -> list[float]:
    """Run on a deployment for this turn alone: even an idle one takes time from the others."""
    app = str(ROOT / "apps" / "flower")
    if app not in sys.path:
        sys.path.insert(0, app)
    from deploy.data_files import server_file, write_data_files  # these need Flower
    from deploy.local import Deployment

    with Deployment(warm=warm) as deployment:
        files = write_data_files(federation, deployment.folder / "data")
        if one_process:
            deployment.start_superlink()
            deployment.start_swarm(files, PAUSE)
        else:
            deployment.start(files)
        settings = {
            "method": METHOD,
            "rounds": 1 + MEASURED,
            "clients": len(files),
            "out": str(out),
            "server-data": str(server_file(deployment.folder / "data")),
        }
        with RoundEnds(out / "records.jsonl") as ends:
            finished = deployment.run(app, settings)
        if not finished.completed:
            raise RuntimeError(f"the run ended as {finished.status}:\n{finished.output[-2000:]}")
        return ends.times


class RoundEnds:
    """The times at which rounds end: when a run's records have grown."""

    def __init__(self, records: Path) -> None:
        self.records, self.times = records, list[float]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> RoundEnds:
        self._thread.start()
        return self

    def __exit__(
        self,
        cls: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _poll(self) -> None:
        length, over = 0, False
        while not over:
            over = self._stop.wait(POLL_SECONDS)  # one more check after `stop`
            now = self.records.stat().st_size if self.records.exists() else 0
            if now > length:
                length = now
                self.times.append(time.perf_counter())


def report(results: Results) -> str:
    """Return the results as Markdown. Every number comes from them."""
    about, ways = results["machine"], results["ways"]
    fastest = median(ways[SIMULATOR]["seconds"])
    rows = []
    for name, record in ways.items():
        seconds = record["seconds"]
        spread = f"{show(min(seconds), 'ms')} to {show(max(seconds), 'ms')}"
        same = (
            "yes"
            if same_accuracies(record["accuracies"], ways[SIMULATOR]["accuracies"])
            else "**no**"
        )
        ratio = show(median(seconds) / fastest, "x")
        rows.append([name, show(median(seconds), "ms"), spread, ratio, str(len(seconds)), same])
    head = ["", "ms per round", "all rounds", "against the simulator", "rounds", "same accuracies"]
    return (
        f"{describe_machine(about)}, udjfl {about['udjfl']}, flwr {about['flwr']}. "
        f"Medians, in turns; {results['clients']} clients. "
        f"Load of the machine before anything was started: {about['load_before']} (0: idle).\n\n"
    ) + table(head, rows)


def same_accuracies(these: Mapping[str, float], those: Mapping[str, float]) -> bool:
    """Return whether clients have the same accuracies, in percent, up to float rounding."""
    return these.keys() == those.keys() and all(
        math.isclose(these[name], those[name], abs_tol=0.5) for name in these
    )
