"""The examples that a trained model takes, and the classes that it tells apart."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from udjfl._files import explain_os_errors, read_prefix
from udjfl.data.tables.files import MOST_BYTES, read_table
from udjfl.data.tables.new_rows import is_frame, prepare_rows
from udjfl.data.tables.preprocessing import Preprocessing
from udjfl.errors import DataError, StorageError

STORED_TYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.uint8, torch.int16, torch.int32, torch.int64)
}


@dataclass(frozen=True)
class Inputs:
    """The shape of one example, and the names of the classes; None where they are not known.

    dtype          of stored features: `udjfl.models.to_inputs` makes a model's inputs of them
    preprocessing  what was done to the columns of a table; None if the data were none
    """

    shape: tuple[int, ...]
    class_names: tuple[str, ...] | None = None
    dtype: torch.dtype = torch.float32
    preprocessing: Preprocessing | None = None

    @staticmethod
    def from_description(federation: Mapping[str, Any]) -> Inputs | None:
        """Read them from a run folder's description of its data; None in those of old versions."""
        shape, names = federation.get("input_shape"), federation.get("class_names")
        if shape is None:
            return None
        try:
            done = federation.get("preprocessing")
            return Inputs(
                tuple(map(int, shape)),
                None if names is None else tuple(map(str, names)),
                STORED_TYPES[federation.get("input_type", "float32")],
                None if done is None else Preprocessing.from_dict(done),
            )
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise StorageError(f"settings.json: its description of the data ({error!r})") from None

    def describe(self) -> dict[str, Any]:
        """Return plain values, as run folders keep them and `from_description` reads them."""
        names, done = self.class_names, self.preprocessing
        is_usual = self.dtype == torch.float32
        return {
            "input_shape": list(self.shape),
            "class_names": None if names is None else list(names),
            **({} if is_usual else {"input_type": str(self.dtype).removeprefix("torch.")}),
            **({} if done is None else {"preprocessing": done.as_dict()}),
        }

    def label(self, class_index: int) -> str:
        """Return the name of a class, or its number."""
        return str(class_index) if self.class_names is None else self.class_names[class_index]

    def sample(self) -> Tensor:
        """Return two stored examples, all 0."""
        return torch.zeros(2, *self.shape, dtype=self.dtype)

    def to_tensor(self, x: Any, client: str | None = None) -> Tensor:
        """Return examples [n, ...], stored as those of the training; DataError if they do not fit.

        A frame is raw: its columns are prepared with the numbers of a client, or of all together.
        """
        if self.preprocessing is not None and is_frame(x):
            x = prepare_rows(x, self.preprocessing, client)
        try:
            examples = torch.as_tensor(x if isinstance(x, Tensor) else np.asarray(x))
        except (TypeError, ValueError) as error:
            raise DataError(f"x: holds no numbers ({error})") from None
        if tuple(examples.shape[1:]) != self.shape:
            raise DataError(
                f"x: has shape {list(examples.shape)}; the model takes examples of shape "
                f"{list(self.shape)}, so give [n, {', '.join(map(str, self.shape))}]"
                + ("" if self.preprocessing is None else ", or raw rows as a DataFrame")
            )
        if not len(examples):
            raise DataError("x: has no examples; give at least one")
        if not torch.isfinite(examples).all():
            row = int((~torch.isfinite(examples.flatten(1)).all(dim=1)).nonzero()[0])
            raise DataError(f"x: example {row} has values that are NaN or infinite")
        return self._as_stored(examples)

    def _as_stored(self, examples: Tensor) -> Tensor:
        """Return examples in the stored type; fractions beside pixels are from 0 to 1 already."""
        stored = examples.to(self.dtype)
        if self.dtype == torch.float32 or torch.equal(stored.double(), examples.double()):
            return stored
        if self.dtype == torch.uint8 and examples.is_floating_point():
            return examples.to(torch.float32)
        row = int((stored.double() != examples.double()).flatten(1).any(dim=1).nonzero()[0])
        kind = str(self.dtype).removeprefix("torch.")
        raise DataError(f"x: example {row} has values that are no {kind}, as the model takes")

    def read_csv(
        self, path: Path, leave_out: Sequence[str] = (), client: str | None = None
    ) -> Tensor:
        """Read examples from a CSV file with a heading, one row each.

        Of a model of a table, the file has raw rows, and columns are found by their names. Else it
        has numbers in the order of the features.
        """
        if self.preprocessing is not None:
            try:
                table = read_table(path)
                if leave_out:
                    table = table.drop(columns=list(leave_out))
                return self.to_tensor(table, client)
            except KeyError as error:
                raise DataError(f"{path}: --leave-out names no column: {error.args[0]}") from None
            except DataError as error:
                lines = str(error).splitlines()
                named = [line if str(path) in line else f"{path}: {line}" for line in lines]
                raise DataError("\n".join(named)) from None
        with explain_os_errors(path, "read"):
            content = read_prefix(path, MOST_BYTES)
        try:
            heading, *rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        except (ValueError, csv.Error) as error:  # empty, or not a text
            raise DataError(f"{path}: is not a CSV file with a heading ({error})") from None
        missing = [name for name in leave_out if name not in heading]
        if missing:
            columns = ", ".join(heading)
            raise DataError(f"{path}: has no column {missing[0]!r}; it has {columns}")
        used = [index for index, name in enumerate(heading) if name not in leave_out]
        if len(used) != math.prod(self.shape):
            raise DataError(
                f"{path}: has {len(used)} columns of numbers; the model takes "
                f"{math.prod(self.shape)}. Leave others out with --leave-out"
            )
        numbers = [
            [_number(path, line, heading, row, index) for index in used]
            for line, row in enumerate(rows, start=2)
            if row
        ]
        return self.to_tensor(np.array(numbers, dtype=np.float32).reshape(-1, *self.shape))


def _number(path: Path, line: int, heading: list[str], row: list[str], index: int) -> float:
    """Return one cell of a table as a number."""
    if len(row) != len(heading):
        raise DataError(
            f"{path}, line {line}: has {len(row)} cells; the heading has {len(heading)}"
        )
    try:
        return float(row[index])
    except ValueError:
        raise DataError(
            f"{path}, line {line}: {heading[index]!r} is {row[index]!r}, not a number"
        ) from None
