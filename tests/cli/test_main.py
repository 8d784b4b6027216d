"""The command line: what it prints where, and what it says about mistakes."""

from __future__ import annotations

import importlib.metadata
import io
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import make_federation, tiny_pools
from rich.console import Console
from rich.text import Text
from typer.main import get_group

import udjfl
from udjfl.cli import main as cli
from udjfl.cli import run as commands
from udjfl.data import SOURCES, Pools, Source
from udjfl.data.source import Request
from udjfl.methods import METHODS
from udjfl.metrics import METRICS
from udjfl.report.comparison_table import comparison_view, result_view
from udjfl.settings import CompareSettings, RunSettings, Settings
from udjfl.simulation import simulate as simulation
from udjfl.simulation.compare import chosen_methods
from udjfl.simulation.oneseed import folder_name

SMALL = "--data tiny --clients 2 --model logistic --rounds 3 --uncertainty-epochs 1"
METRIC_KEYS = [metric.key for metric in METRICS]


class Said(NamedTuple):
    code: object
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()


class Command:
    """Calls the command in this process, with its data source small and its streams caught."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: str | Path) -> Said:
        """Texts are cut at blanks, as a shell does; paths are not."""
        words = [
            word
            for given in arguments
            for word in (given.split() if isinstance(given, str) else [str(given)])
        ]
        self.monkeypatch.setattr(sys, "argv", ["udjfl", *words])
        self.capsys.readouterr()
        code: object = 0
        try:
            cli.main()
        except SystemExit as left:
            code = left.code or 0
        return Said(code, *self.capsys.readouterr())


@pytest.fixture
def udjfl_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_source: str
) -> Command:
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Command(monkeypatch, capsys)


def mistakes_of(said: Said) -> list[str]:
    """The lines on standard error of a command that found mistakes: each starts with the program's name."""
    assert said.code == 2
    assert said.out == ""
    assert all(line.startswith("udjfl: ") for line in said.lines), said.err
    return [line.removeprefix("udjfl: ") for line in said.lines]


