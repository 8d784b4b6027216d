"""The numbers of a comparison as rows of plain values, for frames and CSV files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import PairedTest, Summary

if TYPE_CHECKING:
    from udjfl.simulation.comparison import Comparison

RECORD_COLUMNS = (
    *("method", "client", "metric", "mean", "ci95_low", "ci95_high", "seeds"),
    *("difference", "p", "p_holm"),
)
SEED_COLUMNS = ("method", "seed", "client", "metric", "value")


def list_means(comparison: Comparison) -> list[dict[str, Any]]:
    """Return each mean over seeds, with the keys `RECORD_COLUMNS`."""
    records = []
    for index, row in enumerate(comparison.rows):
        for key, summary in row.metrics.items():
            p_holm = comparison.corrected_p.get((index, key))
            record = _record(row, None, key, summary)
            records.append(record | _tested(row.against_fedavg.get(key), p_holm))
        tests = comparison.client_tests[index]
        for client, summary in row.client_scores.items():
            p_holm = comparison.corrected_client_p.get((index, client))
            record = _record(row, client, comparison.score.name, summary)
            records.append(record | _tested(tests.get(client), p_holm))
        for client, summary in row.uncertainty.items():
            records.append(_record(row, client, "uncertainty", summary))
    return records


def list_values(comparison: Comparison) -> list[dict[str, Any]]:
    """Return each number of each seed, with the keys `SEED_COLUMNS`; None where there is none."""
    return [
        dict(zip(SEED_COLUMNS, (row.label, seed, client, key, value), strict=True))
        for row in comparison.rows
        for client, key, summary in _summaries(row)
        for seed, value in zip(comparison.seeds, summary.values, strict=True)
    ]


def _summaries(row: MethodSummary) -> list[tuple[str | None, str, Summary]]:
    return [
        *((None, key, summary) for key, summary in row.metrics.items()),
        *((client, row.score.name, summary) for client, summary in row.client_scores.items()),
        *((client, "uncertainty", summary) for client, summary in row.uncertainty.items()),
    ]


def _record(
    row: MethodSummary, client: str | None, metric: str, summary: Summary
) -> dict[str, Any]:
    low, high = summary.ci95 or (None, None)
    values = (row.label, client, metric, summary.mean, low, high, summary.n)
    return {**dict.fromkeys(RECORD_COLUMNS), **dict(zip(RECORD_COLUMNS, values, strict=False))}


def _tested(test: PairedTest | None, p_holm: float | None) -> dict[str, Any]:
    if test is None:
        return {}
    return {"difference": test.difference, "p": test.p, "p_holm": p_holm}
