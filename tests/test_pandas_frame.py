"""Frames are an extra."""

from __future__ import annotations

import sys

import pytest

from udjfl._pandas_frame import make_frame
from udjfl.errors import SettingsError


def test_a_frame_has_its_columns_in_order() -> None:
    pytest.importorskip("pandas")
    frame = make_frame([{"b": 1, "a": "x"}], ["a", "b"])
    assert list(frame.columns) == ["a", "b"]
    assert frame.to_dict("records") == [{"a": "x", "b": 1}]
    assert list(make_frame([], ["a"]).columns) == ["a"]


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SettingsError, match=r"pip install 'udjfl\[frames\]'"):
        make_frame([], ["a"])
