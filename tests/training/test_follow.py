"""Following a run from outside: growing, half-written, damaged, replaced and killed."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from small_runs import Stopped, make_federation, stop_after, train_briefly

import udjfl
from udjfl._processes import start_time
from udjfl.training.follow import MOST_ROUNDS, FollowedRun, is_being_written
from udjfl.training.records import Record
from udjfl.training.run_folder import RunFolder


def start(path: Path, rounds: int = 5, seed: int = 0) -> RunFolder:
    settings = {"method": "fedavg", "params": {}, "seed": seed, "training": {"rounds": rounds}}
    return RunFolder.create(path, settings, {})


def accuracy(round: int, client: str | None, value: float) -> Record:
    return Record(round, client, "test_accuracy", value)


def test_records_are_read_as_they_come(tmp_path: Path) -> None:
    folder, run = start(tmp_path / "run"), FollowedRun(tmp_path / "run")
    run.update()
    assert (run.status, run.reached, run.rounds) == ("preparing", 0, 5)
    folder.append([accuracy(1, "a", 50.0), accuracy(1, None, 40.0)])
    run.update()
    assert (run.status, run.reached) == ("training", 1)
    folder.append([Record(2, "b", "absent", "no reply"), accuracy(2, "a", 60.0)])
    run.update()
    run.update()  # nothing new
    assert run.points["test_accuracy"] == {"a": {1: 50.0, 2: 60.0}, None: {1: 40.0}}
    assert (run.missed["b"].rounds, run.missed["b"].last, run.missed["b"].reason) == (
        1,
        2,
        "no reply",
    )
    folder.write_json("result.json", {})
    folder.unlock()
    assert run.status == "finished"


def test_a_half_written_line_waits(tmp_path: Path) -> None:
    folder, run = start(tmp_path / "run"), FollowedRun(tmp_path / "run")
    line = accuracy(1, "ä\n", 50.0).to_line()
    for cut in (1, 14, len(line) - 1):
        with folder.records.path.open("wb") as file:
            file.write(line[:cut])
        run.update()
        assert (run.reached, run.damaged, run.points) == (0, 0, {})
    with folder.records.path.open("ab") as file:
        file.write(line[cut:])
    run.update()
    assert run.points["test_accuracy"] == {"ä\n": {1: 50.0}}
    folder.unlock()


def test_a_damaged_line_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    folder, run = start(tmp_path / "run"), FollowedRun(tmp_path / "run")
    with folder.records.path.open("wb") as file:
        file.write(b'{"round": 1, "metric": "score"\n"score"\n\xff"score"\n')
        file.write(b'{"round": "x", "client": null, "metric": "score", "value": 1}\n')
        file.write(accuracy(2, "a", 1.0).to_line())
    run.update()
    assert (run.damaged, run.reached) == (4, 2)
    folder.unlock()


def test_a_folder_that_is_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "run"
    folder, run = start(path), FollowedRun(path)
    folder.append([accuracy(round, "a", 50.0) for round in range(1, 4)])
    folder.unlock()
    run.update()
    shutil.rmtree(path)
    run.update()
    assert (run.reached, run.points) == (0, {})
    folder = start(path, rounds=9, seed=1)
    folder.append([accuracy(1, "other", 10.0)])
    run.update()
    assert (run.reached, run.rounds, run.settings["seed"]) == (1, 9, 1)
    assert run.points["test_accuracy"] == {"other": {1: 10.0}}
    folder.unlock()


def test_a_folder_replaced_between_two_looks_is_noticed(tmp_path: Path) -> None:
    """The new file is longer, and may have the number of the old one."""
    path = tmp_path / "run"
    folder, run = start(path), FollowedRun(path)
    folder.append([accuracy(1, "a", 50.0)])
    folder.unlock()
    run.update()
    shutil.rmtree(path)
    folder = start(path, seed=1)
    folder.append([accuracy(round, "b", 1.0) for round in range(1, 5)])
    folder.unlock()
    run.update()
    assert run.points["test_accuracy"] == {"b": dict.fromkeys(range(1, 5), 1.0)}


def test_a_resumed_run_is_not_counted_twice(tmp_path: Path) -> None:
    """Killed after round 3 and resumed from a checkpoint: later records are cut off first."""
    federation, path = make_federation(), tmp_path / "run"
    with pytest.raises(Stopped):
        train_briefly(federation, rounds=5, checkpoint_every=2, out=path, on_progress=stop_after(3))
    run = FollowedRun(path)
    run.update()
    before = run.reached
    train_briefly(federation, rounds=5, checkpoint_every=2, out=path, resume=True)
    run.update()
    whole = FollowedRun(path)
    whole.update()
    assert before >= 2
    assert (run.reached, run.status) == (5, "finished")
    assert run.points == whole.points


def test_long_runs_are_thinned_out(tmp_path: Path) -> None:
    folder, run = start(tmp_path / "run"), FollowedRun(tmp_path / "run")
    folder.append([accuracy(round, "a", float(round)) for round in range(1, 1001)])
    folder.unlock()
    run.update()
    points = run.points["test_accuracy"]["a"]
    assert MOST_ROUNDS / 2 < len(points) <= MOST_ROUNDS
    assert max(points) == run.reached == 1000
    assert all(points[round] == round for round in points)
    assert min(points) < 50  # the beginning is still there


def test_metrics_that_are_not_followed_tell_the_round(tmp_path: Path) -> None:
    folder, run = start(tmp_path / "run"), FollowedRun(tmp_path / "run")
    folder.append([Record(3, None, "step_norm", 1.0)])
    folder.unlock()
    run.update()
    assert (run.reached, run.points) == (3, {})


@pytest.mark.parametrize(
    ("owner", "written"),
    [
        ({"pid": os.getpid(), "host": socket.gethostname()}, True),
        (
            {"pid": os.getpid(), "host": socket.gethostname(), "started": start_time(os.getpid())},
            True,
        ),
        (  # the number of a process that was killed was given to this one
            {"pid": os.getpid(), "host": socket.gethostname(), "started": 1},
            start_time(os.getpid()) is None,
        ),
        ({"pid": 2**22 + 1, "host": socket.gethostname()}, False),  # beyond the largest number
        ({"pid": 1, "host": "another machine"}, True),
        ({"pid": 0, "host": socket.gethostname()}, False),
        ({"pid": "x"}, False),
        ([], False),
    ],
)
def test_a_killed_process_does_not_write(tmp_path: Path, owner: object, written: bool) -> None:
    assert not is_being_written(tmp_path)
    (tmp_path / ".writer.json").write_text(json.dumps(owner))
    assert is_being_written(tmp_path) == written


def test_damaged_settings_are_no_reason_to_stop(tmp_path: Path) -> None:
    folder = start(tmp_path / "run")
    (tmp_path / "run" / "settings.json").write_text("{")
    folder.append([accuracy(1, "a", 1.0)])
    run = FollowedRun(tmp_path / "run")
    run.update()
    assert (run.rounds, run.reached) == (0, 1)
    folder.unlock()


def test_every_run_of_a_comparison_can_be_followed(tmp_path: Path) -> None:
    udjfl.compare(
        make_federation(),
        ["fedavg", "afl"],
        seeds=1,
        rounds=3,
        hidden=4,
        uncertainty_epochs=1,
        out=tmp_path / "runs",
    )
    for path in (tmp_path / "runs").rglob("records.jsonl"):
        run = FollowedRun(path.parent)
        run.update()
        assert (run.status, run.reached, run.damaged) == ("finished", 3, 0)
        assert {len(points) for points in run.points["test_accuracy"].values()} == {3}


def test_a_pipe_or_a_link_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("records.jsonl", "settings.json", ".writer.json"):
        folder = tmp_path / name
        start(folder).unlock()
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        run = FollowedRun(folder)
        run.update()
        assert run.points == {}
        assert not is_being_written(folder)
    start(tmp_path / "linked").append([accuracy(1, "a", 50.0)])
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "records.jsonl").symlink_to(tmp_path / "linked" / "records.jsonl")
    run = FollowedRun(tmp_path / "link")
    run.update()
    assert run.points == {}


def test_numbers_and_lines_that_are_too_large_are_damage(tmp_path: Path) -> None:
    folder, run = start(tmp_path), FollowedRun(tmp_path)
    lines = [
        b'{"round": 1, "client": "a", "metric": "score", "value": %s}\n' % value
        for value in (b"9" * 400, b"1e999", b"NaN", b"9" * 5000)
    ]
    lines.append(b'"score"' * (3 << 17) + b"\n")
    (tmp_path / "records.jsonl").write_bytes(b"".join(lines) + accuracy(2, "a", 1.0).to_line())
    run.update()
    assert run.points == {"test_accuracy": {"a": {2: 1.0}}}
    assert run.damaged >= 5
    folder.unlock()
