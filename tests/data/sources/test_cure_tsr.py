"""CURE-TSR in its official layout, written small."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from udjfl.data.source import Preparation
from udjfl.data.sources import _images as pictures
from udjfl.data.sources._images import standardised_each
from udjfl.data.sources.cure_tsr import CHALLENGE_TYPES, SIGN_TYPES, SOURCE, Challenge
from udjfl.errors import DataError, SettingsError

PHOTOGRAPHS = 10  # of each of the 14 sign types


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("UDJFL_CACHE", str(place))
    monkeypatch.delenv("UDJFL_DATA", raising=False)
    return place


def picture(sign, index, level=0):
    """One that says what it is, if one knows where to look, and is like no other."""
    image = np.random.default_rng([sign, index, level]).integers(
        0, 256, (28, 28, 3), dtype=np.uint8
    )
    return Image.fromarray(image)


def written(folder, challenge=0, level=0, types=range(1, 15)):
    folder.mkdir(parents=True)
    for sign in types:
        for index in range(1, PHOTOGRAPHS + 1):
            picture(sign, index, level).save(
                folder / f"01_{sign:02}_{challenge:02}_{level:02}_{index:04}.bmp"
            )


@pytest.fixture
def root(tmp_path):
    """CURE-TSR/Real_Train with two folders."""
    written(tmp_path / "CURE-TSR" / "Real_Train" / "ChallengeFree")
    written(tmp_path / "CURE-TSR" / "Real_Train" / "LensBlur-5", 2, 5)
    return tmp_path


def request(root, seed=0, **options):
    return SOURCE.request(seed, root, options)


def pools(root, seed=0, **options):
    return SOURCE.pools(request(root, seed, **options))


def as_bytes(examples):
    return [row.tobytes() for row in examples.x.numpy()]


def features(sign, index, level=0):
    return standardised_each(np.asarray(picture(sign, index, level))[None])[0].tobytes()


@pytest.mark.parametrize("seed", [0, 5])
def test_a_tenth_is_held_out_in_both_versions(root, seed):
    made = pools(root, seed)
    assert len(made.validation) == 14
    assert sorted(made.validation.y.tolist()) == list(range(14)), "each sign type by its share"
    assert len(made.clean) == len(made.ambiguous) == 126
    held_out = set(as_bytes(made.validation))
    for sign in range(1, 15):
        for index in range(1, PHOTOGRAPHS + 1):
            spared = features(sign, index) not in held_out
            assert (features(sign, index) in as_bytes(made.clean)) == spared
            assert (features(sign, index, 5) in as_bytes(made.ambiguous)) == spared


def test_both_versions_of_a_photograph_have_one_number(root):
    made = pools(root)
    clean = dict(zip(as_bytes(made.clean), made.clean_groups.tolist(), strict=True))
    hard = dict(zip(as_bytes(made.ambiguous), made.ambiguous_groups.tolist(), strict=True))
    pairs = [
        (sign, index)
        for sign in range(1, 15)
        for index in range(1, PHOTOGRAPHS + 1)
        if features(sign, index) in clean
    ]
    assert all(clean[features(*pair)] == hard[features(*pair, 5)] for pair in pairs)
    assert len(set(made.clean_groups.tolist())) == 126


def test_labels_are_sign_types_from_0(root):
    made = pools(root)
    for part, level in ((made.clean, 0), (made.ambiguous, 5)):
        label_of = dict(zip(as_bytes(part), part.y.tolist(), strict=True))
        for sign in range(1, 15):
            known = [features(sign, index, level) for index in range(1, PHOTOGRAPHS + 1)]
            assert {label_of[one] for one in known if one in label_of} == {sign - 1}
    assert made.class_names == SIGN_TYPES
    assert len(SIGN_TYPES) == 14
    assert made.class_names[5] == "stop"
    assert made.title == "cure-tsr (LensBlur 5)"
    assert made.test is None


def test_the_seed_draws_what_is_held_out(root):
    one, again, other = (pools(root, seed) for seed in (0, 0, 1))
    assert as_bytes(one.validation) == as_bytes(again.validation)
    assert set(as_bytes(one.validation)) != set(as_bytes(other.validation))


def test_the_root_may_be_the_data_set_itself(root):
    assert as_bytes(pools(root / "CURE-TSR").clean) == as_bytes(pools(root).clean)


def test_other_challenges(root):
    written(root / "CURE-TSR" / "Real_Train" / "Rain-2", 9, 2)
    made = pools(root, challenge="Rain", level="2")
    assert made.title == "cure-tsr (Rain 2)"
    assert set(as_bytes(made.ambiguous)) <= {
        features(s, i, 2) for s in range(1, 15) for i in range(1, PHOTOGRAPHS + 1)
    }


def test_challenges_are_numbered_as_officially():
    assert tuple(CHALLENGE_TYPES) == Challenge.__args__
    assert list(CHALLENGE_TYPES.values()) == list(range(1, 13))


def test_a_picture_that_is_there_twice_counts_once(root):
    folder = root / "CURE-TSR" / "Real_Train" / "ChallengeFree"
    (folder / "01_03_00_00_0011.bmp").write_bytes((folder / "01_03_00_00_0001.bmp").read_bytes())
    # Plain pictures differ, but not once each is brought to mean 0.
    for index, grey in ((12, 10), (13, 200)):
        Image.new("RGB", (28, 28), (grey,) * 3).save(folder / f"01_03_00_00_{index:04}.bmp")
    made = pools(root)
    assert len(made.clean) + len(made.validation) == 141
    assert (
        "143 pictures of 14 sign types, of which 2 are copies and left out"
        in SOURCE.prepare(Preparation(request(root)))[0]
    )


# The cache -----------------------------------------------------------------------------------------------------------


def test_files_are_decoded_once(root, cache, monkeypatch):
    before = pools(root)
    assert sorted(path.name.partition("-28px")[0] for path in (cache / "cure-tsr").iterdir()) == [
        "ChallengeFree",
        "LensBlur-5",
    ]
    with monkeypatch.context() as patched:
        patched.setattr(pictures, "read_pictures", None)
        assert as_bytes(pools(root).ambiguous) == as_bytes(before.ambiguous)
    for kept in (cache / "cure-tsr").iterdir():
        kept.write_bytes(kept.read_bytes()[:5000])
    assert as_bytes(pools(root).clean) == as_bytes(before.clean)


def test_preparing_decodes_and_says_what_is_there(root, cache, monkeypatch):
    progress = []
    lines = SOURCE.prepare(
        Preparation(request(root), progress=lambda *report: progress.append(report))
    )
    tree = root / "CURE-TSR" / "Real_Train"
    assert lines == [
        f"{tree / name}: 140 pictures of 14 sign types" for name in ("ChallengeFree", "LensBlur-5")
    ]
    assert progress == [("ChallengeFree", 140, 140), ("LensBlur-5", 140, 140)]
    monkeypatch.setattr(pictures, "read_pictures", None)
    pools(root)


# Mistakes ------------------------------------------------------------------------------------------------------------


def test_no_tree_says_whom_to_ask(tmp_path):
    for place in (tmp_path, None):
        with pytest.raises(
            DataError, match=r"Real_Train.* not found in .*OLIVES lab at Georgia Tech"
        ):
            pools(place)


def test_a_missing_folder_names_those_there_are(root):
    with pytest.raises(
        DataError, match=r"no folder Haze-3; the folders there are: ChallengeFree, LensBlur-5\."
    ):
        pools(root, challenge="Haze", level=3)
    (root / "CURE-TSR" / "Real_Train" / "ChallengeFree").rename(root / "elsewhere")
    with pytest.raises(
        DataError, match="no folder ChallengeFree; the folders there are: LensBlur-5"
    ):
        pools(root)


@pytest.mark.parametrize(
    ("name", "told"),
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
def test_files_that_do_not_fit_are_named(root, name, told):
    picture(1, 1).save(root / "CURE-TSR" / "Real_Train" / "LensBlur-5" / name, format="BMP")
    with pytest.raises(DataError, match=told) as caught:
        pools(root)
    assert name in str(caught.value)


def test_what_file_managers_leave_behind_is_no_data(root):
    for name in (".DS_Store", "Thumbs.db"):
        (root / "CURE-TSR" / "Real_Train" / "LensBlur-5" / name).write_text("")
    assert len(pools(root).ambiguous) == 126


def test_a_broken_picture_is_named(root):
    (root / "CURE-TSR" / "Real_Train" / "LensBlur-5" / "01_06_02_05_0001.bmp").write_bytes(b"BM")
    with pytest.raises(DataError, match=r"01_06_02_05_0001\.bmp cannot be read as an image"):
        pools(root)


def test_an_empty_folder_is_named(root):
    (root / "CURE-TSR" / "Real_Train" / "Snow-1").mkdir()
    with pytest.raises(DataError, match="Snow-1 is empty"):
        pools(root, challenge="Snow", level=1)


@pytest.mark.parametrize(
    "options", [{"level": 0}, {"level": 6}, {"challenge": "LensGlare"}, {"size": 28}]
)
def test_options_are_checked(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        request(None, **options)
