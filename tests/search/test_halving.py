"""The rungs of a search: how many candidates, and which of them go on."""

from __future__ import annotations

from typing import Any

import pytest

from udjfl.errors import SettingsError
from udjfl.search.halving import HalvingPlan, pick_survivors
from udjfl.search.scoring import CandidateScore
from udjfl.search.settings import TuneSettings
from udjfl.search.spaces import udj_families

NINE: dict[str, Any] = {"rounds": 9, "theory": "egalitarian"}


def test_the_plan_uses_the_cost_and_a_cost_too_small_for_one_rung_is_refused() -> None:
    families = udj_families("egalitarian", 2.0)
    # FedAvg alone in three rungs of 1, 3 and 9 of 9 rounds: 1.44. Two neighbours in each of three
    # dimensions: 6. Then n candidates cost n/9 + (n/3)/3 + n/9 = n/3: 9 of them make 3.
    plan = HalvingPlan.make(TuneSettings(**{**NINE, "cost": 10.5}), families, [])
    assert (plan.counts, plan.rounds) == ((9, 3, 1), (1, 3, 9))
    with pytest.raises(SettingsError, match=r"5 trainings are too few for one rung.*at least 10"):
        HalvingPlan.make(TuneSettings(**{**NINE, "cost": 5.0}), families, [])


def testpick_survivors_come_from_every_family_and_copies_last() -> None:
    points, budgets = udj_families("egalitarian", 2.0)
    a, b, c = (points.at([p, p, p]) for p in (0.1, 0.5, 0.9))
    d, e = (budgets.at([p]) for p in (0.2, 0.8))
    scores = [
        CandidateScore(a, (5.0,), mean=1.0),
        CandidateScore(b, (4.0,), mean=1.0),
        CandidateScore(c, (4.0,), mean=1.0),  # did what b did
        CandidateScore(d, (1.0,), mean=1.0),
        CandidateScore(e, (0.0,), mean=1.0),
    ]
    assert pick_survivors(scores, 3) == [a, d, b]
    assert pick_survivors(scores, 5) == [a, d, b, e, c]
