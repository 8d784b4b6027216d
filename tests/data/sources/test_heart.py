"""The four hospitals, from small files in the archive's format."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from udjfl.data.download import Remote
from udjfl.data.federation import Examples
from udjfl.data.source import Preparation, Request
from udjfl.data.sources import heart
from udjfl.errors import DataError

# age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal num
FULL = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0"
GAPS = "35,1,4,?,0,?,0,130,1,?,?,?,7,3"
NAMES = [column.name for column in heart.COLUMNS]
SIZES = {"cleveland": 303, "hungary": 294, "switzerland": 123, "va": 200}


def write(folder: Path, **lines: list[str]) -> None:
    """Files with these lines; a hospital that is not named gets one patient."""
    folder.mkdir(parents=True, exist_ok=True)
    for hospital, remote in heart.HOSPITALS.items():
        (folder / remote.name).write_text(
            "".join(line + "\n" for line in lines.get(hospital, [FULL]))
        )


def asked(root: Path | None, cache: Path) -> Request:
    return Request(seed=0, root=root, cache=cache)


def patients(**columns: list[float]) -> Examples:
    """Raw examples: age 50 and so on, but for the columns given."""
    usual = dict(zip(NAMES, (50, 1, 4, 120, 200, 0, 0, 150, 0, 1, 2, 0, 3), strict=True))
    (count,) = {len(values) for values in columns.values()}
    table = [
        [columns[name][row] if name in columns else usual[name] for name in NAMES]
        for row in range(count)
    ]
    return Examples(torch.tensor(table, dtype=torch.float32), torch.arange(count) % 2)


def feature(part: Examples, name: str) -> list[float]:
    values: list[float] = part.x[:, heart.FEATURES.index(name)].tolist()
    return values


def test_patients_belong_to_their_hospital(tmp_path: Path) -> None:
    write(tmp_path / "heart", va=[GAPS, FULL, ""])
    made = heart.pools(asked(tmp_path, tmp_path / "cache"))
    assert made.owners == ["cleveland", "hungary", "switzerland", "va", "va"]
    assert made.class_names == ("healthy", "disease")
    assert made.clean.y.tolist() == [0, 0, 0, 1, 0]  # a diagnosis of 3 is a disease
    assert made.clean.x.dtype == torch.float32
    assert made.clean.x[0].tolist() == pytest.approx(
        [63, 1, 1, 145, 233, 1, 2, 150, 0, 2.3, 3, 0, 6]
    )
    assert (made.ambiguous, made.test, made.tabular) == (None, None, True)
    assert len(made.ambiguous_groups) == 0


def test_missing_values_and_zeros_no_patient_has(tmp_path: Path) -> None:
    write(tmp_path, va=[GAPS, FULL.replace("145.0", "0").replace("2.3", "-9.0")])
    raw = heart.read(tmp_path / "processed.va.data")
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
    write(tmp_path, cleveland=[FULL, other], hungary=[plain], switzerland=[other], va=[GAPS, GAPS])
    groups = heart.pools(asked(tmp_path, tmp_path)).clean_groups.tolist()
    assert len(set(groups)) == 3
    assert groups[0] == groups[2]
    assert groups[1] == groups[3]
    assert groups[4] == groups[5]


@pytest.mark.parametrize("folder", ["", "heart", "heart-disease"])
def test_the_folders_looked_in(tmp_path: Path, folder: str) -> None:
    write(tmp_path / "cache" / folder)
    assert len(heart.pools(asked(None, tmp_path / "cache")).clean) == 4


def test_files_that_are_not_there(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "processed.va.data").unlink()
    with pytest.raises(
        DataError,
        match=r"^processed\.va\.data of the heart .* not found in .*udjfl data prepare heart",
    ):
        heart.pools(asked(tmp_path, tmp_path / "cache"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("1,2,3", "line 2 has 3 columns: there must be 14"),
        (FULL + ",1", "line 2 has 15 columns"),
        (FULL.replace("63.0", "old"), "line 2, column 1 (age): 'old' is not a number"),
        (FULL.replace("63.0", ""), "line 2, column 1 (age): '' is not a number"),
        (FULL.replace("63.0", "?"), "line 2, column 1 (age): the value is missing"),
        (FULL.replace("2.3", "nan"), "line 2, column 10 (oldpeak): 'nan' is no measurement"),
        (FULL.replace("2.3", "1e39"), "line 2, column 10 (oldpeak): '1e39' is no measurement"),
        (FULL.replace("6.0,0", "5.0,0"), "line 2, column 13 (thal): '5.0' is none of 3, 6, 7"),
        (FULL.replace("6.0,0", "6.0,5"), "line 2, column 14 (num): '5' is none of 0, 1, 2, 3, 4"),
        (FULL.replace("6.0,0", "6.0,?"), "line 2, column 14 (num): the value is missing"),
    ],
)
def test_a_bad_line(tmp_path: Path, line: str, told: str) -> None:
    write(tmp_path, hungary=[FULL, line])
    with pytest.raises(DataError) as raised:
        heart.pools(asked(tmp_path, tmp_path))
    first, remedy = str(raised.value).splitlines()
    assert first.startswith(f"{tmp_path / 'processed.hungarian.data'}: {told}")
    assert "udjfl data prepare heart" in remedy


def test_the_first_five_mistakes_of_a_file_are_told(tmp_path: Path) -> None:
    write(tmp_path, va=["x,y" + FULL[8:], *["?"] * 5])  # two in line 1, one in each of the others
    with pytest.raises(DataError) as raised:
        heart.read(tmp_path / "processed.va.data")
    lines = str(raised.value).splitlines()
    assert [line.split(": ")[1].split(" (")[0] for line in lines[:3]] == [
        "line 1, column 1",
        "line 1, column 2",
        "line 2 has 1 columns",
    ]
    assert len(lines) == 7
    assert lines[5].endswith("and 2 more mistakes")


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "processed.va.data"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"processed\.va\.data: the file is empty"):
        heart.read(path)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "processed.va.data"
    path.write_bytes(bytes(range(128, 256)))
    with pytest.raises(DataError, match="line 1 has"):
        heart.read(path)


def test_features_have_one_order() -> None:
    assert len(heart.FEATURES) == len(set(heart.FEATURES)) == 35
    assert heart.FEATURES[:8] == (
        "age",
        "sex=0",
        "sex=1",
        "cp=1",
        "cp=2",
        "cp=3",
        "cp=4",
        "trestbps",
    )
    assert heart.FEATURES[22:27] == (
        "thal=3",
        "thal=6",
        "thal=7",
        "trestbps missing",
        "chol missing",
    )
    train, test = heart.fitted(patients(age=[40.0, 60.0]), patients(age=[50.0]))
    assert train.x.shape == (2, 35)
    assert test.x.shape == (1, 35)
    assert train.x.dtype == torch.float32
    assert train.y.tolist() == [0, 1]


def test_numbers_are_filled_and_scaled_by_the_train_part() -> None:
    # Known: 1, 2, 9: median 2, mean 4, variance (9 + 4 + 25) / 3.
    train, test = heart.fitted(
        patients(oldpeak=[1, 2, 9, math.nan]), patients(oldpeak=[math.nan, 100])
    )
    std = math.sqrt(38 / 3)
    assert feature(train, "oldpeak") == pytest.approx([-3 / std, -2 / std, 5 / std, -2 / std])
    assert feature(train, "oldpeak missing") == [0, 0, 0, 1]
    assert feature(test, "oldpeak") == pytest.approx([-2 / std, 96 / std])
    assert feature(test, "oldpeak missing") == [1, 0]


def test_equal_numbers_become_zero() -> None:
    # 0.7 is no binary number: a deviation of 1e-16 out of rounding would make the 0.8 astronomic.
    train, test = heart.fitted(patients(oldpeak=[0.7] * 243), patients(oldpeak=[0.7, 0.8]))
    assert set(feature(train, "oldpeak")) == {0}
    assert feature(test, "oldpeak") == pytest.approx([0, 0.1], abs=1e-6)


def test_categories_are_filled_with_the_most_frequent() -> None:
    train, test = heart.fitted(patients(thal=[7, 7, 3, math.nan]), patients(thal=[math.nan, 6]))
    assert feature(train, "thal=3") == [0, 0, 1, 0]
    assert feature(train, "thal=6") == [0, 0, 0, 0]
    assert feature(train, "thal=7") == [1, 1, 0, 1]
    assert feature(train, "thal missing") == [0, 0, 0, 1]
    assert feature(test, "thal=6") == [0, 1]  # a category of which the train part has none
    assert feature(test, "thal=7") == [1, 0]


def test_of_equally_frequent_categories_the_lowest() -> None:
    train, _ = heart.fitted(patients(slope=[3, 2, math.nan]), patients(slope=[1]))
    assert feature(train, "slope=2") == [0, 1, 1]


def test_a_column_the_train_part_does_not_have() -> None:
    nothing = [math.nan] * 2
    train, test = heart.fitted(
        patients(chol=nothing, thal=nothing), patients(chol=[200, math.nan], thal=[3, math.nan])
    )
    for part in (train, test):
        for name in ("chol", "thal=3", "thal=6", "thal=7"):
            assert feature(part, name) == [0, 0]
        assert feature(part, "chol missing") == feature(part, "thal missing") == [1, 1]


def test_nothing_of_the_test_part_is_used_and_nothing_is_changed() -> None:
    train = patients(age=[40, 50, 60.0], chol=[200, math.nan, 260])
    before = train.x.clone()
    one, _ = heart.fitted(train, patients(age=[1.0], chol=[1]))
    two, _ = heart.fitted(train, patients(age=[99.0], chol=[math.nan]))
    assert torch.equal(one.x, two.x)
    assert torch.equal(train.x.nan_to_num(-1), before.nan_to_num(-1))


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A server in the archive's place, with small files; the paths it was asked for."""
    monkeypatch.setenv("no_proxy", "*")
    served = tmp_path / "served"
    write(served, va=[GAPS, FULL])
    paths: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, directory=str(served), **named)

        def do_GET(self) -> None:
            paths.append(self.path)
            super().do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        place = f"http://127.0.0.1:{listening.server_port}/"
        small = {
            hospital: Remote(
                remote.name,
                (place + remote.name,),
                hashlib.md5((served / remote.name).read_bytes()).hexdigest(),
            )
            for hospital, remote in heart.HOSPITALS.items()
        }
        monkeypatch.setattr(heart, "HOSPITALS", small)
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield paths
        listening.shutdown()
        thread.join()


