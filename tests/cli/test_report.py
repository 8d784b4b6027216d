"""`udjfl report` and `udjfl check`: comparisons that are not finished."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import SMALL, Command

COMPARE = f"compare {SMALL} --seeds 4 --methods udj:theory=rawls,afl"


@pytest.fixture
def half(udjfl_command: Command, tmp_path: Path) -> Path:
    """Three methods on four seeds, as if killed: seed 2 has one run, seed 3 none."""
    folder = tmp_path / "half"
    assert udjfl_command(COMPARE, "--out", folder).code == 0
    (folder / "comparison.json").unlink()
    results = sorted(folder.glob("seed-[23]/*/result.json"))
    for result in results[1:]:
        result.unlink()
    return folder


def test_an_unfinished_comparison_says_so_and_uses_the_seeds_of_all_methods(
    udjfl_command: Command, half: Path
) -> None:
    shown = udjfl_command("report", half)
    advice = f"`udjfl resume {half}` trains the rest"
    sentence = f"Not finished: 7 of 12 runs. {advice}; below are the 2 seeds that every method has."
    joined = " ".join(shown.out.split())
    assert joined.startswith(sentence)
    assert "mean over 2 seeds" in joined
    assert "failed" not in joined
    document = json.loads(udjfl_command("report", half, "--json").out)
    assert document["seeds"] == [0, 1]
    assert document["unfinished"] == sentence
    assert all(method["failed"] == {} for method in document["methods"])


def test_resumed_it_is_as_if_it_had_not_been_stopped(udjfl_command: Command, half: Path) -> None:
    assert udjfl_command("resume", half).code == 0
    document = json.loads(udjfl_command("report", half, "--json").out)
    assert document["seeds"] == [0, 1, 2, 3]
    assert "unfinished" not in document


def test_without_a_seed_of_all_methods_there_is_nothing_to_compare(
    udjfl_command: Command, half: Path
) -> None:
    for result in half.glob("seed-[01]/afl*/result.json"):
        result.unlink()
    shown = udjfl_command("report", half)
    assert shown.code == 2
    assert "no seed has a run of every method yet: there are 5 of 12 runs; `udjfl resume" in (
        " ".join(shown.err.split())
    )


def test_the_page_has_one_line_for_all_unfinished_runs(udjfl_command: Command, half: Path) -> None:
    page = half.parent / "page.html"
    assert udjfl_command("report", half, "--html", page).code == 0
    text = page.read_text(encoding="utf-8")
    assert text.lower().count("not finished") == 1
    assert "Not finished: 7 of 12 runs." in text


def test_the_check_counts_files_and_unfinished_runs(udjfl_command: Command, half: Path) -> None:
    shown = udjfl_command("check", half)
    assert " files in 13 folders: " in shown.out
    joined = " ".join(shown.out.split())
    assert f"5 of 12 runs are not finished: `udjfl resume {half}` trains the rest." in joined
    assert len(json.loads(udjfl_command("check", half, "--json").out)["unfinished"]) == 1
    udjfl_command("resume", half)
    shown = udjfl_command("check", half)
    assert "in 13 folders: all whole." in shown.out
    assert "not finished" not in shown.out


def test_methods_are_in_the_order_of_the_command(udjfl_command: Command, tmp_path: Path) -> None:
    """The catalogue, which the order followed before, has UDJ-FL in front of AFL."""
    for given in ("udj:theory=rawls,qffl,afl", "afl,qffl,udj:theory=rawls"):
        folder = tmp_path / given[:3]
        udjfl_command(f"compare {SMALL} --seeds 1 --methods {given}", "--out", folder)
        document = json.loads(udjfl_command("report", folder, "--json").out)
        names = [method["method"] for method in document["methods"]]
        assert names == ["fedavg", *(one.partition(":")[0] for one in given.split(","))]


def test_the_folder_of_a_page_is_made(udjfl_command: Command, half: Path) -> None:
    page = half.parent / "new" / "pages" / "report.html"
    assert udjfl_command("report", half, "--html", page).code == 0
    assert page.is_file()


@pytest.mark.parametrize("command", ["report {half} --html", "demo --html"])
def test_a_page_that_cannot_be_written_is_told_before_the_work(
    udjfl_command: Command, half: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def work(*_: object, **__: object) -> None:
        pytest.fail("the work began")

    monkeypatch.setattr("udjfl.report.html.page.write_report", work)
    monkeypatch.setattr("udjfl.simulation.compare.run_comparison", work)
    for page, advice in {
        half: "it is a folder; name a file in it",
        half / "settings.json" / "page.html": "a file is in the way; choose another folder",
    }.items():
        shown = udjfl_command(command.format(half=half), page)
        assert (shown.code, shown.out) == (2, "")
        assert shown.err == f"udjfl: cannot write {page}: {advice}\n"


def test_a_page_does_not_mix_two_comparisons(udjfl_command: Command, tmp_path: Path) -> None:
    """Both have FedAvg on seed 0: a mean over both is that of neither."""
    for name, rounds in {"short": 2, "long": 3}.items():
        training = f"compare {SMALL} --seeds 1 --methods afl --rounds {rounds}"
        assert udjfl_command(training, "--out", tmp_path / name).code == 0
    folders = (tmp_path / "short", tmp_path / "long")
    shown = udjfl_command("report", *folders, "--html", tmp_path / "page.html")
    assert shown.code == 2
    assert "are the same method and seed; a page shows one comparison" in shown.err
    assert not (tmp_path / "page.html").exists()
