"""Uncertainties as values: written, read back, never zero."""

from __future__ import annotations

import json
import math

import torch

from udjfl.uncertainty import SMALLEST, Uncertainty, without_nan
from udjfl.uncertainty.values import mean_uncertainty


def test_uncertainties_are_restored_from_plain_values() -> None:
    uncertainty = Uncertainty("ensemble", {"a": 0.1}, {"a": 0.01})
    assert Uncertainty.from_dict(json.loads(json.dumps(uncertainty.as_dict()))) == uncertainty
    assert Uncertainty(**uncertainty.as_dict()) == uncertainty


def test_a_missing_number_is_null_in_the_file_and_nan_in_memory() -> None:
    plain = Uncertainty("paper", {"a": math.nan, "b": 0.5}).as_dict()
    assert plain["values"] == {"a": None, "b": 0.5}
    assert math.isnan(Uncertainty.from_dict(plain).values["a"])


def test_without_nan() -> None:
    assert without_nan({"a": math.inf, "b": 1.0}) == {"a": None, "b": 1.0}
    assert without_nan(None) is None


def test_the_mean_is_not_below_the_smallest_uncertainty() -> None:
    assert mean_uncertainty(torch.tensor([0.0, 0.0])) == SMALLEST
    assert mean_uncertainty(torch.tensor([0.1, 0.3], dtype=torch.float64)) == 0.2
    assert math.isnan(mean_uncertainty(torch.tensor([0.1, math.nan])))
