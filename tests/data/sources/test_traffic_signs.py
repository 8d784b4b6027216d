"""The roles of traffic signs: held out, clean or blurred, in whole tracks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from data_helpers import SEEDS
from sign_files import load_pools, make_arrays, make_request, write_archive, write_folders

from udjfl.data import Preparation, load
from udjfl.data.sources._images import channel_statistics, standardise
from udjfl.data.sources._lens_blur import blur
from udjfl.data.sources._sign_files import load_signs
from udjfl.data.sources.traffic_signs import BLURRED, CLEAN, SOURCE, VALIDATION, assign_roles
from udjfl.errors import SettingsError


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tenth_is_held_out_and_half_of_the_rest_is_blurred_in_whole_tracks(
    tmp_path, seed
) -> None:
    # 30 tracks of 4: 3 for validation, one of each class; 9 left in each class, 4 or 5 of them
    # blurred by turns.
    pools = load_pools(write_archive(tmp_path / "signs.npz"), seed)
    assert len(pools.validation) == 12
    assert Counter(pools.validation.y.tolist()) == {0: 4, 1: 4, 2: 4}
    assert Counter(pools.clean.y.tolist()) == {0: 20, 1: 16, 2: 20}
    assert Counter(pools.ambiguous.y.tolist()) == {0: 16, 1: 20, 2: 16}
    assert set(Counter(pools.clean_groups.tolist()).values()) == {4}
    assert set(Counter(pools.ambiguous_groups.tolist()).values()) == {4}
    assert set(pools.clean_groups.tolist()).isdisjoint(pools.ambiguous_groups.tolist())
    assert pools.test is None
    assert pools.title == "signs (lens blur 5)"
    assert pools.class_names == ("0", "1", "2")


def test_features_are_the_clean_and_the_blurred_photographs(tmp_path) -> None:
    path = write_archive(tmp_path / "signs.npz")
    given = make_arrays()
    role = assign_roles(given["y"], load_signs(make_request(path)).groups, seed=1)
    mean, std = channel_statistics(given["x"][role == VALIDATION])
    pools = load_pools(path, seed=1, level=2)
    assert np.array_equal(pools.clean.x.numpy(), standardise(given["x"][role == CLEAN], mean, std))
    assert np.array_equal(
        pools.validation.x.numpy(), standardise(given["x"][role == VALIDATION], mean, std)
    )
    assert np.array_equal(
        pools.ambiguous.x.numpy(), standardise(blur(given["x"][role == BLURRED], 2), mean, std)
    )
    assert np.array_equal(pools.ambiguous.y.numpy(), given["y"][role == BLURRED])
    assert pools.title == "signs (lens blur 2)"


def test_statistics_are_those_of_the_validation_set(tmp_path) -> None:
    pools = load_pools(write_archive(tmp_path / "signs.npz"))
    assert pools.validation.x.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-5)
    assert pools.validation.x.std((0, 2, 3), correction=0).tolist() == pytest.approx(
        [1, 1, 1], abs=1e-5
    )
    assert abs(float(pools.clean.x.mean())) > 1e-5


def test_seed_draws_the_tracks(tmp_path) -> None:
    path = write_archive(tmp_path / "signs.npz")
    one, again, other = (load_pools(path, seed) for seed in (0, 0, 1))
    assert np.array_equal(one.clean.x, again.clean.x)
    assert np.array_equal(one.ambiguous.x, again.ambiguous.x)
    assert set(one.clean_groups.tolist()) != set(other.clean_groups.tolist())


def test_odd_tracks_are_clean_and_blurred_by_turns() -> None:
    # Four classes of three tracks and one of eight: a tenth of 20 is 2. Classes and halves never
    # differ by more than one.
    labels = np.repeat(np.arange(5), [3, 3, 3, 3, 8])
    for seed in range(20):
        role = assign_roles(labels, np.arange(20), seed)
        assert (role == VALIDATION).sum() == 2
        assert (role == CLEAN).sum() == (role == BLURRED).sum() == 9
        for label in range(5):
            halves = [
                int(((labels == label) & (role == which)).sum()) for which in (CLEAN, BLURRED)
            ]
            assert abs(halves[0] - halves[1]) <= 1


def test_copies_of_a_picture_are_left_out(tmp_path) -> None:
    given = make_arrays()
    given["x"][119] = given["x"][0]
    path = write_archive(tmp_path / "signs.npz", **given)
    signs = load_signs(make_request(path))
    assert (len(signs.labels), signs.copies) == (119, 1)
    assert "1 copies of other photographs are left out" in SOURCE.prepare(
        Preparation(make_request(path))
    )


def test_display_is_from_0_to_1(tmp_path) -> None:
    shown = SOURCE.to_pixels(load_pools(write_archive(tmp_path / "signs.npz")).clean.x)
    assert float(shown.min()) == 0
    assert float(shown.max()) == 1


def test_preparing_reports_the_photographs(tmp_path) -> None:
    folder, progress = write_folders(tmp_path / "data"), []
    lines = SOURCE.prepare(
        Preparation(make_request(folder), on_progress=lambda *report: progress.append(report))
    )
    assert lines == [f"signs: {folder}", "24 photographs of 3 kinds of sign, in 12 tracks"]
    assert progress[-1] == ("signs", 24, 24)


@pytest.mark.parametrize("options", [{"level": 0}, {"level": 6}, {"size": 4}, {"radius": 3}])
def test_options_are_checked(options) -> None:
    with pytest.raises(SettingsError, match=next(iter(options))):
        make_request(None, **options)


def test_frames_of_one_track_are_held_out_together(tmp_path) -> None:
    path = write_archive(tmp_path / "signs.npz")
    federation = load("signs", clients=2, partition="iid", seed=0, root=path)
    split = federation.hold_out(0.3, seed=0)
    for client in split.clients:
        seen, held_out = client.train.together, client.held_out.together
        assert len(set(seen.tolist())) < len(seen)
        assert not set(seen.tolist()) & set(held_out.tolist())
