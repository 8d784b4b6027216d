"""`python -m benchmarks quick | full | flower | render`. See README.md beside this."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import aggregation, flower_overhead, machine, profile, suites, tables
from benchmarks.measure import run_suite
from benchmarks.suites import Suite

HERE = Path(__file__).parent
README, RESULTS = HERE / "README.md", HERE / "results.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("what", choices=["quick", "full", "flower", "render"])
    parser.add_argument(
        "--repetitions", type=int, default=suites.ENOUGH_REPETITIONS, help="of everything"
    )
    parser.add_argument(
        "--only",
        default="",
        help="suites of the full run, by name, separated by commas; leaves README as it is",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="where the JSON goes (full: results.json beside this, others: nowhere)",
    )
    given = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(1)
    )  # by way of an exception, so that contenders are ended too
    if given.what == "render":
        write_readme(json.loads(RESULTS.read_text(encoding="utf-8")))
        return
    if given.what == "flower":
        measure_flower(given.repetitions, given.out)
        return
    only = given.only.split(",") if given.only else []
    out = given.out or (RESULTS if given.what == "full" and not only else None)
    kind = "quick" if given.what == "quick" else "partial" if only else "full"
    results: dict[str, Any] = {
        "kind": kind,
        "machine": machine.describe(),
        "repetitions": given.repetitions,
        "suites": {},
    }
    for _ in measured(results, suites.FULL if given.what == "full" else (suites.QUICK,), only):
        if out:  # after each part: a run that is broken off leaves what it has
            out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        if out == RESULTS:
            write_readme(results)
    print("\n" + tables.report(results))


def measure_flower(repetitions: int, out: Path | None) -> None:
    results = flower_overhead.measure(repetitions)
    if out:
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print("\n" + flower_overhead.report(results))


def measured(results: dict[str, Any], chosen: Sequence[Suite], only: list[str]) -> Iterator[None]:
    """Fills the results, part by part."""
    for suite in chosen:
        if not only or suite.name in only:
            results["suites"][suite.name] = run_suite(suite, results["repetitions"])
            yield
    if results["kind"] == "full" or "startup" in only:
        results["startup"] = machine.light_start(results["repetitions"])
        yield
    if results["kind"] == "full" or "profile" in only:
        results["profile"] = profile.measure(results["repetitions"])
        yield
    if results["kind"] == "full" or "aggregation" in only:
        results["aggregation"] = []
        for size in aggregation.SIZES:
            results["aggregation"].append(aggregation.measure(*size))
            yield


def write_readme(results: dict[str, Any]) -> None:
    README.write_text(
        tables.with_results(README.read_text(encoding="utf-8"), results), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
