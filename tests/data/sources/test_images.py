"""Image files, the cache of decoded pictures, and features."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from udjfl.data.sources import _images as pictures
from udjfl.data.sources._images import (
    channel_statistics,
    find_distinct,
    read_cached_pictures,
    read_pictures,
    resize,
    scale_for_display,
    standardise,
    standardise_each,
)
from udjfl.errors import DataError


def some_pictures(count=4, size=6, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def save_pictures(folder, images, ending="png"):
    files = [folder / f"{index}.{ending}" for index in range(len(images))]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image).save(file)
    return files


@pytest.mark.parametrize("ending", ["bmp", "ppm", "png"])
def test_files_are_read_as_they_were_written(tmp_path, ending) -> None:
    images = some_pictures()
    assert np.array_equal(read_pictures(save_pictures(tmp_path, images, ending), size=6), images)


def test_jpeg_and_grey_pictures_are_read_in_colour(tmp_path) -> None:
    Image.new("L", (10, 12), 77).save(tmp_path / "grey.jpg")
    read = read_pictures([tmp_path / "grey.jpg"], size=5)
    assert read.shape == (1, 5, 5, 3)
    assert read.dtype == np.uint8
    assert (np.abs(read.astype(int) - 77) <= 1).all()


def test_resizing_averages_the_pixels_that_become_one(tmp_path) -> None:
    # Left half black, right half 200; at half the size, columns of four become two without a
    # mixture far from the middle.
    wide = np.zeros((8, 8, 3), dtype=np.uint8)
    wide[:, 4:] = 200
    (read,) = read_pictures(save_pictures(tmp_path, [wide]), size=4)
    assert (read[:, 0] == 0).all()
    assert (read[:, 3] == 200).all()
    assert (read[:, 1] > 0).all(), "bilinear: the columns at the border are mixtures"
    assert (read[:, 2] < 200).all()
    assert np.array_equal(resize(wide[None], 4)[0], read)


def test_pictures_of_the_right_size_are_returned_as_they_are() -> None:
    images = some_pictures(size=7)
    assert resize(images, 7) is images


@pytest.mark.parametrize(
    "content", [b"", b"no image at all", b"BM\x00\x00", b"P6\n4 4\n255\n\x00\x01"]
)
def test_error_names_a_file_that_is_no_image(tmp_path, content) -> None:
    (tmp_path / "broken.bmp").write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.bmp cannot be read as an image"):
        read_pictures([tmp_path / "broken.bmp"])


def test_error_names_a_truncated_picture(tmp_path) -> None:
    (file,) = save_pictures(tmp_path, some_pictures(1, 40))
    file.write_bytes(file.read_bytes()[:600])
    with pytest.raises(DataError, match=r"0\.png cannot be read"):
        read_pictures([file])


def test_error_names_a_missing_file(tmp_path) -> None:
    with pytest.raises(DataError, match=r"gone\.png cannot be read"):
        read_pictures([tmp_path / "gone.png"])


def test_progress_ends_with_the_total(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pictures, "FILES_PER_REPORT", 2)
    calls = []
    read_pictures(
        save_pictures(tmp_path, some_pictures(5)), 6, lambda *report: calls.append(report), "signs"
    )
    assert calls == [("signs", 2, 5), ("signs", 4, 5), ("signs", 5, 5)]


# The cache --------------------------------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch):
    """Return the number of files decoded by each call."""
    calls = []
    read = pictures.read_pictures

    def counted(files, *rest):
        calls.append(len(files))
        return read(files, *rest)

    monkeypatch.setattr(pictures, "read_pictures", counted)
    return calls


def test_files_are_decoded_once(tmp_path, decoded) -> None:
    files, cache = save_pictures(tmp_path, some_pictures()), tmp_path / "cache" / "deep"
    first, again = (read_cached_pictures(files, cache, "some", size=6) for _ in range(2))
    assert decoded == [4]
    assert np.array_equal(first, again)
    assert np.array_equal(first, some_pictures())
    assert [path.suffix for path in cache.iterdir()] == [".npz"], "no partial file is left"


def test_changed_files_sizes_and_names_are_decoded_again(tmp_path, decoded) -> None:
    files, cache = save_pictures(tmp_path, some_pictures()), tmp_path / "cache"
    read_cached_pictures(files, cache, "some", size=6)
    read_cached_pictures(files[:3], cache, "some", size=6)
    read_cached_pictures(files, cache, "some", size=5)
    files[0].write_bytes(files[0].read_bytes() + b"longer")
    read_cached_pictures(files, cache, "some", size=6)
    read_cached_pictures([files[0].rename(tmp_path / "9.png"), *files[1:]], cache, "some", size=6)
    assert decoded == [4, 3, 4, 4, 4]


@pytest.mark.parametrize(
    "damage", ["short", "flipped", "empty", "an array", "another shape", "another name"]
)
def test_damaged_cache_file_is_replaced(tmp_path, decoded, damage) -> None:
    files, cache = save_pictures(tmp_path, some_pictures()), tmp_path / "cache"
    read_cached_pictures(files, cache, "some", size=6)
    (path,) = cache.iterdir()
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    path.write_bytes({"short": content[: len(content) // 2], "empty": b""}.get(damage, content))
    with path.open("ab" if damage in ("short", "flipped", "empty") else "wb") as file:
        if damage == "an array":
            np.save(file, some_pictures())
        elif damage == "another shape":
            np.savez(file, pictures=some_pictures(2))
        elif damage == "another name":
            np.savez(file, other=some_pictures())
    assert np.array_equal(read_cached_pictures(files, cache, "some", size=6), some_pictures())
    read_cached_pictures(files, cache, "some", size=6)
    assert decoded == [4, 4], "it is replaced once, by a complete file"


def test_unwritable_cache_is_ignored(tmp_path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    assert np.array_equal(
        read_cached_pictures(
            save_pictures(tmp_path, some_pictures()), tmp_path / "cache", "some", 6
        ),
        some_pictures(),
    )


# Features ---------------------------------------------------------------------------------------


def test_standardising_by_hand() -> None:
    # Red 0 and 255, mean 1/2 and deviation 1/2: -1 and 1. Green 51 and 51: no contrast, 0. Blue 0
    # and 51: -1 and 1 again.
    images = np.array([[[[0, 51, 0], [255, 51, 51]]]], dtype=np.uint8)
    mean, std = channel_statistics(images)
    assert mean.tolist() == pytest.approx([0.5, 0.2, 0.1])
    assert std.tolist() == pytest.approx([0.5, 1.0, 0.1])
    features = standardise(images, mean, std)
    assert features.shape == (1, 3, 1, 2)
    assert features.dtype == np.float32
    assert features.ravel().tolist() == pytest.approx([-1, 1, 0, 0, -1, 1], abs=1e-6)


def test_standardising_can_be_inverted() -> None:
    images = some_pictures(10)
    mean, std = channel_statistics(images[:3])
    features = standardise(images, mean, std)
    restored = (features.transpose(0, 2, 3, 1).astype(np.float64) * std + mean) * 255
    assert np.array_equal(np.rint(restored), images)


def test_each_picture_is_standardised_by_itself() -> None:
    images = some_pictures(3)
    features = standardise_each(images)
    assert features.dtype == np.float32
    assert np.allclose(features.mean(axis=(2, 3)), 0, atol=1e-6)
    assert np.allclose(features.std(axis=(2, 3), ddof=1), 1, atol=1e-5)
    assert np.array_equal(standardise_each(images[1:2])[0], features[1]), (
        "no number of one picture reaches another"
    )
    darker = (images // 2 * 2).astype(np.uint8)
    assert np.allclose(
        standardise_each((darker // 2).astype(np.uint8)), standardise_each(darker), atol=1e-6
    )


def test_picture_of_one_colour_becomes_zero() -> None:
    assert not standardise_each(np.full((1, 4, 4, 3), 9, dtype=np.uint8)).any()


def test_distinct_pictures_are_the_first_of_each() -> None:
    a, b, c = some_pictures(3)
    assert find_distinct(np.stack([a, b, a, c, b])).tolist() == [0, 1, 3]


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_display_is_from_0_to_1_on_one_scale(kind) -> None:
    shown = scale_for_display(kind([[[[-1.0, 1.0]]], [[[0.0, 3.0]]]]))
    assert shown.reshape(-1).tolist() == [0.0, 0.5, 0.25, 1.0]
    assert scale_for_display(kind([[[[2.0, 2.0]]]])).reshape(-1).tolist() == [0.0, 0.0]


def test_pillow_is_imported_only_when_a_file_is_read() -> None:
    code = "import sys, udjfl.data; sys.exit('PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
