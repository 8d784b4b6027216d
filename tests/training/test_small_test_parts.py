"""The rule by which a client's test part is called too small."""

from __future__ import annotations

import pytest

from udjfl.tasks import wilson_interval
from udjfl.training.small_test_parts import describe_too_small, is_too_small


@pytest.mark.parametrize(
    ("size", "width", "expected"),
    [
        (29, None, True),
        (29, 0.0, True),
        (30, None, False),
        (30, 20.0, False),
        (30, 20.1, True),
        (5000, 20.1, True),
        (None, 20.1, True),
        (None, None, False),
    ],
)
def test_a_test_part_is_too_small_by_its_size_or_its_interval(
    size: int | None, width: float | None, expected: bool
) -> None:
    assert is_too_small(size, width) is expected


@pytest.mark.parametrize(("right", "expected"), [(34, True), (36, False)])
def test_the_same_size_may_do_for_a_high_score_only(right: int, expected: bool) -> None:
    """Of 40 examples, 34 right have an interval of 70.9 to 92.9, 36 one of 77.0 to 96.0."""
    low, high = wilson_interval(100 * right / 40, 40)
    assert is_too_small(40, high - low) is expected


def test_the_words_say_what_cannot_be_told() -> None:
    assert describe_too_small(20, 35.4) == "test part too small to tell differences below 35 points"
    assert describe_too_small(20, 16.1) == "test part too small to tell: 20 examples"
    assert describe_too_small(20, None) == "test part too small to tell: 20 examples"
