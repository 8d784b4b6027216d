"""The grammar `name:key=value`, and registries of names."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udjfl._spec import Registry, Spec, import_object, parse_spec
from udjfl.errors import SettingsError

WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters=":,")).map(str.strip)


# Texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("fedavg", "fedavg", {}),
        ("udj:theory=rawls:beta=5", "udj", {"theory": "rawls", "beta": "5"}),
        (" udj : max-beta = 5 ", "udj", {"max_beta": "5"}),
        ("udj:name=a=b", "udj", {"name": "a=b"}),
        ("udj:name=", "udj", {"name": ""}),
        ("udj:weights=1,2", "udj", {"weights": "1,2"}),
        ("package.module:Name", "package.module:Name", {}),
        ("package.module:Name:key=1", "package.module:Name", {"key": "1"}),
        ("", "", {}),
    ],
)
def test_parsing(text: str, name: str, options: dict[str, str]) -> None:
    assert parse_spec(text, "method") == Spec(name, options)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("dirichlet", {}),
        ("dirichlet:0.3", {"alpha": "0.3"}),
        ("dirichlet:alpha=0.3", {"alpha": "0.3"}),
        ("dirichlet:0.3:size=2", {"alpha": "0.3", "size": "2"}),
        ("dirichlet:0.3,size=2", {"alpha": "0.3", "size": "2"}),
        ("dirichlet:", {"alpha": ""}),
    ],
)
def test_first_value_without_key_is_the_usual_option(text: str, options: dict[str, str]) -> None:
    assert parse_spec(text, "partition", "alpha", ":,") == Spec("dirichlet", options)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("udj:=3", r"method: 'udj:=3' has '=3' where key=value was expected"),
        ("udj: =3", "has '=3' where key=value"),
        ("udj:a=1:", "has '' where key=value"),
        ("udj:a=1:b", "has 'b' where key=value"),
        ("udj:a=1:a=2", "gives a twice; give it once"),
        ("udj:max-a=1:max_a=1", "gives max_a twice"),
    ],
)
def test_unreadable_options_are_quoted(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        parse_spec(text, "method")


@pytest.mark.parametrize("text", ["dirichlet:0.3,0.4", "dirichlet:0.3:0.4", "dirichlet:size=1,2"])
def test_only_the_first_option_may_lack_a_key(text: str) -> None:
    with pytest.raises(SettingsError, match="where key=value was expected"):
        parse_spec(text, "partition", "alpha", ":,")


def test_the_usual_option_given_twice_is_a_mistake() -> None:
    with pytest.raises(SettingsError, match="gives alpha twice"):
        parse_spec("dirichlet:0.3:alpha=0.4", "partition", "alpha")


@given(WORDS, st.dictionaries(WORDS, VALUES, max_size=4), st.sampled_from(":,"))
def test_options_round_trip(name: str, options: dict[str, str], separator: str) -> None:
    parts = [name, *(f"{key}={value}" for key, value in options.items())]
    assert parse_spec(separator.join(parts), "method", separators=":,") == Spec(name, options)


# Objects of other packages ----------------------------------------------------------------------


def test_importing_an_object() -> None:
    assert import_object("udjfl._spec:parse_spec", "method") is parse_spec
    assert import_object("udjfl._spec:Registry.find", "method") is Registry.find


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no.such.module:Name", "method: cannot import 'no.such.module:Name': .*current folder"),
        ("udjfl._spec:Missing", "cannot import .*Missing"),
        ("udjfl._spec:", "is not of the form package.module:Name"),
        (":Name", "is not of the form"),
        ("udjfl-spec:Name", "is not of the form"),
        ("udjfl._spec:Spec()", "is not of the form"),
        ("udjfl.._spec:Spec", "is not of the form"),
    ],
)
def test_objects_that_cannot_be_imported(name: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        import_object(name, "method")


# Registries -------------------------------------------------------------------------------------


@pytest.fixture
def registry() -> Registry[int]:
    registry: Registry[int] = Registry("number", "udjfl.numbers")
    registry.register("one", 1)
    return registry


def test_registered_names_are_found(registry: Registry[int]) -> None:
    assert registry.find("one") == 1
    assert list(registry) == ["one"]


def test_registering_again(registry: Registry[int]) -> None:
    assert registry.register("one", registry["one"]) == 1
    with pytest.raises(SettingsError, match="number: 'one' is taken; choose another name"):
        registry.register("one", 2)
    assert registry.find("one") == 1


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a,b", "a=b", "a.b", "ä"])
def test_names_that_the_grammar_cannot_carry_are_refused(
    registry: Registry[int], name: str
) -> None:
    with pytest.raises(SettingsError, match="use letters, digits, - and _ only"):
        registry.register(name, 2)


def test_unknown_names_have_a_suggestion(registry: Registry[int]) -> None:
    with pytest.raises(SettingsError, match=r"number: unknown name 'onne'\. Did you mean 'one'\?"):
        registry.find("onne")


def test_objects_of_other_packages_are_imported(registry: Registry[int]) -> None:
    assert registry.find("udjfl._spec:parse_spec") is parse_spec  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("text", ["one:", "one:value", "one::key=value"])
def test_a_known_name_with_an_unreadable_option(registry: Registry[int], text: str) -> None:
    """It is not taken for `package.module:Name`."""
    with pytest.raises(SettingsError, match="where key=value was expected, as in one:key=value"):
        registry.find(parse_spec(text, "number").name)


@pytest.fixture
def entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two installed packages offer `two`, of this group, and `three`, of another one."""
    points = [
        EntryPoint("two", "udjfl._spec:Spec", "udjfl.numbers"),
        EntryPoint("three", "udjfl._spec:Spec", "udjfl.others"),
    ]

    def find(group: str, name: str | None = None) -> list[EntryPoint]:
        return [p for p in points if p.group == group and name in (None, p.name)]

    monkeypatch.setattr(importlib.metadata, "entry_points", find)


@pytest.mark.usefixtures("entry_points")
def test_entry_points_are_found_by_name(registry: Registry[int]) -> None:
    assert registry.find("two") is Spec  # type: ignore[comparison-overlap]
    assert "two" in registry
    with pytest.raises(SettingsError, match="unknown name 'three'"):
        registry.find("three")


@pytest.mark.usefixtures("entry_points")
def test_all_entry_points_of_the_group_can_be_listed(registry: Registry[int]) -> None:
    registry.load_entry_points()
    registry.load_entry_points()
    assert list(registry) == ["one", "two"]
