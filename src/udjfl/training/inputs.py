"""The examples that a trained model takes, and the classes that it tells apart."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from udjfl._files import explain_os_errors
from udjfl.errors import DataError


@dataclass(frozen=True)
class Inputs:
    """The shape of one example, and the names of the classes; None where they are not known."""

    shape: tuple[int, ...]
    class_names: tuple[str, ...] | None = None

    @staticmethod
    def from_description(federation: Mapping[str, Any]) -> Inputs | None:
        """Read them from a run folder's description of its data; None in those of old versions."""
        shape, names = federation.get("input_shape"), federation.get("class_names")
        if shape is None:
            return None
        return Inputs(tuple(map(int, shape)), None if names is None else tuple(map(str, names)))

    def label(self, class_index: int) -> str:
        """Return the name of a class, or its number."""
        return str(class_index) if self.class_names is None else self.class_names[class_index]

    def to_tensor(self, x: Any) -> Tensor:
        """Return examples as float32 [n, ...]; raise DataError if they have another shape."""
        try:
            examples = torch.as_tensor(x if isinstance(x, Tensor) else np.asarray(x))
        except (TypeError, ValueError) as error:
            raise DataError(f"x: holds no numbers ({error})") from None
        if tuple(examples.shape[1:]) != self.shape:
            raise DataError(
                f"x: has shape {list(examples.shape)}; the model takes examples of shape "
                f"{list(self.shape)}, so give [n, {', '.join(map(str, self.shape))}]"
            )
        if not len(examples):
            raise DataError("x: has no examples; give at least one")
        examples = examples.to(torch.float32)
        if not torch.isfinite(examples).all():
            row = int((~torch.isfinite(examples.flatten(1)).all(dim=1)).nonzero()[0])
            raise DataError(f"x: example {row} has values that are NaN or infinite")
        return examples

    def read_csv(self, path: Path, leave_out: Sequence[str] = ()) -> Tensor:
        """Read examples from a CSV file with a heading: one row each, its numbers in order."""
        with explain_os_errors(path), path.open(newline="", encoding="utf-8-sig") as file:
            try:
                heading, *rows = csv.reader(file)
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
