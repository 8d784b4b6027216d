"""Standard error while a command works: lines, a bar, warnings, a status line."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, TERMINAL_VARIABLES, Command
from rich import progress as rich_progress
from rich.text import Text

import udjfl
from udjfl.cli.progress import show_progress, show_status
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


def test_clients_at_the_cap_are_one_line_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("udjfl")
    held = "would have more than 50% of the step and is held to that"
    with show_progress(1, 1):
        for text in (
            f"UDJ-FL desert: client-1 {held}.",
            f"UDJ-FL desert: client-2, client-1 {held}.",
            f"UDJ-FL rawls (budget=2): client-3 {held}.",
            f"UDJ-FL rawls: the uncertainty of c is low; d {held}.",  # says more than that
        ):
            logger.warning("%s", text)
    *before, last = capsys.readouterr().err.splitlines()
    assert "d would have more than" in " ".join(line.strip() for line in before)
    assert last == (
        "Held to the cap in some rounds, 50% of the step (`cap`, docs/budgets.md): "
        "UDJ-FL desert: client-1, client-2; UDJ-FL rawls (budget=2): client-3."
    )


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
