"""The star of a table of methods: where it stands, and what it means."""

from __future__ import annotations

from udjfl.report.judged_metrics import remark_on_direction
from udjfl.simulation.comparison import Comparison
from udjfl.statistics import FEWEST_SEEDS


def significance_mark(comparison: Comparison, index: int, metric: str) -> str:
    """Return a star where the row with this index differs from FedAvg in the metric, else ""."""
    test = comparison.rows[index].against_fedavg.get(metric)
    if test is None or not test.is_significant(comparison.corrected_p[index, metric]):
        return ""
    return "*"


def explain_marks(comparison: Comparison) -> str:
    """Explain the star: which tests were made, and how they were corrected."""
    if len(comparison.seeds) < FEWEST_SEEDS:
        return f"Fewer than {FEWEST_SEEDS} seeds: no difference is marked. {_units(comparison)}"
    n_tests = sum(p is not None for p in comparison.corrected_p.values())
    return (
        "* differs from FedAvg: paired t-test over seeds (r through Fisher's z), p < 0.05 after "
        f"Holm's correction for the {n_tests} tests of this table. {_units(comparison)}"
    )


def _units(comparison: Comparison) -> str:
    score = comparison.score
    if score.is_share:
        return "Accuracies in percent, STD and Psi in points."
    if score.percent:
        return f"Scores are {score.title} in percent; STD and Psi in points."
    text = f"Scores are {score.title}, {score.direction}; STD and Psi are in its units."
    return f"{text} {remark_on_direction(score)}".strip()
