"""Gains by joining: the model that clients are served against the one they trained alone.

The model alone is the one that the uncertainty is measured with (`uncertainty=crossfit`), scored on
train examples that it did not see; the model served is scored on the client's test part. Both
estimate the accuracy on new data of that client, from different examples.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from udjfl._measures import gains_by_client
from udjfl.metrics.base import Metric

if TYPE_CHECKING:
    from udjfl._measures import Numbers


def mean_gain_by_joining(accuracies: Numbers, alone: Numbers) -> float:
    """Return (1/N) sum_i (A_i - alone_i), in percentage points.

    Higher is better; 0 means that clients have on average what they have alone.

    >>> mean_gain_by_joining([90.0, 80.0], [85.0, 82.0])  # (5 - 2) / 2
    1.5
    """
    return statistics.mean(gains_by_client(accuracies, alone))


def least_gain_by_joining(accuracies: Numbers, alone: Numbers) -> float:
    """Return min_i (A_i - alone_i), in percentage points.

    Higher is better. Below 0, some client would be better off alone.

    >>> least_gain_by_joining([90.0, 80.0], [85.0, 82.0])
    -2.0
    """
    return min(gains_by_client(accuracies, alone))


def share_better_alone(accuracies: Numbers, alone: Numbers) -> float:
    """Return the share of clients with A_i < alone_i, in percent.

    Lower is better; 0 means that joining harms no client. It counts the smallest difference, so
    noise alone makes it 50% where joining changes nothing.

    >>> share_better_alone([90.0, 80.0], [85.0, 82.0])
    50.0
    """
    return 100 * statistics.mean(gain < 0 for gain in gains_by_client(accuracies, alone))


ENTRIES = (
    Metric(
        "gain_by_joining",
        "Gain by joining",
        lambda o: mean_gain_by_joining(o.benefits, o.benefits_alone),
        1,
        "points",
        "How much better accuracy is than that of clients alone, mean over clients.",
        needs_alone=True,
        in_table=False,
        signed=True,
    ),
    Metric(
        "least_gain_by_joining",
        "Least gain by joining",
        lambda o: least_gain_by_joining(o.benefits, o.benefits_alone),
        1,
        "points",
        "How much better accuracy is than alone, for the client that gains least; below 0: harmed.",
        needs_alone=True,
        in_table=False,
        on_request=True,
        signed=True,
    ),
    Metric(
        "share_better_alone",
        "Better off alone",
        lambda o: share_better_alone(o.benefits, o.benefits_alone),
        -1,
        "%",
        "Share of the clients whose accuracy alone is better, by however little.",
        needs_alone=True,
        in_table=False,
        on_request=True,
        bounds=(0.0, 100.0),
    ),
)
