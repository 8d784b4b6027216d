"""Measure: `python -m benchmarks COMMAND`, see README.md for the commands."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    aggregation,
    comparison,
    flower_overhead,
    flower_rounds,
    machine,
    points,
    profile,
    storage,
    suites,
    tables,
    tricks,
)
from benchmarks.measure import run_suite
from benchmarks.suites import Suite

HERE = Path(__file__).parent
README, RESULTS = HERE / "README.md", HERE / "results.json"


def main() -> None:
    arguments = parse_arguments()
    # As an exception, so that contenders are ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    repetitions: int | None = arguments.repetitions
    if arguments.command == "render":
        write_readme(read_results())
    elif arguments.command == "flower" and arguments.against is not None:
        turns = repetitions or flower_rounds.REPETITIONS
        results = flower_rounds.measure(arguments.against, turns)
        finish(results, flower_rounds.report(results), arguments.out)
    elif arguments.command == "flower":
        results = flower_overhead.measure(repetitions or suites.ENOUGH_REPETITIONS)
        finish(results, flower_overhead.report(results), arguments.out)
    elif arguments.command == "points":
        measure_points(repetitions or points.REPETITIONS, arguments.only, arguments.out)
    elif arguments.command == "storage":
        results = storage.measure(repetitions or suites.ENOUGH_REPETITIONS)
        finish(results, storage.report(results), arguments.out)
    elif arguments.command == "tricks":
        measure_tricks(repetitions or tricks.REPETITIONS, arguments.only, arguments.out)
    elif arguments.against is not None:
        results = comparison.measure(arguments.against, repetitions or comparison.REPETITIONS)
        finish(results, comparison.report(results), arguments.out)
    else:
        measure_suites(arguments, repetitions or suites.ENOUGH_REPETITIONS)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "command", choices=["quick", "full", "tricks", "points", "flower", "storage", "render"]
    )
    parser.add_argument(
        "--repetitions", type=int, help="of everything (default: 7; tricks, points: 9)"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="quick, flower: compare with the udjfl of another checkout, in turns, 9 (flower: 3) "
        "repetitions",
    )
    parser.add_argument(
        "--only",
        default="",
        help="full, tricks, points: parts to measure, by name, separated by commas",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="file for the JSON (full, tricks, points: results.json, and the README is written; "
        "others: none)",
    )
    arguments = parser.parse_args()
    if arguments.against is not None and arguments.command not in ("quick", "flower"):
        parser.error("--against: only `quick` and `flower` compare two checkouts")
    return arguments


def measure_suites(arguments: argparse.Namespace, repetitions: int) -> None:
    """Measure the quick or the full run, and store what there is after each part."""
    is_full = arguments.command == "full"
    only = arguments.only.split(",") if arguments.only else []
    out = arguments.out or (RESULTS if is_full and not only else None)
    results: dict[str, Any] = {
        "kind": "quick" if not is_full else "partial" if only else "full",
        "machine": machine.describe(),
        "repetitions": repetitions,
        "suites": {},
    }
    if out == RESULTS:  # these are measured by commands of their own
        stored = read_results()
        results |= {name: stored[name] for name in ("tricks", "points") if name in stored}
    for _ in measure_parts(results, suites.FULL if is_full else (suites.QUICK,), only):
        if out:
            write_json(out, results)
        if out == RESULTS:
            write_readme(results)
    print("\n" + tables.report(results))


def measure_parts(
    results: dict[str, Any], chosen: Sequence[Suite], only: list[str]
) -> Iterator[None]:
    """Add the measurements of one part after the other to the results."""
    for suite in chosen:
        if not only or suite.name in only:
            results["suites"][suite.name] = run_suite(suite, results["repetitions"])
            yield
    if results["kind"] == "full" or "startup" in only:
        results["startup"] = machine.measure_start_up(results["repetitions"])
        yield
    if results["kind"] == "full" or "profile" in only:
        results["profile"] = profile.measure(results["repetitions"])
        yield
    if results["kind"] == "full" or "aggregation" in only:
        results["aggregation"] = []
        for size in aggregation.SIZES:
            results["aggregation"].append(aggregation.measure(*size))
            yield


def measure_tricks(repetitions: int, only: str, out: Path | None) -> None:
    """Measure tricks; all of them, without another file, become a part of the stored results."""
    measured: dict[str, Any] = {}
    for measured in tricks.measure(repetitions, only.split(",") if only else []):
        if out:
            write_json(out, measured)
        elif not only:
            results = {**read_results(), "tricks": measured}
            write_json(RESULTS, results)
            write_readme(results)
    print("\n" + tricks.report(measured))


def measure_points(repetitions: int, only: str, out: Path | None) -> None:
    """Measure points together; without another file, they become a part of the stored results."""
    measured: dict[str, Any] = {}
    for part in points.measure(repetitions, only.split(",") if only else []):
        measured |= part
        if out:
            write_json(out, measured)
            continue
        results = read_results()
        results["points"] = {**results.get("points", {}), **part}
        write_json(RESULTS, results)
        write_readme(results)
    print("\n" + points.report(measured))


def finish(results: dict[str, Any], report: str, out: Path | None) -> None:
    if out:
        write_json(out, results)
    print("\n" + report)


def read_results() -> dict[str, Any]:
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def write_json(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def write_readme(results: dict[str, Any]) -> None:
    page = tables.insert_results(README.read_text(encoding="utf-8"), results)
    README.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
