"""Data sets of torch and of Hugging Face, by client, and partitioners of flwr-datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from udjfl.data.split import split_train_test
from udjfl.errors import DataError, quote_values
from udjfl.seeds import numpy_stream

if TYPE_CHECKING:
    from udjfl.data.federation import Federation

X_NAMES = ("image", "img", "x", "features", "input_ids")
Y_NAMES = ("label", "labels", "y", "target")
Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class GivenArrays:
    """The arguments of `Federation.from_arrays`."""

    clients: Mapping[str, tuple[npt.NDArray[Any], ...]]
    test: Arrays
    class_names: Sequence[str] | None

    def federate(self, name: str, allow_duplicates: bool) -> Federation:
        """Make the federation."""
        from udjfl.data.federation import Federation

        return Federation.from_arrays(
            self.clients, self.test, self.class_names, name, allow_duplicates
        )


def read_datasets(
    datasets: Mapping[Any, Any],
    test: Any,
    x: str | None,
    y: str | None,
    class_names: Sequence[str] | None,
    test_share: float,
    seed: int,
) -> GivenArrays:
    """Read every item of every data set, and split those that are not given as (train, test)."""
    if not isinstance(datasets, Mapping) or not datasets:
        raise DataError("datasets: give a mapping {id: data set} or {id: (train, test)}")
    clients: dict[str, tuple[npt.NDArray[Any], ...]] = {}
    for key, given in datasets.items():
        where = f"client {str(key)!r}"
        if isinstance(given, tuple) and len(given) == 2 and all(map(_is_dataset, given)):
            train, held_out = (read_items(where, part, x, y) for part in given)
        else:
            train, held_out = _split(where, read_items(where, given, x, y), test_share, seed, key)
        clients[str(key)] = (*train, *held_out)
    first = next(iter(datasets.values()))
    names = class_names or find_class_names(first[0] if isinstance(first, tuple) else first, y)
    if test is not None:
        shared = read_items("the global test set", test, x, y)
    else:
        tests = [own[2:] for own in clients.values()]
        shared = np.concatenate([x for x, _ in tests]), np.concatenate([y for _, y in tests])
    return GivenArrays(clients, shared, names)


def read_partitions(partitioner: Any) -> dict[str, Any]:
    """Return the partitions of a partitioner of flwr-datasets, as `from_datasets` takes them.

    The partitioner must have its data set; partitions are called client-1, client-2, ...
    """
    if not hasattr(partitioner, "load_partition") or not hasattr(partitioner, "num_partitions"):
        raise DataError(
            f"got {type(partitioner).__name__}; give a partitioner of flwr-datasets, with its "
            "data set in `partitioner.dataset`"
        )
    count = int(partitioner.num_partitions)
    return {f"client-{i + 1}": partitioner.load_partition(i) for i in range(count)}


def read_items(where: str, dataset: Any, x: str | None, y: str | None) -> Arrays:
    """Return the features and labels of a data set."""
    features, labels = [], []
    for index, item in enumerate(_iterate(where, dataset)):
        if isinstance(item, Mapping):
            own, label = _pick(where, item, x, X_NAMES), _pick(where, item, y, Y_NAMES)
        elif isinstance(item, tuple | list) and len(item) == 2:
            own, label = item
        else:
            raise DataError(
                f"{where}: item {index} is {type(item).__name__}; items are pairs (features, "
                "label) or dicts"
            )
        features.append(_as_features(own))
        labels.append(_as_class(where, index, label))
    shapes = {array.shape for array in features}
    if len(shapes) > 1:
        one, other = sorted(shapes)[:2]
        raise DataError(f"{where}: items have features of shape {one} and {other}: make them one")
    if not features:
        raise DataError(f"{where}: the data set is empty")
    return np.stack(features), np.array(labels, dtype=np.int64)


def _as_class(where: str, index: int, label: Any) -> int:
    """Return a label as the number of its class."""
    try:
        number = int(label)
        if float(label) == number:
            return number
    except (TypeError, ValueError, OverflowError):
        pass  # it is no number at all
    raise DataError(
        f"{where}: item {index} has the label {quote_values([label])}; labels are the numbers of "
        "classes: 0, 1, 2, ..."
    )


def find_class_names(dataset: Any, y: str | None = None) -> list[str] | None:
    """Return the names of the classes that a data set of torch or Hugging Face knows."""
    known = getattr(dataset, "features", None)
    if isinstance(known, Mapping):
        label = next((known[name] for name in ([y] if y else Y_NAMES) if name in known), None)
        names = getattr(label, "names", None)
    else:
        names = getattr(dataset, "classes", None)
    return [str(name) for name in names] if isinstance(names, list | tuple) else None


def _is_dataset(given: Any) -> bool:
    return hasattr(given, "__getitem__") and hasattr(given, "__len__")


def _iterate(where: str, dataset: Any) -> Iterable[Any]:
    if not _is_dataset(dataset):
        raise DataError(
            f"{where}: got {type(dataset).__name__}; give a data set with a length and items"
        )
    return (dataset[index] for index in range(len(dataset)))


def _pick(where: str, item: Mapping[str, Any], name: str | None, usual: Sequence[str]) -> Any:
    chosen = name or next((known for known in usual if known in item), None)
    if chosen is None or chosen not in item:
        wanted = f"not {name!r}" if name else f"none of {', '.join(usual)}"
        raise DataError(
            f"{where}: items have {', '.join(map(str, item))}, and {wanted}: name the columns with "
            "`x` and `y`"
        )
    return item[chosen]


def _as_features(given: Any) -> npt.NDArray[Any]:
    """Return one example: an image of Pillow becomes [channels, height, width]."""
    if isinstance(given, torch.Tensor):
        return given.detach().cpu().numpy()
    array = np.asarray(given)
    if hasattr(given, "getbands"):
        return array.transpose(2, 0, 1) if array.ndim == 3 else array[None]
    return array.reshape(1) if array.ndim == 0 else array


def _split(
    where: str, arrays: Arrays, test_share: float, seed: int, client: object
) -> tuple[Arrays, Arrays]:
    features, labels = arrays
    if len(labels) < 2:
        raise DataError(f"{where} has 1 example: it needs 2, one to train on and one to test on")
    # Equal examples stay on one side.
    _, groups = np.unique(features.reshape(len(features), -1), axis=0, return_inverse=True)
    stream = numpy_stream(seed, "train/test", str(client))
    everything = np.arange(len(labels))
    ((train, held_out),) = split_train_test(
        [everything], groups.reshape(-1), stream, test_share, labels, [str(client)]
    )
    return (features[train], labels[train]), (features[held_out], labels[held_out])
