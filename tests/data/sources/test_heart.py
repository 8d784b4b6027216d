"""The four hospitals, from small files in the archive's format."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import serve

import udjfl
from udjfl.data import Examples, Preparation, Request
from udjfl.data.download import Remote, compute_md5
from udjfl.data.sources import heart
from udjfl.data.tables.preprocessor import TablePreprocessor
from udjfl.errors import DataError

# age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal num
FULL = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0"
GAPS = "35,1,4,?,0,?,0,130,1,?,?,?,7,3"
PUBLISHED = os.environ.get("UDJFL_DATA")  # read before the tests remove it
NAMES = [column.name for column in heart.COLUMNS]
SIZES = {"cleveland": 303, "hungary": 294, "switzerland": 123, "va": 200}


def write_files(folder: Path, **lines: list[str]) -> None:
    """Write files with these lines; a hospital that is not given gets one patient."""
    folder.mkdir(parents=True, exist_ok=True)
    for hospital, remote in heart.HOSPITALS.items():
        (folder / remote.name).write_text(
            "".join(line + "\n" for line in lines.get(hospital, [FULL]))
        )


def make_request(root: Path | None, cache: Path) -> Request:
    return Request(seed=0, root=root, cache=cache)


def make_patients(**columns: list[float]) -> Examples:
    """Make raw examples with usual values except in the given columns."""
    usual = dict(zip(NAMES, (50, 1, 4, 120, 200, 0, 0, 150, 0, 1, 2, 0, 3), strict=True))
    (count,) = {len(values) for values in columns.values()}
    table = [
        [columns[name][row] if name in columns else usual[name] for name in NAMES]
        for row in range(count)
    ]
    return Examples(torch.tensor(table, dtype=torch.float32), torch.arange(count) % 2)


def preprocess(train: Examples, test: Examples) -> tuple[Examples, Examples]:
    """Prepare the parts of one hospital."""
    prepare = TablePreprocessor(heart.SCHEMA, heart.CLASS_NAMES)
    return prepare({"one": (train, test)}, None).parts["one"]


def get_feature(part: Examples, name: str) -> list[float]:
    values: list[float] = part.x[:, heart.SCHEMA.features.index(name)].tolist()
    return values


def test_patients_belong_to_their_hospital(tmp_path: Path) -> None:
    write_files(tmp_path / "heart", va=[GAPS, FULL, ""])
    pools = heart.load_pools(make_request(tmp_path, tmp_path / "cache"))
    assert pools.owners == ["cleveland", "hungary", "switzerland", "va", "va"]
    assert pools.class_names == ("healthy", "disease")
    assert pools.clean.y.tolist() == [0, 0, 0, 1, 0]  # a diagnosis of 3 is a disease
    assert pools.clean.x.dtype == torch.float32
    assert pools.clean.x[0].tolist() == pytest.approx(
        [63, 1, 1, 145, 233, 1, 2, 150, 0, 2.3, 3, 0, 6]
    )
    assert (pools.ambiguous, pools.test, pools.tabular) == (None, None, True)
    assert len(pools.ambiguous_groups) == 0


def test_missing_values_and_impossible_zeros_are_nan(tmp_path: Path) -> None:
    write_files(tmp_path, va=[GAPS, FULL.replace("145.0", "0").replace("2.3", "-9.0")])
    raw = heart.read_patients(tmp_path / "processed.va.data")
    gaps = [name for name, value in zip(NAMES, raw[0], strict=False) if math.isnan(value)]
    assert gaps == ["trestbps", "chol", "fbs", "oldpeak", "slope", "ca"]
    assert [name for name, value in zip(NAMES, raw[1], strict=False) if math.isnan(value)] == [
        "trestbps",
        "oldpeak",
    ]
    assert raw[1, NAMES.index("ca")] == 0  # elsewhere 0 is a value
    assert raw[:, -1].tolist() == [3, 0]


def test_equal_patients_share_a_group(tmp_path: Path) -> None:
    plain = FULL.replace(".0", "")  # the same numbers, written as the other hospitals write them
    other = FULL.replace("63.0", "64.0")
    # FULL again in Hungary; GAPS twice in VA, so that missing values are compared too.
    write_files(
        tmp_path, cleveland=[FULL, other], hungary=[plain], switzerland=[other], va=[GAPS, GAPS]
    )
    groups = heart.load_pools(make_request(tmp_path, tmp_path)).clean_groups.tolist()
    assert len(set(groups)) == 3
    assert groups[0] == groups[2]
    assert groups[1] == groups[3]
    assert groups[4] == groups[5]


@pytest.mark.parametrize("folder", ["", "heart", "heart-disease"])
def test_usual_folders_are_searched(tmp_path: Path, folder: str) -> None:
    write_files(tmp_path / "cache" / folder)
    assert len(heart.load_pools(make_request(None, tmp_path / "cache")).clean) == 4


def test_missing_files_have_advice(tmp_path: Path) -> None:
    write_files(tmp_path)
    (tmp_path / "processed.va.data").unlink()
    with pytest.raises(
        DataError,
        match=r"^processed\.va\.data of the heart .* not found in .*udjfl data prepare heart",
    ):
        heart.load_pools(make_request(tmp_path, tmp_path / "cache"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1,2,3", "line 2 has 3 columns: there must be 14"),
        (FULL + ",1", "line 2 has 15 columns"),
        (FULL.replace("63.0", "old"), "line 2, column 1 (age): 'old' is not a number"),
        (FULL.replace("63.0", ""), "line 2, column 1 (age): '' is not a number"),
        (FULL.replace("63.0", "?"), "line 2, column 1 (age): the value is missing"),
        (
            FULL.replace("2.3", "nan"),
            "line 2, column 10 (oldpeak): 'nan' is not a possible measurement",
        ),
        (
            FULL.replace("2.3", "1e39"),
            "line 2, column 10 (oldpeak): '1e39' is not a possible measurement",
        ),
        (FULL.replace("6.0,0", "5.0,0"), "line 2, column 13 (thal): '5.0' is none of 3, 6, 7"),
        (FULL.replace("6.0,0", "6.0,5"), "line 2, column 14 (num): '5' is none of 0, 1, 2, 3, 4"),
        (FULL.replace("6.0,0", "6.0,?"), "line 2, column 14 (num): the value is missing"),
    ],
)
def test_wrong_line_is_quoted(tmp_path: Path, line: str, words: str) -> None:
    write_files(tmp_path, hungary=[FULL, line])
    with pytest.raises(DataError) as raised:
        heart.load_pools(make_request(tmp_path, tmp_path))
    first, remedy = str(raised.value).splitlines()
    assert first.startswith(f"{tmp_path / 'processed.hungarian.data'}: {words}")
    assert "udjfl data prepare heart" in remedy


def test_first_five_mistakes_of_a_file_are_listed(tmp_path: Path) -> None:
    write_files(
        tmp_path, va=["x,y" + FULL[8:], *["?"] * 5]
    )  # two in line 1, one in each of the others
    with pytest.raises(DataError) as raised:
        heart.read_patients(tmp_path / "processed.va.data")
    lines = str(raised.value).splitlines()
    assert [line.split(": ")[1].split(" (")[0] for line in lines[:3]] == [
        "line 1, column 1",
        "line 1, column 2",
        "line 2 has 1 columns",
    ]
    assert len(lines) == 7
    assert lines[5].endswith("and 2 more mistakes")


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "processed.va.data"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"processed\.va\.data: the file is empty"):
        heart.read_patients(path)


def test_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "processed.va.data"
    path.write_bytes(bytes(range(128, 256)))
    with pytest.raises(DataError, match="line 1 has"):
        heart.read_patients(path)


def test_features_have_one_order() -> None:
    assert len(heart.SCHEMA.features) == len(set(heart.SCHEMA.features)) == 35
    assert heart.SCHEMA.features[:8] == (
        "age",
        "sex=0",
        "sex=1",
        "cp=1",
        "cp=2",
        "cp=3",
        "cp=4",
        "trestbps",
    )
    assert heart.SCHEMA.features[22:27] == (
        "thal=3",
        "thal=6",
        "thal=7",
        "trestbps missing",
        "chol missing",
    )
    train, test = preprocess(make_patients(age=[40.0, 60.0]), make_patients(age=[50.0]))
    assert train.x.shape == (2, 35)
    assert test.x.shape == (1, 35)
    assert train.x.dtype == torch.float32
    assert train.y.tolist() == [0, 1]


def test_numbers_are_filled_and_scaled_by_the_train_part() -> None:
    # Known: 1, 2, 9: median 2, mean 4, variance (9 + 4 + 25) / 3.
    train, test = preprocess(
        make_patients(oldpeak=[1, 2, 9, math.nan]), make_patients(oldpeak=[math.nan, 100])
    )
    std = math.sqrt(38 / 3)
    assert get_feature(train, "oldpeak") == pytest.approx([-3 / std, -2 / std, 5 / std, -2 / std])
    assert get_feature(train, "oldpeak missing") == [0, 0, 0, 1]
    assert get_feature(test, "oldpeak") == pytest.approx([-2 / std, 96 / std])
    assert get_feature(test, "oldpeak missing") == [1, 0]


def test_equal_numbers_become_zero() -> None:
    # 0.7 has no exact binary form: a deviation of 1e-16 from rounding would make 0.8 enormous.
    train, test = preprocess(make_patients(oldpeak=[0.7] * 243), make_patients(oldpeak=[0.7, 0.8]))
    assert set(get_feature(train, "oldpeak")) == {0}
    assert get_feature(test, "oldpeak") == pytest.approx([0, 0.1], abs=1e-6)


def test_categories_are_filled_with_the_most_frequent() -> None:
    train, test = preprocess(
        make_patients(thal=[7, 7, 3, math.nan]), make_patients(thal=[math.nan, 6])
    )
    assert get_feature(train, "thal=3") == [0, 0, 1, 0]
    assert get_feature(train, "thal=6") == [0, 0, 0, 0]
    assert get_feature(train, "thal=7") == [1, 1, 0, 1]
    assert get_feature(train, "thal missing") == [0, 0, 0, 1]
    assert get_feature(test, "thal=6") == [0, 1]  # a category of which the train part has none
    assert get_feature(test, "thal=7") == [1, 0]


def test_lowest_of_equally_frequent_categories_fills() -> None:
    train, _ = preprocess(make_patients(slope=[3, 2, math.nan]), make_patients(slope=[1]))
    assert get_feature(train, "slope=2") == [0, 1, 1]


def test_column_without_train_values_is_zero_and_marked_missing() -> None:
    nothing = [math.nan] * 2
    train, test = preprocess(
        make_patients(chol=nothing, thal=nothing),
        make_patients(chol=[200, math.nan], thal=[3, math.nan]),
    )
    for part in (train, test):
        for name in ("chol", "thal=3", "thal=6", "thal=7"):
            assert get_feature(part, name) == [0, 0]
        assert get_feature(part, "chol missing") == get_feature(part, "thal missing") == [1, 1]


def test_test_part_is_not_used_and_inputs_are_not_changed() -> None:
    train = make_patients(age=[40, 50, 60.0], chol=[200, math.nan, 260])
    before = train.x.clone()
    one, _ = preprocess(train, make_patients(age=[1.0], chol=[1]))
    two, _ = preprocess(train, make_patients(age=[99.0], chol=[math.nan]))
    assert torch.equal(one.x, two.x)
    assert torch.equal(train.x.nan_to_num(-1), before.nan_to_num(-1))


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Serve small files in place of the archive; yield the paths that were requested."""
    folder = tmp_path / "served"
    write_files(folder, va=[GAPS, FULL])
    paths: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, directory=str(folder), **named)

        def do_GET(self) -> None:
            paths.append(self.path)
            super().do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serve(Handler) as address:
        remotes = {
            hospital: Remote(
                remote.name, (address + remote.name,), compute_md5(folder / remote.name)
            )
            for hospital, remote in heart.HOSPITALS.items()
        }
        monkeypatch.setattr(heart, "HOSPITALS", remotes)
        yield paths


