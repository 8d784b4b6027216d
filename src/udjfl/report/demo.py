"""The view of `udjfl demo`: each theory's verdict, and who gains and who pays, by client."""

from __future__ import annotations

import math
from collections import Counter

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from udjfl.report.cells import footer, heading, warning_lines
from udjfl.report.output import FitWidth
from udjfl.report.verdict_lines import COLOURS
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import MethodSummary
from udjfl.verdicts import Verdict

ANSWERS = {
    "rawls": "lift the client whose data are the most uncertain",
    "egalitarian": "serve all clients alike",
    "utilitarian": "make the model the best on the whole, on clean digits that nobody trained on",
    "desert": "reward the clients that bring good data",
}
PUBLISHED = "The paper's beta and gamma, with our step rule and without a budget"
JUDGED = "Methods without a budget of their own are judged by a budget of {margin:g} points."
WIDEST_BAR = 24
SMALLEST_SCALE = 2.0  # points at the end of a bar, at least: small changes look small


def demo_view(comparison: Comparison) -> RenderableType:
    """Show the clients before, each theory within its budget, and the paper's settings."""
    return FitWidth(lambda width: Group(*_demo_parts(comparison, width)))


def _demo_parts(comparison: Comparison, width: int) -> list[RenderableType]:
    reference = comparison.rows[0]
    pairs = [
        (row, verdict)
        for row, verdicts in zip(comparison.rows, comparison.verdicts, strict=True)
        for verdict in verdicts
    ]
    within = [(row, verdict) for row, verdict in pairs if row.budget is not None]
    published = [(row, verdict) for row, verdict in pairs if row.budget is None]
    scale = max([SMALLEST_SCALE, *(abs(c) for row, _ in within for c in _changes(row, reference))])
    parts: list[RenderableType] = [
        *warning_lines(comparison.warning),
        heading(
            f"Accuracy on each client's own test digits, mean of {len(comparison.seeds)} seeds"
        ),
        _clients_table(reference),
        footer(
            "Uncertainty: how ambiguous a client's data are, in nats, estimated from its own data. "
            "FedAvg averages the clients' models. Alone: a model trained on that client's data "
            "only, on digits that it did not see."
        ),
        *map(footer, _remarks(comparison)),
    ]
    for row, verdict in within:
        parts += [Text(""), *_theory_parts(row, verdict, reference, scale, width)]
    parts += [
        Text(""),
        heading(PUBLISHED),
        footer(JUDGED.format(margin=comparison.margin)),
    ]
    parts += [
        _verdict_line(verdict, f"{verdict.theory.capitalize()}: ") for _, verdict in published
    ]
    parts += [Text(""), footer(_closing(comparison))]
    return parts


def _clients_table(reference: MethodSummary) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("Client", "Uncertainty", "FedAvg", "Alone"):
        table.add_column(name, justify="left" if name == "Client" else "right")
    for client, accuracy in reference.client_scores.items():
        alone = (reference.accuracy_alone or {}).get(client)
        table.add_row(
            client,
            _number(reference.uncertainty[client].mean, 3),
            _number(accuracy.mean),
            _number(None if alone is None else alone.mean),
        )
    return table


def _remarks(comparison: Comparison) -> list[str]:
    """Say whether the most uncertain client is always the same, and who is better off alone."""
    reference, remarks = comparison.rows[0], []
    by_seed = zip(*(u.values for u in reference.uncertainty.values()), strict=True)
    known = [[-math.inf if u is None else u for u in of_seed] for of_seed in by_seed]
    clients = list(reference.uncertainty)
    most = Counter(clients[of_seed.index(max(of_seed))] for of_seed in known).most_common()
    if len(most) > 1:
        found = ", ".join(f"{client} on {count}" for client, count in most)
        remarks.append(
            f"The most uncertain client differs by seed ({found} of {len(known)}): what it gains "
            "is not what one row below gains."
        )
    joined = comparison.joining[0]
    alone = [client for client, one in joined.items() if one.better_alone]
    if alone:
        named = " and ".join(filter(None, (", ".join(alone[:-1]), alone[-1])))
        verb = "is" if len(alone) == 1 else "are"
        who = "every client is" if len(alone) == len(clients) else f"{named} {verb}"
        remarks.append(
            f"Under FedAvg {who} better off alone (paired t-tests over seeds): a theory divides "
            "what joining gives, and does not say that joining pays."
        )
    return remarks


def _theory_parts(
    row: MethodSummary, verdict: Verdict, reference: MethodSummary, scale: float, width: int
) -> list[RenderableType]:
    theory = verdict.theory
    title = Text.assemble(
        (theory.capitalize(), "bold"),
        f": {ANSWERS[theory]}, for at most {row.budget:g} points of the mean.",
    )
    cells = max(6, min(WIDEST_BAR, (width - 30) // 2))
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    for client, change in zip(row.client_scores, _changes(row, reference), strict=True):
        table.add_row(
            client,
            _number(row.client_scores[client].mean),
            Text(f"{round(change, 1) + 0.0:+.1f}", style="green" if change > 0 else "red"),
            _bar(change, scale, cells),
        )
    return [title, Padding(_verdict_line(verdict), (0, 0, 0, 2)), Padding(table, (0, 0, 0, 2))]


def _changes(row: MethodSummary, reference: MethodSummary) -> list[float]:
    """Return each client's mean change from FedAvg, in points; 0 where there is none."""
    before = [summary.mean for summary in reference.client_scores.values()]
    after = [summary.mean for summary in row.client_scores.values()]
    return [0.0 if a is None or b is None else a - b for a, b in zip(after, before, strict=True)]


def _bar(change: float, scale: float, cells: int) -> Text:
    """Draw a change to the left (a loss) or right (a gain) of a middle line."""
    length = round(cells * abs(change) / scale)
    loss, gain = (length, 0) if change < 0 else (0, length)
    return Text.assemble(
        " " * (cells - loss), ("█" * loss, "red"), ("│", "dim"), ("█" * gain, "green")
    )


def _verdict_line(verdict: Verdict, before: str = "") -> Text:
    text = Text(before + verdict.sentence)
    text.stylize(COLOURS[verdict.kind], len(before), len(before) + len(verdict.kind))
    return text


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _closing(comparison: Comparison) -> str:
    rounds = comparison.settings.training.rounds
    return (
        "Changes are against FedAvg on the same seeds, in points; verdicts by paired t-tests over "
        f"{len(comparison.seeds)} seeds, corrected for all verdicts here (Holm). The same as a "
        "table: `udjfl compare --data scanners --methods rawls:budget=2,rawls --batch-size 32 "
        f"--momentum 0 --rounds {rounds} --seeds {len(comparison.seeds)}`. Your own data: "
        "docs/data.md."
    )
