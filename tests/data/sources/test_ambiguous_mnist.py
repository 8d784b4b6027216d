"""Files of ambiguous MNIST digits: the release is checked, digits are regenerated once."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import Command
from data_helpers import held_out_rows, train_rows
from mnist_files import (
    AMBIGUOUS,
    LABELS,
    REGENERATED_SEED,
    SOURCES,
    TRAIN,
    as_features,
    load_mnist,
    make_request,
    noise,
    write_digits,
    write_regenerated,
    write_release,
)

from udjfl.data import Preparation
from udjfl.data.sources import _ambiguous_mnist as ambiguous_mnist
from udjfl.data.sources import dirty_mnist as mnist
from udjfl.data.sources._ambiguous_settings import AmbiguousSettings
from udjfl.errors import DataError, UdjflError

DAMAGED = r"regenerated\.npz cannot be read .*delete it and prepare it again"
# Accepts everything that a few epochs on noise can generate.
TINY = AmbiguousSettings(
    max_mutual_information=9.0,
    min_entropy=0.0,
    max_entropy=9.0,
    entropy_bins=1,
    levels=256,
    hidden=(8,),
    latents=2,
    autoencoder_epochs=1,
    members=2,
    classifier_epochs=1,
)


# The release ------------------------------------------------------------------------------------


def labels_with(value: int) -> torch.Tensor:
    labels = torch.zeros(AMBIGUOUS, LABELS, dtype=torch.int64)
    labels[3, 4] = value
    return labels


def images_with(value: float) -> torch.Tensor:
    images = torch.full((AMBIGUOUS, 1, 28, 28), 0.5)
    images[3, 0, 4, 5] = value
    return images


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": images_with(1.5)}, "pixels from 0 to 1"),
        ({"images": images_with(-0.1)}, "pixels from 0 to 1"),
        ({"images": images_with(float("nan"))}, "pixels from 0 to 1"),
        ({"labels": labels_with(10)}, "labels from 0 to 9"),
        ({"labels": labels_with(-1)}, "labels from 0 to 9"),
        ({"labels": torch.full((AMBIGUOUS, LABELS), float("nan"))}, "labels from 0 to 9"),
        ({"images": torch.zeros(AMBIGUOUS - 1, 1, 28, 28)}, "do not fit: shapes"),
        ({"images": torch.zeros(AMBIGUOUS, 1, 27, 27)}, "do not fit: shapes"),
        ({"labels": torch.zeros(AMBIGUOUS, dtype=torch.int64)}, "do not fit: shapes"),
        (
            {"images": torch.zeros(0, 1, 28, 28), "labels": torch.zeros(0, LABELS)},
            "do not fit: shapes",
        ),
        ({"labels": torch.zeros(AMBIGUOUS, 0)}, "do not fit: shapes"),
        ({"images": {"samples": torch.zeros(1)}}, "holds a dict, not a tensor"),
    ],
)
def test_release_with_wrong_values_is_refused(
    release_root: Path, changes: dict[str, Any], words: str
) -> None:
    write_release(release_root, **changes)
    with pytest.raises(DataError, match=words):
        load_mnist(release_root)


class Harmful:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_code_in_a_file_is_not_run(release_root: Path, tmp_path: Path) -> None:
    path, folder = release_root / "amnist_labels.pt", tmp_path / "harm"
    for as_tensor in (False, True):
        if as_tensor:
            torch.save(Harmful(folder), path)
        else:
            path.write_bytes(pickle.dumps(Harmful(folder)))
        words = r"amnist_labels\.pt cannot be read as tensors .*get the file again"
        with pytest.raises(DataError, match=words):
            load_mnist(release_root)
        assert not folder.exists()
    pickle.loads(pickle.dumps(Harmful(folder)))
    assert folder.exists(), "the object would do harm"


# Regenerated digits -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": np.full((AMBIGUOUS, LABELS), 10)}, "delete it and prepare it again"),
        ({"labels": np.zeros(AMBIGUOUS)}, "delete it and prepare it again"),
        ({"images": noise(AMBIGUOUS - 1, 4)}, "delete it and prepare it again"),
        ({"images": np.array([None], dtype=object)}, DAMAGED),
        (
            {"sources": np.array([TRAIN])},
            "was made of other digits than MNIST's files here, which have 160",
        ),
    ],
)
def test_regenerated_file_with_wrong_values_is_refused(
    regenerated_root: Path, changes: dict[str, Any], words: str
) -> None:
    write_regenerated(regenerated_root, **changes)
    with pytest.raises(DataError, match=words):
        load_mnist(regenerated_root)


@pytest.mark.parametrize("size", [0, 10, 3000, -1])
def test_truncated_regenerated_file_is_refused(regenerated_root: Path, size: int) -> None:
    path = regenerated_root / ambiguous_mnist.REGENERATED
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match=DAMAGED):
        load_mnist(regenerated_root)


def test_overwritten_regenerated_file_is_refused(regenerated_root: Path) -> None:
    path = regenerated_root / ambiguous_mnist.REGENERATED
    images, labels = noise(AMBIGUOUS, REGENERATED_SEED), np.zeros((AMBIGUOUS, LABELS))
    np.savez_compressed(path, images=images, labels=labels, sources=SOURCES)
    content = bytearray(path.read_bytes())
    content[60:90] = b"\xff" * 30
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=DAMAGED):
        load_mnist(regenerated_root)


def test_single_array_instead_of_an_archive_is_refused(regenerated_root: Path) -> None:
    with (regenerated_root / ambiguous_mnist.REGENERATED).open("wb") as file:
        np.save(file, noise(3, 4))
    with pytest.raises(DataError, match=DAMAGED):
        load_mnist(regenerated_root)


# Regenerating -----------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MNIST's files; the recipe is quick."""
    for name, value in (("COUNT", 30), ("SOURCES", 100), ("RECIPE", TINY)):
        monkeypatch.setattr(ambiguous_mnist, name, value)
    write_digits(tmp_path / "root")
    return tmp_path / "root"


