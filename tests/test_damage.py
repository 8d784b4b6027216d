"""One bit changed somewhere in a run folder: nothing that reads the folder overlooks it."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from small_runs import Stopped, make_federation, read_files, stop_after

import udjfl
from udjfl.errors import StorageError, UdjflError
from udjfl.report.saved_runs import read_run
from udjfl.training.folder_check import check_folder
from udjfl.training.run_folder import RunFolder

HOW: dict[str, Any] = {
    "model": "logistic",
    "rounds": 5,
    "checkpoint_every": 2,
    "uncertainty_epochs": 1,
    "service": "prior-all",
}


def resume(out: Path, **others: Any) -> udjfl.Result:
    return udjfl.simulate(make_federation(), "rawls", out=out, resume=True, **HOW, **others)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("damage")
    resume(root / "finished")
    with pytest.raises(Stopped):
        resume(root / "stopped", on_progress=stop_after(3))
    return {name: root / name for name in ("finished", "stopped")}


def list_bytes(folder: Path) -> list[tuple[str, int]]:
    """List every byte that counts: those of records after the checkpoint are made again."""
    run = RunFolder.open(folder)
    kept = len(run.records_until(run.read_checkpoint()))
    sizes = {name: len(content) for name, content in read_files(folder).items()}
    sizes["records.jsonl"] = kept
    return [(name, position) for name, size in sizes.items() for position in range(size)]


def flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def check_flips(folders: dict[str, Path], tmp_path: Path, count: int, seed: int) -> None:
    """Change single bits and see that `check` finds each, and that reading refuses it."""
    chance, found = random.Random(seed), Counter[str]()
    for name, original in folders.items():
        copy = Path(shutil.copytree(original, tmp_path / name))
        everything = list_bytes(original)
        for file, position in chance.sample(everything, min(count // 2, len(everything))):
            bit = chance.randrange(8)
            flip(copy / file, position, bit)
            (status,) = check_folder(copy)
            assert status.is_damaged, (name, file, position, bit)
            if name == "finished":
                with pytest.raises(StorageError):
                    read_run(copy)
            flip(copy / file, position, bit)
            found[name] += 1
        assert not check_folder(copy)[0].is_damaged
    print(f"{sum(found.values())} bits changed, all found: {dict(found)}")


def check_resumes(folders: dict[str, Path], tmp_path: Path, count: int, seed: int) -> None:
    """Change single bits anywhere and resume: the same bytes as ever, or an error of ours."""
    chance, outcomes = random.Random(seed), Counter[str]()
    whole = read_files(folders["finished"])
    for number in range(count):
        name = chance.choice(sorted(folders))
        copy = Path(shutil.copytree(folders[name], tmp_path / f"resumed-{number}"))
        files = {file: len(content) for file, content in read_files(copy).items() if content}
        file = chance.choice(sorted(files))
        flip(copy / file, chance.randrange(files[file]), chance.randrange(8))
        try:
            resume(copy)
        except UdjflError:
            outcomes["refused"] += 1
        else:
            assert read_files(copy) == whole, (name, file)
            outcomes["made again"] += 1
        shutil.rmtree(copy)
    print(f"{count} resumes of damaged folders: {dict(outcomes)}; 0 silent")


def test_a_changed_bit_anywhere_is_found(folders: dict[str, Path], tmp_path: Path) -> None:
    check_flips(folders, tmp_path, 600, 0)


def test_a_damaged_folder_is_resumed_to_the_same_bytes_or_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    check_resumes(folders, tmp_path, 12, 1)


@pytest.mark.soak
def test_twenty_thousand_changed_bits_are_found(folders: dict[str, Path], tmp_path: Path) -> None:
    check_flips(folders, tmp_path, 20_000, 2)


@pytest.mark.soak
def test_many_damaged_folders_are_resumed_to_the_same_bytes_or_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    check_resumes(folders, tmp_path, 300, 3)
