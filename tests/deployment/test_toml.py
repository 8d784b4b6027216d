"""TOML that is read back as it was written."""

from __future__ import annotations

import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udjfl.deployment.toml import ConfigValue, format_value, to_toml
from udjfl.errors import DeploymentError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.one_of(TEXTS, st.integers(), st.floats(allow_nan=False), st.booleans())


@given(st.dictionaries(TEXTS, VALUES))
def test_what_is_written_is_read_back(values: dict[str, ConfigValue]) -> None:
    read = tomllib.loads(to_toml(values))
    assert read == values
    assert {key: type(value) for key, value in read.items()} == {
        key: type(value) for key, value in values.items()
    }


@pytest.mark.parametrize("text", ["\x7f", "\U0001f600", 'a "b" \\ \n\r\t\0', "#", "= [x]", ""])
def test_rare_characters(text: str) -> None:
    assert tomllib.loads(to_toml({text: text})) == {text: text}


def test_what_is_no_number_is_written_too() -> None:
    assert math.isnan(tomllib.loads(to_toml({"x": math.nan}))["x"])
    assert format_value(-math.inf) == "-inf"


def test_half_a_character_is_refused() -> None:
    with pytest.raises(DeploymentError, match="write it in UTF-8"):
        to_toml({"x": "\ud800"})
