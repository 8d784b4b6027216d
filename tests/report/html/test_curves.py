"""Curves over rounds: some of the rounds, as the mean of a few seeds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from udjfl.report.html.curves import (
    MOST_POINTS,
    _choose_rounds,
    find_lines,
    make_curves,
    read_curves,
)
from udjfl.report.html.material import Material
from udjfl.training.records import Record


def test_values_are_means_over_seeds() -> None:
    """(1 + 3) / 2 = 2; a seed without a value does not count."""
    first = [Record(1, "a", "train_loss", 1.0), Record(2, "a", "train_loss", 5.0)]
    second = [Record(1, "a", "train_loss", 3.0), Record(2, "a", "train_loss", None)]
    curves = make_curves("x", 2, {0: first, 1: second})
    assert curves.of_clients["train_loss"] == {"a": {1: 2.0, 2: 5.0}}
    assert curves.seeds == (0, 1)


def test_absences_are_counted_by_client() -> None:
    records = [Record(1, "a", "absent", "dropped out"), Record(2, "a", "excluded", "NaN")]
    assert make_curves("x", 2, {0: records}).missed == {"a": 2}


def test_metrics_of_a_method_that_no_figure_shows_are_left_out() -> None:
    assert make_curves("x", 1, {0: [Record(1, "a", "curvature", 1.0)]}).of_clients == {}


def test_lines_of_some_rounds_and_absences_are_found() -> None:
    records = [
        Record(1, "a", "train_loss", 0.5),
        Record(17, 'a", 3', "train_loss", 0.5),
        Record(171, "a", "train_loss", 0.5),
        Record(2, "a\n17", "absent", "dropped out"),
    ]
    lines = [record.to_line() for record in records]
    odd = b'{"client": 3, "round": 17}\n\n{"round": 17, "cli'
    found = [line + b"\n" for line in find_lines(b"".join(lines) + odd, [17, 1])]
    assert found == [lines[0], lines[1], lines[3], b'{"round": 17, "cli\n']
    assert find_lines(b"", [1]) == []


@given(st.integers(1, 5000), st.integers(1, 600))
def test_the_first_and_last_round_are_drawn_and_never_too_many(rounds: int, every: int) -> None:
    chosen = _choose_rounds(rounds, every)
    assert {1, rounds} <= chosen
    assert len(chosen) <= MOST_POINTS + 2
    assert chosen <= set(range(1, rounds + 1))


def test_rounds_that_are_drawn_were_evaluated() -> None:
    assert all(round % 7 == 0 for round in _choose_rounds(700, 7) - {1, 700})


def test_a_comparison_has_curves_of_every_method(material: Material) -> None:
    for curves in material.curves:
        assert curves.reached == curves.rounds == 8
        assert set(curves.of_clients["test_accuracy"]) == set(material.client_ids)


def test_code_that_a_folder_names_is_not_imported(run_folder: Path) -> None:
    settings = json.loads((run_folder / "settings.json").read_text())
    settings |= {"method": "antigravity:Method", "params": {}}
    (run_folder / "settings.json").write_text(json.dumps(settings))
    before = set(sys.modules)
    [curves] = read_curves([run_folder])
    assert curves.label == "FedAvg"
    (run_folder / "result.json").unlink()
    [unfinished] = read_curves([run_folder])
    assert unfinished.label == "antigravity:Method"
    assert "antigravity" not in set(sys.modules) - before
