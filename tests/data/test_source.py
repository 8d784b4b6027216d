"""Where a source's files are searched for, and a source's name with its options."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udjfl.data import Request, Source, find_source
from udjfl.data.source import NoOptions, find_cache_root, find_data_root, parse_data
from udjfl.errors import SettingsError
from udjfl.settings import Settings


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UDJFL_DATA", "UDJFL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def write_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("here")
    return path


# Finding files ----------------------------------------------------------------------------------


def test_the_data_root_comes_before_the_cache_then_folders_then_names(tmp_path) -> None:
    """Of eight paths, the first one that exists is returned."""
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
        write_file(path)
        assert request.find(("a", "b"), ("", "deep/down")) == path
    assert request.find(("b", "a"), ("deep/down", "")) == root / "deep/down" / "b"


def test_without_a_data_root_only_the_cache_is_searched(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path / "a")  # the current folder is not searched
    request = Request(0, None, tmp_path / "cache")
    assert request.find(("a",)) is None
    assert request.find(("a",), ("deep",)) is None
    assert Request(0, None, tmp_path).find(("a",)) == tmp_path / "a"


def test_folders_are_not_taken_for_files_or_files_for_folders(tmp_path) -> None:
    (tmp_path / "a").mkdir()
    file = write_file(tmp_path / "data.zip")
    assert Request(0, tmp_path, tmp_path / "cache").find(("a",)) is None
    assert (
        Request(0, file, tmp_path / "cache").find(("a",), ("", "deep")) is None
    )  # a data root may be a file


# Where the places are ---------------------------------------------------------------------------


def test_environment_variables_choose_the_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert find_cache_root() == tmp_path / "home" / ".cache" / "udjfl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert find_cache_root() == tmp_path / "xdg" / "udjfl"
    monkeypatch.setenv("UDJFL_CACHE", str(tmp_path / "own"))
    assert find_cache_root() == tmp_path / "own"
    monkeypatch.setenv("UDJFL_CACHE", "~/kept")
    assert find_cache_root() == tmp_path / "home" / "kept"
    monkeypatch.setenv("UDJFL_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert find_cache_root() == tmp_path / "home" / ".cache" / "udjfl"


def test_searching_the_cache_creates_no_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("UDJFL_CACHE", str(tmp_path / "own"))
    Request(0, None, find_cache_root()).find(("a",))
    assert not (tmp_path / "own").exists()


def test_data_root_is_the_argument_or_the_variable_or_none(tmp_path, monkeypatch) -> None:
    assert find_data_root() is None
    assert find_data_root(tmp_path) == find_data_root(str(tmp_path)) == tmp_path
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("UDJFL_DATA", str(tmp_path / "other"))
    assert find_data_root() == tmp_path / "other"
    assert find_data_root(tmp_path) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_data_root("~/other") == tmp_path / "other"
    assert (
        find_data_root(write_file(tmp_path / "data.zip")) == tmp_path / "data.zip"
    )  # it may be a file


def test_missing_data_root_is_refused(tmp_path, monkeypatch) -> None:
    with pytest.raises(
        SettingsError,
        match=r"^data_root: .*missing does not exist; name the folder that has the data$",
    ):
        find_data_root(tmp_path / "missing")
    monkeypatch.setenv("UDJFL_DATA", str(tmp_path / "missing"))
    with pytest.raises(SettingsError, match=r"^UDJFL_DATA: .*missing does not exist"):
        find_data_root()


def test_error_for_missing_files_names_the_places_and_the_remedy(tmp_path) -> None:
    root, cache = tmp_path / "root", tmp_path / "cache"
    both = Request(0, root, cache).not_found("the file was", "Get it.")
    assert str(both) == f"the file was not found in {root} and {cache}. Get it."
    one = Request(0, None, cache).not_found("the file was", "Get it.")
    assert str(one) == f"the file was not found in {cache}. Get it."


# Names and options ------------------------------------------------------------------------------


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
def test_name_and_options_are_split(text: str, expected: tuple[str, dict[str, str]]) -> None:
    assert parse_data(text) == expected


@pytest.mark.parametrize(
    "text", ["signs:", "signs:level", "signs:=3", "signs: =3", "signs:level=3:", "signs::level=3"]
)
def test_unreadable_options_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^data: 'signs.* where key=value was expected, as in"):
        find_source(text)


@pytest.mark.parametrize("text", ["signs:level=3:level=4", "signs:max-level=3:max_level=3"])
def test_option_given_twice_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="twice; give it once"):
        parse_data(text)


WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1)


@given(WORDS, st.dictionaries(WORDS, WORDS, max_size=4))
def test_options_round_trip(name: str, options: dict[str, str]) -> None:
    assert parse_data(":".join([name, *(f"{key}={value}" for key, value in options.items())])) == (
        name,
        options,
    )


def test_request_has_checked_options(tmp_path, monkeypatch) -> None:
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