def test_prepare_downloads_missing_files(archive: list[str], tmp_path: Path) -> None:
    cache, root = tmp_path / "cache", tmp_path / "own"
    root.mkdir()
    (root / "processed.cleveland.data").write_text(GAPS)  # the user's own file
    request = make_request(root, cache)
    words: list[str] = []
    lines = heart.prepare(
        Preparation(request, on_progress=lambda stage, done, total: words.append(stage))
    )
    assert archive == [
        "/processed.hungarian.data",
        "/processed.switzerland.data",
        "/processed.va.data",
    ]
    assert lines[0].startswith(
        f"cleveland: {root / 'processed.cleveland.data'} (not the published file"
    )
    assert lines[1:] == [
        f"{hospital}: {cache / 'heart' / heart.HOSPITALS[hospital].name}"
        for hospital in ("hungary", "switzerland", "va")
    ]
    assert (root / "processed.cleveland.data").read_text() == GAPS
    assert "processed.va.data" in words
    assert len(heart.load_pools(request).clean) == 5
    assert heart.prepare(Preparation(request)) == lines
    assert len(archive) == 3  # nothing is downloaded twice


def test_prepare_replaces_damaged_files_of_the_cache(archive: list[str], tmp_path: Path) -> None:
    write_files(tmp_path / "cache" / "heart-disease", va=[GAPS, FULL])
    damaged = tmp_path / "cache" / "heart-disease" / "processed.hungarian.data"
    damaged.write_text("half a fi")
    heart.prepare(Preparation(make_request(None, tmp_path / "cache")))
    assert archive == ["/processed.hungarian.data"]
    assert damaged.read_text() == FULL + "\n"
    assert not (tmp_path / "cache" / "heart").exists()


