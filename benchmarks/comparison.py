"""This checkout against another one: `python -m benchmarks quick --against CHECKOUT`.

Both run the same contenders, in turns; of the other checkout only `src` is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks import machine
from benchmarks.markdown import show, table
from benchmarks.measure import run_suite
from benchmarks.suites import AUTO, CNN, FEW, MANY, MODULE, ROUND, SERIAL, STACKED, Entry, Suite

REPETITIONS = 9
SUITES = (
    replace(ROUND, entries=(STACKED, SERIAL)),
    replace(MANY, entries=(STACKED,)),
    replace(FEW, entries=(STACKED,)),
    replace(CNN, entries=(AUTO,)),
    replace(MODULE, entries=(SERIAL,)),
)
OTHER = ", other checkout"
SLOWER = 1.05  # a ratio above this is marked


def measure(checkout: Path, repetitions: int) -> dict[str, Any]:
    """Measure the suites with both checkouts."""
    source = (checkout / "src").resolve()
    if not (source / "udjfl" / "__init__.py").exists():
        raise SystemExit(f"--against {checkout}: has no src/udjfl; give the folder of a checkout")
    return {
        "kind": "comparison",
        "machine": machine.describe(),
        "repetitions": repetitions,
        "suites": {
            suite.name: run_suite(with_other(suite, source), repetitions) for suite in SUITES
        },
    }


def with_other(suite: Suite, source: Path) -> Suite:
    """Add to each contender of a suite its copy from another source."""
    pairs: list[Entry] = []
    for entry in suite.entries:
        other = replace(entry, title=f"{entry.title}{OTHER}", source=str(source))
        pairs += [entry, other]
    return replace(suite, entries=tuple(pairs))


def report(results: Mapping[str, Any]) -> str:
    """Return the ratios as Markdown."""
    head = ["", "clients", "this, ms", "other, ms", "ratio", "middle half", "us per client"]
    rows = []
    for suite in results["suites"].values():
        clients, records = suite["work"]["clients"], suite["contenders"]
        for name in [name for name in records if not name.endswith(OTHER)]:
            ours, theirs = records[name], records[f"{name}{OTHER}"]
            label = f"{suite['title']}, {name}"
            if "failed" in ours or "failed" in theirs:
                reason = ours.get("failed") or theirs.get("failed")
                rows.append([label, str(clients), f"**failed**: {reason}", "", "", "", ""])
                continue
            ratio, low, high = ratio_of(ours["seconds"], theirs["seconds"])
            mark = "**" if ratio > SLOWER else ""
            per_client = (
                f"{1e6 * median(seconds['seconds']) / clients:,.0f}" for seconds in (ours, theirs)
            )
            rows.append(
                [
                    label,
                    str(clients),
                    show(median(ours["seconds"]), "ms"),
                    show(median(theirs["seconds"]), "ms"),
                    f"{mark}{ratio:.3f}{mark}",
                    f"{low:.3f} to {high:.3f}",
                    " against ".join(per_client),
                ]
            )
    busy = ", ".join(f"{suite['others']:.2f}" for suite in results["suites"].values())
    return (
        f"This checkout against another: medians of {results['repetitions']} repetitions in turns; "
        "below 1 this one is faster. Beside the ratio of medians stands the middle half of the "
        f"ratios of all repetitions. Other processes kept {busy} cores busy.\n\n"
        + table(head, rows)
    )


def ratio_of(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Return the ratio of medians, and the quartiles of the ratios in each repetition."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return median(ours) / median(theirs), low, high
