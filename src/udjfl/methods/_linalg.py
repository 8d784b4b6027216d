"""Linear algebra over the rows of a table [N, D], in float64, a block of columns at a time.

A table of updates may be gigabytes; a copy of it in float64 would be two or three times that. Here
no more than one block is copied. Up to `BLOCK` columns (fewer, if there are more than `ROWS` rows)
there is one block, and the numbers are those of the plain formula.

Where a function takes `rows`, pass the table itself or blocks made from it, one after another:
`columns(table)` yields them, and a generator over that can scale them or stack two tables.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import partial, reduce

import torch
from torch import Tensor

from udjfl._threads import run_in_threads
from udjfl.errors import DivergedError

BLOCK = 65_536  # columns
ROWS = 5  # with more, a block has fewer columns, to stay in the cache
STRIP = 128  # rows of a Gram matrix at a time
TOO_LONG = (
    "the updates of clients are too long to be squared; local training diverged (try a smaller lr)"
)

Rows = Tensor | Iterable[Tensor]


def spans(n_columns: int, n_rows: int = 1) -> Iterator[slice]:
    """Return the columns of each block; one block even if there are no columns."""
    width = _block_width(n_rows)
    return (
        slice(start, min(start + width, n_columns)) for start in range(0, max(1, n_columns), width)
    )


def _block_width(n_rows: int) -> int:
    return max(1, BLOCK * ROWS // max(ROWS, n_rows))


def columns(table: Tensor, chosen: Tensor | None = None) -> Iterator[Tensor]:
    """Yield the blocks of a table [N, D] in float64, of the rows `chosen` by a mask or by index."""
    for span in spans(table.shape[1], len(table)):
        block = table[:, span] if chosen is None else table[:, span][chosen]
        yield block.to(torch.float64)


def combination(weights: Tensor, table: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return sum_i weights_i table_i [D], accumulated in float64; for weights [M, N], M sums."""
    weights = weights.to(torch.float64)
    if table.shape[1] <= _block_width(len(table)):
        return (weights @ table.to(torch.float64)).to(dtype)
    sums = torch.empty(*weights.shape[:-1], table.shape[1], dtype=dtype)

    def combine(span: slice) -> None:
        sums[..., span] = weights @ table[:, span].to(torch.float64)

    run_in_threads([partial(combine, span) for span in spans(table.shape[1], len(table))])
    return sums


def weighted_sum(weights: Tensor, rows: Tensor) -> Tensor:
    """Return sum_i weights_i rows_i, accumulated in float64, in the dtype of the rows."""
    return combination(weights, rows, rows.dtype)


def total(rows: Rows) -> Tensor:
    """Return the sum [D] of the rows, in float64."""
    return torch.cat([block.sum(dim=0) for block in _blocks(rows)])


def mean(rows: Rows) -> Tensor:
    """Return the mean [D] of the rows, in float64."""
    return torch.cat([block.mean(dim=0) for block in _blocks(rows)])


def gram(rows: Rows) -> Tensor:
    """Return the inner products [N, N] of all pairs of rows, in float64."""
    products = torch.zeros(0, 0, dtype=torch.float64)
    for block in _blocks(rows):
        n_rows = len(block)
        products = products if len(products) else torch.zeros(n_rows, n_rows, dtype=torch.float64)
        # In strips of rows up to the diagonal: with many rows, little more than half the products.
        for start in range(0, n_rows, STRIP):
            end = min(start + STRIP, n_rows)
            products[start:end, :end].addmm_(block[start:end], block[:end].T)
    return _check_finite(products.tril() + products.tril(-1).T)


def dots(rows: Rows, vector: Tensor) -> Tensor:
    """Return the inner product [N] of every row with a vector [D], in float64."""
    vector = vector.to(torch.float64)
    products, start = torch.zeros(0), 0
    # Summed at once: partial results between the blocks would keep their memory from being reused.
    for block in _blocks(rows):
        part = block @ vector[start : start + block.shape[1]]
        products = part if start == 0 else products.add_(part)
        start += block.shape[1]
    return _check_finite(products)


def squared_norms(rows: Rows) -> Tensor:
    """Return the squared length [N] of every row, in float64."""
    # From the lengths: block.square() would be another block to write and read.
    squares = (block.norm(dim=1).square() for block in _blocks(rows))
    return _check_finite(reduce(torch.add, squares))


def lengths(rows: Rows) -> Tensor:
    """Return the length [N] of every row, in float64."""
    norms = (block.norm(dim=1) for block in _blocks(rows))
    return _check_finite(reduce(torch.hypot, norms))


def rows_not_finite(table: Tensor) -> list[int]:
    """Return the rows with a value that is NaN or infinite; for a table of any dtype."""
    table = table.reshape(len(table), -1)
    # One pass without a copy: a sum is finite only if all its terms are. It may also overflow by
    # itself, so rows whose sum is not finite are checked again.
    n_rows = max(1, 4 * BLOCK * ROWS // max(1, table.shape[1]))
    parts = [table] if len(table) <= n_rows else torch.split(table, n_rows)
    sums = run_in_threads([partial(torch.sum, part, dim=1) for part in parts])
    numbers = itertools.chain(*(part.tolist() for part in sums))
    suspects = [row for row, number in enumerate(numbers) if not math.isfinite(number)]
    return [row for row in suspects if not torch.isfinite(table[row]).all()]


def is_finite(values: Tensor) -> bool:
    """Tell whether all values are finite; nearly always from their sum alone."""
    return math.isfinite(float(values.sum())) or bool(torch.isfinite(values).all())


def _blocks(rows: Rows) -> Iterable[Tensor]:
    return columns(rows) if isinstance(rows, Tensor) else rows


def _check_finite(squares: Tensor) -> Tensor:
    if not is_finite(squares):
        raise DivergedError(TOO_LONG)
    return squares