def test_prepare_fetches_what_is_missing(archive: list[str], tmp_path: Path) -> None:
    cache, root = tmp_path / "cache", tmp_path / "own"
    root.mkdir()
    (root / "processed.cleveland.data").write_text(GAPS)  # the reader's own patients
    request = asked(root, cache)
    told: list[str] = []
    lines = heart.prepare(
        Preparation(request, progress=lambda stage, done, total: told.append(stage))
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
    assert "processed.va.data" in told
    assert len(heart.pools(request).clean) == 5
    assert heart.prepare(Preparation(request)) == lines
    assert len(archive) == 3  # nothing is fetched twice


def test_prepare_mends_the_cache(archive: list[str], tmp_path: Path) -> None:
    write(tmp_path / "cache" / "heart-disease", va=[GAPS, FULL])
    damaged = tmp_path / "cache" / "heart-disease" / "processed.hungarian.data"
    damaged.write_text("half a fi")
    heart.prepare(Preparation(asked(None, tmp_path / "cache")))
    assert archive == ["/processed.hungarian.data"]
    assert damaged.read_text() == FULL + "\n"
    assert not (tmp_path / "cache" / "heart").exists()


def test_the_source() -> None:
    source = heart.SOURCE
    assert (source.name, source.clients, source.partition) == ("heart", 4, "natural")
    assert (source.pools, source.prepare) == (heart.pools, heart.prepare)
    assert {remote.urls[0] for remote in heart.HOSPITALS.values()} == {
        f"https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/processed.{place}.data"
        for place in ("cleveland", "hungarian", "switzerland", "va")
    }


def test_the_published_files(tmp_path: Path) -> None:
    root = os.environ.get("UDJFL_DATA")
    request = asked(Path(root) if root else None, tmp_path)
    if not root or any(
        request.find((remote.name,), heart.FOLDERS) is None for remote in heart.HOSPITALS.values()
    ):
        pytest.skip("needs the four published files in UDJFL_DATA")
    made = heart.pools(request)
    assert made.owners is not None
    owners = np.array(made.owners)
    assert Counter(made.owners) == SIZES
    ill = {
        hospital: int(made.clean.y[torch.from_numpy(owners == hospital)].sum())
        for hospital in SIZES
    }
    # From the archive's description: healthy are 164, 188, 8 and 51.
    assert ill == {"cleveland": 139, "hungary": 106, "switzerland": 115, "va": 149}
    assert len(set(made.clean_groups.tolist())) == 918
    for hospital in SIZES:
        rows = np.flatnonzero(owners == hospital)
        train, test = heart.fitted(made.clean.take(rows[::2]), made.clean.take(rows[1::2]))
        assert train.x.shape[1] == test.x.shape[1] == len(heart.FEATURES)
        assert bool(torch.isfinite(torch.cat([train.x, test.x])).all())
    swiss = made.clean.take(np.flatnonzero(owners == "switzerland"))
    assert bool(swiss.x[:, NAMES.index("chol")].isnan().all())
