"""Heart disease in four hospitals: 920 patients, each hospital a client, and the question whether a patient is ill.

Heart Disease, UCI Machine Learning Repository, data set 45, by A. Janosi, W. Steinbrunn, M. Pfisterer and R. Detrano,
1989, https://doi.org/10.24432/C52P4X, licence CC BY 4.0. The files read are the archive's `processed.*.data`: 13 features
and a diagnosis from 0 to 4 for each patient. As is usual, 0 is the class `healthy` and everything above it `disease`.

Hospitals did not measure the same things, so values are missing, and very unevenly. A value is missing where a file says
`?`, or -9, the archive's other mark, and also where blood pressure (trestbps) or cholesterol (chol) are 0, as cholesterol is
for every patient in Switzerland. Age, sex and chest pain (cp) are known for everyone.

`fitted` turns the 13 raw columns of a client into 35 features, with what the client's own train part says and nothing else:

- a number (age, trestbps, chol, thalach, oldpeak, ca): missing becomes the median, then the mean is subtracted and the
  result divided by the standard deviation (ddof 0; 1 if all values are equal). All three are those of the values there
  are: counting filled values too would shrink the deviation of a column that is mostly missing, and blow up its values.
- a category (sex, cp, fbs, restecg, exang, slope, thal): missing becomes the most frequent category, the lowest if there
  are several; then one feature, 0 or 1, for each category there can be, whether or not the client has it.
- for each column that may be missing, one more feature: 1 where it was, 0 elsewhere.
- a column without any value in the train part tells this client nothing: in both parts its features are 0, and 1 says that
  it is missing, even where the test part has a value.

Features stand in the order of the columns, the ten for what was missing behind them: `FEATURES` has their names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from udjfl.data.download import Remote, checksum, fetch_all
from udjfl.data.federation import Examples, Pools
from udjfl.data.source import Preparation, Request, Source, not_found
from udjfl.errors import DataError

Values: TypeAlias = npt.NDArray[np.float64]

ARCHIVE = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
FOLDERS = ("", "heart", "heart-disease")
MISSING = -9.0
HIGHEST = 1e6  # far above any of these measurements
MOST_SHOWN = 5


def _remote(name: str, md5: str) -> Remote:
    return Remote(name, (ARCHIVE + name,), md5)


HOSPITALS = {
    "cleveland": _remote("processed.cleveland.data", "2d91a8ff69cfd9616aa47b59d6f843db"),
    "hungary": _remote("processed.hungarian.data", "22e96bee155b5973568101c93b3705f6"),
    "switzerland": _remote("processed.switzerland.data", "9a87f7577310b3917730d06ba9349e20"),
    "va": _remote("processed.va.data", "4249d03ca7711e84f4444768c9426170"),
}


@dataclass(frozen=True)
class Column:
    """A column of the files: a number, or one of some categories."""

    name: str
    categories: tuple[int, ...] = ()
    may_miss: bool = True
    never_zero: bool = False


COLUMNS = (
    Column("age", may_miss=False),
    Column("sex", (0, 1), may_miss=False),
    Column("cp", (1, 2, 3, 4), may_miss=False),
    Column("trestbps", never_zero=True),
    Column("chol", never_zero=True),
    Column("fbs", (0, 1)),
    Column("restecg", (0, 1, 2)),
    Column("thalach"),
    Column("exang", (0, 1)),
    Column("oldpeak"),
    Column("slope", (1, 2, 3)),
    Column("ca"),
    Column("thal", (3, 6, 7)),
)
DIAGNOSIS = Column("num", (0, 1, 2, 3, 4), may_miss=False)
FEATURES = (
    *(
        f"{c.name}={category}" if c.categories else c.name
        for c in COLUMNS
        for category in c.categories or ("",)
    ),
    *(f"{c.name} missing" for c in COLUMNS if c.may_miss),
)


def pools(request: Request) -> Pools:
    """All patients, with the hospital of each in `owners`; features are raw, NaN where missing, until `fitted`.

    Patients equal in all 13 columns are in one group.
    """
    tables = {hospital: read(path) for hospital, path in _located(request).items()}
    table = np.concatenate(list(tables.values()))
    raw = table[:, :-1]
    # NaN is not equal to itself, its stand-in is.
    groups = np.unique(np.where(np.isnan(raw), MISSING, raw), axis=0, return_inverse=True)[1]
    return Pools(
        clean=Examples(
            torch.from_numpy(raw.astype(np.float32)),
            torch.from_numpy((table[:, -1] > 0).astype(np.int64)),
        ),
        ambiguous=None,
        test=None,
        class_names=("healthy", "disease"),
        clean_groups=groups.reshape(-1).astype(np.int64),
        ambiguous_groups=np.empty(0, dtype=np.int64),
        owners=[hospital for hospital, rows in tables.items() for _ in rows],
        fitted=fitted,
        tabular=True,
    )


def files(request: Request) -> list[Path]:
    """The folders the four files are in."""
    return list(dict.fromkeys(path.parent for path in _located(request).values()))


def _located(request: Request) -> dict[str, Path]:
    """The file of each hospital."""
    found = {
        hospital: request.find((remote.name,), FOLDERS) for hospital, remote in HOSPITALS.items()
    }
    absent = [HOSPITALS[hospital].name for hospital, path in found.items() if path is None]
    if absent:
        raise not_found(
            f"{', '.join(absent)} of the heart disease data were", request, SOURCE.how_to_get
        )
    return {hospital: path for hospital, path in found.items() if path is not None}


def read(path: Path) -> Values:
    """A file's patients [n, 14], the diagnosis last, NaN where a value is missing."""
    columns = (*COLUMNS, DIAGNOSIS)
    rows: list[list[float]] = []
    mistakes: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        cells = line.split(",")
        if not line.strip():
            continue
        if len(cells) != len(columns):
            mistakes.append(
                f"line {number} has {len(cells)} columns: there must be {len(columns)}, with commas between"
            )
            continue
        row = [_value(cell.strip(), column) for cell, column in zip(cells, columns, strict=True)]
        mistakes += [
            f"line {number}, column {place} ({column.name}): {problem}"
            for place, (column, problem) in enumerate(zip(columns, row, strict=True), start=1)
            if isinstance(problem, str)
        ]
        rows.append([value for value in row if not isinstance(value, str)])
    if not rows and not mistakes:
        mistakes = ["the file is empty"]
    if mistakes:
        more = (
            [f"and {len(mistakes) - MOST_SHOWN} more mistakes"]
            if len(mistakes) > MOST_SHOWN
            else []
        )
        raise DataError(
            "\n".join(f"{path}: {told}" for told in [*mistakes[:MOST_SHOWN], *more])
            + f"\n{_REMEDY}"
        )
    return np.array(rows, dtype=np.float64)


