"""`udjfl data`: what it prints where, what it writes, and what it says about mistakes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from rich.text import Text

import udjfl
from udjfl.cli import main as cli
from udjfl.data import SOURCES, Examples, Pools, Source
from udjfl.data.source import Preparation, Request
from udjfl.data.sources import dirty_mnist as mnist
from udjfl.errors import DataError


class Said(NamedTuple):
    code: object
    out: str
    err: str


Command = Callable[..., Said]


def shapes(request: Request) -> Pools:
    """40 clean and 40 ambiguous 4x4 pictures of two classes, 10 for testing."""
    rng = np.random.default_rng(request.seed)

    def part(size: int) -> Examples:
        return Examples(
            torch.from_numpy(rng.random((size, 1, 4, 4)).astype(np.float32)), torch.arange(size) % 2
        )

    return Pools(part(40), part(40), part(10), ("disc", "ring"), np.arange(40), np.arange(40, 80))


def table(request: Request) -> Pools:
    """Not pictures; 12 classes, so that there may be more classes and clients than fit beside each other."""
    rng = np.random.default_rng(request.seed)
    clean = Examples(
        torch.from_numpy(rng.random((240, 3)).astype(np.float32)), torch.arange(240) % 12
    )
    names = tuple(f"kind-{number}" for number in range(12))
    return Pools(clean, None, None, names, np.arange(240), np.empty(0, dtype=np.int64))


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """Calls the command in an empty folder, with an empty cache and two small sources besides the usual ones."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("UDJFL_CACHE", str(tmp_path / "cache"))
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "UDJFL_DATA"):
        monkeypatch.delenv(name, raising=False)
    for source in (
        Source("shapes", "discs and rings", "Draw some", shapes, clients=2, to_pixels=lambda x: x),
        Source("table", "numbers", "Count", table, clients=4, partition="iid"),
    ):
        monkeypatch.setitem(SOURCES, source.name, source)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call(*arguments: str | Path) -> Said:
        words = [
            word
            for given in arguments
            for word in (given.split() if isinstance(given, str) else [str(given)])
        ]
        monkeypatch.setattr(sys, "argv", ["udjfl", "data", *words])
        capsys.readouterr()
        code: object = 0
        try:
            cli.main()
        except SystemExit as left:
            code = left.code or 0
        return Said(code, *capsys.readouterr())

    return call


def mistakes_of(said: Said) -> list[str]:
    assert said.code == 2
    assert said.out == ""
    assert all(line.startswith("udjfl: ") for line in said.err.splitlines()), said.err
    return [line.removeprefix("udjfl: ") for line in said.err.splitlines()]


# --- help --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["", "--help", "-h"])
def test_help_of_the_group(command: Command, arguments: str) -> None:
    said = command(arguments)
    for name in ("list", "describe", "prepare"):
        assert re.search(rf"^  {name} +\w", said.out + said.err, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("list", ["--json", "--data-root"]),
        (
            "describe",
            ["--seed", "--clients", "--partition", "--data-root", "--contact-sheet", "--json"],
        ),
        ("prepare", ["--regenerate", "--data-root"]),
    ],
)
def test_help_of_each(command: Command, name: str, flags: list[str]) -> None:
    said = command(name, "--help")
    assert said.code == 0
    assert all(flag in said.out for flag in flags)


@pytest.mark.parametrize("arguments", ["lst", "describe", "prepare", "describe shapes --seeed 1"])
def test_wrong_usage(command: Command, arguments: str) -> None:
    said = command(arguments)
    assert said.code == 2
    assert "Traceback" not in said.err


# --- list --------------------------------------------------------------------------------------------------------


def listed(command: Command, *arguments: str | Path) -> dict[str, dict[str, Any]]:
    said = command("list --json", *arguments)
    assert said.code == 0, said.err
    return {entry["data"]: entry for entry in json.loads(said.out)}


def test_list_has_every_source(command: Command) -> None:
    entries = listed(command)
    assert list(entries) == list(SOURCES)
    for name, entry in entries.items():
        source = SOURCES[name]
        assert (entry["line"], entry["how_to_get"]) == (source.line, source.how_to_get)
        assert (entry["clients"], entry["partition"]) == (source.clients, source.partition)
        assert all(option["help"] for option in entry["options"])
    assert {option["name"]: option["default"] for option in entries["signs"]["options"]} == {
        "level": 5,
        "size": 28,
    }
    assert (entries["dirty-digits"]["images"], entries["heart"]["images"]) == (True, False)
    assert [name for name, entry in entries.items() if entry["can_regenerate"]] == ["dirty-mnist"]


