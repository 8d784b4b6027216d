"""The metrics of a finished run: a table of functions.

Accuracies are percentages (0 to 100), as in the paper (Carey & Wu, FAccT 2025). A metric without a
value for the given clients is None, never NaN and never a stand-in number, and has a sentence that
says why. The functions behind them are in `udjfl._measures`.

To add a metric, write a function of an `Outcome` and register it:

    def accuracy_range(outcome):
        return max(outcome.accuracies) - min(outcome.accuracies)

    register_metric(
        Metric("range", "Range", accuracy_range, better=-1, unit="points", description="...")
    )

It then appears in results, tables, JSON, saved runs and reports. An installed package can do the
same with an entry point of the group `udjfl.metrics`, named like the key of its `Metric`.
"""

from __future__ import annotations

from udjfl.metrics import clients, groups, inequality, joining
from udjfl.metrics.base import (
    METRICS,
    OLDER_KEYS,
    Metric,
    Outcome,
    choose_metrics,
    compute_metrics,
    register_metric,
    table_metrics,
)
from udjfl.metrics.groups import GroupAccuracy

for _module in (clients, inequality, joining, groups):  # in the order of the table
    for _metric in _module.ENTRIES:
        register_metric(_metric)
METRICS.load_entry_points()

__all__ = [
    "METRICS",
    "OLDER_KEYS",
    "GroupAccuracy",
    "Metric",
    "Outcome",
    "choose_metrics",
    "compute_metrics",
    "register_metric",
    "table_metrics",
]
