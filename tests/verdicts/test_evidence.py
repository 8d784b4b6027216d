"""Evidence: measures, beneficiaries and others, seed by seed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from paired_runs import CLIENTS, make_runs

from udjfl.verdicts import PairedRuns, collect_evidence


def test_psi_in_two_numbers_by_hand() -> None:
    evidence = collect_evidence("rawls", make_runs((-2, 0, 1, 1, 4)))
    assert evidence.beneficiaries == ("client-5",)
    assert evidence.beneficiary == "client-5"
    assert evidence.gain.difference == pytest.approx(4.0)
    assert evidence.others is not None
    assert evidence.others.difference == pytest.approx(0.0)
    assert (evidence.measure.title, evidence.better) == ("Psi", 1)
    assert (evidence.measure.before, evidence.measure.after) == (0.0, pytest.approx(4.0))
    assert evidence.mean.difference == pytest.approx(0.8)
    assert evidence.budget == 2.0
    assert evidence.somebody_gains
    assert {name: change.difference for name, change in evidence.clients.items()} == pytest.approx(
        dict(zip(CLIENTS, (-2, 0, 1, 1, 4), strict=True))
    )


def test_beneficiaries_may_differ_from_seed_to_seed() -> None:
    runs = make_runs((0, 0, 0, 2, 4), wiggle=0.0)
    # On the last seed client-4 is the most uncertain.
    swapped = [
        replace(outcome, uncertainties=(0.1, 0.2, 0.3, 0.5, 0.4))
        for outcome in (runs.outcomes[-1], runs.references[-1])
    ]
    runs = PairedRuns(
        CLIENTS, (*runs.outcomes[:-1], swapped[0]), (*runs.references[:-1], swapped[1])
    )
    evidence = collect_evidence("rawls", runs)
    assert evidence.beneficiaries == ()
    assert evidence.beneficiary == "the most uncertain client"
    assert evidence.gain.differences == pytest.approx((4, 4, 4, 4, 2))
    assert evidence.gain.difference == pytest.approx(3.6)


def test_of_many_clients_a_tenth_is_least_advantaged() -> None:
    n = 30
    uncertainties = [float(index + 1) for index in range(n)]
    gains = [0.0] * 27 + [1.0, 2.0, 3.0]
    runs = make_runs(gains, fedavg=[70.0] * n, uncertainties=uncertainties)
    evidence = collect_evidence("rawls", runs)
    assert evidence.beneficiary == "the most uncertain tenth (client-28, client-29, client-30)"
    assert evidence.gain.difference == pytest.approx(2.0)
    evidence = collect_evidence("desert", runs)
    assert evidence.beneficiaries == ("client-1", "client-2", "client-3")


def test_the_lower_half_is_that_under_fedavg() -> None:
    runs = make_runs((0, 0, 0, 1, 3), fedavg=(70.0, 90.0, 60.0, 80.0, 85.0))
    evidence = collect_evidence("egalitarian", runs)
    assert evidence.beneficiaries == ("client-1", "client-3")
    assert evidence.gain.difference == pytest.approx(0.0)
    assert evidence.others is not None
    assert evidence.others.difference == pytest.approx(4 / 3)


def test_clients_without_an_uncertainty_are_left_out_of_rawls() -> None:
    runs = make_runs(
        (1, 2, 9), fedavg=(80.0, 70.0, 60.0), uncertainties=(0.1, 0.2, math.nan), wiggle=0.0
    )
    evidence = collect_evidence("rawls", runs)
    assert evidence.beneficiaries == ("client-2",)
    assert evidence.others is not None
    assert evidence.others.difference == pytest.approx(1.0)


def test_everybody_benefits_from_utility() -> None:
    evidence = collect_evidence("utilitarian", make_runs((1, 1, 1, 1, 1), shared=(90.0, 92.0)))
    assert evidence.beneficiaries == CLIENTS
    assert evidence.others is None
    assert evidence.measure.difference == pytest.approx(2.0)
    assert evidence.shared is not None
    without = collect_evidence("utilitarian", make_runs((1, 1, 1, 1, 1), shared=(None, None)))
    assert without.shared is None
    assert without.measure.difference == pytest.approx(1.0)