_REMEDY = "Correct it; or remove it, and `udjfl data prepare heart` fetches the published file."


def _value(cell: str, column: Column) -> float | str:
    """The number in a cell, NaN if it is missing; or what is wrong with it."""
    try:
        value = MISSING if cell == "?" else float(cell)
    except ValueError:
        return f"{cell!r} is not a number"
    if value == MISSING:
        return (
            math.nan
            if column.may_miss
            else "the value is missing, and this column has one for every patient"
        )
    if not abs(value) < HIGHEST:  # also true of nan
        return f"{cell!r} is no measurement of a patient"
    if column.categories and value not in column.categories:
        return f"{cell!r} is none of {', '.join(map(str, column.categories))}"
    return math.nan if column.never_zero and value == 0 else value


@dataclass(frozen=True)
class _Fit:
    """What a client's train part says about a column. `fill` is NaN if it has no value there."""

    fill: float
    mean: float = 0.0
    std: float = 1.0


def fitted(train: Examples, test: Examples) -> tuple[Examples, Examples]:
    """Both parts of a client with missing values filled and features scaled, as its train part says."""
    columns = zip(COLUMNS, train.x.double().numpy().T, strict=True)
    fits = [_fit(column, values) for column, values in columns]
    return _ready(train, fits), _ready(test, fits)


def _fit(column: Column, values: Values) -> _Fit:
    known = values[~np.isnan(values)]
    if not len(known):
        return _Fit(math.nan)
    if column.categories:
        return _Fit(
            float(max(column.categories, key=lambda category: np.count_nonzero(known == category)))
        )
    # Of equal values the deviation is exactly 0: float64 adds as many float32 values as there are without rounding.
    return _Fit(float(np.median(known)), float(known.mean()), float(known.std()) or 1.0)


def _ready(part: Examples, fits: Sequence[_Fit]) -> Examples:
    features, indicators = [], []
    for column, fit, values in zip(COLUMNS, fits, part.x.double().numpy().T, strict=True):
        unknown = np.isnan(values) | math.isnan(fit.fill)
        filled = np.where(unknown, fit.fill, values)
        if column.categories:
            features += [(filled == category).astype(np.float64) for category in column.categories]
        else:
            features.append(np.nan_to_num((filled - fit.mean) / fit.std))
        if column.may_miss:
            indicators.append(unknown.astype(np.float64))
    x = np.stack([*features, *indicators], axis=1).astype(np.float32)
    return Examples(torch.from_numpy(x), part.y, part.group)


def prepare(preparation: Preparation) -> list[str]:
    """Fetch the files that are in neither place, and those in the cache that are damaged; a line for each file."""
    request = preparation.request
    told = []
    for hospital, remote in HOSPITALS.items():
        path = request.find((remote.name,), FOLDERS)
        note = ""
        if path is None or path.is_relative_to(request.cache):
            (path,) = fetch_all(
                [remote],
                request.cache / "heart" if path is None else path.parent,
                preparation.progress,
            )
        elif checksum(path) != remote.md5:  # the reader's own file: used as it is
            note = " (not the published file: its MD5 is another one)"
        told.append(f"{hospital}: {path}{note}")
    return told


SOURCE = Source(
    name="heart",
    line="Heart Disease (UCI): is a patient ill? Four hospitals are the clients",
    how_to_get="Get them with `udjfl data prepare heart`, or name a folder that has the four processed.*.data of "
    "https://archive.ics.uci.edu/dataset/45/heart+disease with --data-root or UDJFL_DATA",
    pools=pools,
    clients=4,
    partition="natural",
    files=files,
    prepare=prepare,
)
