"""Checks of a federation's data, and the conversion of a user's arrays to tensors.

Nothing here raises: each function returns, or adds to a list, one sentence per mistake, so that a
user sees all of them at once.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from udjfl.data._label_probabilities import find_distribution_problems

# Integers stay what they are until a batch is made, which saves memory: uint8 are pixels.
FEATURE_TYPES = (torch.float32, torch.uint8, torch.int16, torch.int32, torch.int64)
Numbers: TypeAlias = npt.ArrayLike | torch.Tensor

# Labels are class numbers. A larger one is most likely an id or a code that was not converted.
MOST_CLASSES = 100_000
MAX_LISTED = 5  # columns in one sentence


@dataclass(frozen=True, eq=False)
class Part:
    """The train or test part of one client.

    If `client` is None: the global test set, or the server's validation set.
    """

    client: str | None
    side: str
    x: torch.Tensor
    y: torch.Tensor
    label_probabilities: torch.Tensor | None = None

    @property
    def where(self) -> str:
        """The name of this part in messages."""
        return part_name(self.client, self.side)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.x.shape[1:])


def part_name(client: str | None, side: str) -> str:
    """Return the name of a part in messages."""
    shared = {"test": "the global test set", "validation": "the server's validation set"}
    return shared[side] if client is None else f"client {client!r}, {side} part"


def find_client_mistakes(ids: Sequence[str], ambiguous_shares: Sequence[float | None]) -> list[str]:
    """Find missing clients, ids that are empty or used twice, and shares outside 0 to 1."""
    if not ids:
        return ["there are no clients: give at least one"]
    return [
        *([] if all(map(str.strip, ids)) else ["a client's id is empty: give it a name"]),
        *(
            f"client id {client!r} is used {times} times: give every client its own id"
            for client, times in Counter(ids).items()
            if times > 1
        ),
        *(
            f"client {client!r}: ambiguous_share is {share}: give a share from 0 to 1, "
            "None if unknown"
            for client, share in zip(ids, ambiguous_shares, strict=True)
            if share is not None and not 0 <= share <= 1
        ),
    ]


def find_class_name_mistakes(names: Sequence[str]) -> list[str]:
    """Find missing classes, and names used twice."""
    if not names:
        return ["class_names is empty: name at least one class"]
    twice = ", ".join(repr(name) for name, times in Counter(names).items() if times > 1)
    return (
        [f"class_names has {twice} more than once: give every class its own name"] if twice else []
    )


def find_part_mistakes(parts: Sequence[Part], n_classes: int, allow_duplicates: bool) -> list[str]:
    """Find mistakes in each part, shapes that differ, and examples in both train and test parts."""
    problems = [(part, _find_problems(part, n_classes)) for part in parts]
    sound = [part for part, found in problems if not found]
    return [
        *(f"{part.where}: {problem}" for part, found in problems for problem in found),
        *_find_shape_mistakes(sound),
        *_find_type_mistakes(sound),
        *([] if allow_duplicates else _find_duplicates(sound)),
    ]


def _find_problems(part: Part, n_classes: int) -> list[str]:
    x, y = part.x, part.y
    is_regression = n_classes == 0
    labels = torch.float32 if is_regression else torch.int64
    if x.dtype not in FEATURE_TYPES or y.dtype != labels:
        wanted = str(labels).removeprefix("torch.")
        return [
            f"x is {x.dtype}, y is {y.dtype}: give float32 (or integers) and {wanted}, or use "
            "Federation.from_arrays, which converts"
        ]
    if x.ndim == 0 or y.ndim != 1:
        return [
            f"x has shape {tuple(x.shape)}, y has shape {tuple(y.shape)}: "
            "give x as [n, features], y as [n]"
        ]
    if len(x) != len(y):
        return [f"x has {len(x)} rows and y has {len(y)} labels: give one label per row"]
    if len(y) == 0:
        return ["is empty: give at least one example"]
    if x.ndim == 1 or x[0].numel() == 0:
        return [
            f"x has shape {tuple(x.shape)}: give [n, features], for one feature x.reshape(-1, 1)"
        ]
    problems = []
    if not bool(torch.isfinite(x).all()):
        problems.append(_describe_not_finite(x))
    if is_regression:
        bad = int((~torch.isfinite(y)).sum())
        return [*problems, f"{bad} labels are not finite: remove them"] if bad else problems
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= n_classes:
        problems.append(
            f"labels go from {low} to {high}: use 0 to {n_classes - 1}, "
            "or name all classes in class_names"
        )
    if part.label_probabilities is not None:
        problems += find_distribution_problems(part.label_probabilities, len(y), n_classes)
    return problems


def _describe_not_finite(x: torch.Tensor) -> str:
    """Return how many examples have values that are no numbers, and in which columns of vectors."""
    is_bad = ~torch.isfinite(x).flatten(1)
    where = ""
    if x.ndim == 2:
        columns = is_bad.any(0).nonzero().flatten().tolist()
        listed = ", ".join(str(column) for column in columns[:MAX_LISTED])
        more = f" and {len(columns) - MAX_LISTED} more" if len(columns) > MAX_LISTED else ""
        where = f" (column{'s' if len(columns) > 1 else ''} {listed}{more}, counted from 0)"
    return (
        f"{int(is_bad.any(1).sum())} of {len(x)} examples have values that are not finite in "
        f"float32{where}: remove or fill them"
    )


def _find_shape_mistakes(parts: Sequence[Part]) -> list[str]:
    shapes = Counter(part.example_shape for part in parts)
    if len(shapes) < 2:
        return []
    usual = shapes.most_common(1)[0][0]
    return [
        f"{part.where}: one example has shape {part.example_shape}, elsewhere {usual}: "
        "bring all features to one shape"
        for part in parts
        if part.example_shape != usual
    ]


def _find_type_mistakes(parts: Sequence[Part]) -> list[str]:
    types = Counter(part.x.dtype for part in parts)
    usual = types.most_common(1)[0][0] if types else None
    return [
        f"{part.where}: x is {part.x.dtype}, elsewhere {usual}: bring all features to one type"
        for part in parts
        if part.x.dtype != usual
    ]


def _find_duplicates(parts: Sequence[Part]) -> list[str]:
    """Find train examples that are also test examples of any part: they inflate accuracies."""
    tests = [part for part in parts if part.side == "test"]
    test_part_of = {key: part.where for part in tests for key in hash_examples(part.x)}
    mistakes = []
    for part in [part for part in parts if part.side != "test"]:
        hashes = hash_examples(part.x)
        counts = Counter(test_part_of[key] for key in hashes if key in test_part_of)
        if counts:
            listed = "; ".join(f"{count} in {where}" for where, count in counts.items())
            mistakes.append(
                f"{part.where}: {counts.total()} of {len(part.x)} examples are also test examples "
                f"({listed}): keep every example on one side, or set allow_duplicates=True if "
                "equal rows are normal in your data"
            )
    return mistakes


def count_copies(train: Part, test: Part) -> int:
    """Count the test examples that the train part has too, with the same label."""
    known = set(zip(hash_examples(train.x), train.y.tolist(), strict=True))
    pairs = zip(hash_examples(test.x), test.y.tolist(), strict=True)
    return sum(pair in known for pair in pairs)


def hash_examples(x: torch.Tensor) -> list[bytes]:
    """Return a digest of each example: equal exactly if the examples are."""
    rows = np.ascontiguousarray(x.detach().cpu().numpy()).reshape(len(x), -1)
    return [hashlib.blake2b(row.data, digest_size=16).digest() for row in rows]


def find_group_mistakes(
    groups: Mapping[str, tuple[torch.Tensor | None, int]], side: str = "train"
) -> list[str]:
    """Check the sensitive attribute of each client, given with the number of examples it is for."""
    mistakes: list[str] = []
    if all(group is None for group, _ in groups.values()):
        return mistakes
    for client, (group, size) in groups.items():
        where = f"client {client!r}: the sensitive attribute"
        if group is None:
            mistakes.append(
                f"client {client!r}: has no sensitive attribute, others have: "
                "give it for every client"
            )
        elif group.dtype != torch.int64 or group.shape != (size,):
            mistakes.append(
                f"{where} is {group.dtype} of shape {tuple(group.shape)}: "
                f"give int64, one per {side} example ({size})"
            )
        elif size and int(group.min()) < 0:
            mistakes.append(f"{where} has {int(group.min())}: number the groups from 0")
    return mistakes


def convert_groups(
    clients: Sequence[str], given: object, mistakes: list[str], argument: str = "sensitive"
) -> dict[str, torch.Tensor]:
    """Convert each client's sensitive attribute; add to `mistakes` what cannot be converted."""
    if given is not None and not isinstance(given, Mapping):
        mistakes.append(f"{argument}: give a mapping {{id: one group number per example}}")
    columns = {str(k): v for k, v in given.items()} if isinstance(given, Mapping) else {}
    mistakes += [
        f"{argument}: there is no client {client!r}: use the ids of the clients"
        for client in sorted(columns.keys() - set(clients))
    ]
    groups = {
        key: _as_array(f"client {key!r}, sensitive attribute", values, mistakes, whole=True)
        for key, values in columns.items()
    }
    return {key: torch.from_numpy(values) for key, values in groups.items() if values is not None}


