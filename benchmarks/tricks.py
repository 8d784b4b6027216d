"""The worth of each trick in the engines, alone: `python -m benchmarks tricks`.

A trick is measured by leaving it out and nothing else; both variants take turns, each in a process
of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.markdown import show, table
from benchmarks.measure import run_suite
from benchmarks.suites import CNN, GRID, MANY, MODULE, ROUND, Entry, Suite

REPETITIONS = 9
ALL = "all tricks"
BUSY_CORES = 0.2  # beside more than this, figures are not to be quoted
MANY_GELU = replace(
    MANY,
    title="500 clients x 48 examples, GELU and dropout",
    work=replace(MANY.work, model="gelu"),
    rounds=5,
)
MANY_SMALL = replace(
    MANY,
    title="500 clients x 48 examples in batches of 16, a small model with GELU and dropout",
    work=replace(MANY.work, model="small", batch=16),
    rounds=5,
)


@dataclass(frozen=True)
class Trick:
    """A trick, the module it is in, the work it is measured on and the variant without it."""

    name: str
    title: str
    module: str
    suite: Suite
    without: str
    variant: str = ALL


TRICKS = (
    Trick("fork", "forked processes, 2 workers against 1", "_fork_pool", ROUND, "one worker"),
    Trick("fork_many", "the same", "_fork_pool", MANY, "one worker"),
    Trick("fork_cnn", "the same", "_fork_pool", CNN, "one worker"),
    Trick("stacked", "clients stacked, gradients written out", "_stacked_mlp", ROUND, "serial"),
    Trick("stacked_many", "the same", "_stacked_mlp", MANY, "serial"),
    Trick("mapped", "clients mapped (on request)", "mapped", MANY_SMALL, "serial", "mapped"),
    Trick("mapped_many", "the same", "mapped", MANY_GELU, "serial", "mapped"),
    Trick("mapped_large", "the same", "mapped", MODULE, "serial", "mapped"),
    Trick(
        "beside",
        "evaluation beside training",
        "_deferred",
        ROUND,
        "evaluation after training",
    ),
    Trick(
        "beside_many",
        "the same: the rule evaluates before training",
        "_deferred",
        MANY,
        "evaluation after training",
    ),
    Trick(
        "wide", "settings side by side in one product", "_stacked_mlp", GRID, "settings one by one"
    ),
    Trick("inference", "inference mode in place of autograd's", "stacked", ROUND, "autograd on"),
    Trick("inference_many", "the same", "stacked", MANY, "autograd on"),
    Trick("plans", "batch plans kept from round to round", "stacked", MANY, "plans not kept"),
    Trick("cache", "chunks that fit the cache", "stacked", MANY, "chunks of any size"),
    Trick("threads", "evaluation in threads", "_threads", MANY, "evaluation on one core"),
    Trick("pages", "huge pages", "data/_contiguous", ROUND, "small pages"),
    Trick("channels", "channels last", "serial", CNN, "channels first"),
    Trick("malloc", "freed memory kept (command line only)", "_memory", ROUND, "malloc as it is"),
    Trick("malloc_many", "the same", "_memory", MANY, "malloc as it is"),
    Trick("malloc_cnn", "the same", "_memory", CNN, "malloc as it is"),
)


def measure(repetitions: int, only: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Measure all tricks, or some by name; yield all results so far after each."""
    about = machine.describe()
    measured: dict[str, Any] = {}
    for trick in TRICKS:
        if only and trick.name not in only:
            continue
        record = run_suite(_suite_of(trick), repetitions)
        measured[trick.name] = {
            "title": trick.title,
            "module": trick.module,
            "work": record["title"],
            "others": record["others"],
            "failed": _failure(record["contenders"]),
            "with": record["contenders"][trick.variant].get("seconds", []),
            "without": record["contenders"][trick.without].get("seconds", []),
        }
        yield {"machine": about, "repetitions": repetitions, "measured": measured}


def _suite_of(trick: Trick) -> Suite:
    entries = tuple(Entry(name, "udjfl_tricks", name) for name in (trick.variant, trick.without))
    title = trick.suite.title.removeprefix("The round: ").removeprefix("A CNN: ")
    if trick.suite is CNN:
        title = f"CNN, {title}"
    return replace(trick.suite, title=title, entries=entries, ours=trick.variant)


def _failure(contenders: Mapping[str, Any]) -> str | None:
    return next((record["failed"] for record in contenders.values() if "failed" in record), None)


def report(results: Mapping[str, Any]) -> str:
    """Return the worth of all tricks as Markdown. Every number comes from the results."""
    about = results["machine"]
    head = ["trick", "in", "measured on", "with, ms", "without, ms", "saves", "others' cores"]
    rows = []
    for record in results["measured"].values():
        cells = [record["title"], f"`{record['module']}`", record["work"]]
        if record["failed"] or not record["with"]:
            rows.append([*cells, f"**failed**: {record['failed']}", "", "", ""])
            continue
        fast, slow = median(record["with"]), median(record["without"])
        times = [show(fast, "ms"), show(slow, "ms")]
        rows.append([*cells, *times, show(1 - fast / slow, "%"), f"{record['others']:.2f}"])
    return (
        f"Taken on {about['taken']}, {about['cores']} cores; milliseconds per round, medians of "
        f"{results['repetitions']} repetitions in turns. A negative figure means that the trick "
        f"costs time there.{_shortcomings(results)}\n\n" + table(head, rows)
    )


def _shortcomings(results: Mapping[str, Any]) -> str:
    """Return, in bold, why these results must not be quoted; nothing if they may."""
    missing = [trick.name for trick in TRICKS if trick.name not in results["measured"]]
    reasons = [f"Missing: {', '.join(missing)}."] if missing else []
    if results["repetitions"] < REPETITIONS:
        reasons.append(f"Fewer than {REPETITIONS} repetitions: not to be quoted.")
    if any(record["others"] > BUSY_CORES for record in results["measured"].values()):
        reasons.append("Other processes kept cores busy: not to be quoted.")
    return "".join(f" **{reason}**" for reason in reasons)
