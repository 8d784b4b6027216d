"""What replies may contain at most: losses, steps, extras, and lengths of updates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from udjfl import Plan, TrainingSettings, method
from udjfl.training.federation_info import FederationInfo
from udjfl.training.limits import ReplyLimits, count_steps
from udjfl.training.state import Run, RunSpec

NAN, INF = math.nan, math.inf


def make_run(sizes: tuple[float, ...] = (20, 45), n_classes: int = 3, **settings: Any) -> Run:
    training = TrainingSettings(**{"batch_size": 10, "local_epochs": 2, **settings})
    spec = RunSpec(method("rawls"), training, max_update_norm=7.0, max_update_ratio=9.0)
    ids = tuple(f"client-{i + 1}" for i in range(len(sizes)))
    info = FederationInfo(
        ids, sizes, torch.zeros(2, 4), n_classes, labels_are_numbers=n_classes == 0
    )
    return Run(spec, info)


def vectors(*lengths: float) -> list[torch.Tensor]:
    return [torch.tensor([length, 0.0]) for length in lengths]


def test_a_run_has_the_limits_of_its_task_and_settings() -> None:
    assert ReplyLimits.of(make_run(), Plan(), torch.float32) == ReplyLimits(
        number=torch.finfo(torch.float32).max,
        guess=math.log(3),
        steps={"client-1": 4, "client-2": 10},  # two epochs of 2 and of 5 batches
        update_norm=7.0,
        update_ratio=9.0,
    )


def test_steps_are_known_where_sizes_are() -> None:
    assert count_steps(make_run((20, NAN)), Plan()) == {"client-1": 4}
    assert count_steps(make_run((NAN, NAN)), Plan()) == {}
    assert count_steps(make_run(), Plan(one_full_step=True)) == {"client-1": 1, "client-2": 1}
    assert count_steps(make_run((NAN,), local_steps=7), Plan()) == {"client-1": 7}
    assert count_steps(make_run(local_steps=7), Plan()) == {"client-1": 7, "client-2": 7}


def test_only_the_cross_entropy_has_a_scale() -> None:
    assert ReplyLimits.of(make_run(n_classes=0), Plan(), torch.float32).guess is None
    limits = ReplyLimits(guess=1.0)
    found = {1: "is 2e+06, more than a million times that of a guess and of the other clients"}
    assert limits.find_large_losses([0.5, 2e6, 0.1]) == found
    assert limits.find_large_losses([0.5, 1e6, 0.1]) == {}
    assert limits.find_large_losses([0.5, 2e6]) == {}  # of two, either may be wrong
    assert list(limits.find_large_losses([NAN, INF, 0.5, 2e6, 0.1])) == [3]
    assert ReplyLimits().find_large_losses([0.5, 2e6, 0.1]) == {}


def test_clients_that_agree_on_a_broken_model_are_believed() -> None:
    assert ReplyLimits(guess=1.0).find_large_losses([6e8, 3e9, 1e5, 7e8]) == {}


@pytest.mark.parametrize(
    ("numbers", "extras", "problem"),
    [
        ({"losses": 100.0, "steps": 3.0}, {"squared_losses": 80.0}, None),
        ({"losses": 1e300}, {}, ("losses", "is 1e+300; it may be at most 100")),
        ({"steps": 4.0}, {}, ("steps", "is 4; its training has 3 steps")),
        ({}, {"squared_losses": 101.0}, ("squared_losses", "has 101; it may have at most 100")),
        ({}, {"gradients": [1.0, -101.0]}, ("gradients", "has 101; it may have at most 100")),
        # These are refused for what they are.
        ({"losses": INF, "steps": INF}, {"gradients": [INF]}, None),
        ({"losses": NAN, "steps": NAN}, {"gradients": [NAN]}, None),
        ({}, {"gradients": []}, None),
    ],
)
def test_values_beyond_a_limit_are_found(
    numbers: dict[str, float], extras: dict[str, Any], problem: tuple[str, str] | None
) -> None:
    limits = ReplyLimits(number=100.0, steps={"a": 3})
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in extras.items()}
    assert limits.find_problem("a", numbers, tensors) == problem
    assert ReplyLimits().find_problem("a", numbers, tensors) is None


def test_steps_of_a_client_of_unknown_size_are_not_bounded() -> None:
    assert ReplyLimits(steps={"a": 3}).find_problem("b", {"steps": 1e6}, {}) is None


def test_an_update_far_above_the_median_is_too_long() -> None:
    limits = ReplyLimits(update_ratio=10.0)
    assert limits.find_long_updates(vectors(1, 2, 20)) == {}  # ten times the median of 2
    assert limits.find_long_updates(vectors(1, 2, 20.5)) == {
        2: "has length 20.5, above max_update_ratio, 10, times the round's median of 2"
    }
    assert list(limits.find_long_updates(vectors(1e30, 1, 2, 3))) == [0]
    assert limits.find_long_updates(vectors(1, 1e30)) == {}  # of two, either may be wrong
    assert limits.find_long_updates(vectors(0, 0, 5)) == {}  # zero has no multiple
    assert list(limits.find_long_updates(vectors(NAN, INF, 1, 2, 1e30))) == [4]


def test_an_update_whose_length_is_beyond_float64_is_too_long() -> None:
    huge = [torch.tensor([length, length], dtype=torch.float64) for length in (1.0, 2.0, 1e300)]
    for limits in (ReplyLimits(update_ratio=10.0), ReplyLimits(update_norm=10.0)):
        assert list(limits.find_long_updates(huge)) == [2]


@given(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=9), st.floats(0.01, 1e3))
def test_the_ratio_does_not_depend_on_the_scale(lengths: list[float], scale: float) -> None:
    limits = ReplyLimits(update_ratio=3.0)
    scaled = [length * 2.0 ** round(math.log2(scale)) for length in lengths]
    found = limits.find_long_updates(vectors(*lengths)).keys()
    assert found == limits.find_long_updates(vectors(*scaled)).keys()
    assert len(found) < len(lengths) / 2  # never the majority