def test_source_describes_the_four_hospitals() -> None:
    source = heart.SOURCE
    assert (source.name, source.clients, source.partition) == ("heart", 4, "natural")
    assert (source.load_pools, source.prepare) == (heart.load_pools, heart.prepare)
    assert {remote.urls[0] for remote in heart.HOSPITALS.values()} == {
        f"https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/processed.{hospital}.data"
        for hospital in ("cleveland", "hungarian", "switzerland", "va")
    }


def test_published_files_have_the_published_numbers(tmp_path: Path) -> None:
    request = make_request(Path(PUBLISHED) if PUBLISHED else None, tmp_path)
    if not PUBLISHED or any(
        request.find((remote.name,), heart.FOLDERS) is None for remote in heart.HOSPITALS.values()
    ):
        pytest.skip("needs the four published files in UDJFL_DATA")
    pools = heart.load_pools(request)
    assert pools.owners is not None
    owners = np.array(pools.owners)
    assert Counter(pools.owners) == SIZES
    ill = {
        hospital: int(pools.clean.y[torch.from_numpy(owners == hospital)].sum())
        for hospital in SIZES
    }
    # From the archive's description: healthy are 164, 188, 8 and 51.
    assert ill == {"cleveland": 139, "hungary": 106, "switzerland": 115, "va": 149}
    assert len(set(pools.clean_groups.tolist())) == 918
    for hospital in SIZES:
        indices = np.flatnonzero(owners == hospital)
        train, test = preprocess(pools.clean.take(indices[::2]), pools.clean.take(indices[1::2]))
        assert train.x.shape[1] == test.x.shape[1] == len(heart.SCHEMA.features)
        assert bool(torch.isfinite(torch.cat([train.x, test.x])).all())
    swiss = pools.clean.take(np.flatnonzero(owners == "switzerland"))
    assert bool(swiss.x[:, NAMES.index("chol")].isnan().all())