# --- help --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "kind"), [("run", RunSettings), ("compare", CompareSettings)])
@pytest.mark.parametrize("columns", ["80", "120"])
def test_help_lists_every_setting_with_its_default(
    udjfl_command: Command,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    kind: type[Settings],
    columns: str,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    said = udjfl_command(command, "--help")
    assert said.code == 0
    shown = re.sub(r"[\s│]+", "", said.out)  # words may be broken across lines, but never cut off
    for name, about in kind.model_fields.items():
        flag = "--param" if name == "params" else "--" + name.replace("_", "-")
        assert flag in said.out, name
        if name != "params":
            default = (
                ",".join(map(str, about.default))
                if isinstance(about.default, list)
                else str(about.default)
            )
            if about.default is None:  # as the data have it: what that is, the description says
                default = (about.description or "").partition("default: ")[2].replace(" ", "")
                assert default, name
            assert f"default:{default}" in shown, name
            assert re.sub(r"\s+", "", about.description or "") in shown, name
    for flag in ("--config", "--out", "--json", "-p"):
        assert flag in said.out
    assert "…" not in said.out
    assert all(len(line) <= int(columns) for line in said.out.splitlines())


def test_help_shows_what_can_be_chosen(udjfl_command: Command) -> None:
    shown = re.sub(r"\s+", " ", udjfl_command("run --help").out)
    for choices in (
        ("received", "running", "final"),
        ("fail", "exclude"),
        ("auto", "serial", "stacked", "mapped"),
    ):
        assert all(choice in shown for choice in choices)


@pytest.mark.parametrize("command", ["resume", "methods"])
def test_help_of_the_small_commands(udjfl_command: Command, command: str) -> None:
    for flag in ("--help", "-h"):
        said = udjfl_command(command, flag)
        assert said.code == 0
        assert "--json" in said.out


def test_without_a_command_it_shows_help(udjfl_command: Command) -> None:
    said = udjfl_command()
    for command in ("run", "compare", "resume", "methods"):
        assert re.search(rf"\b{command}\b", said.out + said.err)
    assert udjfl_command("-h").code == 0


def test_the_front_page_lists_every_command_in_one_line(udjfl_command: Command) -> None:
    assert list(cli.COMMANDS) == list(get_group(commands.app).commands)
    shown = udjfl_command("--help").out
    assert all(
        re.search(rf"^  {name} +{re.escape(line)}$", shown, re.MULTILINE)
        for name, line in cli.COMMANDS.items()
    )


def imported_by(arguments: str) -> set[str]:
    """The packages that a command imports in a process of its own, from Python's own account of them."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "udjfl.cli.main", *arguments.split()],
        capture_output=True,
        text=True,
    )
    modules = [
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    ]
    assert "udjfl.errors" in modules
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("arguments", ["", "--help", "--version"])
def test_the_front_page_waits_for_no_library_but_its_own(arguments: str) -> None:
    assert not imported_by(arguments) & {
        "torch",
        "numpy",
        "scipy",
        "sklearn",
        "safetensors",
        "pydantic",
        "rich",
    }


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_a_command_waits_for_its_settings_alone(command: str) -> None:
    # Some versions of typer load rich to write "required" beside an argument.
    assert not imported_by(f"{command} --help") & {
        "torch",
        "numpy",
        "scipy",
        "sklearn",
        "safetensors",
    }


# --- what is printed ---------------------------------------------------------------------------------------------


def test_run_shows_metrics_and_clients(udjfl_command: Command) -> None:
    said = udjfl_command("run", SMALL, "--method rawls --seed 2")
    assert said.code == 0
    assert "seed 2" in said.out
    for metric in METRICS:
        assert (metric.title in said.out) == (
            metric.key != "psi"
        )  # there is no reference in a single run
    for client in ("client-1", "client-2"):
        assert re.search(rf"{client} +\d\.\d{{4}} +\d+\.\d\d", said.out)
    assert "\x1b" not in said.out + said.err


def test_run_json_is_one_document_and_nothing_else(udjfl_command: Command, tmp_path: Path) -> None:
    said = udjfl_command("run", SMALL, "--method rawls --json --out", tmp_path / "run")
    document = json.loads(said.out)
    assert said.out.endswith("}\n")
    assert (document["method"], document["theory"], document["seed"]) == ("udj", ["rawls"], 0)
    assert set(METRIC_KEYS) - {"psi"} <= set(document)
    assert (
        set(document["client_accuracy"]) == set(document["uncertainty"]) == {"client-1", "client-2"}
    )
    assert document["folder"] == str(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == {
        k: v for k, v in document.items() if k != "folder"
    }


def test_run_and_simulate_give_the_same_numbers(udjfl_command: Command) -> None:
    document = json.loads(udjfl_command("run", SMALL, "--method desert --seed 1 --json").out)
    federation = udjfl.load("tiny", clients=2, seed=1)
    result = udjfl.simulate(
        federation, "desert", "logistic", rounds=3, uncertainty_epochs=1, seed=1
    )
    assert {key: document[key] for key in result.metrics} == result.metrics
    assert document["client_accuracy"] == result.client_accuracy


def test_compare_json(udjfl_command: Command) -> None:
    said = udjfl_command("compare", SMALL, "--methods rawls,desert --seeds 2 --json")
    assert said.code == 0
    document = json.loads(said.out)
    assert [row["method"] for row in document["methods"]] == ["fedavg", "udj", "udj"]
    assert [row["theory"] for row in document["methods"]] == [
        ["utilitarian"],
        ["rawls"],
        ["desert"],
    ]
    for row in document["methods"]:
        assert {"params", "seeds", "client_accuracy", "uncertainty"} <= set(row)
        assert row["seeds"] == [0, 1]
        for key in METRIC_KEYS:
            assert set(row[key]) == {"mean", "ci95", "values"}
            assert len(row[key]["values"]) == 2
        for by_client in (row["client_accuracy"], row["uncertainty"]):
            assert set(by_client) == {"client-1", "client-2"}
    assert document["methods"][0]["psi"]["values"] == [0.0, 0.0]


def test_compare_always_has_fedavg_and_each_method_once(udjfl_command: Command) -> None:
    document = json.loads(
        udjfl_command("compare", SMALL, "--methods rawls,fedavg,rawls --seeds 1 --json").out
    )
    assert [(row["method"], row["theory"]) for row in document["methods"]] == [
        ("fedavg", ["utilitarian"]),
        ("udj", ["rawls"]),
    ]


def test_compare_table(udjfl_command: Command) -> None:
    said = udjfl_command("compare", SMALL, "--seeds 2")
    assert said.code == 0
    for word in (
        "FedAvg",
        "Rawls",
        "Egalitarian",
        "Utilitarian",
        "Desert",
        "client-1",
        "client-2",
        "2 seeds",
    ):
        assert word in said.out, word
    for goal in ("Psi should rise", "STD should fall", "Global should rise", "r should fall"):
        assert goal in said.out, goal
    assert "\x1b" not in said.out + said.err
    assert all(len(line) <= 120 for line in said.out.splitlines())


def test_compare_all_is_every_method(udjfl_command: Command) -> None:
    everything = chosen_methods(CompareSettings(methods=["all"]))
    assert [method.label for method in everything[:1]] == ["FedAvg"]
    assert {theory for method in everything for theory in method.theories} >= {
        "rawls",
        "egalitarian",
        "utilitarian",
        "desert",
    }


def test_compare_all_runs_every_method_and_ranks_them(udjfl_command: Command) -> None:
    """On the embedded federation, for three rounds: 18 methods and the four theories, none of which fails."""
    said = udjfl_command("compare --methods all --seeds 2 --rounds 3 --uncertainty-epochs 1 --json")
    document = json.loads(said.out)
    assert [row["label"] for row in document["methods"] if row["failed"]] == []
    assert {row["method"] for row in document["methods"]} == set(METHODS)
    assert len(document["methods"]) == 22
    assert set(document["rankings"]) == {"rawls", "egalitarian", "utilitarian", "desert"}
    for theory, ranking in document["rankings"].items():
        assert len(ranking["order"]) == 22
        assert all(len(row["ci95"]) == 2 for row in ranking["order"] if row["rank"])
        unranked = [row["method"] for row in ranking["order"] if row["rank"] is None]
        assert unranked == (["focus"] if theory == "utilitarian" else [])
    notes = {row["method"]: " ".join(row["notes"]) for row in document["methods"]}
    for name in ("mfairfl", "effl"):
        assert "ithout a sensitive attribute" in notes[name]
    assert "participation" in notes["fedfair3"]


def test_plain_lines_when_piped(udjfl_command: Command) -> None:
    said = udjfl_command("compare", SMALL, "--methods rawls --seeds 2")
    labels = [udjfl.method(name).label for name in ("fedavg", "rawls")]
    assert said.lines == [
        f"seed {seed}: {label} done, 3 rounds" for seed in (0, 1) for label in labels
    ]


def test_a_bar_on_a_terminal(udjfl_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = udjfl_command("compare", SMALL, "--methods rawls --seeds 1")
    assert "\x1b[" in said.err
    assert "done, 3 rounds" not in said.err
    assert "6/6" in Text.from_ansi(said.err).plain  # two methods, three rounds each


def test_a_bar_counts_the_runs_that_were_finished_before(
    udjfl_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    udjfl_command("compare", SMALL, "--methods rawls --seeds 1 --out", tmp_path)
    for name in ("model.safetensors", "result.json", "checkpoint.safetensors"):
        (tmp_path / "seed-0" / folder_name(udjfl.method("rawls")) / name).unlink()
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = udjfl_command("resume", tmp_path)
    assert said.code == 0
    assert "6/6" in Text.from_ansi(said.err).plain


def test_warnings_do_not_disturb_the_document(udjfl_command: Command) -> None:
    """The cnn cannot be stacked, which is said once, on standard error."""
    said = udjfl_command("run", SMALL, "--json --model torch.nn:Identity")
    assert mistakes_of(said)[0].startswith("model: ")
    said = udjfl_command("run", SMALL, "--json --model conftest:unstackable")
    json.loads(said.out)


def test_a_warning_is_shown_once_by_each_command(
    udjfl_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warns(*anything: object, **more: object) -> None:
        logging.getLogger("udjfl").warning("mind the gap")
        raise udjfl.DataError("enough")

    monkeypatch.setattr(simulation, "run", warns)
    for _ in range(2):
        assert (
            " ".join(udjfl_command("run", SMALL).err.split())
            == "WARNING mind the gap udjfl: enough"
        )


def test_methods(udjfl_command: Command) -> None:
    said = udjfl_command("methods")
    for word in (
        "fedavg",
        "udj",
        "rawls",
        "egalitarian",
        "utilitarian",
        "desert",
        "verified",
        "McMahan",
        "Carey",
    ):
        assert word in said.out
    entries = {entry["method"]: entry for entry in json.loads(udjfl_command("methods --json").out)}
    assert set(entries) == set(METHODS)
    assert len(entries) == 19
    for entry in entries.values():
        assert entry["theory"]
        assert set(entry["theory"]) <= {"rawls", "egalitarian", "utilitarian", "desert"}
        assert entry["grade"] in ("verified", "partial", "recalled")
        assert all(entry[key] for key in ("title", "paper", "idea", "cost"))
    # Table 1 of Carey & Wu (FAccT 2025).
    of_rawls = {name for name, entry in entries.items() if "rawls" in entry["theory"]}
    assert of_rawls == {"udj", "qffl", "propfair", "afl"}
    assert {n for n, e in entries.items() if "desert" in e["theory"]} == {
        "udj",
        "corefed",
        "focus",
        "cffl",
    }
    assert {n for n, e in entries.items() if "utilitarian" in e["theory"]} == {
        "udj",
        "fedavg",
        "qffl",
        "propfair",
        "fedeba",
    }
    assert {p["name"]: p["default"] for p in entries["fedavg"]["params"]} == {"weights": "size"}
    assert entries["udj"]["short_names"] == ["rawls", "egalitarian", "utilitarian", "desert"]
    assert all(p["help"] for entry in entries.values() for p in entry["params"])


def test_one_method(udjfl_command: Command) -> None:
    shown = re.sub(r"\s+", " ", udjfl_command("methods rawls").out)
    for parameter in ("beta", "gamma", "step", "theory"):
        assert re.search(rf"\b{parameter}\b", shown)
    assert json.loads(udjfl_command("methods fedavg --json").out)["title"] == "FedAvg"
    (line,) = mistakes_of(udjfl_command("methods rwals"))
    assert "Did you mean 'rawls'?" in line


# --- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--method rwals", "'rwals'. Did you mean 'rawls'?"),
        ("--method udj -p theory=rawl", "Did you mean 'rawls'?"),
        ("--method udj:theory=rawl", "Did you mean 'rawls'?"),
        ("-p bta=3", "bta: no such parameter. Did you mean 'beta'?"),
        ("-p beta=much", "beta: "),
        ("-p step=safest", "Did you mean 'safe'?"),
        ("--data dirty-digit", "Did you mean 'dirty-digits'?"),
        ("--partition shrads", "Did you mean 'shards'?"),
        ("--partition dirichlet:-1", "alpha is -1.0: give a finite number above 0"),
        ("--partition natural", "partition natural: nobody owns the examples of tiny"),
        ("--partition shards:mix=3/1", "is for 1 clients, and clients is 5: make them agree"),
        ("--data tiny:level=3", "level: no such setting"),
        ("--data tiny:level", "write options as tiny:key=value"),
        (
            "--data-root no/such/folder",
            "data_root: no/such/folder does not exist; name the folder that has the data",
        ),
        ("--model mpl", "Did you mean 'mlp'?"),
        ("--model no.such:thing", "cannot import 'no.such:thing'"),
        ("--model cnn --data tiny", "cnn needs images"),
        ("--device nonsense", "device: 'nonsense' cannot be used here"),
        ("--rounds 0", "rounds: input should be greater than or equal to 1, got '0'"),
        ("--rounds many", "rounds: input should be a valid integer"),
        ("--loss-at recieved", "Did you mean 'received'?"),
        ("--seed -1", "seed: "),
        ("--method udj", "needs theory (rawls, "),
        ("--method udj:beta", "key=value was expected"),
        ("-p beta", "-p beta: expected KEY=VALUE, as in -p beta=5"),
        ("-p =5", "-p =5: expected KEY=VALUE"),
        ("--clients 0", "clients: "),
        ("--clients 40", "Use fewer clients, or another partition"),
        ("--clients 500 --partition iid", "Use at most 100 clients"),
        ("--partition shards:size=50", "Use a shard size of at most "),
    ],
)
def test_one_mistake_is_one_line_with_advice(udjfl_command: Command, flags: str, says: str) -> None:
    data = "" if "--data" in flags else "--data tiny"
    (line,) = mistakes_of(udjfl_command("run", data, flags))
    assert says in line


def test_the_data_root_reaches_the_source_and_is_kept_for_resuming(
    udjfl_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots: list[Path | None] = []

    def pools(request: Request) -> Pools:
        roots.append(request.root)
        return tiny_pools(request)

    monkeypatch.setitem(SOURCES, "filed", Source("filed", "for tests", "It is made up.", pools))
    (tmp_path / "files").mkdir()
    once = udjfl_command(
        "run",
        SMALL.replace("tiny", "filed"),
        "--json --data-root",
        tmp_path / "files",
        "--out",
        tmp_path / "run",
    )
    assert once.code == 0, once.err
    again = udjfl_command("resume --json", tmp_path / "run")
    assert json.loads(again.out) == json.loads(once.out)
    assert roots == [tmp_path / "files"] * 2


def test_every_mistake_at_once(udjfl_command: Command) -> None:
    said = udjfl_command(
        "run --rounds 0 --lr x --engine fast --method rwals --data dirty-digit --partition shrads --model mpl "
        "--device nonsense -p novalue"
    )
    found = mistakes_of(said)
    for word in (
        "rounds",
        "lr",
        "engine",
        "rwals",
        "dirty-digit",
        "shrads",
        "mpl",
        "nonsense",
        "-p novalue",
    ):
        assert sum(word in line for line in found) == 1, word
    assert len(found) == 9


def test_every_mistake_of_a_comparison_at_once(udjfl_command: Command) -> None:
    found = mistakes_of(
        udjfl_command(
            "compare --methods rwals,udj:theory=dessert,fedavg --seeds 0,0 --data dirty-digit"
        )
    )
    assert len(found) == 4
    for says in (
        "Did you mean 'rawls'?",
        "Did you mean 'desert'?",
        "give each seed once",
        "Did you mean 'dirty-digits'?",
    ):
        assert sum(says in line for line in found) == 1, says


def test_mistakes_leave_no_folder(udjfl_command: Command, tmp_path: Path) -> None:
    for flags in ("--device nonsense", "--model mpl", "--model cnn", "--clients 40", "-p bta=1"):
        for command in ("run", "compare --seeds 1"):
            said = udjfl_command(command, "--data tiny", flags, "--out", tmp_path / "run")
            assert said.code == 2
            assert not (tmp_path / "run").exists(), (command, flags)


@pytest.mark.parametrize(
    "arguments", ["runn", "run --roundz 3", "run --rounds", "resume", "run stray"]
)
def test_wrong_usage_goes_to_standard_error(udjfl_command: Command, arguments: str) -> None:
    said = udjfl_command(arguments)
    assert said.code == 2
    assert said.out == ""
    assert "Traceback" not in said.err
    if arguments in ("runn", "run --roundz 3"):
        assert "Did you mean" in said.err or "Possible options" in said.err


def test_a_folder_in_use(udjfl_command: Command, tmp_path: Path) -> None:
    assert udjfl_command("run", SMALL, "--out", tmp_path / "a").code == 0
    (line,) = mistakes_of(udjfl_command("run", SMALL, "--out", tmp_path / "a"))
    assert f"continue it with `udjfl resume {tmp_path / 'a'}`" in line


def test_a_diverging_run_is_an_error_not_a_traceback(udjfl_command: Command) -> None:
    (line,) = mistakes_of(udjfl_command("run", SMALL, "--model mlp --lr 1e30 --method fedavg"))
    assert re.search(r"client 'client-\d' in round \d: ", line)


def test_stopped_by_the_keyboard(udjfl_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*anything: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "run", interrupted)
    said = udjfl_command("run", SMALL)
    assert said.code == 130
    assert "udjfl: stopped; a run with --out goes on with `udjfl resume FOLDER`" in said.err


def test_a_closed_pipe_is_no_traceback() -> None:
    script = "import sys; sys.argv = ['udjfl', 'methods', '--json']; from udjfl.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()  # as `head` does when it has seen enough
    assert process.stderr is not None
    said = process.stderr.read().decode()
    process.wait()
    process.stderr.close()
    assert "Traceback" not in said


def test_a_stream_without_arrows_and_dashes() -> None:
    """Piped on some systems, standard output is not UTF-8; a long comparison must not end in a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "udjfl.cli.main", "methods"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"fedavg" in done.stdout


# --- parameters and files ----------------------------------------------------------------------------------------


def params_of(said: Said) -> list[dict[str, Any]]:
    assert said.code == 0, said.err
    document = json.loads(said.out)
    return (
        [row["params"] for row in document["methods"]]
        if "methods" in document
        else [document["params"]]
    )


def test_parameters(udjfl_command: Command) -> None:
    (params,) = params_of(
        udjfl_command("run", SMALL, "--json --method rawls -p beta=2.5 -p gamma=0.5")
    )
    assert (params["beta"], params["gamma"]) == (2.5, 0.5)
    (params,) = params_of(
        udjfl_command("run", SMALL, "--json --method udj:theory=rawls -p beta=1,2")
    )
    assert params["beta"] == [1.0, 2.0]
    (params,) = params_of(
        udjfl_command("run", SMALL, "--json --method udj:theory=rawls:beta=3 -p beta=4")
    )
    assert params["beta"] == 4.0


def test_parameters_of_a_comparison_go_to_each_method_that_has_them(udjfl_command: Command) -> None:
    fedavg, *theories = params_of(
        udjfl_command("compare", SMALL, "--json --seeds 1 --methods rawls,desert -p step=safe")
    )
    assert "step" not in fedavg
    assert [params["step"] for params in theories] == ["safe", "safe"]
    (line,) = mistakes_of(udjfl_command("compare", SMALL, "--seeds 1 --methods rawls -p bta=1"))
    assert "'bta'" in line
    assert "Did you mean 'beta'?" in line


def test_a_point_by_hand_from_parameters_alone(udjfl_command: Command) -> None:
    """`udj` needs theory, or beta and gamma; -p gives them just as `udj:beta=2:gamma=0` does."""
    _, params = params_of(
        udjfl_command("compare", SMALL, "--json --seeds 1 --methods udj -p beta=2 -p gamma=0")
    )
    assert (params["beta"], params["gamma"]) == (2.0, 0.0)
    (params,) = params_of(udjfl_command("run", SMALL, "--json --method udj -p beta=2 -p gamma=0"))
    assert (params["beta"], params["gamma"]) == (2.0, 0.0)


def test_settings_from_a_file_and_flags_win(udjfl_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        'data = "tiny"\nclients = 2\nmodel = "logistic"\nrounds = 3\nuncertainty_epochs = 1\nseed = 5\nmethod = "rawls"\n'
        "[params]\nbeta = 2\ngamma = 3\n"
    )
    document = json.loads(udjfl_command("run --json --config", path, "-p beta=4 --seed 1").out)
    assert (document["seed"], document["params"]["beta"], document["params"]["gamma"]) == (
        1,
        4.0,
        3.0,
    )
    assert document == {
        **json.loads(
            udjfl_command("run", SMALL, "--json --method rawls --seed 1 -p beta=4 -p gamma=3").out
        ),
    }


def test_a_switch_from_a_file_can_be_turned_back(udjfl_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text("weight_norm = false\n")
    for flags, kept in (("", False), ("--weight-norm", True), ("--no-weight-norm", False)):
        out = tmp_path / f"run{flags}"
        assert udjfl_command("run", SMALL, "--config", path, flags, "--out", out).code == 0
        assert json.loads((out / "settings.json").read_text())["training"]["weight_norm"] is kept


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("roundz = 3\nlr = -1\n", ["roundz: no such setting. Did you mean 'rounds'?", "lr: "]),
        ("rounds = 3 3\n", ["is not valid TOML"]),
        ('methods = ["rawls"]\n', ["methods: no such setting. Did you mean 'method'?"]),
        ("params = 3\n", ["params: "]),
        ('params = "beta=3"\n', ["params: "]),
        ("method = 3\nrounds = 0\n", ["method: ", "rounds: "]),
        ("[training]\nrounds = 3\n", ["training: no such setting"]),
    ],
)
def test_mistakes_in_a_file(
    udjfl_command: Command, tmp_path: Path, text: str, says: list[str]
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    found = mistakes_of(udjfl_command("run --config", path))
    assert len(found) == len(says)
    for part in says:
        assert sum(part in line for line in found) == 1


def test_a_file_that_is_not_there(udjfl_command: Command, tmp_path: Path) -> None:
    (line,) = mistakes_of(udjfl_command("run --config", tmp_path / "none.toml"))
    assert "cannot read" in line


# --- tables ------------------------------------------------------------------------------------------------------


def printed(view: Any, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


TINY: dict[str, Any] = {"model": "logistic", "rounds": 1, "uncertainty_epochs": 1}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("clients", [5, 20])
def test_a_comparison_table_loses_no_number(width: int, clients: int) -> None:
    settings = CompareSettings(
        seeds=[0, 1], **TINY
    )  # FedAvg and the four theories, as `make demo` shows them
    comparison = udjfl.compare(settings, federation=make_federation(n_clients=clients, n=6))
    shown = printed(comparison_view(comparison), width)
    assert "…" not in shown
    words = shown.split()
    assert {
        "FedAvg",
        "Rawls",
        "Egalitarian",
        "Utilitarian",
        "Desert",
        *comparison.rows[0].client_accuracy,
    } <= set(words)
    numbers = {word.strip("*+") for word in words}
    for row in comparison.rows:
        summaries = [*row.client_accuracy.values(), *row.metrics.values()]
        assert {f"{round(s.mean, 2) + 0.0:.2f}" for s in summaries if s.mean is not None} <= numbers


def test_a_client_may_be_called_anything() -> None:
    """Square brackets are markup to the library that draws the tables; to us they are part of a name."""
    odd = ["ward[a]", "[bold]", "[/]"]
    plain = make_federation()
    federation = udjfl.Federation.from_arrays(
        {
            name: (c.train.x, c.train.y, c.test.x, c.test.y)
            for name, c in zip(odd, plain.clients, strict=True)
        },
        test=(plain.test.x, plain.test.y),
    )
    result = udjfl.simulate(federation, "rawls", **TINY)
    comparison = udjfl.compare(
        CompareSettings(methods=["rawls"], seeds=[0], **TINY), federation=federation
    )
    for shown in (printed(result_view(result), 100), printed(comparison_view(comparison), 100)):
        assert all(name in shown for name in odd)


def test_what_is_undefined_says_why() -> None:
    alone = make_federation(n_clients=1)
    comparison = udjfl.compare(
        CompareSettings(methods=["rawls"], seeds=[0], **TINY), federation=alone
    )
    shown = " ".join(printed(comparison_view(comparison), 100).split())
    assert "there is only one client" in shown
    assert "A correlation needs at least two clients" in shown
    shown = " ".join(printed(result_view(udjfl.simulate(alone, "rawls", **TINY)), 100).split())
    assert "A correlation needs at least two clients" in shown


# --- the command itself, on the embedded data --------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["run --method rawls", "compare --methods rawls --seeds 2"])
def test_the_real_command(arguments: str) -> None:
    small = "--data dirty-digits --rounds 2 --uncertainty-epochs 1 --json"
    done = subprocess.run(
        [sys.executable, "-m", "udjfl.cli.main", *arguments.split(), *small.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    document = json.loads(done.stdout)
    row = document if "methods" not in document else document["methods"][0]
    assert list(row["client_accuracy"]) == [f"client-{i}" for i in range(1, 6)]
    assert "done, 2 rounds" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "udjfl.cli.main", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"udjfl {importlib.metadata.version('udjfl')}\n"