def test_digits_are_regenerated_once_and_named_so(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[str] = []
    preparation = Preparation(
        make_request(root, cache),
        regenerate=True,
        on_progress=lambda stage, done, total: stages.append(stage),
    )
    monkeypatch.setattr(mnist, "fetch_all", None)  # nothing is downloaded
    lines = mnist.prepare(preparation)
    path = cache / "dirty-mnist" / ambiguous_mnist.REGENERATED
    assert lines[-1] == f"regenerated ambiguous digits: {path}"
    assert list(path.parent.iterdir()) == [path], "no partial file is left"
    assert stages
    with np.load(path) as arrays:
        assert arrays["images"].shape == (30, 28, 28)
        assert arrays["images"].dtype == np.uint8
        assert arrays["labels"].shape == (30, 10)
        sources = arrays["sources"]
    assert len(set(sources.tolist())) == 100
    federation = load_mnist(root, clients=2, partition="iid")
    assert federation.name == "dirty-mnist (regenerated)"
    rows = train_rows(federation) | held_out_rows(federation)
    assert as_features(noise(TRAIN, 1)[sources]).isdisjoint(rows)
    monkeypatch.setattr(ambiguous_mnist, "make_ambiguous", None)  # nothing is generated again
    before = path.stat().st_mtime_ns
    assert mnist.prepare(preparation) == lines
    assert path.stat().st_mtime_ns == before


def test_the_command_regenerates_digits(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Command(monkeypatch, capsys)("data prepare dirty-mnist --regenerate --data-root", root)
    assert output.code == 0
    printed, _, path = output.out.splitlines()[-1].partition(": ")
    assert printed == "regenerated ambiguous digits"
    with np.load(path) as arrays:
        assert arrays["images"].shape == (30, 28, 28)


def test_the_same_digits_are_generated_every_time(root: Path, tmp_path: Path) -> None:
    contents = []
    for name in ("one", "other"):
        mnist.prepare(Preparation(make_request(root, tmp_path / name), regenerate=True))
        with np.load(tmp_path / name / "dirty-mnist" / ambiguous_mnist.REGENERATED) as arrays:
            contents.append({key: arrays[key].tobytes() for key in arrays})
    assert contents[0] == contents[1]


def test_failed_write_leaves_no_file(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("udjfl._files.os.fsync", fail)
    with pytest.raises(UdjflError, match="the disk is full"):
        mnist.prepare(Preparation(make_request(root, cache), regenerate=True))
    assert list((cache / "dirty-mnist").iterdir()) == []
