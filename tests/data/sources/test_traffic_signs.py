"""Traffic signs of the user's own: where they are found, and the protocol they are put through."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from PIL import Image

from udjfl.data.source import Preparation
from udjfl.data.sources import _images as pictures
from udjfl.data.sources._images import channel_statistics, standardised
from udjfl.data.sources._lens_blur import blurred
from udjfl.data.sources.traffic_signs import (
    BLURRED,
    CLEAN,
    SOURCE,
    VALIDATION,
    find_signs,
    load_signs,
    roles,
)
from udjfl.errors import DataError, SettingsError

SEEDS = (0, 1, 7)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("UDJFL_CACHE", str(place))
    monkeypatch.delenv("UDJFL_DATA", raising=False)
    return place


def arrays(classes=3, tracks=10, frames=4, size=28, seed=0):
    """Photographs in which everything differs; track numbers are used again in each class, as in GTSRB."""
    count = classes * tracks * frames
    return {
        "x": np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8),
        "y": np.repeat(np.arange(classes), tracks * frames),
        "track": np.tile(np.repeat(np.arange(tracks), frames), classes),
    }


def archive(path, **changes):
    np.savez(path, **{**arrays(), **changes})
    return path


def request(root, seed=0, **options):
    return SOURCE.request(seed, root, options)


def pools(root, seed=0, **options):
    return SOURCE.pools(request(root, seed, **options))


def tree(folder, classes=("00000", "00002", "00010"), tracks=4, frames=2, ending="ppm", size=12):
    """GTSRB's training layout."""
    rng = np.random.default_rng(5)
    for name in classes:
        (folder / name).mkdir(parents=True)
        (folder / name / f"GT-{name}.csv").write_text("Filename;Width\n")
        for track in range(tracks):
            for frame in range(frames):
                image = rng.integers(0, 256, (size, size + 3, 3), dtype=np.uint8)
                Image.fromarray(image).save(folder / name / f"{track:05}_{frame:05}.{ending}")
    return folder


# The protocol --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tenth_is_held_out_and_half_of_the_rest_is_blurred_in_whole_tracks(tmp_path, seed):
    # 30 tracks of 4: 3 for validation, one of each class; 9 left in each class, 4 or 5 of them blurred by turns.
    made = pools(archive(tmp_path / "signs.npz"), seed)
    assert len(made.validation) == 12
    assert Counter(made.validation.y.tolist()) == {0: 4, 1: 4, 2: 4}
    assert Counter(made.clean.y.tolist()) == {0: 20, 1: 16, 2: 20}
    assert Counter(made.ambiguous.y.tolist()) == {0: 16, 1: 20, 2: 16}
    assert set(Counter(made.clean_groups.tolist()).values()) == {4}
    assert set(Counter(made.ambiguous_groups.tolist()).values()) == {4}
    assert set(made.clean_groups.tolist()).isdisjoint(made.ambiguous_groups.tolist())
    assert made.test is None
    assert made.title == "signs (lens blur 5)"
    assert made.class_names == ("0", "1", "2")


def test_groups_are_pairs_of_class_and_track(tmp_path):
    signs = load_signs(request(archive(tmp_path / "signs.npz")))
    # Track 3 of class 0 and track 3 of class 2 are two signs.
    assert signs.tracks == 30
    assert signs.groups.tolist() == np.repeat(np.arange(30), 4).tolist()


def test_features_are_the_photographs_clean_and_blurred(tmp_path):
    path = archive(tmp_path / "signs.npz")
    given = arrays()
    role = roles(given["y"], load_signs(request(path)).groups, seed=1)
    mean, std = channel_statistics(given["x"][role == VALIDATION])
    made = pools(path, seed=1, level=2)
    assert np.array_equal(made.clean.x.numpy(), standardised(given["x"][role == CLEAN], mean, std))
    assert np.array_equal(
        made.validation.x.numpy(), standardised(given["x"][role == VALIDATION], mean, std)
    )
    assert np.array_equal(
        made.ambiguous.x.numpy(), standardised(blurred(given["x"][role == BLURRED], 2), mean, std)
    )
    assert np.array_equal(made.ambiguous.y.numpy(), given["y"][role == BLURRED])
    assert made.title == "signs (lens blur 2)"


