"""Results as Markdown. Every number comes from the results; none is written here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import figures
from benchmarks.aggregation import SIZES
from benchmarks.figures import GEMM, Results
from benchmarks.suites import ENOUGH_REPETITIONS, FULL
from benchmarks.targets import TARGETS

BEGIN, END = "<!-- results: written by `make bench` -->", "<!-- end of results -->"
NOTHING = "–"


def with_results(page: str, results: Results) -> str:
    """The page with what is between its two marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{report(results)}\n{END}{after}"


def report(results: Results) -> str:
    """Everything, section by section."""
    parts = [_machine(results), _targets(results)]
    parts += [_suite(results, name) for name in results["suites"]]
    parts += [_profile(results), _aggregation(results), _setups(results)]
    return "\n".join(part for part in parts if part)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
        + "\n"
    )


def shown(figure: float | None, unit: str) -> str:
    if figure is None:
        return NOTHING
    if unit == "%":
        return f"{100 * figure:.0f}%"
    if unit == "x":
        return f"{figure:.2f}x" if figure < 100 else f"{figure:.0f}x"
    if unit == "ms":
        return f"{1000 * figure:.1f}" if figure < 0.1 else f"{1000 * figure:,.0f}"
    return f"{figure:,.0f} {unit}" if unit else f"{figure:,.1f}"


def _machine(results: Results) -> str:
    about = results["machine"]
    peers = ", ".join(
        version for name, version in about["peers"].items() if not name.startswith("torch")
    )
    return (
        f"Taken on {about['taken']}: {about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB, {about['system']}; "
        f"Python {about['python']}, torch {about['torch']} (the peers' too), udjfl {about['udjfl']}; {peers}. "
        f"Medians of {results['repetitions']} repetitions in turns. Load of the machine before anything was started: "
        f"{about['load_before']} (0 is idle). Each table says how much of the machine others took meanwhile: times taken "
        f"beside others are not to be trusted.{_shortcomings(results)}\n"
    )


def _shortcomings(results: Results) -> str:
    """What keeps these results from being quoted, in bold; nothing if nothing does."""
    said = []
    if results["repetitions"] < ENOUGH_REPETITIONS:
        said.append(f"Fewer than {ENOUGH_REPETITIONS} repetitions: not to be quoted.")
    if results["kind"] == "full":
        missing = [suite.name for suite in FULL if suite.name not in results["suites"]]
        done = [(size["clients"], size["parameters"]) for size in results.get("aggregation") or []]
        missing += [f"aggregation at N = {n}, D = {d:,}" for n, d in SIZES if (n, d) not in done]
        if missing:
            said.append(f"The run was broken off; missing: {'; '.join(missing)}.")
    return "".join(f" **{sentence}**" for sentence in said)


def _targets(results: Results) -> str:
    words = {True: "yes", False: "**no**", None: "not measured"}
    rows = [
        [
            target.title,
            f"{'at most' if target.at_most else 'at least'} {shown(target.asked, target.unit)}",
            shown(target.measured(results), target.unit),
            words[target.reached(results)],
        ]
        for target in TARGETS
        if results["kind"] == "full" or target.measured(results) is not None
    ]
    return "### To reach\n\n" + table(["", "asked", "measured", "reached"], rows)


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
    disturbed = f"Meanwhile other processes kept {suite['others']:.2f} cores busy.\n"
    return f"### {suite['title']}\n\n{disturbed}\n" + table(head, rows)


def _row(results: Results, name: str, contender: str, busy: bool) -> list[str]:
    suite = results["suites"][name]
    record = suite["contenders"][contender]
    if contender == GEMM:
        peak = figures.rate(results, name)
        told = NOTHING if peak is None else f"{peak / 1e9:.0f} GFLOP/s"
        limit = figures.limit_seconds(results, name)
        against = shown(figures.ratio(limit, figures.seconds(results, name, suite["ours"])), "x")
        return [
            contender,
            shown(limit, "ms"),
            *([NOTHING] * 2 * busy),
            against,
            told,
            NOTHING,
            NOTHING,
            NOTHING,
            NOTHING,
        ]
    beside = []
    if busy:
        beside = [
            shown(figures.seconds(results, name, contender, "busy_seconds"), "ms"),
            shown(figures.slowdown_beside_busy(results, contender), "x"),
        ]
    memory = figures.memory_mb(results, name, contender)
    return [
        contender,
        shown(figures.seconds(results, name, contender), "ms"),
        *beside,
        shown(figures.times_faster(results, name, contender, suite["ours"]), "x"),
        shown(figures.fraction_of_limit(results, name, contender), "%"),
        NOTHING if memory is None else f"{memory:,.0f}",
        f"{record['startup']:.1f}" if "startup" in record else NOTHING,
        f"{record['check']['loss']:.3f}" if "check" in record else NOTHING,
        _work_done(suite, contender, record),
    ]


def _work_done(suite: Mapping[str, Any], contender: str, record: Mapping[str, Any]) -> str:
    if "failed" in record:
        return f"**failed**: {record['failed']}"
    wrong = figures.wrong_work(suite, contender)
    return f"**not in line**: {'; '.join(wrong)}" if wrong else "in line"


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
    """One column for each size; one method a line."""
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
    return shown(found["seconds"] / found["fedavg"], "x")


def _setups(results: Results) -> str:
    """What was set for each contender, said once."""
    said = {
        name: record["setup"]
        for suite in results["suites"].values()
        for name, record in suite["contenders"].items()
        if "setup" in record
    }
    lines = [
        f"- {', '.join(n for n, s in said.items() if s == setup)}: {setup}\n"
        for setup in dict.fromkeys(said.values())
    ]
    return "### What was set to make the work equal\n\n" + "".join(lines)
