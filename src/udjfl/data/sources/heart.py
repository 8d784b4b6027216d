"""Heart disease in four hospitals: 920 patients, each hospital a client; is a patient ill?

Heart Disease, UCI Machine Learning Repository, data set 45, by A. Janosi, W. Steinbrunn, M.
Pfisterer and R. Detrano, 1989, https://doi.org/10.24432/C52P4X, licence CC BY 4.0. The files read
are the archive's `processed.*.data`: 13 features and a diagnosis from 0 to 4 for each patient. As
is usual, 0 is the class `healthy` and everything above it `disease`.

Hospitals did not measure the same things, so values are missing, and very unevenly. A value is
missing where a file has `?`, or -9, the archive's other mark, and also where blood pressure
(trestbps) or cholesterol (chol) are 0, as cholesterol is for every patient in Switzerland. Age, sex
and chest pain (cp) are known for every patient.

The 13 columns of a client become 35 features, using statistics of the client's own train part only
(`udjfl.data.tables.preprocessing` says how). The ten columns that may be missing have an indicator,
and every category that is possible has a feature, whether or not a hospital has it.

Features are in the order of the columns, followed by the ten indicators: `SCHEMA.features` has the
names.

With `split=flamby` patients, columns, and train and test parts are those of Fed-Heart-Disease in
FLamby (Ogier du Terrail et al., NeurIPS 2022), so that results can be put beside its published
ones: without slope, ca and thal, without the patients for whom another value is missing (a 0 is
none), and split once, whatever the seed. Numbers are scaled by each client's train part, as in
FLamby; it scales the features of categories too, and leaves each column's first one out.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from udjfl._files import read_prefix
from udjfl.data.download import Remote, compute_md5, fetch_all
from udjfl.data.federation import Examples
from udjfl.data.partition import Mask
from udjfl.data.source import Pools, Preparation, Request, Source
from udjfl.data.tables import columns
from udjfl.data.tables.preprocessor import TablePreprocessor
from udjfl.errors import DataError
from udjfl.settings import Settings

Values: TypeAlias = npt.NDArray[np.float64]

ARCHIVE = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
FOLDERS = ("", "heart", "heart-disease")
MISSING = -9.0
HIGHEST = 1e6  # far above any of these measurements
MAX_SHOWN = 5


HOSPITALS = {
    hospital: Remote(name, (ARCHIVE + name,), md5)
    for hospital, name, md5 in (
        ("cleveland", "processed.cleveland.data", "2d91a8ff69cfd9616aa47b59d6f843db"),
        ("hungary", "processed.hungarian.data", "22e96bee155b5973568101c93b3705f6"),
        ("switzerland", "processed.switzerland.data", "9a87f7577310b3917730d06ba9349e20"),
        ("va", "processed.va.data", "4249d03ca7711e84f4444768c9426170"),
    )
}


@dataclass(frozen=True)
class Column:
    """A column of the files: a number, or one of `categories`."""

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
SCHEMA = columns.Schema(
    tuple(
        columns.Column(
            column.name,
            tuple(map(float, column.categories)),
            tuple(map(str, column.categories)),
            column.may_miss,
        )
        for column in COLUMNS
    )
)
CLASS_NAMES = ("healthy", "disease")


class Options(Settings):
    """The split into train and test parts."""

    split: Annotated[
        Literal["seed", "flamby"],
        Field(description="by the seed, or the patients and the parts of FLamby's"),
    ] = "seed"


FLAMBY_COLUMNS, FLAMBY_TRAIN, FLAMBY_SEED = 10, 0.66, 43  # of its data set's definition


def load_pools(request: Request) -> Pools:
    """Return all patients, with the hospital of each in `owners`.

    Features are raw, NaN where missing, to be filled and scaled once they are split. Patients equal
    in all 13 columns are in one group.
    """
    options: Options = request.options or Options()
    is_flamby = options.split == "flamby"
    tables = {
        hospital: read_patients(path, zero_is_missing=not is_flamby)
        for hospital, path in _locate(request).items()
    }
    schema, tested = SCHEMA, None
    if is_flamby:
        tables = {hospital: _keep_complete(patients) for hospital, patients in tables.items()}
        tested = np.concatenate(
            [_choose_tested(patients[:, -1] > 0) for patients in tables.values()]
        )
        kept = [replace(column, may_miss=False) for column in SCHEMA.columns[:FLAMBY_COLUMNS]]
        schema = columns.Schema(tuple(kept))
    table = np.concatenate(list(tables.values()))
    raw = table[:, :-1]
    # NaN is not equal to itself, MISSING is.
    groups = np.unique(np.where(np.isnan(raw), MISSING, raw), axis=0, return_inverse=True)[1]
    diagnoses = (table[:, -1] > 0).astype(np.int64)
    return Pools(
        clean=Examples(torch.from_numpy(raw.astype(np.float32)), torch.from_numpy(diagnoses)),
        ambiguous=None,
        test=None,
        class_names=CLASS_NAMES,
        clean_groups=groups.reshape(-1).astype(np.int64),
        ambiguous_groups=np.empty(0, dtype=np.int64),
        owners=[hospital for hospital, patients in tables.items() for _ in patients],
        preprocess=TablePreprocessor(schema, CLASS_NAMES, target=DIAGNOSIS.name),
        tabular=True,
        tested=tested,
    )


def _keep_complete(patients: Values) -> Values:
    """Return FLamby's columns of the patients who have a value in each, and their diagnoses."""
    kept = np.delete(patients, np.s_[FLAMBY_COLUMNS:-1], axis=1)
    complete: Values = kept[~np.isnan(kept).any(axis=1)]
    return complete


