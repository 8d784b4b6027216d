"""`udjfl reproduce`: what it prints where, what it keeps, and what it says about mistakes."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from udjfl.cli import main as cli
from udjfl.cli import paper as reproduce_commands
from udjfl.cli.options import progress_shown
from udjfl.engine import StackedEngine
from udjfl.methods import method
from udjfl.paper import run as running
from udjfl.paper import search
from udjfl.paper.claims import RESULTS_CLAIMS
from udjfl.paper.search import Range
from udjfl.settings import ReproduceSettings

SMALL = "--data dirty-digits --rounds 3 --epochs 2 --seeds 2 --workers 1"
TABLES = ("results", "solo", "distributions")


class Said(NamedTuple):
    code: object
    out: str
    err: str


def call(*arguments: str | Path) -> Said:
    """Calls the command; a text is several words."""
    words = [
        word
        for given in arguments
        for word in (given.split() if isinstance(given, str) else [str(given)])
    ]
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["udjfl", "reproduce", *words])
        for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "UDJFL_DATA"):
            patch.delenv(name, raising=False)
        try:
            cli.main()
        except SystemExit as left:
            code = left.code or 0
    return Said(code, out.getvalue(), err.getvalue())


class Kept(NamedTuple):
    """All three tables, made once into one folder; what was said first, with --json, and then, without."""

    folder: Path
    first: dict[str, Said]
    again: dict[str, Said]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    folder = tmp_path_factory.mktemp("kept") / "out"
    first = {table: call(table, SMALL, "--json --out", folder) for table in TABLES}
    with pytest.MonkeyPatch.context() as patch:  # so whatever is trained again fails
        patch.setattr(StackedEngine, "train", None)
        patch.setattr(StackedEngine, "train_many", None)
        again = {table: call(table, SMALL, "--out", folder) for table in TABLES}
    return Kept(folder, first, again)


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UDJFL_CACHE", str(tmp_path / "cache"))


def mistakes_of(said: Said) -> list[str]:
    assert said.code == 2
    assert said.out == ""
    assert all(line.startswith("udjfl: ") for line in said.err.splitlines()), said.err
    return [line.removeprefix("udjfl: ") for line in said.err.splitlines()]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# Help ----------------------------------------------------------------------------------------------------------------


def test_help_of_the_group() -> None:
    said = call("--help")
    assert said.code == 0
    for name in (*TABLES, "search"):
        assert f"  {name} " in said.out


@pytest.mark.parametrize("name", [*TABLES, "search"])
def test_every_setting_has_a_flag(name: str) -> None:
    said = call(name, "--help")
    assert said.code == 0
    for field in ReproduceSettings.model_fields:
        assert f"--{field.replace('_', '-')} " in said.out
    for flag in ("--config", "--quick", "--out", "--json"):
        assert flag in said.out


# What is printed and kept --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_json_has_the_table_and_verdicts(kept: Kept, table: str) -> None:
    assert kept.first[table].code == 0
    document = json.loads(kept.first[table].out)
    assert (document["table"], document["data"], document["profile"], document["seeds"]) == (
        table,
        "dirty-digits",
        "paper",
        [0, 1],
    )
    assert len(document["rows"]) == {"results": 20, "solo": 5, "distributions": 3}[table]
    assert document["epochs" if table == "solo" else "rounds"] == (2 if table == "solo" else 3)
    outcomes = {"holds", "does not hold", "not decidable at this number of seeds", "not tested"}
    assert document["verdicts"]
    assert {verdict["outcome"] for verdict in document["verdicts"]} <= outcomes


def test_no_claim_about_one_data_set_is_tested_on_others(kept: Kept) -> None:
    verdicts = json.loads(kept.first["results"].out)["verdicts"]
    expected = [claim.id for claim in RESULTS_CLAIMS if claim.data in (None, "dirty-mnist")]
    assert [verdict["id"] for verdict in verdicts] == expected


@pytest.mark.parametrize("table", TABLES)
def test_what_is_kept(kept: Kept, table: str) -> None:
    folder, said = kept.folder, kept.first[table]
    assert said.err.endswith(
        f"kept in {folder}: {table}.md, .csv, -seeds.csv, .tex and .json, and the runs\n"
    )
    assert (folder / f"{table}.json").read_text() == said.out
    assert (folder / f"{table}.md").read_text().startswith("### ")
    assert "\\begin{tab" in (folder / f"{table}.tex").read_text()

    document = json.loads(said.out)
    means = {(row["row"], row["metric"]): row for row in rows_of(folder / f"{table}.csv")}
    assert len(means) == sum(len(row["metrics"]) for row in document["rows"])
    seeds = rows_of(folder / f"{table}-seeds.csv")
    for row in document["rows"]:
        for metric, cell in row["metrics"].items():
            written = means[row["label"], metric]
            assert float(written["mean"]) == cell["mean"]
            assert [float(written["low"]), float(written["high"])] == cell["ci95"]
            by_seed = [
                line for line in seeds if (line["row"], line["metric"]) == (row["label"], metric)
            ]
            assert [line["seed"] for line in by_seed] == ["0", "1"]
            assert [float(line["value"]) for line in by_seed] == cell["values"]


@pytest.mark.parametrize("table", TABLES)
def test_as_text(kept: Kept, table: str) -> None:
    said = kept.again[table]
    assert "dirty-digits" in said.out.splitlines()[0]
    assert "What the paper says of this table, tested on ours" in said.out
    assert "\x1b" not in said.out + said.err
    assert "…" not in said.out


@pytest.mark.parametrize("table", TABLES)
def test_one_folder_holds_all_tables_and_goes_on_with_each(kept: Kept, table: str) -> None:
    """The second time nothing could be trained, and the same was found."""
    assert (kept.first[table].code, kept.again[table].code) == (0, 0)
    assert " done" in kept.first[table].err
    assert " done" not in kept.again[table].err
    assert (kept.folder / f"{table}.json").read_text() == kept.first[table].out


@pytest.mark.parametrize(
    ("table", "flag"),
    [("results", "--rounds 4"), ("solo", "--epochs 3"), ("distributions", "--rounds 4")],
)
def test_a_folder_of_other_settings_is_refused(kept: Kept, table: str, flag: str) -> None:
    before = (kept.folder / f"{table}.csv").read_bytes()
    (line,) = mistakes_of(call(table, SMALL, flag, "--out", kept.folder))
    assert "was started with other settings" in line
    assert (kept.folder / f"{table}.csv").read_bytes() == before


def test_a_line_for_what_is_done(tmp_path: Path) -> None:
    said = call("solo --data dirty-digits --epochs 1 --seeds 2 --workers 1 --out", tmp_path / "out")
    assert said.err.splitlines()[:-1] == [
        "seed 0: each client alone done",
        "seed 1: each client alone done",
    ]


def test_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    candidates = (method("term", t=0.01), method("term", t=0.5))
    monkeypatch.setattr(
        search,
        "ranges",
        lambda profile: [Range("egalitarian", "TERM", "t", candidates, (0.01, 0.5))],
    )
    said = call(
        "search --data dirty-digits --rounds 1 --epochs 1 --seeds 2 --workers 1 --json --out",
        tmp_path,
    )
    assert said.code == 0, said.err
    document = json.loads(said.out)
    (found,) = document["found"]
    assert (found["theory"], found["method"], found["metric"]) == ("egalitarian", "TERM", "std")
    assert [(one["lr"], one["t"]) for one in found["tried"]] == [
        (0.1, 0.01),
        (0.1, 0.5),
        (0.01, 0.01),
        (0.01, 0.5),
        (0.001, 0.01),
        (0.001, 0.5),
    ]
    best = min(found["tried"], key=lambda one: one["mean"])
    assert found["chosen"] == {"lr": best["lr"], "t": best["t"]}
    assert len(found["test"]["std"]["values"]) == 2
    assert json.loads((tmp_path / "search.json").read_text()) == document
    assert f"| {best['mean']:.2f} ±" in (tmp_path / "search.md").read_text()
    lines = said.err.splitlines()
    assert "seed 1: learning rate 0.001, TERM (t=0.01) done, 1 rounds" in lines
    assert lines[-1] == f"kept in {tmp_path}: search.md and .json, and the runs"


# Settings ------------------------------------------------------------------------------------------------------------


class _Enough(Exception):
    """Instead of training."""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ReproduceSettings]]:
    """The settings that a command comes to; nothing is trained."""
    taken: list[ReproduceSettings] = []

    def take(settings: ReproduceSettings, *_: Any) -> Any:
        taken.append(settings)
        raise _Enough

    for name in TABLES:
        monkeypatch.setattr(running, name, take)
    monkeypatch.setattr(search, "search", take)

    def settings_of(*arguments: str | Path) -> ReproduceSettings:
        with pytest.raises(_Enough):
            call(*arguments)
        return taken.pop()

    yield settings_of
    assert not taken


@pytest.mark.parametrize("name", [*TABLES, "search"])
def test_quick_unless_given(given: Callable[..., ReproduceSettings], name: str) -> None:
    assert given(name) == ReproduceSettings()
    quick = given(name, "--quick")
    assert quick == ReproduceSettings(rounds=10, epochs=10, seeds=[0, 1])
    assert given(name, "--quick --rounds 4") == quick.model_copy(update={"rounds": 4})
    assert given(name, "--quick --epochs 5 --seeds 3,7") == quick.model_copy(
        update={"epochs": 5, "seeds": [3, 7]}
    )


def test_what_quick_says_is_what_it_does() -> None:
    help_text = reproduce_commands.Quick.__metadata__[0].help
    assert reproduce_commands.QUICK == {"rounds": 10, "epochs": 10, "seeds": 2}
    assert "10 rounds, 10 epochs, 2 seeds" in help_text


def test_config_and_flags(given: Callable[..., ReproduceSettings], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('data = "dirty-digits"\nprofile = "authors"\nrounds = 7\nseeds = [2, 4]\n')
    from_file = ReproduceSettings(data="dirty-digits", profile="authors", rounds=7, seeds=[2, 4])
    assert given("results --config", file) == from_file
    assert given("results --rounds 8 --config", file) == from_file.model_copy(update={"rounds": 8})
    # The file says more than a look in minutes does, flags more than the file.
    assert given("results --quick --rounds 9 --config", file) == from_file.model_copy(
        update={"rounds": 9, "epochs": 10}
    )


def test_every_experiment_file_can_be_read(given: Callable[..., ReproduceSettings]) -> None:
    files = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))
    assert files
    for file in files:
        table = next(name for name in TABLES if file.stem.startswith(name))
        assert given(table, "--config", file).profile in ("paper", "authors")


@pytest.mark.parametrize("name", [*TABLES, "search"])
def test_all_mistakes_at_once(name: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("epochs = 0\nroundz = 3\n")
    flags = "--data dirty-digit --profile papers --rounds many --seeds 1,1 --model mpl --config"
    found = mistakes_of(call(name, flags, file))
    for says in (
        "data 'dirty-digit' is unknown. Did you mean 'dirty-digits'?",
        "profile: unknown value 'papers'. Did you mean 'paper'?",
        "rounds: ",
        "epochs: ",
        "seeds: give each seed once",
        "roundz: no such setting. Did you mean 'rounds'?",
        "'mpl'",
    ):
        assert sum(says in line for line in found) == 1, (says, found)
    assert len(found) == 7


@pytest.mark.parametrize("name", ["solo", "distributions"])
def test_heart_has_no_shards(name: str) -> None:
    (line,) = mistakes_of(call(name, "--data heart"))
    assert "shards; heart has none, use dirty-mnist, cure-tsr, signs, dirty-digits" in line


@pytest.mark.parametrize("name", ["results", "search"])
def test_data_without_their_files(name: str) -> None:
    (line,) = mistakes_of(call(name, "--data heart --quick"))
    assert "udjfl data prepare heart" in line


def test_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "solo", stop)
    said = call("solo", SMALL)
    assert (said.code, said.out) == (130, "")
    assert said.err.endswith(
        "udjfl: stopped; with --out it goes on where it was with the same command\n"
    )


# The bar -------------------------------------------------------------------------------------------------------------


class Bar:
    """In place of rich's: what it would show."""

    shown: dict[str, Any]
    columns: tuple[Any, ...]

    def __init__(self, *columns: Any, **_: Any) -> None:
        Bar.columns = columns

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add_task(self, description: str, total: int) -> int:
        Bar.shown = {"description": description, "total": total, "completed": 0}
        return 0

    def update(self, _: int, **changes: Any) -> None:
        Bar.shown |= changes


