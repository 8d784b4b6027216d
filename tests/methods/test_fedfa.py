"""FedFa: weights by hand, both momenta, participation counts and hazards."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, first_round, make_reports

from udjfl.methods.base import Reports, Setup
from udjfl.methods.fedfa import FedFa

LOG = math.log2(4 / 3)  # the information of 3/4, in bits


def clients(accuracies: Any, deltas: Any = ((1.0, 0.0), (0.0, 2.0)), **changes: Any) -> Reports:
    extras = {"accuracies": torch.tensor(accuracies, dtype=torch.float64)}
    return make_reports(deltas, extras=extras, **changes)


def weights(rule: FedFa, reports: Reports) -> list[float]:
    return first_round(rule, reports)[2]["weight"].tolist()


def test_weights_by_hand():
    # Acc 0.2, 0.6: shares 1/4, 3/4, so A = 2, log2(4/3) over their sum. Both took part once: B =
    # 1/2, 1/2.
    A = [2 / (2 + LOG), LOG / (2 + LOG)]
    omega = [0.5 * A[0] + 0.25, 0.5 * A[1] + 0.25]
    _, step, diagnostics = first_round(FedFa(), clients([0.2, 0.6]))
    assert diagnostics["accuracy_information"].tolist() == pytest.approx(A)
    assert diagnostics["participation_information"].tolist() == pytest.approx([0.5, 0.5])
    assert diagnostics["weight"].tolist() == pytest.approx(omega)
    assert step.tolist() == pytest.approx([omega[0], 2 * omega[1]])


@pytest.mark.parametrize(
    ("beta", "expected"),
    [(0.0, (0.2, 0.4, 0.4)), (1.0, (1 / 3,) * 3), (0.25, (7 / 30, 23 / 60, 23 / 60))],
)
def test_beta_shares_between_accuracy_and_participation(beta, expected):
    # Shares 1/2, 1/4, 1/4: A = 1, 2, 2 bits, 0.2, 0.4, 0.4 of the sum. beta 1/4: 3/4 * 1/5 + 1/4 *
    # 1/3 = 7/30.
    reports = clients([0.8, 0.4, 0.4], [[1.0], [2.0], [3.0]])
    assert weights(FedFa(beta=beta), reports) == pytest.approx(expected)


def test_frequent_participation_counts_more():
    # Places 1 and 3 of four; before, place 1 took part twice. Now f = 3, 1: 1 - f/4 = 1/4, 3/4, so
    # B = 2, log2(4/3) bits.
    rule = FedFa(beta=1.0)
    state = {"counts": torch.tensor([7, 2, 0, 0]), "momentum": torch.zeros(2, dtype=torch.float64)}
    after, _, diagnostics = rule.aggregate(state, clients([0.5, 0.5], client_indices=[1, 3]))
    assert diagnostics["weight"].tolist() == pytest.approx([2 / (2 + LOG), LOG / (2 + LOG)])
    assert diagnostics["participations"].tolist() == [3, 1]
    assert after["counts"].tolist() == [7, 3, 0, 1]  # by place; the absent keep theirs
    assert after["counts"].dtype == torch.int64


def test_heavy_ball_by_hand():
    # beta 1, both always there: D is the mean. D1 = (1/2, 1), D2 = (2, 0); m2 = 0.9 D1 + D2.
    rule = FedFa(beta=1.0)
    state, step, _ = first_round(rule, clients([0.1, 0.9]))
    assert step.tolist() == pytest.approx([0.5, 1.0])
    _, step, _ = rule.aggregate(state, clients([0.1, 0.9], [[4.0, 0.0], [0.0, 0.0]]))
    assert step.tolist() == pytest.approx([2.45, 0.9])


def test_flgo_momentum_by_hand():
    # m1 = 0.1 D1, step D1 - lr m1 = 0.95 D1 at lr 1/2; m2 = 0.09 D1 + 0.1 D2, step D2 - m2/2 = 0.95
    # D2 - 0.045 D1.
    rule = FedFa(beta=1.0, server_momentum="flgo")
    state, step, _ = first_round(rule, clients([0.1, 0.9], lr=0.5))
    assert step.tolist() == pytest.approx([0.475, 0.95])
    _, step, _ = rule.aggregate(state, clients([0.1, 0.9], [[4.0, 0.0], [0.0, 0.0]], lr=0.5))
    assert step.tolist() == pytest.approx([1.9 - 0.0225, -0.045])


def test_gamma_zero_forgets():
    rule = FedFa(gamma=0.0)
    state, _, _ = first_round(rule, clients([0.2, 0.6], [[9.0, 9.0], [9.0, -9.0]]))
    assert torch.equal(
        rule.aggregate(state, clients([0.2, 0.6]))[1], first_round(rule, clients([0.2, 0.6]))[1]
    )


def test_momentum_outlives_a_round_without_updates():
    rule = FedFa(beta=1.0)
    state, _, _ = first_round(rule, clients([0.5, 0.5]))
    assert rule.aggregate(state, clients([0.5, 0.5], [[0.0, 0.0]] * 2))[
        1
    ].tolist() == pytest.approx([0.45, 0.9])


# --- hazards ---


def test_accuracy_zero_is_the_smallest_there_is():
    # 1e-6 against 1: about 20 bits against nearly none.
    assert weights(FedFa(beta=0.0), clients([0.0, 1.0])) == pytest.approx([1.0, 0.0], abs=1e-6)
    assert weights(FedFa(beta=0.0), clients([0.0, 1e-6])) == pytest.approx([0.5, 0.5])


def test_all_accuracies_zero_is_uniform():
    assert weights(FedFa(), clients([0.0, 0.0])) == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("accuracy", [0.0, 0.3, 1.0])
def test_one_client_a_round_for_many_rounds(accuracy):
    rule = FedFa(gamma=0.0)
    state = rule.init(Setup(["a", "b"], torch.ones(2), torch.zeros(1)))
    for turn in range(6):
        state, step, diagnostics = rule.aggregate(
            state, clients([accuracy], [[3.0]], client_indices=[turn % 2])
        )
        assert diagnostics["weight"].tolist() == [1.0]
        assert step.tolist() == [3.0]
    assert state["counts"].tolist() == [3, 3]


@EXAMPLES
@given(
    accuracies=st.lists(st.floats(0, 1), min_size=2, max_size=8),
    beta=st.floats(0, 1),
    counts=st.lists(st.integers(0, 10**6), min_size=8, max_size=8),
)
def test_weights_are_shares_and_fall_with_accuracy(accuracies, beta, counts):
    n = len(accuracies)
    state = {"counts": torch.tensor(counts), "momentum": torch.zeros(1, dtype=torch.float64)}
    _, step, diagnostics = FedFa(beta=beta).aggregate(state, clients(accuracies, [[1.0]] * n))
    assert float(diagnostics["weight"].sum()) == pytest.approx(1)
    assert diagnostics["weight"].min() >= 0
    assert float(step[0]) == pytest.approx(1)
    lowest, highest = accuracies.index(min(accuracies)), accuracies.index(max(accuracies))
    A = diagnostics["accuracy_information"]
    assert A[lowest] >= A[highest]
    B, most = diagnostics["participation_information"], max(range(n), key=lambda i: counts[i])
    assert B[most] == B.max()


def test_participations_are_counted_in_whole_numbers():
    setup = Setup.of(make_reports([[1.0], [2.0]]))
    state = FedFa().init(setup)
    assert (state["counts"].dtype, state["counts"].tolist()) == (torch.int64, [0, 0])
    assert (state["momentum"].dtype, state["momentum"].tolist()) == (torch.float64, [0.0])
