"""The rule by which a client's test part is called too small."""

from __future__ import annotations

from udjfl.data.problems import FEWEST_TEST_ROWS

WIDEST_INTERVAL = 20.0
RULE = (
    f"fewer than {FEWEST_TEST_ROWS} examples, or a 95% interval of more than "
    f"{WIDEST_INTERVAL:.0f} points"
)


def is_too_small(size: int | None, width: float | None) -> bool:
    """Tell whether a test part of so many examples is too small for the score measured on it.

    `width` is that of the score's 95% interval over test examples, in points: differences between
    two runs that are below it cannot be told from chance. None: not known, or no percentage.
    """
    too_few = size is not None and size < FEWEST_TEST_ROWS
    return too_few or (width is not None and width > WIDEST_INTERVAL)


def describe_too_small(size: int | None, width: float | None) -> str:
    """Say what cannot be told from a test part that is too small."""
    if width is None or width <= WIDEST_INTERVAL:
        examples = "1 example" if size == 1 else f"{size} examples"
        return f"test part too small to tell: {examples}"
    return f"test part too small to tell differences below {width:.0f} points"
