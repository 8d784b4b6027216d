"""Types and kinds of what `Reports` is made from: what is refused, and in which words."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from udjfl.errors import SettingsError
from udjfl.methods._report_values import check_ids, check_model, check_real, check_scalars


@pytest.mark.parametrize(
    ("lr", "momentum", "round"),
    [
        (0.1, 0, 1),
        (sys.float_info.max, 0.999, 0),
        (1, 0.0, np.int64(3)),
        (np.float32(0.1), 0, 2**53),
    ],
)
def test_scalars_that_pass(lr: Any, momentum: Any, round: Any) -> None:
    check_scalars(lr, momentum, round)


@pytest.mark.parametrize("lr", [0, -0.1, float("nan"), float("inf"), 10**400, True, "0.1", None])
def test_learning_rates_that_are_none(lr: Any) -> None:
    with pytest.raises(SettingsError, match=r"Reports\.lr: is .*finite number above zero"):
        check_scalars(lr, 0.0, 1)


@pytest.mark.parametrize("momentum", [-0.1, 1, 1.0, float("nan"), False, "0"])
def test_momenta_that_are_none(momentum: Any) -> None:
    with pytest.raises(SettingsError, match=r"Reports\.momentum: is "):
        check_scalars(0.1, momentum, 1)


@pytest.mark.parametrize("round", [1.0, True, "1", None])
def test_rounds_that_are_none(round: Any) -> None:
    with pytest.raises(SettingsError, match=r"Reports\.round: is "):
        check_scalars(0.1, 0.0, round)


@pytest.mark.parametrize(
    ("round", "shown"),
    [(-1, "-1"), (2**53 + 1, "9007199254740993"), (10**5000, "a number of very many digits")],
    ids=["negative", "large", "endless"],
)
def test_rounds_beyond_what_methods_compute_with(round: int, shown: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_scalars(0.1, 0.0, round)
    assert str(caught.value) == f"Reports.round: is {shown}; it must be from 0 to 2^53"


def test_numbers_of_many_digits_are_not_repeated() -> None:
    with pytest.raises(SettingsError, match=r"lr: is -1; it must be a finite number above zero"):
        check_scalars(-1, 0.0, 1)
    with pytest.raises(SettingsError, match=rf"lr: is {-(2**128 - 1)};"):
        check_scalars(-(2**128 - 1), 0.0, 1)
    with pytest.raises(SettingsError, match=r"lr: is a number of very many digits; it must be a"):
        check_scalars(-(2**128), 0.0, 1)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.ma.masked_array([1.0, 2.0], [0, 1]), "masked values"),
        (torch.ones(2, dtype=torch.bool), "torch.bool"),
        (torch.ones(2, dtype=torch.complex64), "torch.complex64"),
        (torch.ones(2).to_sparse(), "sparse values"),
    ],
)
def test_tables_of_something_else_are_named(values: Any, kind: str) -> None:
    tensor = values if isinstance(values, torch.Tensor) else torch.as_tensor(values.data)
    with pytest.raises(SettingsError, match=rf"Reports\.losses: is a table of {kind}; give real"):
        check_real("losses", values, tensor)


def test_a_model_has_a_number_for_each_column() -> None:
    deltas, model = torch.zeros(2, 3), torch.zeros(3)
    check_model(model, deltas)
    with pytest.raises(SettingsError, match=r"Reports\.model: is \[4\]; give a tensor \[3\]"):
        check_model(torch.zeros(4), deltas)
    with pytest.raises(SettingsError, match=r"Reports\.model: is list; give a tensor \[3\]"):
        check_model([0.0, 0.0, 0.0], deltas)
    with pytest.raises(SettingsError, match=r"Reports\.model: is a table of torch\.complex64"):
        check_model(torch.zeros(3, dtype=torch.complex64), deltas)


def test_ids_are_several_names() -> None:
    assert check_ids(("a", "b")) == ("a", "b")
    for ids in ("ab", 3, None):
        with pytest.raises(SettingsError, match=r"Reports\.ids: is "):
            check_ids(ids)
