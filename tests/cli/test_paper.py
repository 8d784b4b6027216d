"""`udjfl reproduce`: its output, its files, and its error messages."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

from udjfl.cli import main as cli
from udjfl.cli import options
from udjfl.engine import StackedEngine
from udjfl.methods import method
from udjfl.paper import run as running
from udjfl.paper import search, search_choice
from udjfl.paper.claims import RESULTS_CLAIMS
from udjfl.paper.search_choice import SearchRange
from udjfl.paper.settings import ReproduceSettings

SMALL = "--data dirty-digits --rounds 3 --epochs 2 --seeds 2 --workers 1"
TABLES = ("results", "solo", "distributions")


class CommandOutput(NamedTuple):
    code: object
    out: str
    err: str


def call(*arguments: str | Path) -> CommandOutput:
    """Call the command. Texts are split into words."""
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
        except SystemExit as exit_:
            code = exit_.code or 0
    return CommandOutput(code, out.getvalue(), err.getvalue())


class Outputs(NamedTuple):
    """All three tables in one folder, made twice: first with --json, then without."""

    folder: Path
    first: dict[str, CommandOutput]
    again: dict[str, CommandOutput]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    folder = tmp_path_factory.mktemp("outputs") / "out"
    first = {table: call(table, SMALL, "--json --out", folder) for table in TABLES}
    with pytest.MonkeyPatch.context() as patch:  # training again would fail
        patch.setattr(StackedEngine, "train", None)
        patch.setattr(StackedEngine, "train_many", None)
        again = {table: call(table, SMALL, "--out", folder) for table in TABLES}
    return Outputs(folder, first, again)


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UDJFL_CACHE", str(tmp_path / "cache"))


def error_lines(output: CommandOutput) -> list[str]:
    assert output.code == 2
    assert output.out == ""
    assert all(line.startswith("udjfl: ") for line in output.err.splitlines()), output.err
    return [line.removeprefix("udjfl: ") for line in output.err.splitlines()]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --- Help ---


def test_help_of_the_group() -> None:
    output = call("--help")
    assert output.code == 0
    for name in (*TABLES, "search"):
        assert f"  {name} " in output.out


@pytest.mark.parametrize("name", [*TABLES, "search"])
def test_every_setting_has_a_flag(name: str) -> None:
    output = call(name, "--help")
    assert output.code == 0
    for field in ReproduceSettings.model_fields:
        assert f"--{field.replace('_', '-')} " in output.out
    for flag in ("--config", "--quick", "--out", "--json"):
        assert flag in output.out


# --- Output and files ---


@pytest.mark.parametrize("table", TABLES)
def test_json_has_the_table_and_verdicts(outputs: Outputs, table: str) -> None:
    assert outputs.first[table].code == 0
    document = json.loads(outputs.first[table].out)
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


def test_no_claim_about_one_data_set_is_tested_on_others(outputs: Outputs) -> None:
    verdicts = json.loads(outputs.first["results"].out)["verdicts"]
    expected = [claim.id for claim in RESULTS_CLAIMS if claim.data in (None, "dirty-mnist")]
    assert [verdict["id"] for verdict in verdicts] == expected


@pytest.mark.parametrize("table", TABLES)
def test_files_in_every_format(outputs: Outputs, table: str) -> None:
    folder, output = outputs.folder, outputs.first[table]
    assert output.err.endswith(
        f"kept in `{folder}`: {table}.md, .csv, -seeds.csv, .tex and .json, and the runs\n"
    )
    assert (folder / f"{table}.json").read_text() == output.out
    assert (folder / f"{table}.md").read_text().startswith("### ")
    assert "\\begin{tab" in (folder / f"{table}.tex").read_text()

    document = json.loads(output.out)
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
def test_the_table_as_text(outputs: Outputs, table: str) -> None:
    output = outputs.again[table]
    assert "dirty-digits" in output.out.splitlines()[0]
    assert "What the paper says of this table, tested on ours" in output.out
    assert "\x1b" not in output.out + output.err
    assert "…" not in output.out


@pytest.mark.parametrize("table", TABLES)
def test_one_folder_holds_all_tables_and_each_resumes(outputs: Outputs, table: str) -> None:
    """The second call cannot train, and gives the same table."""
    assert (outputs.first[table].code, outputs.again[table].code) == (0, 0)
    assert " done" in outputs.first[table].err
    assert " done" not in outputs.again[table].err
    assert (outputs.folder / f"{table}.json").read_text() == outputs.first[table].out


@pytest.mark.parametrize(
    ("table", "flag"),
    [("results", "--rounds 4"), ("solo", "--epochs 3"), ("distributions", "--rounds 4")],
)
def test_a_folder_of_other_settings_is_refused(outputs: Outputs, table: str, flag: str) -> None:
    before = (outputs.folder / f"{table}.csv").read_bytes()
    (line,) = error_lines(call(table, SMALL, flag, "--out", outputs.folder))
    assert "was started with other settings" in line
    assert (outputs.folder / f"{table}.csv").read_bytes() == before


def test_a_line_for_each_finished_seed(tmp_path: Path) -> None:
    output = call(
        "solo --data dirty-digits --epochs 1 --seeds 2 --workers 1 --out", tmp_path / "out"
    )
    assert output.err.splitlines()[:-1] == [
        "seed 0: each client alone done",
        "seed 1: each client alone done",
    ]


def test_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    candidates = (method("term", t=0.01), method("term", t=0.5))
    searched = SearchRange("egalitarian", "TERM", "t", candidates, (0.01, 0.5))
    for module in (search, search_choice):
        monkeypatch.setattr(module, "search_ranges", lambda profile: [searched])
    output = call(
        "search --data dirty-digits --rounds 1 --epochs 1 --seeds 2 --workers 1 --json --out",
        tmp_path,
    )
    assert output.code == 0, output.err
    document = json.loads(output.out)
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
    near = [one for one in found["tried"] if one["left_out"] is None]
    best = min(near, key=lambda one: one["mean"])
    assert found["chosen"] == {"lr": best["lr"], "t": best["t"]}
    assert len(found["test"]["std"]["values"]) == 2
    assert json.loads((tmp_path / "search.json").read_text()) == document
    assert f"| {best['mean']:.2f} ±" in (tmp_path / "search.md").read_text()
    lines = output.err.splitlines()
    assert "seed 1: learning rate 0.001, TERM (t=0.01) done, 1 rounds" in lines
    assert lines[-1] == (
        f"kept in `{tmp_path}`: search.md, .csv, -seeds.csv and .json, and the runs"
    )
    assert [verdict["id"] for verdict in document["verdicts"]][:1] == ["rate-best"]
    assert "TERM: t=0.5, rate 0.01" in (tmp_path / "search-seeds.csv").read_text()


# --- Settings ---


class _Enough(BaseException):
    """Raised instead of training; no error, which the command would tell in words."""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ReproduceSettings]]:
    """A function that returns the settings of a command; nothing is trained."""
    taken: list[ReproduceSettings] = []

    def take(settings: ReproduceSettings, *_: Any) -> Any:
        taken.append(settings)
        raise _Enough

    for name in TABLES:
        monkeypatch.setattr(running, f"reproduce_{name}", take)
    monkeypatch.setattr(search, "search_parameters", take)

    def settings_of(*arguments: str | Path) -> ReproduceSettings:
        with pytest.raises(_Enough):
            call(*arguments)
        return taken.pop()

    yield settings_of
    assert not taken


@pytest.mark.parametrize("name", [*TABLES, "search"])
def test_quick_sets_defaults(given: Callable[..., ReproduceSettings], name: str) -> None:
    assert given(name) == ReproduceSettings()
    quick = given(name, "--quick")
    assert quick == ReproduceSettings(rounds=10, epochs=10, seeds=[0, 1])
    assert given(name, "--quick --rounds 4") == quick.model_copy(update={"rounds": 4})
    assert given(name, "--quick --epochs 5 --seeds 3,7") == quick.model_copy(
        update={"epochs": 5, "seeds": [3, 7]}
    )


def test_the_help_of_quick_has_its_values() -> None:
    help_text = get_args(options.Quick)[1].help
    assert options.QUICK == {"rounds": 10, "epochs": 10, "seeds": 2}
    assert "10 rounds, 10 epochs, 2 seeds" in help_text


def test_config_and_flags(given: Callable[..., ReproduceSettings], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('data = "dirty-digits"\nprofile = "authors"\nrounds = 7\nseeds = [2, 4]\n')
    from_file = ReproduceSettings(data="dirty-digits", profile="authors", rounds=7, seeds=[2, 4])
    assert given("results --config", file) == from_file
    assert given("results --rounds 8 --config", file) == from_file.model_copy(update={"rounds": 8})
    # The file wins over --quick, and flags win over the file.
    assert given("results --quick --rounds 9 --config", file) == from_file.model_copy(
        update={"rounds": 9, "epochs": 10}
    )


def test_every_experiment_file_can_be_read(given: Callable[..., ReproduceSettings]) -> None:
    files = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))
    assert files
    for file in files:
        table = next(name for name in (*TABLES, "search") if file.stem.startswith(name))
        assert given(table, "--config", file).profile in ("paper", "authors")


@pytest.mark.parametrize("name", [*TABLES, "search"])
def test_all_errors_are_reported_at_once(name: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("epochs = 0\nroundz = 3\n")
    flags = "--data dirty-digit --profile papers --rounds many --seeds 1,1 --model mpl --config"
    found = error_lines(call(name, flags, file))
    for message in (
        "data: unknown name 'dirty-digit'. Did you mean 'dirty-digits'?",
        "profile: unknown value 'papers'. Did you mean 'paper'?",
        "rounds: ",
        "epochs: ",
        "seeds: give each seed once",
        "roundz: no such setting. Did you mean 'rounds'?",
        "'mpl'",
    ):
        assert sum(message in line for line in found) == 1, (message, found)
    assert len(found) == 7


@pytest.mark.parametrize("name", ["solo", "distributions"])
def test_heart_has_no_shards(name: str) -> None:
    (line,) = error_lines(call(name, "--data heart"))
    assert "shards; heart has none, use dirty-mnist, cure-tsr, signs, dirty-digits" in line


@pytest.mark.parametrize("name", ["results", "search"])
def test_missing_files_of_data_are_named(name: str) -> None:
    (line,) = error_lines(call(name, "--data heart --quick"))
    assert "udjfl data prepare heart" in line


def test_an_interrupted_command_tells_how_to_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "reproduce_solo", stop)
    output = call("solo", SMALL)
    assert (output.code, output.out) == (130, "")
    assert output.err.endswith(
        "udjfl: stopped; nothing was kept (give --out FOLDER to be able to continue)\n"
    )


# --- Progress ---