def _choose_tested(is_ill: Mask) -> Mask:
    """Return FLamby's test patients of one hospital: stratified where each class has three."""
    from sklearn.model_selection import train_test_split

    counts = np.unique(is_ill, return_counts=True)[1]
    _, chosen = train_test_split(
        np.arange(len(is_ill)),
        train_size=FLAMBY_TRAIN,
        test_size=1 - FLAMBY_TRAIN,
        random_state=FLAMBY_SEED,
        stratify=is_ill if len(counts) > 1 and counts.min() > 2 else None,
    )
    tested: Mask = np.isin(np.arange(len(is_ill)), chosen)
    return tested


def find_files(request: Request) -> list[Path]:
    """Return the folders of the four files."""
    return list(dict.fromkeys(path.parent for path in _locate(request).values()))


def _locate(request: Request) -> dict[str, Path]:
    """Return the file of each hospital, or raise a DataError that names the missing ones."""
    located = {
        hospital: path
        for hospital, remote in HOSPITALS.items()
        if (path := request.find((remote.name,), FOLDERS))
    }
    missing = ", ".join(HOSPITALS[key].name for key in HOSPITALS if key not in located)
    if missing:
        raise request.not_found(f"{missing} of the heart disease data were", SOURCE.how_to_get)
    return located


def read_patients(path: Path, zero_is_missing: bool = True) -> Values:
    """Read a file's patients [n, 14], the diagnosis last, NaN where a value is missing.

    `zero_is_missing` of blood pressure and cholesterol, which are never 0.
    """
    columns = (*COLUMNS, DIAGNOSIS)
    patients: list[list[float | str]] = []
    mistakes: list[str] = []
    try:
        content = read_prefix(path, MOST_BYTES)
        lines = content.decode("utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        cells = line.split(",") if line.strip() else []
        if cells and len(cells) != len(columns):
            mistakes.append(
                f"line {number} has {len(cells)} columns: there must be {len(columns)}, "
                "with commas between"
            )
        elif cells:
            pairs = zip(cells, columns, strict=True)
            patients.append(
                [_parse_cell(cell.strip(), column, zero_is_missing) for cell, column in pairs]
            )
            mistakes += [
                f"line {number}, column {position} ({column.name}): {value}"
                for position, (column, value) in enumerate(
                    zip(columns, patients[-1], strict=True), start=1
                )
                if isinstance(value, str)
            ]
    if not patients and not mistakes:
        mistakes = ["the file is empty"]
    if len(mistakes) > MAX_SHOWN:
        mistakes[MAX_SHOWN:] = [f"and {len(mistakes) - MAX_SHOWN} more mistakes"]
    if mistakes:
        raise DataError("\n".join([*(f"{path}: {mistake}" for mistake in mistakes), REMEDY]))
    return np.array(patients, dtype=np.float64)


MOST_BYTES = 1 << 24  # the files have some ten thousand
REMEDY = "Correct it; or remove it, and `udjfl data prepare heart` downloads the published file."


def _parse_cell(cell: str, column: Column, zero_is_missing: bool) -> float | str:
    """Return the number in a cell, NaN if it is missing, or a sentence if it is wrong."""
    try:
        value = MISSING if cell == "?" else float(cell)
    except ValueError:
        return f"{cell!r} is not a number"
    if value == MISSING:
        required = "the value is missing, and this column has one for every patient"
        return math.nan if column.may_miss else required
    if not abs(value) < HIGHEST:  # also true of NaN
        return f"{cell!r} is not a possible measurement"
    if column.categories and value not in column.categories:
        return f"{cell!r} is none of {', '.join(map(str, column.categories))}"
    return math.nan if column.never_zero and zero_is_missing and value == 0 else value


def prepare(preparation: Preparation) -> list[str]:
    """Download missing files, and damaged ones of the cache; return a line for each file."""
    request = preparation.request
    lines = []
    for hospital, remote in HOSPITALS.items():
        path = request.find((remote.name,), FOLDERS)
        note = ""
        if path is None or path.is_relative_to(request.cache):
            folder = request.cache / "heart" if path is None else path.parent
            (path,) = fetch_all([remote], folder, preparation.on_progress)
        elif compute_md5(path) != remote.md5:  # the user's own file: used as it is
            note = " (not the published file: its MD5 differs)"
        lines.append(f"{hospital}: {path}{note}")
    return lines


SOURCE = Source(
    name="heart",
    summary="Heart Disease (UCI): is a patient ill? Four hospitals are the clients",
    how_to_get="Get them with `udjfl data prepare heart`, or name a folder that has the four "
    "processed.*.data of archive.ics.uci.edu/dataset/45/heart+disease with --data-root or "
    "UDJFL_DATA",
    load_pools=load_pools,
    options=Options,
    clients=4,
    partition="natural",
    find_files=find_files,
    prepare=prepare,
)
