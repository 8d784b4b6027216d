"""Learning rates over rounds."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import make_federation, train_briefly

from udjfl.errors import SettingsError
from udjfl.training import schedule
from udjfl.training.schedule import learning_rate, parse_schedule


def test_docstring_examples() -> None:
    result = doctest.testmod(schedule)
    assert (result.failed, result.attempted) == (0, 2)


@given(
    st.sampled_from(["constant", "cosine", "cosine:to=0.1", "step:every=3", "exponential"]),
    st.integers(1, 50),
)
def test_rates_begin_at_lr_never_rise_and_stay_above_zero(text: str, rounds: int) -> None:
    rates = [learning_rate(text, 0.5, round, rounds) for round in range(1, rounds + 1)]
    assert rates[0] == 0.5
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cosin", "Did you mean 'cosine'"),
        ("step:evry=3", "step has no option 'evry'; it has every, factor"),
        ("step:every=0", "at least one round"),
        ("step:every=inf", "a whole number"),
        ("step:every=nan", "a whole number"),
        ("step:every=2.7", "a whole number"),
        ("exponential:factor=2", "may not rise"),
        ("cosine:to=low", "give a number"),
        ("constant:to=1", "it has none"),
    ],
)
def test_a_wrong_schedule_is_named(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_schedule(text)
    with pytest.raises(SettingsError, match=message):
        train_briefly(make_federation(), lr_schedule=text)


def test_the_first_round_is_that_of_a_constant_rate() -> None:
    federation = make_federation()
    constant = train_briefly(federation, "fedavg", rounds=2)
    falling = train_briefly(federation, "fedavg", rounds=2, lr_schedule="step:every=1:factor=0.5")
    norms = [
        [record.value for record in result.history.records if record.metric == "step_norm"]
        for result in (constant, falling)
    ]
    assert norms[0][0] == norms[1][0]
    assert norms[1][1] == pytest.approx(norms[0][1] / 2, rel=0.2)