@pytest.fixture
def _a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("rich.progress.Progress", Bar)


@pytest.mark.usefixtures("_a_bar")
def test_a_bar_adds_up_methods_side_by_side() -> None:
    """Two methods and two seeds of 10 rounds each: 40."""
    with progress_shown(4, 10) as tell:
        assert (Bar.shown["completed"], Bar.shown["total"]) == (0, 40)
        for label, seed, done, so_far in [
            ("a", 0, 1, 1),
            ("b", 0, 1, 2),
            ("a", 0, 2, 3),
            ("a", 1, 5, 8),
            ("b", 0, 10, 17),
        ]:
            tell(label, seed, "training", done, 10)
            assert Bar.shown["completed"] == so_far
        tell("a", 0, "uncertainty", 3, 5)
        assert (Bar.shown["completed"], Bar.shown["description"]) == (
            17,
            "seed 0: each client alone, 3/5",
        )
        tell("b", 1, "resumed", 7, 10)  # from where it was
        tell("b", 1, "training", 8, 10)
        assert (Bar.shown["completed"], Bar.shown["total"]) == (25, 40)
        assert Bar.shown["description"].strip() == "seed 1: b"


@pytest.mark.usefixtures("_a_bar")
def test_a_bar_makes_room_for_runs_nobody_knew_of() -> None:
    """As the tests at the end of a search."""
    with progress_shown(1, 10) as tell:
        tell("a", 0, "training", 10, 10)
        assert (Bar.shown["completed"], Bar.shown["total"]) == (10, 10)
        tell("test, a", 0, "training", 3, 10)
        assert (Bar.shown["completed"], Bar.shown["total"]) == (13, 20)


@pytest.mark.usefixtures("_a_bar")
def test_a_bar_says_what_it_counts() -> None:
    with progress_shown(2, 1, "seeds") as tell:
        tell("each client alone", 0, "resumed", 1, 1)
        tell("each client alone", 1, "alone", 1, 1)
    assert (Bar.shown["completed"], Bar.shown["total"]) == (2, 2)
    assert "seeds" in [getattr(column, "text_format", None) for column in Bar.columns]


def test_without_a_terminal_a_line_for_each_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with progress_shown(2, 2) as tell:
        for stage, done in (("uncertainty", 5), ("resumed", 1), ("training", 1), ("training", 2)):
            tell("a", 0, stage, done, 2)
        tell("each client alone", 3, "alone", 1, 1)
    assert capsys.readouterr().err.splitlines() == [
        "seed 0: a done, 2 rounds",
        "seed 3: each client alone done",
    ]