def test_statistics_come_from_validation_alone(tmp_path):
    made = pools(archive(tmp_path / "signs.npz"))
    assert made.validation.x.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-5)
    assert made.validation.x.std((0, 2, 3), correction=0).tolist() == pytest.approx(
        [1, 1, 1], abs=1e-5
    )
    assert abs(float(made.clean.x.mean())) > 1e-5


def test_the_seed_draws_the_tracks(tmp_path):
    path = archive(tmp_path / "signs.npz")
    one, again, other = (pools(path, seed) for seed in (0, 0, 1))
    assert np.array_equal(one.clean.x, again.clean.x)
    assert np.array_equal(one.ambiguous.x, again.ambiguous.x)
    assert set(one.clean_groups.tolist()) != set(other.clean_groups.tolist())


def test_odd_tracks_are_left_clean_and_blurred_by_turns():
    # Four classes of three tracks and one of eight: a tenth of 20 is 2. Classes and halves never differ by more than one.
    labels = np.repeat(np.arange(5), [3, 3, 3, 3, 8])
    for seed in range(20):
        role = roles(labels, np.arange(20), seed)
        assert (role == VALIDATION).sum() == 2
        assert (role == CLEAN).sum() == (role == BLURRED).sum() == 9
        for label in range(5):
            halves = [
                int(((labels == label) & (role == which)).sum()) for which in (CLEAN, BLURRED)
            ]
            assert abs(halves[0] - halves[1]) <= 1


def test_a_picture_that_is_there_twice_counts_once(tmp_path):
    given = arrays()
    given["x"][119] = given["x"][0]
    path = archive(tmp_path / "signs.npz", **given)
    signs = load_signs(request(path))
    assert (len(signs.labels), signs.copies) == (119, 1)
    assert "1 copies of other photographs are left out" in SOURCE.prepare(
        Preparation(request(path))
    )


def test_display_is_from_0_to_1(tmp_path):
    shown = SOURCE.to_pixels(pools(archive(tmp_path / "signs.npz")).clean.x)
    assert float(shown.min()) == 0
    assert float(shown.max()) == 1


# Arrays --------------------------------------------------------------------------------------------------------------


def test_labels_with_gaps_keep_their_names(tmp_path):
    given = arrays()
    given["y"] = np.array([2, 9, 13], dtype=np.uint8)[given["y"]]
    path = archive(tmp_path / "signs.npz", **given)
    assert load_signs(request(path)).class_names == ("2", "9", "13")
    named = archive(
        tmp_path / "named.npz", **given, names=np.array([f"sign {place}" for place in range(14)])
    )
    signs = load_signs(request(named))
    assert signs.class_names == ("sign 2", "sign 9", "sign 13")
    assert sorted(set(signs.labels.tolist())) == [0, 1, 2]


def test_other_sizes_are_resized(tmp_path):
    path = archive(tmp_path / "signs.npz", **arrays(size=40))
    assert pools(path).clean.x.shape[1:] == (3, 28, 28)
    assert pools(path, size=16).clean.x.shape[1:] == (3, 16, 16)


@pytest.mark.parametrize(
    ("changes", "told"),
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
def test_arrays_that_do_not_fit_are_refused(tmp_path, changes, told):
    with pytest.raises(DataError, match=told):
        pools(archive(tmp_path / "signs.npz", **changes))


def test_python_objects_are_never_unpickled(tmp_path):
    path = archive(tmp_path / "signs.npz", y=np.array([0] * 120, dtype=object))
    with pytest.raises(DataError, match="without Python objects"):
        pools(path)


def test_a_broken_file_that_is_named_is_refused(tmp_path):
    path = archive(tmp_path / "mine.npz")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"mine\.npz has no array x and no array y"):
        pools(path)
    (tmp_path / "notes.txt").write_text("not arrays")
    with pytest.raises(DataError, match=r"notes\.txt has no array x"):
        pools(tmp_path / "notes.txt")


# Finding -------------------------------------------------------------------------------------------------------------