def test_without_files_they_are_not_found(command: Command, tmp_path: Path) -> None:
    entries = listed(command)
    found = {name: entry["found"] for name, entry in entries.items()}
    assert found == {
        "dirty-digits": True,
        "dirty-mnist": False,
        "cure-tsr": False,
        "signs": False,
        "heart": False,
        "shapes": True,
        "table": True,
    }
    for name in ("dirty-mnist", "cure-tsr", "signs", "heart"):
        assert str(tmp_path / "cache") in entries[name]["missing"]
        assert entries[name]["how_to_get"] not in entries[name]["missing"]
        assert entries[name]["files"] == []


def test_files_are_found_without_being_read(command: Command, tmp_path: Path) -> None:
    """The files are empty: whoever read them would complain."""
    root = tmp_path / "root"
    (root / "mnist").mkdir(parents=True)
    (root / "heart").mkdir()
    for name in mnist.FILES.values():
        (root / "mnist" / f"{name}.gz").touch()
    for place in ("cleveland", "hungarian", "switzerland"):
        (root / "heart" / f"processed.{place}.data").touch()
    for folder in ("ChallengeFree", "LensBlur-5"):
        (root / "CURE-TSR" / "Real_Train" / folder).mkdir(parents=True)
    entries = listed(command, "--data-root", root)
    assert entries["cure-tsr"]["files"] == [str(root / "CURE-TSR" / "Real_Train")]
    assert (
        f"MNIST is in {root / 'mnist'}, but ambiguous digits were not found"
        in entries["dirty-mnist"]["missing"]
    )
    assert entries["heart"]["missing"].startswith("processed.va.data of ")

    (root / "heart" / "processed.va.data").touch()
    made = tmp_path / "cache" / "dirty-mnist" / mnist.REGENERATED
    made.parent.mkdir(parents=True)
    made.touch()
    (root / "CURE-TSR" / "Real_Train" / "LensBlur-5").rmdir()
    np.savez(root / "signs.npz", x=np.zeros(0), y=np.zeros(0), track=np.zeros(0))
    entries = listed(command, "--data-root", root)
    assert entries["heart"]["files"] == [str(root / "heart")]
    assert entries["dirty-mnist"]["files"] == [str(root / "mnist"), str(made)]
    assert entries["signs"]["files"] == [str(root / "signs.npz")]
    assert "LensBlur-5" in entries["cure-tsr"]["missing"]


def test_half_a_release_is_none(command: Command, tmp_path: Path) -> None:
    for name in (*mnist.FILES.values(), "amnist_samples.pt"):
        (tmp_path / name).touch()
    assert listed(command, "--data-root", tmp_path)["dirty-mnist"]["found"] is False
    (tmp_path / "amnist_labels.pt").touch()
    assert listed(command, "--data-root", tmp_path)["dirty-mnist"]["found"] is True


def test_list_as_text(command: Command, tmp_path: Path) -> None:
    said = command("list")
    shown = " ".join(said.out.split())
    for name, source in SOURCES.items():
        assert re.search(rf"^{name}  {re.escape(source.line)}$", said.out, re.MULTILINE)
    assert "5 clients, shards:size=300" in shown
    assert "level=5: lens blur" in shown
    assert "files none needed" in shown
    assert f"not found in {tmp_path / 'cache'}" in said.out.replace("\n         ", "")
    assert SOURCES["heart"].how_to_get in shown
    assert "…" not in said.out
    assert "\x1b" not in said.out + said.err


def test_a_source_that_nobody_knows_how_to_look_for(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        SOURCES, "far", Source("far", "far away", "Walk", shapes, prepare=lambda preparation: [])
    )
    assert listed(command)["far"]["found"] is None
    assert "not looked for" in command("list").out


