"""Data sets of torch and of Hugging Face, and partitioners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from udjfl import DataError, Federation
from udjfl.data.datasets import read_partitions

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = np.arange(40) % 2


def make_torch(start: int, stop: int) -> TensorDataset:
    return TensorDataset(torch.tensor(X[start:stop]), torch.tensor(Y[start:stop]))


class Pictures(Dataset):  # type: ignore[type-arg]
    """Images of Pillow in dicts, as Hugging Face gives them, with names of classes."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.features = {"image": None, "label": type("Label", (), {"names": ["cat", "dog"]})()}

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        pixels = np.full((2, 4, 3), self.start + index, dtype=np.uint8)
        return {"image": Image.fromarray(pixels), "label": index % 2}


def test_data_sets_of_torch_are_split() -> None:
    federation = Federation.from_datasets({"a": make_torch(0, 20), "b": make_torch(20, 40)})
    assert federation.sizes == (16, 16)
    assert [torch.bincount(c.test.y).tolist() for c in federation.clients] == [[2, 2]] * 2
    assert torch.equal(federation.test.x, torch.cat([c.test.x for c in federation.clients]))
    again = Federation.from_datasets({"b": make_torch(20, 40), "a": make_torch(0, 20)})
    assert torch.equal(again.clients[0].train.x, federation.clients[0].train.x)


def test_given_parts_and_a_global_test_set_are_kept() -> None:
    federation = Federation.from_datasets(
        {"a": (make_torch(0, 15), make_torch(15, 20))}, test=make_torch(30, 40), class_names="np"
    )
    assert torch.equal(federation.clients[0].test.x, torch.tensor(X[15:20]))
    assert torch.equal(federation.test.x, torch.tensor(X[30:40]))
    assert federation.class_names == ("n", "p")


def test_images_in_dicts_stay_bytes() -> None:
    federation = Federation.from_datasets({"a": Pictures(0), "b": Pictures(100)})
    assert federation.input_shape == (3, 2, 4)
    assert federation.test.x.dtype == torch.uint8
    assert federation.class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("datasets", "words"),
    [
        ([], "give a mapping"),
        ({"a": 3}, "client 'a': got int; give a data set with a length and items"),
        ({"a": [(1,)] * 3}, "client 'a': item 0 is tuple"),
        ({"a": [{"pixels": 1, "label": 0}] * 3}, "items have pixels, label, and none of image"),
        ({"a": [([1], 0), ([1, 2], 1)]}, r"features of shape \(1,\) and \(2,\)"),
        ({"a": [([1], 0), ([2], 0.7)]}, r"client 'a': item 1 has the label 0\.7; labels are"),
        ({"a": [([1], 0), ([2], torch.tensor(1.5))]}, r"item 1 has the label tensor\(1\.5"),
        ({"a": [([1], 0), ([2], float("nan"))]}, "item 1 has the label nan"),
        ({"a": [([1], 0), ([2], "cat")]}, "item 1 has the label 'cat'"),
        ({"a": make_torch(0, 1)}, "client 'a' has 1 example: it needs 2"),
        ({"a": []}, "client 'a': the data set is empty"),
    ],
)
def test_unusable_data_sets_name_the_client(datasets: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Federation.from_datasets(datasets)


def test_hugging_face_data_sets() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "x": datasets.Sequence(datasets.Value("float32")),
            "label": datasets.ClassLabel(names=["no", "yes"]),
        }
    )
    one = datasets.Dataset.from_dict({"x": X.tolist(), "label": Y.tolist()}, features=features)
    federation = Federation.from_datasets({"a": one})
    assert federation.class_names == ("no", "yes")
    assert federation.input_shape == (3,)


def test_partitions_of_a_partitioner_are_clients() -> None:
    class Partitioner:
        num_partitions = 2

        def load_partition(self, index: int) -> TensorDataset:
            return make_torch(20 * index, 20 * index + 20)

    federation = Federation.from_datasets(read_partitions(Partitioner()))
    assert federation.ids == ("client-1", "client-2")
    with pytest.raises(DataError, match="got int; give a partitioner of flwr-datasets"):
        read_partitions(3)


def test_partitioners_of_flwr_datasets() -> None:
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    datasets = pytest.importorskip("datasets")
    partitioner = partitioners.IidPartitioner(num_partitions=4)
    partitioner.dataset = datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()})
    federation = Federation.from_datasets(read_partitions(partitioner))
    assert sum(federation.sizes) == 32