def test_one_archive_with_the_arrays_is_found_among_others(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.zeros(3))
    (tmp_path / "b.npz").write_bytes(b"broken")
    np.save(tmp_path / "c.npy", np.zeros(3))
    (tmp_path / "c.npy").rename(tmp_path / "c.npz")
    mine = archive(tmp_path / "mine.npz")
    (tmp_path / "mnist").mkdir()
    assert find_signs(request(tmp_path)) == mine
    archive(tmp_path / "other.npz")
    with pytest.raises(
        DataError, match=r"mine\.npz, .*other\.npz\. Name one of them as the data root"
    ):
        find_signs(request(tmp_path))
    assert find_signs(request(mine)) == mine
    named = archive(tmp_path / "signs.npz")
    assert find_signs(request(tmp_path)) == named


def test_a_folder_called_signs_is_found(tmp_path):
    layout = tree(tmp_path / "signs")
    assert find_signs(request(tmp_path)) == layout
    assert find_signs(request(layout)) == layout
    archive(tmp_path / "signs.npz")
    with pytest.raises(DataError, match="several places have traffic signs"):
        find_signs(request(tmp_path))


@pytest.mark.parametrize(
    "below", ["", "GTSRB/Final_Training/Images", "Final_Training/Images", "GTSRB/Training"]
)
def test_the_folders_of_gtsrb_are_found(tmp_path, below):
    layout = tree(tmp_path / below)
    assert find_signs(request(tmp_path)).samefile(layout)


def test_the_cache_is_searched_too(cache):
    path = archive(cache / "signs.npz")
    assert find_signs(request(None)) == path


def test_nothing_found_says_how_to_get_it(tmp_path):
    for root in (tmp_path, None):
        with pytest.raises(
            DataError,
            match=r"photographs of traffic signs were not found in .*benchmark\.ini\.rub\.de",
        ):
            pools(root)


# GTSRB's layout ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["ppm", "png", "jpg", "PPM"])
def test_a_folder_for_each_class(tmp_path, ending):
    signs = load_signs(request(tree(tmp_path / "data", ending=ending)))
    assert signs.pictures.shape == (24, 28, 28, 3)
    assert signs.class_names == ("00000", "00002", "00010")
    assert signs.labels.tolist() == np.repeat([0, 1, 2], 8).tolist()
    assert signs.groups.tolist() == np.repeat(np.arange(12), 2).tolist()


def test_numbered_classes_are_in_the_order_of_their_numbers(tmp_path):
    assert load_signs(request(tree(tmp_path / "data", classes=("10", "9", "2")))).class_names == (
        "2",
        "9",
        "10",
    )
    assert load_signs(
        request(tree(tmp_path / "more", classes=("yield", "9", "stop")))
    ).class_names == ("9", "stop", "yield")


def test_folders_are_decoded_once(tmp_path, monkeypatch):
    layout = tree(tmp_path / "data")
    before = pools(layout)
    monkeypatch.setattr(pictures, "read_pictures", None)
    assert np.array_equal(pools(layout).clean.x, before.clean.x)


def test_a_picture_without_a_track_is_named(tmp_path):
    layout = tree(tmp_path / "data")
    Image.new("RGB", (5, 5)).save(layout / "00002" / "stop.png")
    with pytest.raises(DataError, match=r"stop\.png: its name does not say its track"):
        pools(layout)


def test_a_broken_picture_is_named(tmp_path):
    layout = tree(tmp_path / "data")
    (layout / "00002" / "00001_00001.ppm").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"00001_00001\.ppm cannot be read as an image"):
        pools(layout)


def test_preparing_says_what_was_found(tmp_path):
    told, progress = tree(tmp_path / "data"), []
    lines = SOURCE.prepare(
        Preparation(request(told), progress=lambda *report: progress.append(report))
    )
    assert lines == [f"signs: {told}", "24 photographs of 3 kinds of sign, in 12 tracks"]
    assert progress[-1] == ("signs", 24, 24)


@pytest.mark.parametrize("options", [{"level": 0}, {"level": 6}, {"size": 4}, {"radius": 3}])
def test_options_are_checked(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        request(None, **options)
