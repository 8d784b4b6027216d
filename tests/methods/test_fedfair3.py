"""FedFair³: utility by hand, which clients it asks, the cap on participation, FedAvg's step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_helpers import EXAMPLES, two_clients

from udjfl.errors import SettingsError
from udjfl.methods.base import Reports, Setup
from udjfl.methods.fedavg import FedAvg
from udjfl.methods.fedfair3 import FedFair3


def clients(squared_losses: Any, **changes: Any) -> Reports:
    extras = {"squared_losses": torch.tensor(squared_losses, dtype=torch.float64)}
    return two_clients(extras=extras, **changes)


def setup_of(n: int, **changes: Any) -> Setup:
    return Setup([str(i) for i in range(n)], torch.ones(n), torch.zeros(2), **changes)


def state_of(counts: list[int], utilities: list[float]) -> dict[str, torch.Tensor]:
    return {
        "counts": torch.tensor(counts),
        "utilities": torch.tensor(utilities, dtype=torch.float64),
    }


def frequencies(
    rule: FedFair3, state: dict[str, torch.Tensor], count: int = 1, draws: int = 2000
) -> np.ndarray:
    """Return how often each client is asked, as a share of all draws."""
    generator, n = np.random.default_rng(0), len(state["counts"])
    asked = [index for _ in range(draws) for index in rule.select(state, n, count, generator)]
    return np.bincount(asked, minlength=n) / draws


def test_a_round_by_hand():
    # Step: 1/4 (1, 0) + 3/4 (0, 2). Utility n sqrt(mean loss^2): 1 * 2 and 3 * 1/2.
    rule = FedFair3()
    state, step, diagnostics = rule.aggregate(rule.init(setup_of(2)), clients([4.0, 0.25]))
    assert step.tolist() == [0.25, 1.5]
    assert diagnostics["weight"].tolist() == [0.25, 0.75]
    assert diagnostics["utility"].tolist() == [2.0, 1.5]
    assert diagnostics["participations"].tolist() == [1, 1]
    assert state["counts"].tolist() == [1, 1]
    assert state["utilities"].tolist() == [2.0, 1.5]


def test_speed_and_features_by_hand():
    # T = 2. Slower, t = 4: (2/4)^2 = 1/4. As preferred: 1, whatever its features. Faster, t = 1:
    # lambda = 7.
    rule = FedFair3(round_times=(4.0, 2.0, 1.0), preferred_time=2.0, resources=(5.0, 6.0, 7.0))
    assert rule.system_factors(torch.arange(3)).tolist() == [0.25, 1.0, 7.0]
    assert FedFair3(round_times=(4.0, 2.0, 1.0)).system_factors(torch.arange(3)).tolist() == [
        0.25,
        1.0,
        1.0,
    ]  # T: median
    halved = FedFair3(round_times=(4.0, 2.0, 1.0), penalty=1.0)
    assert halved.system_factors(torch.arange(3)).tolist() == [0.5, 1.0, 1.0]
    # By index: the reports are of clients 2 and 0. Utility 7 * 1 * 1 and 1/4 * 3 * 1.
    _, _, diagnostics = rule.aggregate(
        rule.init(setup_of(3)), clients([1.0, 1.0], client_indices=[2, 0])
    )
    assert diagnostics["utility"].tolist() == [7.0, 0.75]


@EXAMPLES
@given(losses=st.lists(st.floats(0, 100), min_size=2, max_size=2), size=st.integers(1, 1000))
def test_its_step_is_fedavgs(losses, size):
    rule, reports = FedFair3(), clients(losses, sizes=[size, 3])
    assert torch.equal(
        rule.aggregate(rule.init(setup_of(2)), reports)[1], FedAvg().aggregate({}, reports)[1]
    )


def test_speed_and_features_are_in_double_precision():
    rule = FedFair3(round_times=(0.3, 0.1, 0.05), preferred_time=0.1, resources=(1.0, 1.0, 0.7))
    factors = rule.system_factors(torch.arange(3)).tolist()
    assert factors == pytest.approx([1 / 9, 1.0, 0.7], rel=1e-14)
    assert FedFair3().system_factors(torch.arange(3)).dtype == torch.float64


def test_before_round_one_nothing_is_known_of_any_client():
    start = FedFair3().init(setup_of(2))
    assert start["counts"].tolist() == start["utilities"].tolist() == [0, 0]
    assert (start["counts"].dtype, start["utilities"].dtype) == (torch.int64, torch.float64)


def test_state_is_kept_by_client_index():
    before = state_of([1, 0, 4, 2], [9.0, 0.0, 8.0, 7.0])
    after, _, _ = FedFair3().aggregate(before, clients([1.0, 1.0], client_indices=[1, 3]))
    assert after["counts"].tolist() == [1, 1, 4, 3]
    assert after["utilities"].tolist() == [9.0, 1.0, 8.0, 3.0]
    assert after["counts"].dtype == torch.int64


# --- which clients it asks ---


def test_probability_is_proportional_to_utility():
    shares = frequencies(FedFair3(), state_of([1, 1, 1], [1.0, 2.0, 5.0]))
    assert shares == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.04)


@pytest.mark.parametrize(
    "state",
    [state_of([0] * 4, [0.0] * 4), state_of([2] * 4, [3.0] * 4), state_of([1] * 4, [0.0] * 4)],
)
def test_clients_alike_are_drawn_alike(state):
    assert frequencies(FedFair3(), state, count=2) == pytest.approx([0.5] * 4, abs=0.04)


def test_a_client_never_asked_has_the_highest_utility_seen():
    # 4 (its own), 1, and 4 in place of the unknown: 4/9, 1/9, 4/9.
    assert frequencies(FedFair3(), state_of([1, 1, 0], [4.0, 1.0, 0.0])) == pytest.approx(
        [4 / 9, 1 / 9, 4 / 9], abs=0.04
    )


def test_a_client_at_the_cap_waits_for_the_others():
    rule = FedFair3(cap=2)
    assert frequencies(rule, state_of([2, 0, 1], [100.0, 1.0, 1.0]), draws=200)[0] == 0
    assert frequencies(rule, state_of([1, 0, 1], [100.0, 1.0, 1.0]), draws=200)[0] > 0.3


def test_too_few_below_the_cap_are_joined_by_the_next():
    # Only client 1 is below 0 + 1; then those with 1, before those with 5, however useful.
    rule, state = FedFair3(cap=1), state_of([5, 0, 1, 1], [1e6, 1.0, 1.0, 1.0])
    for seed in range(20):
        assert rule.select(state, 4, 3, np.random.default_rng(seed)) == [1, 2, 3]
    assert rule.select(state, 4, 4, np.random.default_rng(0)) == [0, 1, 2, 3]
    # One more round at a time: client 2 with 1 before client 0 with 2.
    state = state_of([2, 0, 1], [1e6, 1.0, 1.0])
    for seed in range(20):
        assert rule.select(state, 3, 2, np.random.default_rng(seed)) == [1, 2]


def test_zero_utility_does_not_shut_a_client_out():
    state = state_of([1, 1, 1], [5.0, 0.0, 0.0])
    assert FedFair3().select(state, 3, 3, np.random.default_rng(0)) == [0, 1, 2]
    assert len(set(FedFair3().select(state, 3, 2, np.random.default_rng(0)))) == 2


@EXAMPLES
@given(n=st.integers(1, 7), data=st.data(), cap=st.integers(1, 3), seed=st.integers(0, 99))
def test_participation_never_differs_by_more_than_the_cap(n, data, cap, seed):
    count = data.draw(st.integers(1, n))
    losses = torch.tensor(
        data.draw(st.lists(st.floats(0, 1e6), min_size=n, max_size=n)), dtype=torch.float64
    )
    rule, generator = FedFair3(cap=cap), np.random.default_rng(seed)
    state = rule.init(setup_of(n))
    for _ in range(12):
        asked = list(rule.select(state, n, count, generator))
        assert len(set(asked)) == count
        assert all(type(index) is int and 0 <= index < n for index in asked)
        reports = Reports(
            ids=[f"c{p}" for p in asked],
            deltas=torch.ones(count, 2),
            sizes=[1] * count,
            client_indices=asked,
            extras={"squared_losses": losses[asked]},
        )
        state, _, _ = rule.aggregate(state, reports)
        assert int(state["counts"].max() - state["counts"].min()) <= cap


def test_the_cap_is_reached():
    # One useful client of three, one asked a round: it is ahead by exactly the cap at some point.
    rule, generator = FedFair3(cap=3), np.random.default_rng(0)
    state, gaps = state_of([1, 1, 1], [1e9, 1.0, 1.0]), []
    for _ in range(30):
        chosen = rule.select(state, 3, 1, generator)
        counts = state["counts"].clone()
        counts[list(chosen)] += 1
        state = {**state, "counts": counts}
        gaps.append(int(counts.max() - counts.min()))
    assert max(gaps) == 3


def test_the_draw_depends_on_the_generator_alone():
    state = state_of([1] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    draws = [
        FedFair3().select(state, 6, 3, np.random.default_rng(seed)) for seed in (1, 1, 2, 3, 4)
    ]
    assert draws[0] == draws[1]
    assert len({tuple(d) for d in draws}) > 1


def test_a_note_tells_that_there_is_nothing_to_select():
    (note,) = FedFair3().notes(setup_of(3))
    assert note.startswith("FedFair³ only chooses whom to ask")
    assert "it is FedAvg" in note
    assert FedFair3().notes(setup_of(3, participation=0.5)) == []


# --- parameters ---


def test_lists_from_text():
    rule = FedFair3(round_times="1, 2", resources="3;4")
    assert (rule.round_times, rule.resources) == ((1.0, 2.0), (3.0, 4.0))


@pytest.mark.parametrize("name", ["round_times", "resources"])
def test_lists_have_a_number_for_each_client(name):
    rule = FedFair3(**{"round_times": (1.0, 2.0, 3.0), name: (1.0, 2.0)})
    with pytest.raises(SettingsError, match=rf"fedfair3: {name} has 2 values for 3 clients"):
        rule.init(setup_of(3))


@pytest.mark.parametrize("params", [{"resources": (1.0, 2.0)}, {"preferred_time": 1.0}])
def test_parameters_that_need_round_times_are_refused_without(params):
    with pytest.raises(SettingsError, match=rf"{next(iter(params))}.*give round_times"):
        FedFair3(**params)
