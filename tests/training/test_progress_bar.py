"""Progress bars: what they count, on a terminal, in a notebook, and in a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from small_runs import make_federation

import udjfl
from udjfl.training.progress_bar import RoundCounter, notebook_bar, show_rounds
from udjfl.training.records import Part, Progress


def test_rounds_of_several_runs_are_added_up() -> None:
    counter = RoundCounter(2, 10)
    assert (counter.done, counter.total) == (0, 20)
    counter.count(Progress("FedAvg", 0, "uncertainty", 1, 3))
    assert counter.text == "seed 0: uncertainty 1/3"
    for label, done in (("FedAvg", 4), ("Rawls", 3), ("FedAvg", 5), ("TERM", 1)):
        counter.count(Progress(label, 0, "training", done, 10))
    # 5 + 3 + 1 rounds; a third run has come.
    assert (counter.done, counter.total, counter.text) == (9, 30, "seed 0: TERM")


def test_the_parts_of_a_search_follow_each_other_and_never_go_back() -> None:
    counter = RoundCounter(1, 6)
    first, second = Part("rung 1 of 2, 2 rounds", {0: 2}, 0, 10), Part("rung 2 of 2", {0: 1}, 4, 10)
    seen = []
    for label, done, total, part in (
        ("FedAvg", 2, 2, first),
        ("a", 2, 2, first),
        ("FedAvg", 1, 2, first),  # again, beside other points
        ("a", 3, 6, second),
        ("a", 6, 6, second),
    ):
        counter.count(Progress(label, 0, "training", done, total, part=part))
        seen.append((counter.done, counter.total))
    assert seen == [(2, 10), (4, 10), (4, 10), (7, 10), (10, 10)]
    assert counter.text == "rung 2 of 2: seed 0: a"


def test_of_a_search_there_is_a_line_for_each_part_and_seed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    part = Part("rung 1 of 3, 2 rounds", {0: 2, 1: 1}, 0, 100)
    with show_rounds(1, 3, console=Console(file=io.StringIO())) as on_progress:
        for label, seed, done in (("FedAvg", 0, 2), ("FedAvg", 0, 2), ("a", 0, 1), ("a", 1, 2)):
            on_progress(Progress(label, seed, "training", done, 2, part=part))
        assert capsys.readouterr().err == "rung 1 of 3, 2 rounds: seed 1: 1 run done\n"
        on_progress(Progress("a", 0, "training", 2, 2, part=part))
    assert capsys.readouterr().err == "rung 1 of 3, 2 rounds: seed 0: 2 runs done\n"


def test_on_a_terminal() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    with show_rounds(1, 3, console=console) as on_progress:
        on_progress(Progress("FedAvg", 0, "training", 3, 3))
    assert "3/3" in file.getvalue()


def test_elsewhere_a_line_for_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    udjfl.simulate(
        make_federation(), "fedavg", rounds=2, hidden=4, uncertainty_epochs=1, progress=True
    )
    assert capsys.readouterr().err == "seed 0: FedAvg done, 2 rounds\n"


def test_text_of_others_is_escaped() -> None:
    bar = notebook_bar("<b>", 1, 4, "rounds", 2.4)
    assert '<progress value="1" max="4"' in bar
    assert "1/4 rounds, 2 s: &lt;b&gt;" in bar


CELL = """
import numpy as np, udjfl
rng = np.random.default_rng(0)
draw = lambda n: (rng.normal(size=(n, 2)), rng.integers(0, 2, n))
federation = udjfl.Federation.from_arrays({k: (*draw(9), *draw(9)) for k in "ab"}, test=draw(9))
udjfl.compare(federation, "fedavg,term", seeds=2, rounds=3, uncertainty_epochs=1, progress=True);
"""


def test_in_a_notebook(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="pip install 'udjfl[docs]'")
    pytest.importorskip("ipykernel", reason="pip install 'udjfl[docs]'")
    from nbformat.v4 import new_code_cell, new_notebook

    notebook: Any = new_notebook(cells=[new_code_cell(CELL)])
    arguments = {"timeout": 120, "kernel_name": "python3", "extra_arguments": ["--log-level=ERROR"]}
    nbclient.NotebookClient(
        notebook, resources={"metadata": {"path": str(tmp_path)}}, **arguments
    ).execute()
    shown = [
        output for output in notebook.cells[0].outputs if "text/html" in output.get("data", {})
    ]
    # One output, which was updated: a saved notebook has the last state.
    assert len(shown) == 1
    assert "12/12 rounds" in shown[0]["data"]["text/html"]
    assert shown[0]["data"]["text/html"].endswith(": done")
