"""Blocks of columns: the numbers of one piece, and no method copies the whole table."""

from __future__ import annotations

import pytest
import torch
from test_contract import CASES, build_reports, random_values, setup_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from udjfl.errors import DivergedError
from udjfl.methods import _linalg, weighted_sum
from udjfl.methods.collect import collect

WEIGHTS = torch.tensor([0.5, -2.0, 0.25], dtype=torch.float64)
VECTOR = torch.linspace(-1, 1, 10, dtype=torch.float64)


def table(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(3, 10, generator=torch.Generator().manual_seed(0)).to(dtype)


# Each with the plain formula, on a table of float64.
FORMULAS = {
    "combination": (lambda x: _linalg.combination(WEIGHTS, x), lambda x: WEIGHTS @ x),
    "total": (_linalg.total, lambda x: x.sum(dim=0)),
    "mean": (_linalg.mean, lambda x: x.mean(dim=0)),
    "gram": (_linalg.gram, lambda x: x @ x.T),
    "dots": (lambda x: _linalg.dots(x, VECTOR), lambda x: x @ VECTOR),
    "squared_norms": (_linalg.squared_norms, lambda x: x.norm(dim=1).square()),
    "lengths": (_linalg.lengths, lambda x: x.norm(dim=1)),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_block_is_the_plain_formula_and_several_are_close(name, dtype, monkeypatch):
    by_blocks, plain = FORMULAS[name]
    expected = plain(table(dtype).to(torch.float64))
    assert torch.equal(by_blocks(table(dtype)), expected)
    for block in (1, 3, 5, 10):
        monkeypatch.setattr(_linalg, "BLOCK", block)
        torch.testing.assert_close(by_blocks(table(dtype)), expected, rtol=1e-13, atol=1e-14)


def test_several_combinations_take_one_pass(monkeypatch):
    two = torch.stack([WEIGHTS, WEIGHTS.flip(0)])
    for block in (4, 100):
        monkeypatch.setattr(_linalg, "BLOCK", block)
        torch.testing.assert_close(
            _linalg.combination(two, table()),
            two @ table().to(torch.float64),
            rtol=1e-13,
            atol=1e-14,
        )


@pytest.mark.parametrize("strip", [1, 2, 3])
def test_a_gram_matrix_is_the_same_by_strips(strip, monkeypatch):
    monkeypatch.setattr(_linalg, "STRIP", strip)
    monkeypatch.setattr(_linalg, "BLOCK", 4)
    found = _linalg.gram(table())
    assert torch.equal(found, found.T)
    rows = table().to(torch.float64)
    torch.testing.assert_close(found, rows @ rows.T, rtol=1e-13, atol=1e-14)
    assert _linalg.gram(rows[:0]).shape == (0, 0)


def test_a_weighted_sum_is_in_the_dtype_of_the_rows(monkeypatch):
    whole = weighted_sum(WEIGHTS, table())
    assert torch.equal(whole, (WEIGHTS @ table().to(torch.float64)).to(torch.float32))
    monkeypatch.setattr(_linalg, "BLOCK", 4)
    torch.testing.assert_close(weighted_sum(WEIGHTS, table()), whole)


def test_rows_can_be_chosen(monkeypatch):
    monkeypatch.setattr(_linalg, "BLOCK", 4)
    for chosen in (torch.tensor([True, False, True]), torch.tensor([0, 2])):
        assert torch.equal(
            torch.cat(list(_linalg.columns(table(), chosen)), dim=1),
            table().to(torch.float64)[[0, 2]],
        )
    none = torch.zeros(3, dtype=torch.bool)
    assert torch.equal(
        _linalg.total(_linalg.columns(table(), none)), torch.zeros(10, dtype=torch.float64)
    )


def test_rows_that_are_not_finite_are_found(monkeypatch):
    broken = table()
    broken[1, 9], broken[2, 0] = torch.nan, torch.inf
    for block in (4, 100):
        monkeypatch.setattr(_linalg, "BLOCK", block)
        assert _linalg.rows_not_finite(broken) == [1, 2]
        assert _linalg.rows_not_finite(torch.tensor([[1], [2]])) == []
        assert _linalg.rows_not_finite(torch.zeros(2, 0)) == []
        assert _linalg.rows_not_finite(torch.tensor([1.0, torch.nan])) == [1]


@pytest.mark.parametrize("name", ["gram", "squared_norms", "lengths"])
def test_updates_too_long_to_square_are_refused(name):
    with pytest.raises(DivergedError, match="too long to be squared"):
        getattr(_linalg, name)(torch.full((2, 3), 1e160, dtype=torch.float64))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_method_gives_the_same_in_blocks(case, monkeypatch):
    rule = case.build()
    reports = build_reports(rule, random_values(5, 40))
    state, step, diagnostics = rule.aggregate(rule.init(setup_of(rule, reports)), reports)
    monkeypatch.setattr(_linalg, "BLOCK", 7)
    state_by_blocks, step_by_blocks, diagnostics_by_blocks = rule.aggregate(
        rule.init(setup_of(rule, reports)), reports
    )
    # The minimum-norm problem is solved to 1e-4 of the longest vector; everything else to rounding.
    close = (
        {"rtol": 1e-4, "atol": 1e-4}
        if case.name in ("fedmgda", "effl")
        else {"rtol": 1e-9, "atol": 1e-12}
    )
    torch.testing.assert_close(step_by_blocks, step, **close)
    torch.testing.assert_close(dict(state_by_blocks), dict(state), equal_nan=True, **close)
    torch.testing.assert_close(diagnostics_by_blocks, diagnostics, **close)


# --- memory ---


class LargestTensor(TorchDispatchMode):
    """The largest tensor that is allocated, in numbers and in bytes; views are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers_in_float64, self.bytes = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {
            x.untyped_storage().data_ptr()
            for x in tree_leaves((args, kwargs))
            if isinstance(x, torch.Tensor)
        }
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in given:
                self.bytes = max(self.bytes, x.numel() * x.element_size())
                self.numbers_in_float64 = max(
                    self.numbers_in_float64, x.numel() if x.dtype == torch.float64 else 0
                )
        return out


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_method_copies_the_table_in_float64(case, monkeypatch):
    """Nothing larger than the table is allocated; benchmarks measure what a process takes."""
    monkeypatch.setattr(_linalg, "BLOCK", 100)
    rule = case.build()
    reports = build_reports(rule, random_values(8, 2000), dtype=torch.float32)
    state = rule.init(setup_of(rule, reports))
    with LargestTensor() as largest:
        rule.aggregate(state, reports)
        if "validation_accuracies" in rule.needs:
            rule.models_to_score(state, reports)
    numbers = reports.deltas.numel()
    assert largest.numbers_in_float64 <= numbers / 4
    # One table: state kept per client, models to be scored, rankings.
    assert largest.bytes <= 4 * numbers


def test_collected_columns_are_not_copied():
    deltas = table()
    reports, rows, errors = collect(
        ["c0", "c1", "c2"],
        deltas,
        {"gradients": deltas},
        all_ids=["c0", "c1", "c2"],
        round=1,
        lr=0.1,
        momentum=0.0,
    )
    assert reports is not None
    assert (rows, errors) == ([0, 1, 2], {})
    assert reports.deltas.data_ptr() == reports.extras["gradients"].data_ptr() == deltas.data_ptr()


def test_unusable_rows_are_left_out_of_the_columns():
    deltas = table()
    with_gap = torch.stack([deltas[0], torch.full((10,), torch.nan), deltas[2]])
    reports, rows, errors = collect(
        ["c0", "c1", "c2"],
        with_gap,
        {},
        all_ids=["c0", "c1", "c2"],
        round=1,
        lr=0.1,
        momentum=0.0,
    )
    assert reports is not None
    assert (rows, list(errors)) == ([0, 2], ["c1"])
    assert torch.equal(reports.deltas, deltas[[0, 2]])


def test_blocks_of_very_many_rows_are_single_columns():
    rows = 2 * _linalg.BLOCK * _linalg.ROWS
    assert list(_linalg.spans(3, rows)) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert list(_linalg.spans(1, rows)) == [slice(0, 1)]
    assert list(_linalg.spans(0, rows)) == [slice(0, 0)]


def test_no_rows_have_no_products():
    products = _linalg.gram(iter(()))
    assert (products.shape, products.dtype) == ((0, 0), torch.float64)
    assert _linalg.dots(iter(()), VECTOR).shape == (0,)


def test_finite_numbers_whose_sum_is_not_are_finite():
    assert _linalg.is_finite(torch.tensor([1e308, 1e308], dtype=torch.float64))
    assert not _linalg.is_finite(torch.tensor([1.0, torch.inf]))
    assert not _linalg.is_finite(torch.tensor([torch.nan, 1.0]))


def test_rows_of_a_table_that_is_split_keep_their_numbers(monkeypatch):
    monkeypatch.setattr(_linalg, "BLOCK", 2)
    monkeypatch.setattr(_linalg, "ROWS", 1)
    rows = torch.zeros(7, 3)
    rows[1, 2], rows[4, 0], rows[6, 1] = torch.nan, torch.inf, -torch.inf
    rows[2] = torch.finfo(torch.float32).max  # its sum overflows, its numbers are finite
    assert _linalg.rows_not_finite(rows) == [1, 4, 6]
    assert _linalg.rows_not_finite(torch.zeros(3, 0)) == []
