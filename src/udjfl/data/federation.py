"""The federation: who the clients are, what each holds, and the clean data that everyone is measured on.

A `Federation` is checked once, when it is made; everything after it may rely on the promises in its docstring.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from udjfl._ids import id_sort_key
from udjfl.data import validation as checks
from udjfl.data._contiguous import joined
from udjfl.data.partition import IndexArray
from udjfl.data.validation import Numbers, Part
from udjfl.errors import DataError


@dataclass(frozen=True, eq=False, repr=False)
class Examples:
    """Features `x` [n, ...] in float32, labels `y` [n] in int64, and perhaps a sensitive attribute.

    `group` [n] in int64 says to which group each example belongs; methods that care for groups read it in train parts.
    """

    x: torch.Tensor
    y: torch.Tensor
    group: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"Examples(x: {list(self.x.shape)}, y: {list(self.y.shape)})"

    def __reduce__(self) -> tuple[object, ...]:
        # A part of a federation is a view; pickled as it is, it would bring the memory of all clients along.
        return Examples, (
            self.x.clone(),
            self.y.clone(),
            None if self.group is None else self.group.clone(),
        )

    def take(self, rows: IndexArray) -> Examples:
        """The examples at these positions, in this order."""
        picked = torch.from_numpy(np.asarray(rows, dtype=np.int64).copy())
        return Examples(
            self.x[picked], self.y[picked], None if self.group is None else self.group[picked]
        )

    def on(self, device: torch.device) -> Examples:
        """The same examples on a device; itself, if they are there."""
        if self.x.device == device:
            return self
        return Examples(
            self.x.to(device),
            self.y.to(device),
            None if self.group is None else self.group.to(device),
        )

    @staticmethod
    def joined(parts: Sequence[Examples]) -> Examples:
        """All parts one after the other; those of one federation share its memory."""
        groups = [part.group for part in parts if part.group is not None]
        return Examples(
            joined([part.x for part in parts]),
            joined([part.y for part in parts]),
            joined(groups) if len(groups) == len(parts) else None,
        )

    @staticmethod
    def laid_out(parts: Sequence[Examples]) -> list[Examples]:
        """The same parts, one after another in memory."""
        together = Examples.joined(parts)
        sizes = [len(part) for part in parts]
        columns = (torch.split(together.x, sizes), torch.split(together.y, sizes))
        groups = (
            [part.group for part in parts]
            if together.group is None
            else torch.split(together.group, sizes)
        )
        return [Examples(x, y, group) for x, y, group in zip(*columns, groups, strict=True)]


@dataclass(frozen=True, eq=False)
class Client:
    """One client's data. `ambiguous_share` is the ambiguous share of the train part, None when nobody knows."""

    id: str
    train: Examples
    test: Examples
    ambiguous_share: float | None = None


