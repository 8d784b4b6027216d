"""Linear algebra over the rows of a table [N, D], in float64, a block of columns at a time.

A table of updates may be gigabytes; a copy of it in float64 would be twice or three times that. Here no more than one block is
copied. Up to `BLOCK` columns (fewer, if there are more than `ROWS` rows) there is one block, and the numbers are those of the
plain formula.

Where a function takes `rows`, give the table itself or blocks made from it, one after another: `columns(table)` yields them,
and a generator over that can scale them or put the rows of two tables together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from udjfl._threads import spread
from udjfl.errors import DivergedError

BLOCK = 65_536  # columns
ROWS = 5  # with more, a block has fewer columns: it is to stay in the cache
STRIP = 128  # rows of a Gram matrix at a time

Rows = Tensor | Iterable[Tensor]


def spans(n_columns: int, n_rows: int = 1) -> Iterator[slice]:
    """The columns of each block; one block even of none."""
    width = max(1, BLOCK * ROWS // max(ROWS, n_rows))
    return (
        slice(start, min(start + width, n_columns)) for start in range(0, max(1, n_columns), width)
    )


def columns(table: Tensor, chosen: Tensor | None = None) -> Iterator[Tensor]:
    """The blocks of a table [N, D] in float64; of the chosen rows only, by a mask or by their numbers."""
    for span in spans(table.shape[1], len(table)):
        block = table[:, span] if chosen is None else table[:, span][chosen]
        yield block.to(torch.float64)


def combination(weights: Tensor, table: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """[D] sum_i weights_i table_i, accumulated in float64; for weights [M, N], M such sums [M, D] in one pass."""
    weights = weights.to(torch.float64)
    found = torch.empty(*weights.shape[:-1], table.shape[1], dtype=dtype)

    def piece(span: slice) -> Callable[[], None]:
        def combine() -> None:
            found[..., span] = weights @ table[:, span].to(torch.float64)

        return combine

    spread([piece(span) for span in spans(table.shape[1], len(table))])
    return found


def weighted_sum(weights: Tensor, rows: Tensor) -> Tensor:
    """sum_i weights_i rows_i, accumulated in float64, in the dtype of the rows."""
    return combination(weights, rows, rows.dtype)


def total(rows: Rows) -> Tensor:
    """[D] the sum of the rows, in float64."""
    return torch.cat([block.sum(dim=0) for block in _blocks(rows)])


def mean(rows: Rows) -> Tensor:
    """[D] the mean of the rows, in float64."""
    return torch.cat([block.mean(dim=0) for block in _blocks(rows)])


def gram(rows: Rows) -> Tensor:
    """[N, N] the inner product of every pair of rows, in float64; the squared lengths are on its diagonal."""
    found = torch.zeros(0, 0, dtype=torch.float64)
    for block in _blocks(rows):
        n_rows = len(block)
        found = found if len(found) else torch.zeros(n_rows, n_rows, dtype=torch.float64)
        # By strips of rows up to the diagonal: of many rows, that is little more than half of the products.
        for start in range(0, n_rows, STRIP):
            end = min(start + STRIP, n_rows)
            found[start:end, :end].addmm_(block[start:end], block[:end].T)
    return _finite(found.tril() + found.tril(-1).T)


def dots(rows: Rows, vector: Tensor) -> Tensor:
    """[N] the inner product of every row with a vector [D], in float64."""
    vector = vector.to(torch.float64)
    found, start = torch.zeros(0), 0
    # Added up at once: results kept in between would lie among the blocks in memory, and keep it from being used again.
    for block in _blocks(rows):
        part = block @ vector[start : start + block.shape[1]]
        found = part if start == 0 else found.add_(part)
        start += block.shape[1]
    return _finite(found)


def squared_norms(rows: Rows) -> Tensor:
    """[N] the squared length of every row, in float64."""
    # By way of the length: block.square() would be another block to write and read.
    return _finite(
        functools.reduce(torch.add, (block.norm(dim=1).square() for block in _blocks(rows)))
    )


def lengths(rows: Rows) -> Tensor:
    """[N] the length of every row, in float64."""
    return _finite(functools.reduce(torch.hypot, (block.norm(dim=1) for block in _blocks(rows))))


def finite_rows(table: Tensor) -> Tensor:
    """[N] whether a row has neither NaN nor infinity; for a table of any dtype."""
    table = table.reshape(len(table), -1)
    # One pass without a copy: a sum is finite only if all its terms are. It may overflow without them, so then we look closer.
    parts = torch.split(table, max(1, 4 * BLOCK * ROWS // max(1, table.shape[1])))
    finite = torch.isfinite(torch.cat(spread([partial(torch.sum, part, dim=1) for part in parts])))
    for row in (~finite).nonzero().flatten().tolist():
        finite[row] = torch.isfinite(table[row]).all()
    return finite


def _blocks(rows: Rows) -> Iterable[Tensor]:
    return columns(rows) if isinstance(rows, Tensor) else rows


def _finite(squares: Tensor) -> Tensor:
    if not torch.isfinite(squares).all():
        raise DivergedError(
            "the updates of clients are too long to be squared; local training diverged (try a smaller lr)"
        )
    return squares
