"""Tables that fit the width of a terminal."""

from __future__ import annotations

import pytest

from udjfl.report.output import pack_columns


@pytest.mark.parametrize(
    ("widths", "available", "blocks"),
    [
        ([5, 5, 5], 15, [[0, 1, 2]]),
        ([5, 5, 5, 5], 15, [[0, 1], [2, 3]]),  # not three and one
        ([5, 5, 5], 9, [[0], [1], [2]]),
        ([20, 20], 10, [[0], [1]]),  # wider than there is room: still shown
        ([20], 10, [[0]]),
        ([3, 9, 3, 3], 12, [[0, 1], [2, 3]]),
    ],
)
def test_columns_are_packed_into_few_blocks(
    widths: list[int], available: int, blocks: list[list[int]]
) -> None:
    assert pack_columns(widths, available) == blocks
