"""Parts that tables of results share: headings, numbers, intervals.

They show metrics as `udjfl.report.judged_metrics` has them.
"""

from __future__ import annotations

from rich.text import Text

from udjfl.metrics import Metric
from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import Summary

ARROW = {1: "↑", -1: "↓", 0: ""}


def heading(text: str) -> Text:
    """Return the heading of a table."""
    return Text(text, style="bold")


def footer(text: str) -> Text:
    """Return a line below a table."""
    return Text(text, style="dim")


def warning_lines(warning: str | None) -> list[Text]:
    """Return the line above a table whose numbers are no result; none without a warning."""
    return [] if warning is None else [Text(f"Warning: {warning}", style="bold red")]


def with_arrow(metric: Metric) -> str:
    """Return the heading of a column, with the direction that is better."""
    first, *below = metric.heading.split("\n")
    return "\n".join([f"{first} {ARROW[metric.better]}".strip(), *below])


def doubt(row: MethodSummary) -> str:
    """Return the grade of a method that could not be checked in full."""
    return "" if row.method.grade in ("verified", "own") else row.method.grade


def served(row: MethodSummary) -> str:
    """Return the service of a row, if there is one."""
    return "" if row.service == "none" else f"served {row.service}"


def format_number(value: float, metric: Metric) -> str:
    """Return the value of a metric with few digits; with a sign where 0 is in the middle."""
    signed = metric.signed or metric.needs_reference or metric.bounds == (-1.0, 1.0)
    # Adding zero turns -0.00 into 0.00.
    return f"{round(value, metric.digits) + 0.0:{'+' if signed else ''}.{metric.digits}f}"


def format_change(difference: float, digits: int) -> str:
    """Return a difference from FedAvg with its sign."""
    return f"{round(difference, digits) + 0.0:+.{digits}f}"


def interval_text(metric: Metric, summary: Summary) -> str:
    """Return the 95% interval: ± half its width, or its ends where they meet the scale's end."""
    if summary.ci95 is None:
        return ""
    low, high = metric.clip(summary.ci95)
    if (low, high) == summary.ci95:
        return f"±{(high - low) / 2:.{metric.digits}f}"
    return f"{_short(low, metric.digits)} to {_short(high, metric.digits)}"


def _short(value: float, digits: int) -> str:
    text = f"{round(value, digits) + 0.0:.{digits}f}" if abs(value) < 10 else f"{value:.1f}"
    return text.rstrip("0").rstrip(".") if float(text).is_integer() else text
