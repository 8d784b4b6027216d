"""Results as Markdown. Every number comes from the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import figures, points, tricks
from benchmarks.aggregation import SIZES
from benchmarks.figures import GEMM, Results
from benchmarks.markdown import NOTHING, describe_machine, show, table
from benchmarks.suites import ENOUGH_REPETITIONS, FULL
from benchmarks.targets import TARGETS

BEGIN, END = "<!-- results: written by `make bench` -->", "<!-- end of results -->"


def insert_results(page: str, results: Results) -> str:
    """Return the page with the results between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{report(results)}\n{END}{after}"


def report(results: Results) -> str:
    """Return all sections."""
    parts = [_machine(results), _targets(results)]
    parts += [_suite(results, name) for name in results["suites"]]
    parts += [_profile(results), _points(results), _tricks(results)]
    parts += [_aggregation(results), _setups(results)]
    return "\n".join(part for part in parts if part)


def _machine(results: Results) -> str:
    about = results["machine"]
    versions = about["peers"].items()
    peers = ", ".join(version for name, version in versions if not name.startswith("torch"))
    return (
        f"{describe_machine(about)} (the peers' too), udjfl {about['udjfl']}; {peers}. "
        f"Medians of {results['repetitions']} repetitions in turns. Load of the machine before "
        f"anything was started: {about['load_before']} (0 is idle). Each table says how many cores "
        "other processes kept busy meanwhile: do not trust times taken beside busy processes."
        f"{_shortcomings(results)}\n"
    )


def _shortcomings(results: Results) -> str:
    """Return, in bold, why these results must not be quoted; nothing if they may."""
    reasons = []
    if results["repetitions"] < ENOUGH_REPETITIONS:
        reasons.append(f"Fewer than {ENOUGH_REPETITIONS} repetitions: not to be quoted.")
    if results["kind"] == "full":
        missing = [suite.name for suite in FULL if suite.name not in results["suites"]]
        done = [(size["clients"], size["parameters"]) for size in results.get("aggregation") or []]
        missing += [f"aggregation at N = {n}, D = {d:,}" for n, d in SIZES if (n, d) not in done]
        if missing:
            reasons.append(f"The run was broken off; missing: {'; '.join(missing)}.")
    return "".join(f" **{reason}**" for reason in reasons)


def _targets(results: Results) -> str:
    words = {True: "yes", False: "**no**", None: "not measured"}
    rows = [
        [
            target.title,
            f"{'at most' if target.at_most else 'at least'} {show(target.goal, target.unit)}",
            show(target.measured(results), target.unit),
            words[target.reached(results)],
        ]
        for target in TARGETS
        if results["kind"] == "full" or target.measured(results) is not None
    ]
    return "### To reach\n\n" + table(["", "goal", "measured", "reached"], rows)


def _suite(results: Results, name: str) -> str:
    suite = results["suites"][name]
    ours = suite["ours"]
    head = [
        "contender",
        "ms per round",
        f"{ours} is faster by",
        "of the limit",
        "peak MB",
        "start-up s",
        "test loss",
        "work",
    ]
    busy = any("busy_seconds" in record for record in suite["contenders"].values())
    if busy:
        head[2:2] = ["ms beside a busy process", "slowdown"]
    rows = [_row(results, name, contender, busy) for contender in suite["contenders"]]
    busy_cores = f"Meanwhile other processes kept {suite['others']:.2f} cores busy.\n"
    return f"### {suite['title']}\n\n{busy_cores}\n" + table(head, rows)


