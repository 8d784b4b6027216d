"""Readers of tables, of federations saved from them, and of new rows."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz_damage import change_dict
from fuzz_reader import FolderReader, Reader, of_file, save_to_bytes, save_to_files

from udjfl.data.tables.files import read_table
from udjfl.training.federation_info import FederationInfo
from udjfl.training.inputs import Inputs

TABLE = "site,age,sex,ill\nnorth,63,m,0\nnorth,41.5,f,1\nsüd,,f,1\nsüd,58,m,0\n".encode()


def make_frame() -> Any:
    import pandas as pd

    ages = [float(20 + 7 * i % 50) for i in range(24)]
    sexes = ["m", "f", None, "f"] * 6
    ill = [0, 1, 1, 0, 1, 0] * 4
    sites = ["north", "south"] * 12
    return pd.DataFrame({"site": sites, "age": ages, "sex": sexes, "ill": ill})


def make_new_rows() -> Any:
    """Return a few rows, with numbers, texts and a missing text."""
    return make_frame().head(6)


def make_federation() -> Any:
    import udjfl

    return udjfl.Federation.from_frames(make_frame(), target="ill", client="site")


def make_parquet_reader() -> Reader:
    content = save_to_bytes(lambda stream: make_new_rows().to_parquet(stream))
    return Reader(content, of_file(read_table, "input.parquet"))


@functools.cache
def make_saved_folder() -> FolderReader:
    """Return a reader of the folder of a saved federation."""
    import udjfl

    return FolderReader(udjfl.Federation.load, save_to_files(make_federation().save))


def make_description_reader() -> Reader:
    read = make_saved_folder()
    valid = json.loads(read.files["federation.json"])
    return Reader(valid, read.of_json("federation.json"), change=change_dict)


def make_tensors_reader() -> Reader:
    read = make_saved_folder()
    return Reader(read.files["data.safetensors"], read.of_bytes("data.safetensors"))


def make_preprocessing_reader() -> Reader:
    """Return a reader of the description of inputs, which then prepares rows."""
    inputs, frame = FederationInfo.of(make_federation()).inputs, make_new_rows()

    def read(values: Any, folder: Path) -> object:
        found = Inputs.from_description(values)
        return None if found is None else found.to_tensor(frame)

    return Reader(json.loads(json.dumps(inputs.describe())), read, change=change_dict)


def make_rows_reader() -> Reader:
    inputs = FederationInfo.of(make_federation()).inputs
    content = make_new_rows().to_csv(index=False).encode()
    return Reader(content, of_file(lambda path: inputs.read_csv(path)))


READERS: dict[str, Callable[[], Reader]] = {
    "table": lambda: Reader(TABLE, of_file(read_table, "input.csv")),
    "parquet": make_parquet_reader,
    "saved description": make_description_reader,
    "saved tensors": make_tensors_reader,
    "preprocessing": make_preprocessing_reader,
    "rows": make_rows_reader,
}
