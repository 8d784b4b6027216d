"""Promises to single clients: the distance to their limits by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paired_runs import make_runs

from udjfl.verdicts import Promise, collect_evidence, judge
from udjfl.verdicts.promises import compare_with_limits


def test_a_budget_of_each_client_counts_from_its_own_score_under_fedavg() -> None:
    limits = compare_with_limits(Promise(client_budget=2.0), make_runs((-3, 0, 1, -2, 6)))
    above = {client: change.difference for client, change in limits.items()}
    assert above == pytest.approx(
        {"client-1": -1.0, "client-2": 2.0, "client-3": 3.0, "client-4": 0.0, "client-5": 8.0}
    )


def test_the_floor_is_what_clients_have_alone() -> None:
    runs = replace(make_runs((0, 0, 0, 0, 4)), alone=((80.0, 92.0, 80.0, 70.0, 60.0),) * 5)
    evidence = collect_evidence("rawls", runs, promise=Promise(alone=True))
    # Client-2 has 90 under the method and 92 alone; a budget of 1 more raises its limit no further.
    assert evidence.limits["client-2"].difference == pytest.approx(-2.0)
    assert evidence.limits["client-5"].difference == pytest.approx(12.0)
    both = collect_evidence("rawls", runs, promise=Promise(client_budget=1.0, alone=True))
    assert both.limits["client-2"].difference == pytest.approx(-2.0)
    assert both.limits["client-1"].difference == pytest.approx(1.0)
    assert judge([both])[0].kind == "over budget"
    unknown = collect_evidence("rawls", make_runs((0,) * 5), promise=Promise(alone=True))
    assert unknown.limits == {}
