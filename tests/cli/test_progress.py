"""Standard error while a command works: lines, a bar, warnings, a status line."""

from __future__ import annotations

import io
import logging
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import SMALL, TERMINAL_VARIABLES, Command
from rich import progress as rich_progress
from rich.text import Text

import udjfl
from udjfl.cli.progress import show_progress, show_status
from udjfl.data.tables.files import decode
from udjfl.methods.values import HeldToCap
from udjfl.simulation import simulate as simulation
from udjfl.simulation.programs import folder_name
from udjfl.training.records import Progress


def test_plain_lines_when_piped(udjfl_command: Command) -> None:
    output = udjfl_command("compare", SMALL, "--methods rawls --seeds 2")
    labels = [udjfl.method(name).label for name in ("fedavg", "rawls")]
    assert output.lines == [
        f"seed {seed}: {label} done, 3 rounds" for seed in (0, 1) for label in labels
    ]


def test_a_bar_on_a_terminal(udjfl_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    output = udjfl_command("compare", SMALL, "--methods rawls --seeds 1")
    assert "\x1b[" in output.err
    assert "done, 3 rounds" not in output.err
    assert "6/6" in Text.from_ansi(output.err).plain  # two methods, three rounds each


def test_a_bar_counts_the_runs_that_were_finished_before(
    udjfl_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    udjfl_command("compare", SMALL, "--methods rawls --seeds 1 --out", tmp_path)
    for name in ("model.safetensors", "result.json", "checkpoint.safetensors"):
        (tmp_path / "seed-0" / folder_name(udjfl.method("rawls")) / name).unlink()
    monkeypatch.setenv("FORCE_COLOR", "1")
    output = udjfl_command("resume", tmp_path)
    assert output.code == 0
    assert "6/6" in Text.from_ansi(output.err).plain


def test_a_warning_is_shown_once_by_each_command(
    udjfl_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(*arguments: object, **keywords: object) -> None:
        logging.getLogger("udjfl").warning("mind the gap")
        raise udjfl.DataError("enough")

    monkeypatch.setattr(simulation, "run_method", warn)
    for _ in range(2):
        lines = udjfl_command("run", SMALL).err.split()
        assert " ".join(lines) == "WARNING mind the gap udjfl: enough"


NAMES = ("Smith, John", "b; c", "d", "e")


def run_capped(theory: str, largest: str) -> None:
    """Run a theory that holds a client to the cap, as by far the most uncertain, or the least."""
    rng = np.random.default_rng(0)
    arrays = [(rng.normal(size=(8, 3)), [0, 1] * 4, rng.normal(size=(4, 3)), [0, 1] * 2)] * 4
    federation = udjfl.Federation.from_arrays(
        dict(zip(NAMES, arrays, strict=True)), test=arrays[0][:2], allow_duplicates=True
    )
    sign = -1 if theory == "utilitarian" else 1
    values = {name: 1e4**sign if name == largest else 1.0 for name in NAMES}
    udjfl.simulate(federation, theory, uncertainty=values, rounds=2, model="logistic")


def test_clients_at_the_cap_are_one_line_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(1, 1):
        for theory, largest in (
            ("egalitarian", "Smith, John"),
            ("egalitarian", "b; c"),
            ("egalitarian", "b; c"),
            ("rawls", "d"),
        ):
            run_capped(theory, largest)
    assert capsys.readouterr().err.splitlines() == [
        "Held to the cap in some rounds, 50% of the step (`cap`, docs/budgets.md): "
        "UDJ-FL egalitarian: Smith, John, b; c; UDJ-FL rawls: d."
    ]


def test_other_warnings_of_the_same_round_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(1, 1):
        run_capped("utilitarian", "d")
    *before, last = capsys.readouterr().err.splitlines()
    shown = " ".join(" ".join(before).split())
    assert "the uncertainty of d is below a hundredth of the largest" in shown
    assert "of the step" not in shown
    assert last.endswith("UDJ-FL utilitarian: d.")


def test_a_line_names_a_few_of_thousands_of_clients(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(1, 1):
        for method in range(20):
            names = tuple(f"c{number}" for number in range(3000))
            warning = HeldToCap(f"rule {method}", names, 0.5)
            logging.getLogger("udjfl").warning("%s", warning, extra={"warning": warning})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.count("c0, c1, c2, c3, c4, and 2995 more") == 5
    assert line.endswith("rule 4: c0, c1, c2, c3, c4, and 2995 more; and 15 more.")


def test_a_warning_about_the_cap_comes_from_another_process_as_it_is() -> None:
    warning = HeldToCap("a rule", ("a", "b"), 0.5)
    assert pickle.loads(pickle.dumps(warning)) == warning


def test_only_warnings_about_data_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(1, 1, warnings="data"):
        logging.getLogger("udjfl").warning("of training")
        decode(b"Gen\xe8ve", Path("a.csv"))
    shown = " ".join(capsys.readouterr().err.split())
    assert "a.csv is not UTF-8" in shown
    assert "of training" not in shown


class Bar:
    """Stands for rich's bar and remembers what it would show."""

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
def _fake_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(rich_progress, "Progress", Bar)


@pytest.mark.usefixtures("_fake_bar")
def test_a_bar_adds_up_methods_that_train_side_by_side() -> None:
    """Two methods and two seeds of 10 rounds each: 40."""
    with show_progress(4, 10) as on_progress:
        assert (Bar.shown["completed"], Bar.shown["total"]) == (0, 40)
        for label, seed, done, completed in [
            ("a", 0, 1, 1),
            ("b", 0, 1, 2),
            ("a", 0, 2, 3),
            ("a", 1, 5, 8),
            ("b", 0, 10, 17),
        ]:
            on_progress(Progress(label, seed, "training", done, 10))
            assert Bar.shown["completed"] == completed
        on_progress(Progress("a", 0, "uncertainty", 3, 5))
        assert Bar.shown["completed"] == 17
        assert Bar.shown["description"] == "seed 0: uncertainty 3/5"
        on_progress(Progress("b", 1, "resumed", 7, 10))
        on_progress(Progress("b", 1, "training", 8, 10))
        assert (Bar.shown["completed"], Bar.shown["total"]) == (25, 40)
        assert Bar.shown["description"] == "seed 1: b"


@pytest.mark.usefixtures("_fake_bar")
def test_a_bar_makes_room_for_runs_that_were_not_expected() -> None:
    """As the tests at the end of a search."""
    with show_progress(1, 10) as on_progress:
        on_progress(Progress("a", 0, "training", 10, 10))
        assert (Bar.shown["completed"], Bar.shown["total"]) == (10, 10)
        on_progress(Progress("test, a", 0, "training", 3, 10))
        assert (Bar.shown["completed"], Bar.shown["total"]) == (13, 20)


@pytest.mark.usefixtures("_fake_bar")
def test_a_bar_names_its_unit() -> None:
    with show_progress(2, 1, "seeds") as on_progress:
        on_progress(Progress("each client alone", 0, "resumed", 1, 1))
        on_progress(Progress("each client alone", 1, "alone", 1, 1))
    assert (Bar.shown["completed"], Bar.shown["total"]) == (2, 2)
    assert "seeds" in [getattr(column, "text_format", None) for column in Bar.columns]


def test_without_a_terminal_there_is_a_line_for_each_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in TERMINAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with show_progress(2, 2) as on_progress:
        for stage, done in (("uncertainty", 5), ("resumed", 1), ("training", 1), ("training", 2)):
            on_progress(Progress("a", 0, stage, done, 2))
        on_progress(Progress("each client alone", 3, "alone", 1, 1))
    assert capsys.readouterr().err.splitlines() == [
        "seed 0: a done, 2 rounds",
        "seed 3: each client alone done",
    ]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_counts_and_times_are_whole_at_every_width(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """22 methods on 5 seeds for 500 rounds; the label, which may be long, is shortened."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    with show_progress(110, 500) as on_progress:
        on_progress(
            Progress(
                "q-FFL (q=0.5, [weights]=size, lipschitz=paper, and more)", 0, "training", 250, 500
            )
        )
    lines = [line for line in Text.from_ansi(capsys.readouterr().err).plain.split("\n") if line]
    last = lines[-1]
    assert len(last) <= columns
    assert last.startswith("seed 0: q-FFL (q=")
    assert ("…" in last) == (columns < 120)
    assert "250/55000" in last
    assert "0:00:0" in last  # elapsed
    assert last.rstrip().endswith("-:--")  # remaining, not known yet


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_status_line_is_gone_when_the_work_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with show_status("loading"):
        assert terminal.getvalue() == "loading ..."
    assert terminal.getvalue() == "loading ...\r" + " " * 11 + "\r"
    with show_status("loading", quiet=True):
        assert terminal.getvalue().count("loading") == 1


def test_there_is_no_status_line_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with show_status("loading"):
        pass
    assert capsys.readouterr().err == ""
