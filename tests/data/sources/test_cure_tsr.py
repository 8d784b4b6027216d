"""CURE-TSR in its official layout, with few and small files."""

from __future__ import annotations

import numpy as np
import pytest
from data_helpers import list_rows
from PIL import Image

from udjfl.data import Preparation
from udjfl.data.sources import _images as pictures
from udjfl.data.sources._images import standardise_each
from udjfl.data.sources.cure_tsr import CHALLENGES, SIGN_TYPES, SOURCE
from udjfl.errors import DataError, SettingsError

PHOTOGRAPHS = 10  # of each of the 14 sign types


def picture(sign, index, level=0):
    """Make a picture that depends on all arguments."""
    image = np.random.default_rng([sign, index, level]).integers(
        0, 256, (28, 28, 3), dtype=np.uint8
    )
    return Image.fromarray(image)


def write_folder(folder, challenge=0, level=0, types=range(1, 15)):
    folder.mkdir(parents=True)
    for sign in types:
        for index in range(1, PHOTOGRAPHS + 1):
            picture(sign, index, level).save(
                folder / f"01_{sign:02}_{challenge:02}_{level:02}_{index:04}.bmp"
            )


@pytest.fixture
def root(tmp_path):
    """CURE-TSR/Real_Train with two folders."""
    write_folder(tmp_path / "CURE-TSR" / "Real_Train" / "ChallengeFree")
    write_folder(tmp_path / "CURE-TSR" / "Real_Train" / "LensBlur-5", 2, 5)
    return tmp_path


def make_request(root, seed=0, **options):
    return SOURCE.request(seed, root, options)


def load_pools(root, seed=0, **options):
    return SOURCE.load_pools(make_request(root, seed, **options))


def features(sign, index, level=0):
    return standardise_each(np.asarray(picture(sign, index, level))[None])[0].tobytes()


@pytest.mark.parametrize("seed", [0, 5])
def test_a_tenth_is_held_out_in_both_versions(root, seed) -> None:
    pools = load_pools(root, seed)
    assert len(pools.validation) == 14
    assert sorted(pools.validation.y.tolist()) == list(range(14)), "each sign type by its share"
    assert len(pools.clean) == len(pools.ambiguous) == 126
    held_out = set(list_rows(pools.validation))
    for sign in range(1, 15):
        for index in range(1, PHOTOGRAPHS + 1):
            spared = features(sign, index) not in held_out
            assert (features(sign, index) in list_rows(pools.clean)) == spared
            assert (features(sign, index, 5) in list_rows(pools.ambiguous)) == spared


def test_both_versions_of_a_photograph_have_one_number(root) -> None:
    pools = load_pools(root)
    clean = dict(zip(list_rows(pools.clean), pools.clean_groups.tolist(), strict=True))
    hard = dict(zip(list_rows(pools.ambiguous), pools.ambiguous_groups.tolist(), strict=True))
    pairs = [
        (sign, index)
        for sign in range(1, 15)
        for index in range(1, PHOTOGRAPHS + 1)
        if features(sign, index) in clean
    ]
    assert all(clean[features(*pair)] == hard[features(*pair, 5)] for pair in pairs)
    assert len(set(pools.clean_groups.tolist())) == 126


def test_labels_are_sign_types_from_0(root) -> None:
    pools = load_pools(root)
    for part, level in ((pools.clean, 0), (pools.ambiguous, 5)):
        label_of = dict(zip(list_rows(part), part.y.tolist(), strict=True))
        for sign in range(1, 15):
            known = [features(sign, index, level) for index in range(1, PHOTOGRAPHS + 1)]
            assert {label_of[one] for one in known if one in label_of} == {sign - 1}
    assert pools.class_names == SIGN_TYPES
    assert len(SIGN_TYPES) == 14
    assert pools.class_names[5] == "stop"
    assert pools.title == "cure-tsr (LensBlur 5)"
    assert pools.test is None


def test_seed_draws_the_validation_set(root) -> None:
    one, again, other = (load_pools(root, seed) for seed in (0, 0, 1))
    assert list_rows(one.validation) == list_rows(again.validation)
    assert set(list_rows(one.validation)) != set(list_rows(other.validation))


def test_data_root_may_be_the_data_set_itself(root) -> None:
    assert list_rows(load_pools(root / "CURE-TSR").clean) == list_rows(load_pools(root).clean)


def test_other_challenges_can_be_chosen(root) -> None:
    write_folder(root / "CURE-TSR" / "Real_Train" / "Rain-2", 9, 2)
    pools = load_pools(root, challenge="Rain", level="2")
    assert pools.title == "cure-tsr (Rain 2)"
    assert set(list_rows(pools.ambiguous)) <= {
        features(s, i, 2) for s in range(1, 15) for i in range(1, PHOTOGRAPHS + 1)
    }


def test_challenges_have_their_official_numbers() -> None:
    assert len(CHALLENGES) == 12
    numbers = {"Decolorization": 1, "LensBlur": 2, "GaussianBlur": 7, "Rain": 9, "Haze": 12}
    assert {name: 1 + CHALLENGES.index(name) for name in numbers} == numbers