def convert_label_probabilities(
    clients: Sequence[str], given: object, mistakes: list[str]
) -> dict[str, torch.Tensor]:
    """Convert the label probabilities of clients' test parts; add mistakes to `mistakes`."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        mistakes.append(
            "label_probabilities: give a mapping {id: a row of probabilities per test example}"
        )
        return {}
    tables = {str(key): values for key, values in given.items()}
    for client in sorted(tables.keys() - set(clients)):
        mistakes.append(
            f"label_probabilities: there is no client {client!r}: use the ids of the clients"
        )
    arrays = {
        key: _as_array(f"client {key!r}, label_probabilities", values, mistakes)
        for key, values in tables.items()
    }
    return {
        key: torch.from_numpy(array.astype(np.float32))
        for key, array in arrays.items()
        if array is not None
    }


def convert_parts(
    client: str | None,
    sides: Sequence[str],
    arrays: object,
    mistakes: list[str],
    whole: bool = True,
) -> list[Part]:
    """Convert (x, y) of each side; leave out, and add to `mistakes`, what cannot be converted.

    Labels are `whole` numbers of classes or, for a regression, any numbers.
    """
    if not isinstance(arrays, tuple | list) or len(arrays) != 2 * len(sides):
        expected = "x, y" if client is None else ", ".join(f"x_{side}, y_{side}" for side in sides)
        got = f"{len(arrays)} values" if isinstance(arrays, tuple | list) else type(arrays).__name__
        where = part_name(client, sides[0]) if client is None else f"client {client!r}"
        mistakes.append(f"{where}: give a tuple ({expected}); got {got}")
        return []
    parts = []
    for side, x, y in zip(sides, arrays[0::2], arrays[1::2], strict=True):
        where = part_name(client, side)
        features = _as_array(f"{where}: x", x, mistakes)
        labels = _as_array(f"{where}: y", y, mistakes, whole)
        if features is not None and labels is not None:
            # Values too large for float32 become infinite, which the checks report.
            with np.errstate(over="ignore"):
                features = features.astype(_feature_type(x, features))
                labels = labels if whole else labels.astype(np.float32)
            parts.append(Part(client, side, torch.from_numpy(features), torch.from_numpy(labels)))
    return parts


def _feature_type(given: object, array: npt.NDArray[Any]) -> npt.DTypeLike:
    """Return the type of features: integers in arrays and tensors stay, all else is float32."""
    is_array = isinstance(given, np.ndarray | torch.Tensor)
    stays = is_array and array.dtype in (np.uint8, np.int16, np.int32, np.int64)
    return array.dtype if stays else np.float32


def unify_types(parts: Sequence[Part]) -> list[Part]:
    """Return parts of one type: integers beside floats, or of several sizes, become float32.

    Pixels (uint8) are not converted: beside floats their scale is unknown.
    """
    types = {part.x.dtype for part in parts}
    if len(types) < 2 or torch.uint8 in types:
        return list(parts)
    return [replace(part, x=part.x.to(torch.float32)) for part in parts]


def _as_array(
    what: str, values: Numbers, mistakes: list[str], whole: bool = False
) -> npt.NDArray[Any] | None:
    """Return the numbers, or None with a line in `mistakes`; `whole` ones may be floats too."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            problem = f"values of type {array.dtype}: give numbers"
        elif whole and not (np.isfinite(array) & (array == np.floor(array))).all():
            problem = "values that are not whole numbers: give numbers 0, 1, 2, ..."
        else:
            return array.astype(np.int64) if whole else array
    except ValueError:
        problem = "rows of different lengths: give every example the same shape"
    mistakes.append(f"{what} has {problem}")
    return None


def default_class_names(parts: Sequence[Part], mistakes: list[str]) -> tuple[str, ...]:
    """Return the numbers from 0 to the highest label of all parts, as texts."""
    highest = max((int(part.y.max()) for part in parts if part.y.numel()), default=0)
    if highest >= MOST_CLASSES:
        mistakes.append(
            f"the highest label is {highest}: number the classes 0, 1, 2, ... or give class_names"
        )
    return tuple(str(label) for label in range(min(max(highest, 0), MOST_CLASSES) + 1))