def test_a_wrong_root(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for arguments in ("list", "describe shapes", "prepare heart"):
        (line,) = mistakes_of(command(arguments, "--data-root", tmp_path / "none"))
        assert line.startswith(f"data_root: {tmp_path / 'none'} does not exist")
    monkeypatch.setenv("UDJFL_DATA", str(tmp_path / "none"))
    (line,) = mistakes_of(command("list"))
    assert line.startswith("UDJFL_DATA: ")


# --- describe ----------------------------------------------------------------------------------------------------


def test_describe_is_what_load_gives(command: Command) -> None:
    said = command("describe shapes --seed 3 --clients 4 --partition iid --json")
    about = json.loads(said.out)
    federation = udjfl.load("shapes", 4, "iid", 3)
    assert about["fingerprint"] == federation.fingerprint
    assert about["clients"] == federation.describe()
    assert (about["data"], about["seed"], about["partition"]) == ("shapes", 3, "iid")
    assert (about["feature_shape"], about["class_names"]) == ([1, 4, 4], ["disc", "ring"])
    assert (about["global_test"], about["validation"], about["contact_sheet"]) == (10, None, None)
    assert not list(Path.cwd().iterdir())


def test_describe_as_text(command: Command) -> None:
    said = command("describe dirty-digits")
    federation = udjfl.load("dirty-digits")
    assert said.code == 0
    assert federation.fingerprint in said.out
    shown = " ".join(said.out.split())
    for words in (
        "dirty-digits, seed 0",
        "5, shards, 1,600 train",
        "1x8x8",
        "300 clean",
        "497 examples",
    ):
        assert words in shown
    for client in federation.describe():
        share = f"{100 * client['ambiguous_share']:.1f}%"
        assert f"{client['id']} {client['train']} {client['test']} {share}" in shown
    zeros = " ".join(str(client["class_counts"][0]) for client in federation.describe())
    assert f"0 {zeros} 1 " in shown


@pytest.mark.parametrize(("clients", "corner"), [(4, "Class"), (11, None)])
def test_counts_as_they_fit(command: Command, clients: int, corner: str | None) -> None:
    said = command(f"describe table --clients {clients}")
    if corner is None:  # 11 clients and 12 classes
        assert "`--json` has them all" in said.out
    else:
        assert re.search(rf"^{corner} +client-1 ", said.out, re.MULTILINE)
        assert re.search(r"^kind-11 +\d", said.out, re.MULTILINE)
    assert " –" in said.out  # nobody knows which examples are ambiguous
    assert "none" in said.out  # no validation set


def test_many_clients_are_rows(command: Command) -> None:
    said = command("describe shapes --clients 12 --partition iid")
    assert re.search(r"^Client +disc +ring", said.out, re.MULTILINE)


def test_every_mistake_at_once(command: Command, tmp_path: Path) -> None:
    flags = "--seed -1 --clients many --partition shrads --contact-sheet picture.jpg --data-root"
    found = mistakes_of(command("describe signs:levl=3", flags, tmp_path / "none"))
    for says in (
        "seed: ",
        "clients: ",
        "'shards'",
        "levl: no such setting. Did you mean 'level'?",
        "data_root: ",
        ".png",
    ):
        assert sum(says in line for line in found) == 1, (says, found)
    assert len(found) == 6
    (line,) = mistakes_of(command("describe shaps"))
    assert "Did you mean 'shapes'?" in line


def test_a_source_without_its_files(command: Command) -> None:
    (line,) = mistakes_of(command("describe heart"))
    assert "udjfl data prepare heart" in line


# --- the contact sheet -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "file"),
    [
        ("--contact-sheet", "shapes-contact-sheet.png"),
        ("--contact-sheet --json", "shapes-contact-sheet.png"),
        ("--contact-sheet mine.PNG", "mine.PNG"),
        ("--contact-sheet ..", "../shapes-contact-sheet.png"),
    ],
)
def test_contact_sheet(command: Command, flag: str, file: str) -> None:
    said = command("describe shapes", flag)
    assert said.code == 0
    assert said.err == f"drawn in {file}\n"
    with Image.open(file) as opened:
        assert opened.format == "PNG"
    if "--json" in flag:
        assert json.loads(said.out)["contact_sheet"] == file
    assert [path.name for path in Path(file).parent.iterdir() if path.is_file()] == [
        Path(file).name
    ]


def test_a_contact_sheet_is_drawn_over_an_older_one(command: Command) -> None:
    Path("sheet.png").write_text("old")
    assert command("describe shapes --contact-sheet sheet.png").code == 0
    first = Path("sheet.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    command("describe shapes --contact-sheet sheet.png")
    assert Path("sheet.png").read_bytes() == first
    command("describe shapes --contact-sheet sheet.png --seed 1")
    assert Path("sheet.png").read_bytes() != first


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("table --contact-sheet sheet.png", "contact_sheet: the examples of table are not images"),
        ("shapes --contact-sheet sheet.gif", "contact_sheet: sheet.gif is no .png file"),
        ("shapes --contact-sheet no/such/sheet.png", "contact_sheet: there is no folder no/such"),
    ],
)
def test_no_contact_sheet(command: Command, arguments: str, says: str) -> None:
    (line,) = mistakes_of(command("describe", arguments))
    assert says in line
    assert not list(Path.cwd().iterdir())