def test_copies_of_a_picture_are_left_out(root) -> None:
    folder = root / "CURE-TSR" / "Real_Train" / "ChallengeFree"
    (folder / "01_03_00_00_0011.bmp").write_bytes((folder / "01_03_00_00_0001.bmp").read_bytes())
    # Plain pictures differ, but not once each is brought to mean 0.
    for index, grey in ((12, 10), (13, 200)):
        Image.new("RGB", (28, 28), (grey,) * 3).save(folder / f"01_03_00_00_{index:04}.bmp")
    pools = load_pools(root)
    assert len(pools.clean) + len(pools.validation) == 141
    assert (
        "143 pictures of 14 sign types, of which 2 are copies and left out"
        in SOURCE.prepare(Preparation(make_request(root)))[0]
    )


# The cache --------------------------------------------------------------------------------------


def test_files_are_decoded_once(root, cache, monkeypatch) -> None:
    before = load_pools(root)
    assert sorted(path.name.partition("-28px")[0] for path in (cache / "cure-tsr").iterdir()) == [
        "ChallengeFree",
        "LensBlur-5",
    ]
    with monkeypatch.context() as patched:
        patched.setattr(pictures, "read_pictures", None)
        assert list_rows(load_pools(root).ambiguous) == list_rows(before.ambiguous)
    for path in (cache / "cure-tsr").iterdir():
        path.write_bytes(path.read_bytes()[:5000])
    assert list_rows(load_pools(root).clean) == list_rows(before.clean)


def test_preparing_decodes_and_reports_the_folders(root, cache, monkeypatch) -> None:
    progress = []
    lines = SOURCE.prepare(
        Preparation(make_request(root), on_progress=lambda *report: progress.append(report))
    )
    tree = root / "CURE-TSR" / "Real_Train"
    assert lines == [
        f"{tree / name}: 140 pictures of 14 sign types" for name in ("ChallengeFree", "LensBlur-5")
    ]
    assert progress == [("ChallengeFree", 140, 140), ("LensBlur-5", 140, 140)]
    monkeypatch.setattr(pictures, "read_pictures", None)
    load_pools(root)


# Mistakes ---------------------------------------------------------------------------------------


def test_missing_data_set_has_advice(tmp_path) -> None:
    for root in (tmp_path, None):
        with pytest.raises(
            DataError, match=r"Real_Train.* not found in .*OLIVES lab at Georgia Tech"
        ):
            load_pools(root)


def test_error_for_a_missing_folder_names_the_existing_ones(root) -> None:
    with pytest.raises(
        DataError, match=r"no folder Haze-3; the folders there are: ChallengeFree, LensBlur-5\."
    ):
        load_pools(root, challenge="Haze", level=3)
    (root / "CURE-TSR" / "Real_Train" / "ChallengeFree").rename(root / "elsewhere")
    with pytest.raises(
        DataError, match="no folder ChallengeFree; the folders there are: LensBlur-5"
    ):
        load_pools(root)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stop.bmp", "the name is not sequenceType_signType"),
        ("01_06_02_05.bmp", "the name is not"),
        ("01_06_02_05_0001.txt", "the name is not"),
        ("01_15_02_05_0001.bmp", "sign type 15 is not one of 1 to 14"),
        ("01_00_02_05_0001.bmp", "sign type 0 is not"),
        (
            "01_06_02_04_0099.bmp",
            "does not belong in LensBlur-5, where names begin with 01_06_02_05",
        ),
        ("01_06_07_05_0099.bmp", "does not belong"),
        ("02_06_02_05_0099.bmp", "does not belong"),
    ],
)
def test_error_names_files_that_do_not_belong(root, name, words) -> None:
    picture(1, 1).save(root / "CURE-TSR" / "Real_Train" / "LensBlur-5" / name, format="BMP")
    with pytest.raises(DataError, match=words) as caught:
        load_pools(root)
    assert name in str(caught.value)


def test_files_of_file_managers_are_ignored(root) -> None:
    for name in (".DS_Store", "Thumbs.db"):
        (root / "CURE-TSR" / "Real_Train" / "LensBlur-5" / name).write_text("")
    assert len(load_pools(root).ambiguous) == 126


def test_error_names_a_damaged_picture(root) -> None:
    (root / "CURE-TSR" / "Real_Train" / "LensBlur-5" / "01_06_02_05_0001.bmp").write_bytes(b"BM")
    with pytest.raises(DataError, match=r"01_06_02_05_0001\.bmp cannot be read as an image"):
        load_pools(root)


def test_error_names_an_empty_folder(root) -> None:
    (root / "CURE-TSR" / "Real_Train" / "Snow-1").mkdir()
    with pytest.raises(DataError, match="Snow-1 is empty"):
        load_pools(root, challenge="Snow", level=1)


@pytest.mark.parametrize(
    "options", [{"level": 0}, {"level": 6}, {"challenge": "LensGlare"}, {"size": 28}]
)
def test_options_are_checked(options) -> None:
    with pytest.raises(SettingsError, match=next(iter(options))):
        make_request(None, **options)