def _row(results: Results, name: str, contender: str, busy: bool) -> list[str]:
    suite = results["suites"][name]
    record = suite["contenders"][contender]
    if contender == GEMM:
        peak = figures.rate(results, name)
        gflops = NOTHING if peak is None else f"{peak / 1e9:.0f} GFLOP/s"
        limit = figures.limit_seconds(results, name)
        against = show(figures.ratio(limit, figures.seconds(results, name, suite["ours"])), "x")
        return [
            contender,
            show(limit, "ms"),
            *([NOTHING] * 2 * busy),
            against,
            gflops,
            NOTHING,
            NOTHING,
            NOTHING,
            NOTHING,
        ]
    beside = []
    if busy:
        beside = [
            show(figures.seconds(results, name, contender, "busy_seconds"), "ms"),
            show(figures.slowdown_beside_busy(results, contender), "x"),
        ]
    memory = figures.memory_mb(results, name, contender)
    return [
        contender,
        show(figures.seconds(results, name, contender), "ms"),
        *beside,
        show(figures.times_faster(results, name, contender, suite["ours"]), "x"),
        show(figures.fraction_of_limit(results, name, contender), "%"),
        NOTHING if memory is None else f"{memory:,.0f}",
        f"{record['startup']:.1f}" if "startup" in record else NOTHING,
        f"{record['check']['loss']:.3f}" if "check" in record else NOTHING,
        _work_done(suite, contender, record),
    ]


def _work_done(suite: Mapping[str, Any], contender: str, record: Mapping[str, Any]) -> str:
    if "failed" in record:
        return f"**failed**: {record['failed']}"
    wrong = figures.wrong_work(suite, contender)
    return f"**differs**: {'; '.join(wrong)}" if wrong else "equal"


def _tricks(results: Results) -> str:
    if "tricks" not in results:
        return ""
    return f"### What each trick is worth, alone\n\n{tricks.report(results['tricks'])}"


def _points(results: Results) -> str:
    if "points" not in results:
        return ""
    return f"### Points of a frontier together\n\n{points.report(results['points'])}"


def _profile(results: Results) -> str:
    found = results.get("profile")
    if not found:
        return ""
    head = "### Where the time of the round goes\n\n"
    if "failed" in found:
        return f"{head}Not measured: {found['failed']}\n"
    clock = table(
        ["on the clock", "ms per round"],
        [[name, f"{ms:.1f}"] for name, ms in found["clock"].items()],
    )
    rows = [[name, f"{ms:.1f}"] for name, ms in found["one core"].items()]
    return f"{head}{clock}\n{table(['all clients on one core', 'ms'], rows)}"


def _aggregation(results: Results) -> str:
    """Return a table with a column for each size and a line for each method."""
    sizes = results.get("aggregation") or []
    if not sizes:
        return ""
    names = list(dict.fromkeys(name for size in sizes for name in size.get("methods", {})))
    head = ["method", *(f"N = {size['clients']}, D = {size['parameters']:,}" for size in sizes)]
    first = ["fedavg, ms", *(_fedavg(size) for size in sizes)]
    memory = ["peak MB, all methods", *(f"{size['memory'] / 1e6:,.0f}" for size in sizes)]
    rows = [
        first,
        *(
            [name, *(_times_fedavg(size, name) for size in sizes)]
            for name in names
            if name != "fedavg"
        ),
        memory,
    ]
    return "### What one aggregation costs, as a multiple of FedAvg's\n\n" + table(head, rows)


def _fedavg(size: Mapping[str, Any]) -> str:
    found = size.get("methods", {}).get("fedavg", {})
    return (
        f"{1000 * found['seconds']:.3g}"
        if "seconds" in found
        else f"**failed**: {size.get('failed', '')}"
    )


def _times_fedavg(size: Mapping[str, Any], name: str) -> str:
    found = size.get("methods", {}).get(name)
    if found is None:
        return NOTHING
    if "failed" in found:
        return f"**failed**: {found['failed']}"
    return show(found["seconds"] / found["fedavg"], "x")


def _setups(results: Results) -> str:
    """Return what was set for the contenders, each text once."""
    setups = {
        name: record["setup"]
        for suite in results["suites"].values()
        for name, record in suite["contenders"].items()
        if "setup" in record
    }
    lines = [
        f"- {', '.join(n for n, s in setups.items() if s == setup)}: {setup}\n"
        for setup in dict.fromkeys(setups.values())
    ]
    return "### What was set to make the work equal\n\n" + "".join(lines)
