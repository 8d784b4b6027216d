"""Gaps between groups of a sensitive attribute, within clients and over all of them.

A gap is the accuracy of the best served group minus that of the worst. Clients have their own gaps,
and all test examples together have one: a method can close either without the other.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from udjfl.metrics.base import Metric, Outcome

TWO_GROUPS = "No two groups have enough test examples."
FEWEST_IN_GROUP = 10  # with fewer test examples a group's accuracy is mostly chance


def gap_between(accuracies: Mapping[str, float]) -> float:
    """Return the highest minus the lowest accuracy of a group; NaN with fewer than two groups.

    In percentage points. Lower is better; 0 means that all groups are served alike.

    >>> gap_between({"0": 90.0, "1": 84.0, "2": 86.0})
    6.0
    >>> gap_between({"0": 90.0})
    nan
    """
    if len(accuracies) < 2:
        return math.nan
    return max(accuracies.values()) - min(accuracies.values())


@dataclass(frozen=True)
class GroupAccuracy:
    """Accuracy in percent of each group, within each client and over all clients' test examples.

    Groups with fewer than ten test examples there are left out.
    """

    clients: dict[str, dict[str, float]]
    overall: dict[str, float]

    @staticmethod
    def of(counts: Mapping[str, Mapping[str, tuple[int, int]]]) -> GroupAccuracy:
        """Compute it from (right, all) predictions by client and group.

        >>> GroupAccuracy.of({"a": {"0": (9, 10), "1": (1, 5)}, "b": {"1": (8, 15)}})
        GroupAccuracy(clients={'a': {'0': 90.0}, 'b': {'1': 53.333333333333336}}, \
overall={'0': 90.0, '1': 45.0})
        """
        right: Counter[str] = Counter()
        total: Counter[str] = Counter()
        for of_client in counts.values():
            for group, (n_right, n) in of_client.items():
                right[group] += n_right
                total[group] += n
        pooled = {group: (right[group], total[group]) for group in sorted(total)}
        clients = {client: _percentages(own) for client, own in counts.items()}
        return GroupAccuracy(clients, _percentages(pooled))

    def gaps(self, clients: Sequence[str]) -> list[float]:
        """Return the gap within each of these clients."""
        return [gap_between(self.clients.get(client, {})) for client in clients]

    @property
    def gap(self) -> float | None:
        """The gap over all clients' test examples; None with fewer than two groups."""
        gap = gap_between(self.overall)
        return gap if math.isfinite(gap) else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"clients": self.clients, "overall": self.overall}

    @staticmethod
    def from_dict(kept: Mapping[str, Any]) -> GroupAccuracy:
        """Read what `as_dict` wrote."""
        return GroupAccuracy(dict(kept["clients"]), dict(kept["overall"]))


def _percentages(counts: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    return {g: 100 * right / n for g, (right, n) in counts.items() if n >= FEWEST_IN_GROUP}


def _no_gaps(outcome: Outcome) -> str | None:
    return None if any(map(math.isfinite, outcome.group_gaps or ())) else TWO_GROUPS


ENTRIES = (
    Metric(
        "group_gap",
        "Gap between groups",
        lambda o: o.group_gap,
        -1,
        "points",
        "Best minus worst served group, over all clients' test examples; 0 means alike.",
        short="Group\ngap",
        needs_groups=True,
        undefined_reason=lambda o: TWO_GROUPS if o.group_gap is None else None,
        in_table=False,
        bounds=(0.0, None),
    ),
    Metric(
        "mean_group_gap",
        "Gap between groups, mean of clients",
        lambda o: statistics.mean(gap for gap in o.group_gaps or () if math.isfinite(gap)),
        -1,
        "points",
        "Mean over clients of best minus worst served group within the client; 0 means alike.",
        short="Mean\ngroup gap",
        needs_groups=True,
        undefined_reason=_no_gaps,
        in_table=False,
        on_request=True,
        bounds=(0.0, None),
    ),
    Metric(
        "largest_group_gap",
        "Gap between groups, largest of a client",
        lambda o: max(gap for gap in o.group_gaps or () if math.isfinite(gap)),
        -1,
        "points",
        "Largest gap between groups within one client; 0 means alike in every client.",
        short="Largest\ngroup gap",
        needs_groups=True,
        undefined_reason=_no_gaps,
        in_table=False,
        on_request=True,
        bounds=(0.0, None),
    ),
)
