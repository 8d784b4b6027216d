"""`udjfl frontier`: what it prints and keeps, and its resumption."""

from __future__ import annotations

import json
from pathlib import Path

from command import Command

QUICK = (
    "--data tiny --rounds 2 --seeds 2 --exponents 1,2 --gammas 0,1 --budgets 2 --methods qffl "
    "--hidden 8 --uncertainty-epochs 2 --workers 1"
)


def test_frontier_prints_and_keeps(udjfl_command: Command, tmp_path: Path) -> None:
    result = udjfl_command(f"frontier {QUICK} --out {tmp_path / 'f'}")
    assert "The grid, by the measure of each theory" in result.out
    assert "kept in" in result.err
    assert {"frontier.json", "runs.csv", "settings.json"} <= {
        path.name for path in (tmp_path / "f").iterdir()
    }
    assert "all whole" in udjfl_command(f"check {tmp_path / 'f'}").out
    document = json.loads(udjfl_command(f"frontier {QUICK} --json").out)
    assert document == json.loads((tmp_path / "f" / "frontier.json").read_text(encoding="utf-8"))


def test_a_frontier_is_resumed_by_its_folder(udjfl_command: Command, tmp_path: Path) -> None:
    udjfl_command(f"frontier {QUICK} --out {tmp_path}")
    before = (tmp_path / "frontier.json").read_bytes()
    (tmp_path / "frontier.json").unlink()
    (tmp_path / "runs.csv").unlink()
    result = udjfl_command(f"resume {tmp_path}")
    assert "The grid" in result.out
    assert (tmp_path / "frontier.json").read_bytes() == before


def test_a_check_knows_every_file_of_a_search(udjfl_command: Command, tmp_path: Path) -> None:
    for name, command in {"f": f"frontier {QUICK}", "t": TUNE}.items():
        folder = tmp_path / name
        udjfl_command(f"{command} --out {folder}")
        checked = udjfl_command("check", folder)
        assert (checked.code, checked.out.strip().rpartition(": ")[2]) == (0, "all whole.")
    changed = tmp_path / "t" / "tuned.toml"
    changed.write_text(changed.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    checked = udjfl_command("check", tmp_path / "t")
    assert checked.code == 1
    assert "run the same command again: it writes the file anew" in " ".join(checked.out.split())
    udjfl_command(f"{TUNE} --out {tmp_path / 't'}")
    assert udjfl_command("check", tmp_path / "t").code == 0


def test_mistakes_are_listed_at_once(udjfl_command: Command) -> None:
    result = udjfl_command("frontier --exponents 0 --methods nothing --data tiny")
    assert "exponents: " in result.err
    assert "nothing" in result.err


TUNE = (
    "tune --data tiny --theory egalitarian --budget 90 --rounds 3 --seeds 2 --cost 14 --hidden 8 "
    "--uncertainty-epochs 2 --workers 1"
)


def test_tune_prints_the_point_its_neighbours_and_its_cost(
    udjfl_command: Command, tmp_path: Path
) -> None:
    result = udjfl_command(f"{TUNE} --out {tmp_path / 't'}")
    assert "Chosen for the egalitarian theory: UDJ-FL egalitarian" in result.out
    assert "neighbour: UDJ-FL egalitarian" in result.out
    assert "a plain grid of as many points: " in " ".join(result.out.split())
    assert "Was the theory delivered?" in result.out
    for part in ("rung 1 of 3, 1 round", "rung 3 of 3, 3 rounds", "test, 3 rounds"):
        assert sum(line.startswith(f"{part}: seed 1: ") for line in result.lines) >= 1
    assert not any(line.startswith("seed") for line in result.lines)
    assert f"udjfl run --config {tmp_path / 't' / 'tuned.toml'}" in result.err
    assert "all whole" in udjfl_command(f"check {tmp_path / 't'}").out
    before = (tmp_path / "t" / "tune.json").read_bytes()
    (tmp_path / "t" / "tune.json").unlink()
    udjfl_command(f"resume {tmp_path / 't'}")
    assert (tmp_path / "t" / "tune.json").read_bytes() == before
    trained = udjfl_command(f"run --config {tmp_path / 't' / 'tuned.toml'} --json")
    assert json.loads(trained.out)["method"] == "udj"


def test_compare_tuned(udjfl_command: Command, tmp_path: Path) -> None:
    small = "--rounds 3 --seeds 2 --hidden 8 --uncertainty-epochs 2 --workers 1 --json"
    out = udjfl_command(f"compare --tuned --data tiny --methods term {small} --out {tmp_path}").out
    first = json.loads(out)
    assert [row["method"] for row in first["methods"]] == ["fedavg", "term"]
    assert (tmp_path / "tuned").is_dir()
    assert json.loads(udjfl_command(f"resume {tmp_path} --json").out) == first
