"""CSV and parquet files: found, decoded, read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from table_helpers import make_hospitals, write_hospitals

import udjfl
from udjfl import Federation
from udjfl.data.tables.files import decode, find_files, name_files, parse_csv, read_table
from udjfl.errors import DataError

POOLS: list[object] = []  # kept, since arrays give their memory back to the pool they have it from


def test_files_are_the_frames(tmp_path: Path) -> None:
    folder = write_hospitals(tmp_path / "hospitals")
    frames = Federation.from_frames(make_hospitals(), target="ill")
    for files in (f"{folder}/*.csv", folder, [*folder.glob("*.csv")]):
        federation = Federation.from_csv(files, target="ill")
        assert federation.fingerprint == frames.fingerprint
        assert federation.name == "hospitals"
    by_name = udjfl.load(f"{folder}/*.csv", options={"target": "ill"})
    assert by_name.fingerprint == frames.fingerprint
    assert by_name.origin["target"] == "ill"


def test_parquet_with_a_column_of_clients(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    hospitals = make_hospitals()
    joined = pd.concat([frame.assign(site=name) for name, frame in hospitals.items()])
    joined.to_parquet(tmp_path / "all.parquet")
    federation = Federation.from_csv(tmp_path / "all.parquet", target="ill", client="site")
    assert federation.fingerprint == Federation.from_frames(hospitals, target="ill").fingerprint
    with pytest.raises(DataError, match="is one file: name the column"):
        Federation.from_csv(tmp_path / "all.parquet", target="ill")
    (tmp_path / "no.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"no\.parquet is not a parquet file"):
        read_table(tmp_path / "no.parquet")


def test_one_file_can_be_cut_into_clients(tmp_path: Path) -> None:
    make_hospitals()["north"].to_csv(tmp_path / "all.csv", index=False)
    options = {"target": "ill"}
    federation = udjfl.load(str(tmp_path / "all.csv"), 3, "iid", options=options)
    assert federation.ids == ("client-1", "client-2", "client-3")
    with pytest.raises(DataError, match="is one file: name the column"):
        udjfl.load(str(tmp_path / "all.csv"), options=options)


def test_a_header_without_the_target_names_the_client(tmp_path: Path) -> None:
    folder = write_hospitals(tmp_path / "h")
    lines = (folder / "west.csv").read_text().splitlines()
    (folder / "west.csv").write_text("\n".join(lines[1:]) + "\n")  # no header at all
    # Its first row has the label "ill", so that there is a column of this name.
    with pytest.raises(DataError, match=r"client 'west' has none .* is its header missing"):
        Federation.from_csv(f"{folder}/*.csv", target="ill")


def test_a_file_without_a_header_shows_no_values(tmp_path: Path) -> None:
    (tmp_path / "north.csv").write_text("age,town,ill\n61,Ely,yes\n52,York,no\n")
    (tmp_path / "south.csv").write_text("47,Bath,no\n44,York,yes\n71,Ely,no\n")
    with pytest.raises(DataError, match=r"client 'south'.* 'ill' .*is the header") as error:
        Federation.from_csv(str(tmp_path / "*.csv"), target="ill")
    assert not any(value in str(error.value) for value in ("47", "Bath"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings(encoding: str, caplog: pytest.LogCaptureFixture) -> None:
    content = "town\nZürich\nGenève\n".encode(encoding)
    with caplog.at_level(logging.WARNING):
        assert decode(content, Path("a.csv")).removeprefix("\ufeff") == "town\nZürich\nGenève\n"
    assert ("a.csv is not UTF-8 (line 2)" in caplog.text) == (encoding == "cp1252")


def test_mixed_encodings_are_an_error() -> None:
    content = "town\nZürich\n".encode() + "Genève\n".encode("cp1252")
    with pytest.raises(DataError, match=r"a\.csv mixes encodings: line 2 is UTF-8, line 3 is not"):
        decode(content, Path("a.csv"))
    with pytest.raises(DataError, match="is not utf-16"):
        decode(b"\xff\xfea", Path("a.csv"))


def test_separators_and_decimal_commas() -> None:
    frame = parse_csv("a;b;c\n1,5;x;?\n2,5;NA;3\n", Path("a.csv"))
    assert frame.a.tolist() == [1.5, 2.5]
    assert frame.isna().sum().tolist() == [0, 1, 1]
    assert parse_csv("a\tb\n1\t2\n", Path("a.tsv")).columns.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        (" \n", "the file is empty"),
        ("a,b\n", "has a header and no rows"),
        ("a,b\n1,2\n1,2,3\n", "cannot be read as a table: .*line 3"),
    ],
)
def test_unreadable_files(text: str, words: str) -> None:
    with pytest.raises(DataError, match=rf"^a\.csv.*{words}"):
        parse_csv(text, Path("a.csv"))


def test_missing_files(tmp_path: Path) -> None:
    for text in (f"{tmp_path}/*.csv", f"{tmp_path}/a.csv"):
        with pytest.raises(DataError, match="no file is called"):
            find_files(text)


def test_only_a_text_is_split_at_commas(tmp_path: Path) -> None:
    paths = [tmp_path / "Paris, north.csv", tmp_path / "b.csv"]
    for path in paths:
        path.write_text("x\n1\n")
    assert find_files(paths) == find_files([str(path) for path in paths]) == sorted(paths)
    assert find_files(paths[0]) == [paths[0]]
    assert find_files(f"{tmp_path}/Paris*, {tmp_path}/b.csv") == sorted(paths)


def test_equal_names_take_the_folder(tmp_path: Path) -> None:
    for name, frame in make_hospitals().items():
        (tmp_path / name).mkdir()
        frame.to_csv(tmp_path / name / "data.csv", index=False)
    federation = Federation.from_csv(f"{tmp_path}/**/*.csv", target="ill")
    assert federation.ids == ("north/data", "south/data", "west/data")


@pytest.mark.parametrize(
    ("text", "is_files"),
    [
        ("a.csv", True),
        ("a/*.csv", True),
        ("a.csv,b.PARQUET", True),
        ("./data", True),
        ("heart", False),
        ("signs:level=3", False),
        ("my_package.data:SOURCE", False),
        ("a.csv,heart", False),
    ],
)
def test_names_of_files(text: str, is_files: bool) -> None:
    assert name_files(text) == is_files


def test_parquet_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    pd.DataFrame({"a": [0] * 1000}).to_parquet(tmp_path / "all.parquet")
    monkeypatch.setattr("udjfl.data.tables.files.MOST_BYTES", 7999)  # of 8,000
    with pytest.raises(DataError, match="would take more than 7999 bytes"):
        read_table(tmp_path / "all.parquet")
    monkeypatch.setattr("udjfl.data.tables.files.MOST_BYTES", 10_000)
    assert len(read_table(tmp_path / "all.parquet")) == 1000


@pytest.mark.parametrize("encoding", ["dictionary", "plain", "prefixed"])
def test_texts_of_parquet_are_measured_each_time_that_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "all.parquet"
    parquet.write_table(
        pyarrow.table({"a": ["x" * 10_000] * 300}),
        path,
        use_dictionary=encoding == "dictionary",
        column_encoding={"a": "DELTA_BYTE_ARRAY"} if encoding == "prefixed" else None,
    )
    assert path.stat().st_size < 200_000  # of 300 texts of 10,000 bytes
    # Each row has also at least the 8 bytes of a number.
    monkeypatch.setattr("udjfl.data.tables.files.MOST_BYTES", 3_000_000)
    with pytest.raises(DataError, match=r"all\.parquet would take more than 3000000 bytes"):
        read_table(path)
    monkeypatch.setattr("udjfl.data.tables.files.MOST_BYTES", 3_010_000)
    assert list(read_table(path)["a"]) == ["x" * 10_000] * 300


@pytest.mark.parametrize("kind", ["category", "large", "binary", "view"])
def test_texts_of_parquet_of_every_type_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    text = pyarrow.array(["x" * 1000] * 99 + [None])
    column = {
        "category": text.dictionary_encode,
        "large": lambda: text.cast(pyarrow.large_string()),
        "binary": lambda: text.cast(pyarrow.binary()),
        "view": lambda: text.cast(pyarrow.string_view()),
    }[kind]()
    # The texts of "a.b" are read with those of "a", and counted once.
    table = pyarrow.table({"a": column, "a.b": ["y"] * 100, "a.c": [1] * 100})
    parquet.write_table(table, tmp_path / "all.parquet")
    monkeypatch.setattr("udjfl.data.tables.files.MOST_BYTES", 100_000)
    with pytest.raises(DataError, match="would take more than 100000 bytes"):
        read_table(tmp_path / "all.parquet")
    monkeypatch.setattr("udjfl.data.tables.files.MOST_BYTES", 105_000)
    assert list(read_table(tmp_path / "all.parquet")) == ["a", "a.b", "a.c"]


def test_a_fallback_to_another_encoding_counts_no_text_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers change the encoding within a column when its dictionary is full."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = [f"{number:08d}" for number in range(20_000)]
    parquet.write_table(
        pyarrow.table({"a": texts}), tmp_path / "all.parquet", dictionary_pagesize_limit=1000
    )
    monkeypatch.setattr("udjfl.data.tables.files.MOST_BYTES", 410_000)  # 8 bytes, 4 + 8 more
    assert list(read_table(tmp_path / "all.parquet")["a"]) == texts


def test_texts_of_parquet_are_counted_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, text = tmp_path / "all.parquet", "x" * 10_000
    parquet.write_table(
        pyarrow.table({"a": [text] * 20_000}),
        path,
        use_dictionary=False,
        column_encoding={"a": "DELTA_BYTE_ARRAY"},
    )
    monkeypatch.setattr("udjfl.data.tables.files.MOST_BYTES", 190_000_000)  # of 200,000,000

    def refuse() -> None:
        with pytest.raises(DataError, match="would take more than"):
            read_table(path)

    used = measure_memory(refuse)
    assert used < 5_000_000


def measure_memory(call: Callable[[], object]) -> int:
    """Return the most memory that pyarrow takes at once during a call."""
    pyarrow = pytest.importorskip("pyarrow")
    before = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(before)
    POOLS.append(pool)
    pyarrow.set_memory_pool(pool)
    try:
        call()
    finally:
        pyarrow.set_memory_pool(before)
    return int(pool.max_memory())


def test_lists_and_records_of_parquet_are_left_out_unread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "all.parquet"
    columns = {
        "age": pyarrow.array([60, 70]),
        "many.values": pyarrow.array([[0] * 4_000_000, None]),
        "record": pyarrow.array([{"a": "x", "b": {"c": 1}}] * 2),
        "record.a": pyarrow.array(["y", "z"]),  # pyarrow reads the field above by this name, too
        "record.c": pyarrow.array(["y", "z"]),
    }
    parquet.write_table(pyarrow.table(columns), path)
    frames = []
    assert measure_memory(lambda: frames.append(read_table(path))) < 1_000_000
    assert [list(frame) for frame in frames] == [["age", "record.c"]]
    left_out = [name for name in columns if f"column '{name}' is left out" in caplog.text]
    assert left_out == ["many.values", "record", "record.a"]


def test_an_index_of_lists_is_not_read(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "all.parquet"
    index = pd.Index([[0] * 1_000_000, [1]], name="many")
    pd.DataFrame({"age": [60, 70]}, index=index).to_parquet(path)
    frames = []
    assert measure_memory(lambda: frames.append(read_table(path))) < 1_000_000
    assert list(frames[0]) == ["age"]
    assert frames[0].index.name is None


def test_an_index_of_parquet_is_no_column(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"age": [60, 70]}, index=pd.Index(["a", "b"], name="patient"))
    frame.to_parquet(tmp_path / "all.parquet")
    pd.testing.assert_frame_equal(read_table(tmp_path / "all.parquet"), frame)


def test_a_parquet_file_of_lists_alone_has_no_column(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pd.DataFrame({"site": ["a", "b"] * 9, "ill": [[1], [2]] * 9}).to_parquet(
        tmp_path / "all.parquet"
    )
    with pytest.raises(DataError, match="ill"):
        Federation.from_csv(tmp_path / "all.parquet", target="ill", client="site")


def test_a_large_parquet_file_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a column is read at once."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "all.parquet"
    pd.DataFrame({"a": [[0] * 10_000, [1]], "b": [1, 2]}).to_parquet(path, compression=None)
    monkeypatch.setattr("udjfl.data.tables.files.MOST_BYTES", path.stat().st_size - 1)
    with pytest.raises(DataError, match="would take more than"):
        read_table(path)
    monkeypatch.setattr("udjfl.data.tables.files.MOST_BYTES", path.stat().st_size)
    assert len(read_table(path)) == 2


@pytest.mark.parametrize("rows", [[102_017_878_808], [-6, 12], [], [3, 4]])
def test_a_parquet_file_whose_parts_lie_about_their_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[int]
) -> None:
    """Memory is taken for the rows of a part, before any of them is read."""
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "north.parquet"
    pd.DataFrame({"age": [1.0] * 6}).to_parquet(path)
    whole = parquet.read_metadata(path)
    parts = [SimpleNamespace(num_rows=own, total_byte_size=100) for own in rows]
    described = SimpleNamespace(
        schema=whole.schema,
        num_columns=whole.num_columns,
        num_rows=whole.num_rows,
        num_row_groups=len(parts),
        row_group=parts.__getitem__,
    )
    monkeypatch.setattr(parquet, "read_metadata", lambda _: described)
    with pytest.raises(DataError, match="other numbers of rows than the whole"):
        read_table(path)


def test_a_parquet_file_beyond_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")

    def run_out(path: Path, columns: list[str]) -> None:
        raise MemoryError("malloc of size 274877906944 failed")

    path = tmp_path / "north.parquet"
    pd.DataFrame({"age": [1.0]}).to_parquet(path)
    monkeypatch.setattr(parquet, "read_table", run_out)
    with pytest.raises(DataError, match="needs more memory than there is"):
        read_table(path)
