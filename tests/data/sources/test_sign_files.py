"""Files of traffic signs: where they are found, and how they are read."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from sign_files import load_pools, make_arrays, make_request, write_archive, write_folders

from udjfl.data.sources import _images as pictures
from udjfl.data.sources._sign_files import find_signs, load_signs
from udjfl.errors import DataError


def test_groups_are_pairs_of_class_and_track(tmp_path) -> None:
    signs = load_signs(make_request(write_archive(tmp_path / "signs.npz")))
    # Track 3 of class 0 and track 3 of class 2 are two signs.
    assert signs.tracks == 30
    assert signs.groups.tolist() == np.repeat(np.arange(30), 4).tolist()


# Arrays -----------------------------------------------------------------------------------------


def test_labels_with_gaps_keep_their_names(tmp_path) -> None:
    given = make_arrays()
    given["y"] = np.array([2, 9, 13], dtype=np.uint8)[given["y"]]
    path = write_archive(tmp_path / "signs.npz", **given)
    assert load_signs(make_request(path)).class_names == ("2", "9", "13")
    named = write_archive(
        tmp_path / "named.npz", **given, names=np.array([f"sign {number}" for number in range(14)])
    )
    signs = load_signs(make_request(named))
    assert signs.class_names == ("sign 2", "sign 9", "sign 13")
    assert sorted(set(signs.labels.tolist())) == [0, 1, 2]


def test_other_sizes_are_resized(tmp_path) -> None:
    path = write_archive(tmp_path / "signs.npz", **make_arrays(size=40))
    assert load_pools(path).clean.x.shape[1:] == (3, 28, 28)
    assert load_pools(path, size=16).clean.x.shape[1:] == (3, 16, 16)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": np.zeros((120, 28, 28), dtype=np.uint8)}, r"x is uint8 \[120, 28, 28\]"),
        ({"x": np.zeros((120, 28, 28, 3))}, "x is float64"),
        ({"x": np.zeros((0, 28, 28, 3), dtype=np.uint8)}, "give uint8"),
        ({"y": np.zeros(120)}, "y is float64"),
        ({"y": np.zeros(119, dtype=int)}, r"y is int64 \[119\]"),
        ({"track": np.full(120, -1)}, "track is .* give a whole number from 0 up"),
        ({"names": np.array(["one"])}, "a text for each label from 0 to 2"),
        ({"names": np.arange(3)}, "names is int64"),
        ({"y": np.zeros(120, dtype=int)}, "10 tracks of 1 classes"),
        ({"track": np.zeros(120, dtype=int), "y": np.arange(120) % 2}, "2 tracks of 2 classes"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, changes, words) -> None:
    with pytest.raises(DataError, match=words):
        load_pools(write_archive(tmp_path / "signs.npz", **changes))


def test_python_objects_are_never_unpickled(tmp_path) -> None:
    path = write_archive(tmp_path / "signs.npz", y=np.array([0] * 120, dtype=object))
    with pytest.raises(DataError, match="without Python objects"):
        load_pools(path)


def test_damaged_data_root_file_is_refused(tmp_path) -> None:
    path = write_archive(tmp_path / "mine.npz")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"mine\.npz has no array x and no array y"):
        load_pools(path)
    (tmp_path / "notes.txt").write_text("not arrays")
    with pytest.raises(DataError, match=r"notes\.txt has no array x"):
        load_pools(tmp_path / "notes.txt")


# Finding ----------------------------------------------------------------------------------------


def test_one_archive_with_the_arrays_is_found_among_others(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.zeros(3))
    (tmp_path / "b.npz").write_bytes(b"broken")
    np.save(tmp_path / "c.npy", np.zeros(3))
    (tmp_path / "c.npy").rename(tmp_path / "c.npz")
    mine = write_archive(tmp_path / "mine.npz")
    (tmp_path / "mnist").mkdir()
    assert find_signs(make_request(tmp_path)) == mine
    write_archive(tmp_path / "other.npz")
    with pytest.raises(
        DataError, match=r"mine\.npz, .*other\.npz\. Name one of them as the data root"
    ):
        find_signs(make_request(tmp_path))
    assert find_signs(make_request(mine)) == mine
    named = write_archive(tmp_path / "signs.npz")
    assert find_signs(make_request(tmp_path)) == named


def test_folder_called_signs_is_found(tmp_path) -> None:
    layout = write_folders(tmp_path / "signs")
    assert find_signs(make_request(tmp_path)) == layout
    assert find_signs(make_request(layout)) == layout
    write_archive(tmp_path / "signs.npz")
    with pytest.raises(DataError, match="several places have traffic signs"):
        find_signs(make_request(tmp_path))


@pytest.mark.parametrize(
    "below", ["", "GTSRB/Final_Training/Images", "Final_Training/Images", "GTSRB/Training"]
)
def test_gtsrb_folders_are_found(tmp_path, below) -> None:
    layout = write_folders(tmp_path / below)
    assert find_signs(make_request(tmp_path)).samefile(layout)


def test_the_cache_is_searched_too(cache) -> None:
    path = write_archive(cache / "signs.npz")
    assert find_signs(make_request(None)) == path


def test_missing_photographs_have_advice(tmp_path) -> None:
    for root in (tmp_path, None):
        with pytest.raises(
            DataError,
            match=r"photographs of traffic signs were not found in .*benchmark\.ini\.rub\.de",
        ):
            load_pools(root)


# GTSRB's layout ---------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["ppm", "png", "jpg", "PPM"])
def test_one_folder_per_class_is_read(tmp_path, suffix) -> None:
    signs = load_signs(make_request(write_folders(tmp_path / "data", suffix=suffix)))
    assert signs.pictures.shape == (24, 28, 28, 3)
    assert signs.class_names == ("00000", "00002", "00010")
    assert signs.labels.tolist() == np.repeat([0, 1, 2], 8).tolist()
    assert signs.groups.tolist() == np.repeat(np.arange(12), 2).tolist()


def test_numbered_classes_are_sorted_by_number(tmp_path) -> None:
    assert load_signs(
        make_request(write_folders(tmp_path / "data", classes=("10", "9", "2")))
    ).class_names == (
        "2",
        "9",
        "10",
    )
    assert load_signs(
        make_request(write_folders(tmp_path / "more", classes=("yield", "9", "stop")))
    ).class_names == ("9", "stop", "yield")


def test_folders_are_decoded_once(tmp_path, monkeypatch) -> None:
    layout = write_folders(tmp_path / "data")
    before = load_pools(layout)
    monkeypatch.setattr(pictures, "read_pictures", None)
    assert np.array_equal(load_pools(layout).clean.x, before.clean.x)


def test_error_names_a_picture_without_a_track(tmp_path) -> None:
    layout = write_folders(tmp_path / "data")
    Image.new("RGB", (5, 5)).save(layout / "00002" / "stop.png")
    with pytest.raises(DataError, match=r"stop\.png: its name does not contain its track"):
        load_pools(layout)


def test_error_names_a_damaged_picture(tmp_path) -> None:
    layout = write_folders(tmp_path / "data")
    (layout / "00002" / "00001_00001.ppm").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"00001_00001\.ppm cannot be read as an image"):
        load_pools(layout)
