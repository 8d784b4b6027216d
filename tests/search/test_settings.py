"""The settings of a search: lists from text, and mistakes."""

from __future__ import annotations

import pytest

from udjfl.errors import SettingsError
from udjfl.search.settings import FrontierSettings, TuneSettings
from udjfl.settings import validate_settings


def test_lists_from_text() -> None:
    settings = validate_settings(
        FrontierSettings, {"exponents": "-1, 2", "gammas": "0.5", "budgets": "", "methods": ""}
    )
    assert settings.exponents == [-1.0, 2.0]
    assert (settings.gammas, settings.budgets, settings.methods) == ([0.5], [], [])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"exponents": "0,1"}, "exponents: with an exponent of 0 no loss enters"),
        ({"gammas": "1,1"}, "gammas: give each number once"),
        ({"gammas": "x"}, "gammas: each must be a number"),
        ({"budgets": "101"}, "budgets: each must be at most 100"),
        ({"exponent": "1"}, "exponent: no such setting. Did you mean 'exponents'"),
    ],
)
def test_mistakes_name_the_setting(values: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        validate_settings(FrontierSettings, values)


@pytest.mark.parametrize(
    ("floor", "words"),
    [
        ("client-1", "floor: write a client and a number"),
        ("client-1=50,client-1=60", "floor: give each client once"),
        ("client-1=high", r"floor\.client-1: must be a number, got"),
        ("client-1=nan", r"floor\.client-1: must be a finite number, got"),
    ],
)
def test_mistakes_in_floors(floor: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        validate_settings(TuneSettings, {"floor": floor})