def test_a_contact_sheet_that_cannot_be_written(command: Command) -> None:
    Path("sheet.png").write_text("old")
    Path("sheet.png.part").mkdir()  # what is written to first
    (line,) = mistakes_of(command("describe shapes --contact-sheet sheet.png"))
    assert line.startswith("contact_sheet: cannot write sheet.png: ")
    assert "--out" not in line
    assert Path("sheet.png").read_text() == "old"


# --- prepare -----------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Preparation]:
    """What the source `remote` was asked to prepare; it pretends to fetch a file and to read pictures."""
    preparations: list[Preparation] = []

    def prepare(preparation: Preparation) -> list[str]:
        preparations.append(preparation)
        for done in (0, 100_000, 600_000, 2_000_000):
            preparation.progress("signs.zip", done, 2_000_000)
        preparation.progress("unknown.zip", 700, 0)
        for done in range(201):
            preparation.progress("pictures", done * 100, 20_000)
        return ["signs: /there", "20,000 pictures"]

    source = Source("remote", "far away", "Wait", shapes, prepare=prepare, regenerates=True)
    monkeypatch.setitem(SOURCES, "remote", source)
    return preparations


def test_prepare_tells_what_it_did(
    command: Command, asked: list[Preparation], tmp_path: Path
) -> None:
    said = command("prepare remote --data-root", tmp_path)
    assert (said.code, said.out) == (0, "signs: /there\n20,000 pictures\n")
    assert said.err.splitlines() == [
        "signs.zip: 600.0 kB of 2.0 MB",  # a line for each quarter that was reached
        "signs.zip: 2.0 MB of 2.0 MB",
        "pictures: 5,000 of 20,000",
        "pictures: 10,000 of 20,000",
        "pictures: 15,000 of 20,000",
        "pictures: 20,000 of 20,000",
    ]
    (preparation,) = asked
    assert (preparation.request.root, preparation.request.cache) == (tmp_path, tmp_path / "cache")
    assert preparation.regenerate is False


def test_prepare_shows_bars_on_a_terminal(
    command: Command, asked: list[Preparation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = command("prepare remote")
    shown = Text.from_ansi(said.err).plain
    for words in ("2.0 MB of 2.0 MB", "700 bytes", "20,000 of 20,000"):
        assert words in shown
    assert said.out == "signs: /there\n20,000 pictures\n"


def test_regenerate_is_passed_on(command: Command, asked: list[Preparation]) -> None:
    assert command("prepare remote --regenerate").code == 0
    assert [preparation.regenerate for preparation in asked] == [True]


def test_nothing_to_prepare(command: Command) -> None:
    said = command("prepare shapes")
    assert (said.code, said.out, said.err) == (0, "shapes: nothing to prepare. Draw some\n", "")


@pytest.mark.parametrize("name", ["shapes", "dirty-digits", "heart", "signs", "cure-tsr"])
def test_nothing_to_regenerate(command: Command, name: str) -> None:
    (line,) = mistakes_of(command("prepare", name, "--regenerate"))
    assert line == f"regenerate: {name} has nothing that could be made; leave it out"


def test_mistakes_in_what_to_prepare(command: Command, tmp_path: Path) -> None:
    found = mistakes_of(command("prepare signs:levl=2 --regenerate --data-root", tmp_path / "none"))
    assert [line.partition(":")[0] for line in found] == ["levl", "data_root", "regenerate"]
    (line,) = mistakes_of(command("prepare hart"))
    assert "Did you mean 'heart'?" in line


@pytest.mark.parametrize(
    ("raised", "code"), [(KeyboardInterrupt(), 130), (DataError("no connection\ntry again"), 2)]
)
def test_prepare_that_ends_early(
    command: Command, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int
) -> None:
    def prepare(preparation: Preparation) -> list[str]:
        preparation.progress("signs.zip", 1, 2)
        raise raised

    monkeypatch.setitem(SOURCES, "remote", Source("remote", "far", "Wait", shapes, prepare=prepare))
    for terminal in (False, True):
        if terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")
        said = command("prepare remote")
        assert (said.code, said.out) == (code, "")
        last = (
            "udjfl: stopped; a download goes on where it was with the same command"
            if code == 130
            else "udjfl: try again"
        )
        assert said.err.endswith(f"{last}\n")
        assert "Traceback" not in said.err
