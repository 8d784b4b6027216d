"""Examples, and the clients that hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from udjfl.data._contiguous import concatenate, concatenate_known, split_known
from udjfl.data._label_probabilities import one_hot
from udjfl.data._on_disk import copy_rows
from udjfl.data.partition import IndexArray


@dataclass(frozen=True, eq=False, repr=False)
class Examples:
    """Features `x` [n, ...] in float32, or in integers, and labels `y` [n] in int64.

    Integers stay what they are until a batch is made: `udjfl.models.to_inputs`.

    group                 [n] int64, a sensitive attribute: the number of the group each example
                          belongs to. Methods that use groups read it in the train parts; in
                          test parts it is for measuring.
    label_probabilities   [n, C] float32, the distribution that each label was drawn from, where it
                          is known. No method reads it: it is for measuring.
    together              [n] int64: examples with one number, such as the frames of one track, are
                          held out together or not at all
    """

    x: torch.Tensor
    y: torch.Tensor
    group: torch.Tensor | None = None
    label_probabilities: torch.Tensor | None = None
    together: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Examples(x: {list(self.x.shape)}, y: {list(self.y.shape)})"

    def __reduce__(self) -> tuple[object, ...]:
        # A part of a federation is a view: without the copy, all clients' memory would be pickled.
        copy = self._map(torch.Tensor.clone)
        return Examples, (copy.x, copy.y, copy.group, copy.label_probabilities, copy.together)

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Examples:
        optional = (self.group, self.label_probabilities, self.together)
        mapped = [None if column is None else function(column) for column in optional]
        return Examples(function(self.x), function(self.y), *mapped)

    def take(self, indices: IndexArray) -> Examples:
        """Return the examples at these indices, in this order."""
        chosen = torch.from_numpy(np.asarray(indices, dtype=np.int64).copy())
        return self._map(lambda column: column[chosen])

    @staticmethod
    def take_many(
        pairs: Sequence[tuple[Examples, IndexArray]], folder: Path | None = None
    ) -> list[Examples]:
        """Return for each pair the examples at its indices.

        With a folder the features are not in memory but in a file there, for data that are read
        from disk; everything else, which is small, is in memory.
        """
        if folder is None:
            return [examples.take(indices) for examples, indices in pairs]
        rows = [(part.x, torch.from_numpy(indices.copy())) for part, indices in pairs]
        features = copy_rows(rows, folder)
        others = [replace(part, x=part.y).take(indices) for part, indices in pairs]
        return [replace(part, x=x) for part, x in zip(others, features, strict=True)]

    def on(self, device: torch.device) -> Examples:
        """Return the examples on a device; `self` if they are on it already."""
        return self if self.x.device == device else self._map(lambda column: column.to(device))

    @staticmethod
    def concatenate(parts: Sequence[Examples]) -> Examples:
        """Return all parts in one, without a copy if they are adjacent in memory."""
        return Examples(
            concatenate([part.x for part in parts]),
            concatenate([part.y for part in parts]),
            concatenate_known([part.group for part in parts]),
            concatenate_known([part.label_probabilities for part in parts]),
            concatenate_known([part.together for part in parts]),
        )

    @staticmethod
    def lay_out(parts: Sequence[Examples]) -> list[Examples]:
        """Return the same parts, adjacent in memory, so that `concatenate` needs no copy."""
        everything = Examples.concatenate(parts)
        sizes = [len(part) for part in parts]
        columns = (
            torch.split(everything.x, sizes),
            torch.split(everything.y, sizes),
            split_known(everything.group, [part.group for part in parts]),
            split_known(
                everything.label_probabilities, [part.label_probabilities for part in parts]
            ),
            split_known(everything.together, [part.together for part in parts]),
        )
        return [Examples(*row) for row in zip(*columns, strict=True)]

    def with_certain_labels(self, n_classes: int) -> Examples:
        """Return the examples with label probabilities that are 1 for the label, else 0."""
        return replace(self, label_probabilities=one_hot(self.y, n_classes))


@dataclass(frozen=True, eq=False)
class Client:
    """One client's data. `ambiguous_share` is that of the train part, None if unknown.

    `held_out` examples were taken from the train part, to score models on while they train.
    `folder` is the one that features are read from as they are used; None: they are in memory.
    """

    id: str
    train: Examples
    test: Examples
    ambiguous_share: float | None = None
    held_out: Examples | None = None
    folder: Path | None = None

    @property
    def scored(self) -> Examples:
        """The examples that models are scored on while they train."""
        return self.train if self.held_out is None else self.held_out
