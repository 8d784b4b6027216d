"""Who would be better off alone, over seeds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from paired_runs import FEDAVG, make_runs

from udjfl.verdicts import PairedRuns, compare_with_alone


def with_alone(runs: PairedRuns, alone: list[float]) -> PairedRuns:
    return replace(runs, outcomes=tuple(replace(o, alone=alone) for o in runs.outcomes))


def test_clients_that_lose_by_joining_are_found() -> None:
    alone = [FEDAVG[0] + 5, FEDAVG[1] - 5, FEDAVG[2], FEDAVG[3] + 0.1, math.nan]
    (joined,) = compare_with_alone([with_alone(make_runs([0.0] * 5), alone)])
    assert list(joined) == ["client-1", "client-2", "client-3", "client-4"]
    assert [client for client, one in joined.items() if one.better_alone] == ["client-1"]
    assert joined["client-1"].gain == pytest.approx(-5.0)
    assert joined["client-2"].gain == pytest.approx(5.0)
    assert joined["client-1"].as_dict()["better_off_alone"] is True


def test_few_seeds_decide_nothing() -> None:
    runs = with_alone(make_runs([0.0] * 5, seeds=4), [99.0] * 5)
    (joined,) = compare_with_alone([runs])
    assert all(one.gain < 0 and not one.better_alone for one in joined.values())


def test_tests_of_all_methods_are_corrected_together() -> None:
    alone = [accuracy + 0.6 for accuracy in FEDAVG]
    one = with_alone(make_runs([0.0] * 5), alone)
    (single,) = compare_with_alone([one])
    first, _ = compare_with_alone([one, one])
    p, corrected = single["client-1"].corrected_p, first["client-1"].corrected_p
    assert p is not None
    assert corrected is not None
    assert corrected > p


def test_without_accuracies_alone_there_is_nothing_to_compare() -> None:
    assert compare_with_alone([make_runs([0.0] * 5)]) == [{}]
