"""Rows copied into a file: the same values, adjacent, and not in memory of the process's own."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from udjfl import DataError, Examples, Federation
from udjfl.data._on_disk import ROWS_AT_ONCE, copy_rows
from udjfl.settings import TrainingSettings
from udjfl.simulation.simulate import simulate
from udjfl.uncertainty import crossfit


def find_mapping(tensor: torch.Tensor) -> str:
    """Return the line of the process's memory map that a tensor begins in."""
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= address < end:
            return line
    raise AssertionError("no such memory")


def test_rows_are_the_same_and_adjacent(tmp_path: Path) -> None:
    x = torch.arange(3 * ROWS_AT_ONCE * 2, dtype=torch.int32).view(-1, 2)
    first = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    second = torch.tensor([5, 5, 0])
    one, two = copy_rows([(x, first), (x, second)], tmp_path)
    assert torch.equal(one, x[first])
    assert torch.equal(two, x[second])
    assert one.data_ptr() + one.nbytes == two.data_ptr()
    assert list(tmp_path.iterdir()) == []  # the file has no name


def make_images(folder: Path) -> Federation:
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.integers(0, 256, (n, 1, 8, 8)).astype(np.uint8)
        return x, (x[:, 0, 0, 0] > 127).astype(np.int64)

    clients = {name: (*draw(40), *draw(10)) for name in "ab"}
    Federation.from_arrays(clients, draw(10)).save(folder)
    return Federation.load(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_folds_and_held_out_parts_of_data_on_disk_stay_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    take_folds = crossfit._take_folds

    def watch(*given: object) -> object:
        clients = take_folds(*given)
        seen.extend(client.train.x for client in clients)
        return clients

    monkeypatch.setattr(crossfit, "_take_folds", watch)
    federation = make_images(tmp_path)
    simulate(federation, "fedavg", rounds=1, uncertainty_epochs=1)
    assert len(seen) == 2 * 2 * TrainingSettings().uncertainty_folds
    held_out = federation.hold_out(0.2, 0)
    for x in [*seen, *(client.train.x for client in held_out.clients)]:
        assert "(deleted)" in find_mapping(x)
    in_memory = Examples.take_many([(federation.test, np.arange(3))])[0]
    assert "(deleted)" not in find_mapping(in_memory.x)


def test_held_out_parts_are_those_in_memory(tmp_path: Path) -> None:
    on_disk = make_images(tmp_path)
    members = {c.id: (c.train.x, c.train.y, c.test.x, c.test.y) for c in on_disk.clients}
    in_memory = Federation.from_arrays(members, (on_disk.test.x, on_disk.test.y))
    for one, two in zip(
        on_disk.hold_out(0.2, 3).clients, in_memory.hold_out(0.2, 3).clients, strict=True
    ):
        for a, b in ((one.train, two.train), (one.held_out, two.held_out)):
            assert a is not None
            assert b is not None
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.y, b.y)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail, raising=False)
    with pytest.raises(DataError, match=r"GB are needed on the disk of .* TMPDIR"):
        copy_rows([(torch.zeros(3, 2), torch.arange(3))], tmp_path)


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (rows,) = copy_rows([(torch.ones(3, 2), torch.arange(3))], tmp_path / "nothing")
    assert torch.equal(rows, torch.ones(3, 2))
