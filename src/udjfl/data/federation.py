"""The federation: its clients, the data of each, and the clean global test set.

A `Federation` is checked once, when it is created; other code relies on what its docstring states.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from udjfl._html import html_table
from udjfl._ids import id_sort_key
from udjfl.data.examples import Client, Examples
from udjfl.data.fingerprint import compute_fingerprint
from udjfl.data.own_data import OwnData
from udjfl.data.partition import IndexArray
from udjfl.data.problems import find_problems
from udjfl.data.split import choose_held_out
from udjfl.data.storage import load_federation, save_federation
from udjfl.data.tables.preprocessing import Preprocessing
from udjfl.data.validation import (
    Numbers,
    Part,
    convert_groups,
    convert_label_probabilities,
    convert_parts,
    count_copies,
    default_class_names,
    find_class_name_mistakes,
    find_client_mistakes,
    find_group_mistakes,
    find_part_mistakes,
    unify_types,
)
from udjfl.errors import DataError
from udjfl.seeds import numpy_stream

__all__ = ["Client", "Examples", "Federation"]


@dataclass(frozen=True, eq=False, repr=False)
class Federation(OwnData):
    """Clients sorted by id, one global clean test set, and the names of the classes.

    Creating one checks everything and raises one DataError that lists every mistake: ids are
    unique, no part is empty, features have one shape and are finite, labels are class numbers, and
    no example of any train part is also in any test part. `allow_duplicates=True` turns this last
    check off, for tabular data, where equal rows are normal.

    `origin` holds the arguments of `load` if `load` created the federation, so that a run can be
    resumed from its folder alone. `validation` holds examples of the server's own, for methods
    that score clients' models; no client trains or is tested on them. `preprocessing` says what was
    done to the columns of a table. `is_checked`: the data are known to pass the checks.

    For a regression labels are float32 and there are no class names.
    """

    name: str
    clients: tuple[Client, ...]
    test: Examples
    class_names: tuple[str, ...]
    allow_duplicates: bool = False
    origin: Mapping[str, Any] | None = None
    validation: Examples | None = None
    preprocessing: Preprocessing | None = None
    is_checked: InitVar[bool] = False

    def __post_init__(self, is_checked: bool) -> None:
        clients = sorted(self.clients, key=lambda client: id_sort_key(client.id))
        object.__setattr__(self, "clients", tuple(clients))
        object.__setattr__(self, "class_names", tuple(self.class_names))
        mistakes = [] if is_checked else self._find_mistakes()
        if mistakes:
            raise DataError("\n".join(mistakes))
        # Engines use the data of all clients in one piece; this way they need no copy.
        train = Examples.lay_out([client.train for client in clients])
        *tests, global_test = Examples.lay_out([*(client.test for client in clients), self.test])
        triples = zip(clients, train, tests, strict=True)
        members = tuple(replace(client, train=x, test=y) for client, x, y in triples)
        object.__setattr__(self, "clients", members)
        object.__setattr__(self, "test", global_test)

    def _find_mistakes(self) -> list[str]:
        """Check everything; return one sentence per mistake."""
        shares = [client.ambiguous_share for client in self.clients]
        groups = {client.id: (client.train.group, len(client.train)) for client in self.clients}
        test_groups = {client.id: (client.test.group, len(client.test)) for client in self.clients}
        parts = self._parts()
        return [
            *find_client_mistakes(self.ids, shares),
            *([] if self.labels_are_numbers else find_class_name_mistakes(self.class_names)),
            *find_part_mistakes(parts, self.n_classes, self.allow_duplicates),
            *find_group_mistakes(groups),
            *find_group_mistakes(test_groups, "test"),
        ]

    def __repr__(self) -> str:
        train, test = (
            sum(len(getattr(c, part)) for c in self.clients) for part in ("train", "test")
        )
        n = len(self.clients)
        clients = "1 client" if n == 1 else f"{n} clients"
        return (
            f"Federation({self.name!r}, {clients}, {train} train and {test} test "
            f"examples of shape {list(self.test.x.shape[1:])}, {self.n_classes} classes)"
        )

    def _repr_html_(self) -> str:
        rows = [[c.id, str(len(c.train)), str(len(c.test))] for c in self.clients]
        return html_table(repr(self), ["Client", "Train", "Test"], rows)

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
        label_probabilities: Mapping[Any, Numbers] | None = None,
        sensitive_test: Mapping[Any, Numbers] | None = None,
        task: Literal["classification", "regression"] = "classification",
    ) -> Federation:
        """Make a federation from `{id: (x_train, y_train, x_test, y_test)}` and `test=(x, y)`.

        Arrays may be numpy arrays, torch tensors or nested lists; they are copied. Ids are texts
        or whole numbers. Arrays of uint8 (pixels, which models get from 0 to 1) and of integers
        stay what they are until a batch is made; everything else becomes float32.

        class_names          default: "0", "1", ... up to the highest label
        sensitive            a sensitive attribute: `{id: groups}`, one group number per train
                             example
        validation           `(x, y)`: the server's own data, for methods that score clients' models
        label_probabilities  `{id: [examples, classes]}`, the distributions that the labels of
                             clients' test parts were drawn from, where they are known
        sensitive_test       as `sensitive`, for test examples: results then have the gaps between
                             groups
        task                 "regression": labels are numbers to predict, best scaled to a mean near
                             0 and a variance near 1
        """
        if not isinstance(clients, Mapping):
            raise DataError("clients: give a mapping {id: (x_train, y_train, x_test, y_test)}")
        ids = [str(key) for key in clients]
        mistakes = [
            f"client id {key!r}: give a text or a whole number"
            for key in clients
            if not _is_id(key)
        ]
        whole = task != "regression"
        pairs = [
            convert_parts(client_id, ("train", "test"), arrays, mistakes, whole)
            for client_id, arrays in zip(ids, clients.values(), strict=True)
        ]
        shared = [convert_parts(None, ("test",), test, mistakes, whole)]
        if validation is not None:
            shared.append(convert_parts(None, ("validation",), validation, mistakes, whole))
        groups = convert_groups(ids, sensitive, mistakes)
        test_groups = convert_groups(ids, sensitive_test, mistakes, "sensitive_test")
        probabilities = convert_label_probabilities(ids, label_probabilities, mistakes)
        parts = unify_types([part for converted in [*pairs, *shared] for part in converted])
        if not whole:
            class_names = ()
        if class_names is None:
            class_names = default_class_names(parts, mistakes)
        names = tuple(map(str, class_names))
        if mistakes:  # the parts that did convert are checked too: one attempt shows every mistake
            mistakes += find_part_mistakes(parts, len(names), allow_duplicates)
            raise DataError("\n".join(mistakes))
        given = iter(parts)  # train and test of each client, then the shared ones
        members = tuple(
            Client(
                client_id,
                Examples(a.x, a.y, groups.get(client_id)),
                Examples(b.x, b.y, test_groups.get(client_id), probabilities.get(client_id)),
            )
            for client_id, a, b in zip(ids, given, given, strict=False)
        )
        global_test, *server = (Examples(part.x, part.y) for part in parts[2 * len(ids) :])
        return cls(
            name,
            members,
            global_test,
            names,
            allow_duplicates,
            validation=server[0] if server else None,
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything into a folder: `data.safetensors` and `federation.json`, no pickle."""
        save_federation(self, Path(folder))

    @staticmethod
    def load(folder: str | os.PathLike[str], verify: bool = True) -> Federation:
        """Return a federation that `save` wrote.

        Its data stay in the file and are read as they are used: a federation may be larger than
        memory. `verify` reads everything once and compares it with the fingerprint.
        """
        return load_federation(folder, verify)

    @property
    def problems(self) -> list[str]:
        """Sentences about the data that a reader of results should know; mostly there are none."""
        return find_problems(self)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The clients' ids, in order."""
        return tuple(client.id for client in self.clients)

    @property
    def n_classes(self) -> int:
        """The number of classes, including those that do not occur."""
        return len(self.class_names)

    @property
    def labels_are_numbers(self) -> bool:
        """True if labels are numbers to predict (regression), not classes."""
        return self.test.y.is_floating_point()

    def restore_labels(self, values: Any) -> Any:
        """Return labels or predictions of a regression in the units that a table gave them in."""
        scale = None if self.preprocessing is None else self.preprocessing.labels
        return values if scale is None else scale.undo(values)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.test.x.shape[1:])

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of train examples of each client, in order."""
        return tuple(len(client.train) for client in self.clients)

    @property
    def has_groups(self) -> bool:
        """True if all train examples have a sensitive attribute."""
        return all(client.train.group is not None for client in self.clients)

    def hold_out(self, share: float, seed: int) -> Federation:
        """Move a share of each train part to `held_out`, at random; one example stays at least.

        Examples that belong together move together.
        """
        if share == 0:
            return self
        kept: list[tuple[Examples, IndexArray]] = []
        held_out: list[tuple[Examples, IndexArray]] = []
        for client in self.clients:
            size = len(client.train)
            count = min(max(1, round(share * size)), size - 1)
            if count == 0:
                raise DataError(
                    f"client {client.id!r} has one train example, and none can be held out: set "
                    "holdout=0"
                )
            stream, together = numpy_stream(seed, "held out", client.id), client.train.together
            known = None if together is None else together.cpu().numpy()
            chosen = choose_held_out(known, size, count, stream)
            if not chosen.any():
                raise DataError(
                    f"client {client.id!r} has train examples that belong together only, such as "
                    "the frames of one track, and none can be held out: set holdout=0"
                )
            held_out.append((client.train, np.flatnonzero(chosen)))
            kept.append((client.train, np.flatnonzero(~chosen)))
        parts = Examples.take_many([*kept, *held_out], self.clients[0].folder)
        pairs = zip(self.clients, parts[: len(kept)], parts[len(kept) :], strict=True)
        clients = tuple(replace(client, train=a, held_out=b) for client, a, b in pairs)
        return replace(self, clients=clients)

    def describe(self) -> list[dict[str, Any]]:
        """Return one dict per client; `class_counts` counts its train part by class.

        In a regression there are `label_mean` and `label_std` of the train part instead.
        """
        return [
            {
                "id": client.id,
                "train": len(client.train),
                "test": len(client.test),
                "ambiguous_share": client.ambiguous_share,
                **self._describe_labels(client.train.y),
            }
            for client in self.clients
        ]

    def _describe_labels(self, labels: torch.Tensor) -> dict[str, Any]:
        if self.labels_are_numbers:
            values = self.restore_labels(labels.to(torch.float64))
            spread = float(values.std(correction=0))
            return {"label_mean": float(values.mean()), "label_std": spread}
        return {"class_counts": torch.bincount(labels, minlength=self.n_classes).tolist()}

    def count_copies(self) -> dict[str, int]:
        """Return how many test examples of each client are in its own train part, label and all."""
        return {
            client.id: count_copies(
                Part(client.id, "train", client.train.x, client.train.y),
                Part(client.id, "test", client.test.x, client.test.y),
            )
            for client in self.clients
        }

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over ids, class names, shapes and values, sensitive attributes and groups.

        Federations with the same one train and are measured alike. The name, and label
        probabilities, are not part of it: they change no training, and runs that were started
        before they were known must still be found equal.
        """
        return compute_fingerprint(self.class_names, self._parts(), self.clients)

    @property
    def older_fingerprint(self) -> str:
        """The fingerprint that versions up to 0.1 gave these data."""
        return compute_fingerprint(self.class_names, self._parts(), self.clients, with_all=False)

    def _parts(self) -> list[Part]:
        parts: list[tuple[str | None, str, Examples]] = []
        for client in self.clients:
            parts += [(client.id, "train", client.train), (client.id, "test", client.test)]
        parts.append((None, "test", self.test))
        if self.validation is not None:
            parts.append((None, "validation", self.validation))
        return [
            Part(client_id, side, part.x, part.y, part.label_probabilities)
            for client_id, side, part in parts
        ]


def _is_id(key: object) -> bool:
    return isinstance(key, str | int | np.integer) and not isinstance(key, bool)