@dataclass(frozen=True, eq=False)
class Pools:
    """What a data source offers before it is cut into clients.

    Examples with the same number in `clean_groups` or `ambiguous_groups` (copies of one image, frames of one track)
    stay on one side of the train/test split; the numbers mean the same in both arrays. `ambiguous` is None when the
    source has no such examples. `test` is None when the global test set is to be made of the clients' clean test parts.
    `validation` is for the server's own use, where there are examples to spare. `owners` names, for each clean example, the
    client that has it by nature, for the partition `natural`. `fitted(train, test)` makes a client's parts ready (missing
    values filled, features scaled) with what its train part alone says. `whole_groups`: shards are to be made of whole groups
    (a track's frames are all alike), not of examples drawn one by one. `title` is what to call the data, if not as the source;
    `tabular` data may have equal rows.
    """

    clean: Examples
    ambiguous: Examples | None
    test: Examples | None
    class_names: tuple[str, ...]
    clean_groups: IndexArray
    ambiguous_groups: IndexArray
    validation: Examples | None = None
    owners: Sequence[str] | None = None
    fitted: Callable[[Examples, Examples], tuple[Examples, Examples]] | None = None
    whole_groups: bool = False
    title: str | None = None
    tabular: bool = False


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients sorted by id, one global clean test set, and the names of the classes.

    Making one checks everything and raises one DataError that lists every mistake: ids are unique, no part is empty,
    features have one shape and are finite, labels are class numbers, and no example of any train part is also in any
    test part. Equal rows are normal in tabular data: `allow_duplicates=True` leaves that last check out. `origin` has the
    arguments of `load`, where that made it, so that a run can be resumed from its folder alone. `validation` are examples
    the server holds itself, for methods that score clients' models; nobody trains or is tested on them.
    """

    name: str
    clients: tuple[Client, ...]
    test: Examples
    class_names: tuple[str, ...]
    allow_duplicates: bool = False
    origin: Mapping[str, Any] | None = None
    validation: Examples | None = None

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "clients", tuple(sorted(self.clients, key=lambda client: id_sort_key(client.id)))
        )
        object.__setattr__(self, "class_names", tuple(self.class_names))
        mistakes = [
            *checks.client_mistakes(self.ids, [client.ambiguous_share for client in self.clients]),
            *checks.class_name_mistakes(self.class_names),
            *checks.part_mistakes(self._parts(), self.n_classes, self.allow_duplicates),
            *checks.group_mistakes(
                {client.id: (client.train.group, len(client.train)) for client in self.clients}
            ),
        ]
        if mistakes:
            raise DataError("\n".join(mistakes))
        # Whoever needs the data of all clients in one piece, as engines do, then has it without a copy.
        train = Examples.laid_out([client.train for client in self.clients])
        *tests, test = Examples.laid_out([*(client.test for client in self.clients), self.test])
        pairs = zip(self.clients, train, tests, strict=True)
        object.__setattr__(
            self,
            "clients",
            tuple(replace(client, train=own, test=held_out) for client, own, held_out in pairs),
        )
        object.__setattr__(self, "test", test)

    @classmethod
    def from_arrays(
        cls,
        clients: Mapping[Any, Sequence[Numbers]],
        test: Sequence[Numbers],
        class_names: Sequence[str] | None = None,
        name: str = "own data",
        allow_duplicates: bool = False,
        sensitive: Mapping[Any, Numbers] | None = None,
        validation: Sequence[Numbers] | None = None,
    ) -> Federation:
        """A federation of your own data: `{id: (x_train, y_train, x_test, y_test)}` and `test=(x, y)`.

        Arrays may be numpy arrays, torch tensors or nested lists; they are copied. Ids are texts or whole numbers.
        Without `class_names` the classes are called "0", "1", ... up to the highest label found. `sensitive` is a
        sensitive attribute: `{id: groups}`, for each train example of the client the number of the group it belongs to.
        `validation=(x, y)` is data of the server's own, for methods that score clients' models.
        """
        if not isinstance(clients, Mapping):
            raise DataError("clients: give a mapping {id: (x_train, y_train, x_test, y_test)}")
        mistakes = [
            f"client id {key!r}: give a text or a whole number"
            for key in clients
            if not _is_id(key)
        ]
        parts = [
            checks.converted(str(key), ("train", "test"), arrays, mistakes)
            for key, arrays in clients.items()
        ]
        global_test = checks.converted(None, ("test",), test, mistakes)
        held_back = (
            []
            if validation is None
            else checks.converted(None, ("validation",), validation, mistakes)
        )
        groups = checks.converted_groups([str(key) for key in clients], sensitive, mistakes)
        flat = [part for group in [*parts, global_test, held_back] for part in group]
        names = (
            checks.default_class_names(flat, mistakes)
            if class_names is None
            else tuple(map(str, class_names))
        )
        if (
            mistakes
        ):  # the parts that did convert are checked too, so that one attempt shows every mistake
            raise DataError(
                "\n".join([*mistakes, *checks.part_mistakes(flat, len(names), allow_duplicates)])
            )
        made = tuple(
            Client(
                str(key),
                Examples(train.x, train.y, groups.get(str(key))),
                Examples(held_out.x, held_out.y),
            )
            for key, (train, held_out) in zip(clients, parts, strict=True)
        )
        server_data = Examples(held_back[0].x, held_back[0].y) if held_back else None
        everyone_tests = Examples(global_test[0].x, global_test[0].y)
        return cls(name, made, everyone_tests, names, allow_duplicates, validation=server_data)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The clients' ids, in order."""
        return tuple(client.id for client in self.clients)

    @property
    def n_classes(self) -> int:
        """How many classes there are, whether or not every one occurs."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.test.x.shape[1:])

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many train examples each client has, in order."""
        return tuple(len(client.train) for client in self.clients)

    @property
    def has_groups(self) -> bool:
        """Whether the train examples have a sensitive attribute."""
        return all(client.train.group is not None for client in self.clients)

    def describe(self) -> list[dict[str, Any]]:
        """One plain dict per client; `class_counts` counts the train part, in the order of `class_names`."""
        return [
            {
                "id": client.id,
                "train": len(client.train),
                "test": len(client.test),
                "ambiguous_share": client.ambiguous_share,
                "class_counts": torch.bincount(client.train.y, minlength=self.n_classes).tolist(),
            }
            for client in self.clients
        ]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over ids, class names, shapes and all values in order: equal exactly when the data are equal."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        for part in self._parts():
            digest.update(repr((part.client, part.side, part.example_shape, len(part.y))).encode())
            digest.update(
                np.ascontiguousarray(part.x.detach().cpu().numpy(), dtype="<f4").reshape(-1).data
            )
            digest.update(np.ascontiguousarray(part.y.cpu().numpy(), dtype="<i8").data)
        for client in self.clients:
            if client.train.group is not None:
                digest.update(
                    b"groups"
                    + np.ascontiguousarray(client.train.group.cpu().numpy(), dtype="<i8").tobytes()
                )
        return digest.hexdigest()

    def _parts(self) -> list[Part]:
        sides = [
            (c.id, side, part)
            for c in self.clients
            for side, part in (("train", c.train), ("test", c.test))
        ]
        shared = [(None, "test", self.test)]
        if self.validation is not None:
            shared.append((None, "validation", self.validation))
        return [Part(owner, side, part.x, part.y) for owner, side, part in [*sides, *shared]]


def _is_id(key: object) -> bool:
    return isinstance(key, str | int | np.integer) and not isinstance(key, bool)
