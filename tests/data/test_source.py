"""Where a source's files are looked for, and a source's name with its options."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udjfl.data.source import (
    NoOptions,
    Request,
    Source,
    cache_root,
    data_root,
    not_found,
    parse_data,
)
from udjfl.errors import SettingsError
from udjfl.settings import Settings


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UDJFL_DATA", "UDJFL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def written(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("here")
    return path


# Finding files -------------------------------------------------------------------------------------------------------


def test_the_data_root_comes_before_the_cache_then_folders_then_names(tmp_path):
    """Of all eight places, whatever is there, the first in order is taken."""
    root, cache = tmp_path / "root", tmp_path / "cache"
    request = Request(0, root, cache)
    order = [
        place / folder / name
        for place in (root, cache)
        for folder in ("", "deep/down")
        for name in ("a", "b")
    ]
    assert request.find(("a", "b"), ("", "deep/down")) is None
    for path in reversed(order):
        written(path)
        assert request.find(("a", "b"), ("", "deep/down")) == path
    assert request.find(("b", "a"), ("deep/down", "")) == root / "deep/down" / "b"


def test_without_a_data_root_only_the_cache_is_searched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a")  # the current folder is no place to look
    request = Request(0, None, tmp_path / "cache")
    assert request.find(("a",)) is None
    assert request.find(("a",), ("deep",)) is None
    assert Request(0, None, tmp_path).find(("a",)) == tmp_path / "a"


def test_a_folder_is_no_file_and_a_file_no_folder(tmp_path):
    (tmp_path / "a").mkdir()
    file = written(tmp_path / "data.zip")
    assert Request(0, tmp_path, tmp_path / "cache").find(("a",)) is None
    assert (
        Request(0, file, tmp_path / "cache").find(("a",), ("", "deep")) is None
    )  # a data root may be a file


# Where the places are ------------------------------------------------------------------------------------------------


def test_the_cache_is_where_the_variables_say(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / ".cache" / "udjfl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "udjfl"
    monkeypatch.setenv("UDJFL_CACHE", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"
    monkeypatch.setenv("UDJFL_CACHE", "~/kept")
    assert cache_root() == tmp_path / "home" / "kept"
    monkeypatch.setenv("UDJFL_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_root() == tmp_path / "home" / ".cache" / "udjfl"


def test_asking_for_the_cache_makes_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("UDJFL_CACHE", str(tmp_path / "own"))
    Request(0, None, cache_root()).find(("a",))
    assert not (tmp_path / "own").exists()


def test_the_data_root_is_given_or_the_variable_or_none(tmp_path, monkeypatch):
    assert data_root() is None
    assert data_root(tmp_path) == data_root(str(tmp_path)) == tmp_path
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("UDJFL_DATA", str(tmp_path / "other"))
    assert data_root() == tmp_path / "other"
    assert data_root(tmp_path) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root("~/other") == tmp_path / "other"
    assert data_root(written(tmp_path / "data.zip")) == tmp_path / "data.zip"  # a file will do


def test_a_data_root_that_is_not_there(tmp_path, monkeypatch):
    with pytest.raises(
        SettingsError,
        match=r"^data_root: .*missing does not exist; name the folder that has the data$",
    ):
        data_root(tmp_path / "missing")
    monkeypatch.setenv("UDJFL_DATA", str(tmp_path / "missing"))
    with pytest.raises(SettingsError, match=r"^UDJFL_DATA: .*missing does not exist"):
        data_root()


def test_what_is_not_found_is_said_with_both_places_and_what_to_do(tmp_path):
    both = str(
        not_found("the file was", Request(0, tmp_path / "root", tmp_path / "cache"), "Get it.")
    )
    assert (
        both == f"the file was not found in {tmp_path / 'root'} and {tmp_path / 'cache'}. Get it."
    )
    one = str(not_found("the file was", Request(0, None, tmp_path / "cache"), "Get it."))
    assert one == f"the file was not found in {tmp_path / 'cache'}. Get it."


# Names and options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("signs", ("signs", {})),
        ("signs:level=3", ("signs", {"level": "3"})),
        ("cure-tsr:challenge=Rain:level=2", ("cure-tsr", {"challenge": "Rain", "level": "2"})),
        (" signs : max-level = 3 ", ("signs", {"max_level": "3"})),
        ("signs:name=a=b", ("signs", {"name": "a=b"})),
        ("signs:name=", ("signs", {"name": ""})),
        ("", ("", {})),
    ],
)
def test_a_name_with_options(text: str, expected: tuple[str, dict[str, str]]):
    assert parse_data(text) == expected


@pytest.mark.parametrize(
    "text", ["signs:", "signs:level", "signs:=3", "signs: =3", "signs:level=3:", "signs::level=3"]
)
def test_options_that_cannot_be_read(text: str):
    with pytest.raises(SettingsError) as caught:
        parse_data(text)
    assert str(caught.value) == f"data {text!r}: write options as signs:key=value"


@pytest.mark.parametrize("text", ["signs:level=3:level=4", "signs:max-level=3:max_level=3"])
def test_an_option_given_twice(text: str):
    with pytest.raises(SettingsError, match="is given twice, keep one"):
        parse_data(text)


WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1)


@given(WORDS, st.dictionaries(WORDS, WORDS, max_size=4))
def test_options_come_back_as_they_were_written(name: str, options: dict[str, str]):
    assert parse_data(":".join([name, *(f"{key}={value}" for key, value in options.items())])) == (
        name,
        options,
    )


def test_a_request_has_its_options_checked(tmp_path, monkeypatch):
    class Levels(Settings):
        level: int = 1

    monkeypatch.setenv("UDJFL_CACHE", str(tmp_path / "cache"))
    source = Source("signs", "signs", "Get it.", lambda _: None, Levels)  # type: ignore[arg-type, return-value]
    assert source.request(4, tmp_path, {"level": "3"}) == Request(
        4, tmp_path, tmp_path / "cache", Levels(level=3)
    )
    with pytest.raises(SettingsError, match=r"level: .*got 'high'"):
        source.request(0, None, {"level": "high"})
    plain = Source("plain", "plain", "Get it.", lambda _: None)  # type: ignore[arg-type, return-value]
    assert plain.request(0, None, {}).options == NoOptions()
    with pytest.raises(SettingsError, match="level: no such setting"):
        plain.request(0, None, {"level": "3"})
