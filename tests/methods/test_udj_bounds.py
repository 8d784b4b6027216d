"""Hoelder's bound and the generalisation bound of UDJ-FL: by hand, on random numbers, in trials."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from udj_theory import generalisation_bound, holder_bound

from udjfl.errors import SettingsError
from udjfl.seeds import numpy_stream

positive = st.floats(0.01, 100.0)
non_negative = st.one_of(st.just(0.0), st.floats(1e-3, 100.0))


@given(
    st.lists(st.tuples(non_negative, non_negative), min_size=1, max_size=6),
    st.one_of(st.floats(1.0, 50.0), st.just(math.inf)),
)
def test_holder_bound_holds(pairs, exponent):
    losses, weights = zip(*pairs, strict=True)
    assert np.dot(losses, weights) <= float(holder_bound(losses, weights, exponent)) * (1 + 1e-9)


@given(st.lists(positive, min_size=1, max_size=6), st.floats(1.05, 6.0), positive)
def test_holder_bound_is_reached_when_weights_follow_losses(losses, exponent, scale):
    weights = scale * np.asarray(losses) ** (exponent - 1)
    assert float(holder_bound(losses, weights, exponent)) == pytest.approx(
        np.dot(losses, weights), rel=1e-9
    )


def test_holder_bound_by_hand_and_at_its_ends():
    # e = 2: |w| |F| = sqrt(9 + 16) sqrt(1 + 4). e = 1: max w * sum F = 4 * 3. e = inf: sum w * max
    # F = 7 * 2.
    losses, weights = [1.0, 2.0], [3.0, 4.0]
    assert float(holder_bound(losses, weights, 2.0)) == pytest.approx(5 * math.sqrt(5))
    assert float(holder_bound(losses, weights, 1.0)) == 12.0
    assert float(holder_bound(losses, weights, math.inf)) == 14.0
    assert float(holder_bound(losses, weights, 1 + 1e-9)) == pytest.approx(12.0)
    assert float(holder_bound(losses, weights, 1e9)) == pytest.approx(14.0)  # 2^1e9 would overflow
    # The dual form is (sum F^e)^(1/e) and not, as the paper has it, sum F^e: for F = 3 and e = 2, 3
    # and not 9.
    assert float(holder_bound([3.0], [1.0], 2.0)) == pytest.approx(3.0)
    assert float(holder_bound([0.0, 0.0], weights, 2.0)) == 0.0


def test_generalisation_bound_by_hand():
    # u = [0.25, 0.75], e = 2: sqrt(0.0625 + 0.5625) sqrt(0.36 + 0.64) = sqrt(0.625).
    # Last: M = 2, sum u^2 / (2n) = 0.0625/200 + 0.5625/400 = 0.00171875, log(1/0.05) = log 20.
    bound = generalisation_bound(
        [0.6, 0.8], [1.0, 3.0], [100, 200], 2.0, loss_bound=2.0, delta=0.05, complexity=0.1
    )
    assert bound.empirical == pytest.approx(math.sqrt(0.625))
    assert bound.complexity == 0.1
    assert bound.confidence == pytest.approx(2 * math.sqrt(0.00171875 * math.log(20)))
    assert bound.total == pytest.approx(bound.empirical + bound.complexity + bound.confidence)
    limit = generalisation_bound(
        [0.6, 0.8], [1.0, 3.0], [100, 200], 1.0, loss_bound=2.0, delta=0.05, complexity=0.1
    )
    assert limit.empirical == pytest.approx(
        0.75 * 1.4
    )  # p = infinity: the largest share times the sum of losses


@pytest.mark.parametrize("exponent", [1.0, 1.5, 4.0])
def test_generalisation_bound_covers_the_truth_as_often_as_promised(exponent):
    # One fixed model, so `complexity` is 0; one client, so Hoelder's inequality is an equality and
    # gives no slack. The training loss is a mean of 50 coin flips and the truth is 1/2: without the
    # last term half would miss.
    draw, trials, delta = numpy_stream(0, "coins"), 300, 0.1
    losses = draw.binomial(50, 0.5, size=trials) / 50
    totals = [
        generalisation_bound([loss], [0.7], [50], exponent, 1.0, delta, 0.0).total
        for loss in losses
    ]
    assert 0.3 < np.mean(losses < 0.5) < 0.7
    assert np.mean(np.array(totals) < 0.5) <= delta
    # And it is not vacuous: log(1/0.1) / 100 = 0.023, so the last term is 0.152.
    assert totals[0] - losses[0] == pytest.approx(0.1517, abs=1e-4)


def test_generalisation_bound_names_everything_that_is_wrong():
    with pytest.raises(SettingsError) as caught:
        generalisation_bound([0.5], [1.0], [10], 2.0, loss_bound=0.0, delta=1.5, complexity=-1.0)
    assert [mistake.split()[0] for mistake in caught.value.mistakes] == [
        "loss_bound",
        "delta",
        "complexity",
    ]
    with pytest.raises(SettingsError, match="above loss_bound"):
        generalisation_bound([1.5], [1.0], [10], 2.0, loss_bound=1.0, delta=0.1, complexity=0.0)
    with pytest.raises(SettingsError, match=r"sizes\[0\] is 0.0"):
        generalisation_bound([0.5], [1.0], [0], 2.0, loss_bound=1.0, delta=0.1, complexity=0.0)
    for exponent in (0.5, -1.0, math.nan):  # desert's negative exponents included
        with pytest.raises(SettingsError, match="needs at least 1"):
            holder_bound([0.5], [1.0], exponent)
