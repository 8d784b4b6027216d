"""Messages of errors: values of rows are for those who have the data."""

from __future__ import annotations

import copy
import pickle

import pytest

from udjfl.errors import DataError, quote_values


def test_quoted_values_are_in_the_message_and_can_be_left_out() -> None:
    shown = quote_values(["J. Smith", 7])
    error = DataError(f"client 'a': 2 of 9 are wrong ({shown}); correct them\nand {shown}")
    assert str(error) == (
        "client 'a': 2 of 9 are wrong ('J. Smith', 7); correct them\nand 'J. Smith', 7"
    )
    assert error.without_values == "client 'a': 2 of 9 are wrong (…); correct them\nand …"


@pytest.mark.parametrize("copied", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_an_error_from_another_process_knows_what_it_quotes(copied: object) -> None:
    assert callable(copied)
    error = copied(DataError(f"wrong: {quote_values('7')}"))
    assert (str(error), error.without_values) == ("wrong: 7", "wrong: …")


def test_a_value_cannot_end_its_quotation() -> None:
    """Neither as a text of its own, nor among others, which are shown as Python writes them."""
    for values in ("a\x03b\x02c", ["a\x03b\x02c"]):
        error = DataError(f"wrong: {quote_values(values)}.")
        assert error.without_values == "wrong: …."
        assert "\x02" not in str(error)


def test_a_message_without_values_is_whole() -> None:
    assert DataError("is empty").without_values == "is empty"
    assert str(DataError()) == ""