# As they were before preprocessing was that of all tables.
FINGERPRINTS = {
    0: "761f551d72fefe0147bfbd3274336d784a898e93fc1b0288287aebe2404f52cb",
    1: "949fa48e9306cd54cac0803e93ad0366e239d00218f667ffa55c3286daa33350",
    2: "50377f5cbac1ed15ab724a047c5a89e1536b6fb57d77c7d3088fba8ba294ed7e",
}


@pytest.mark.parametrize("seed", FINGERPRINTS)
def test_published_files_give_the_same_bytes_as_ever(seed: int, tmp_path: Path) -> None:
    request = make_request(Path(PUBLISHED) if PUBLISHED else None, tmp_path)
    if not PUBLISHED or request.find(("processed.va.data",), heart.FOLDERS) is None:
        pytest.skip("needs the four published files in UDJFL_DATA")
    assert udjfl.load("heart", seed=seed, root=PUBLISHED).fingerprint == FINGERPRINTS[seed]


def test_flambys_split_has_its_published_sizes(tmp_path: Path) -> None:
    request = make_request(Path(PUBLISHED) if PUBLISHED else None, tmp_path)
    if not PUBLISHED or request.find(("processed.va.data",), heart.FOLDERS) is None:
        pytest.skip("needs the four published files in UDJFL_DATA")
    federation = udjfl.load("heart:split=flamby", seed=1, root=PUBLISHED)
    sizes = {client.id: (len(client.train), len(client.test)) for client in federation.clients}
    # From the description of Fed-Heart-Disease in FLamby.
    assert sizes == {
        "cleveland": (199, 104),
        "hungary": (172, 89),
        "switzerland": (30, 16),
        "va": (85, 45),
    }
    again = udjfl.load("heart:split=flamby", seed=2, root=PUBLISHED)
    assert again.fingerprint == federation.fingerprint
