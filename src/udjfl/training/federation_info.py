"""A federation as a server knows it before round 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from udjfl.data import Federation
from udjfl.data.tables.preprocessing import Preprocessing
from udjfl.training.inputs import Inputs


@dataclass(frozen=True)
class FederationInfo:
    """Everything a server knows of a federation before round 1.

    ids, sizes      the clients, and how many training examples each has; NaN where not reported
    sample          a few inputs of the shape of the data, to try models on
    has_groups      whether the training examples have a sensitive attribute
    has_validation  whether the server has validation data of its own
    test_sizes      how many test examples each client has; None if the server does not know
    class_names     the names of the classes; None if the server does not know
    test_counts     [N, C] how many of them are of each class; None if the server does not know
    labels_are_numbers  as in a regression, not classes
    preprocessing   what was done to the columns of a table; None if the server does not know
    """

    ids: tuple[str, ...]
    sizes: tuple[float, ...]
    sample: Tensor
    n_classes: int
    has_groups: bool = False
    has_validation: bool = False
    test_sizes: tuple[int, ...] | None = None
    class_names: tuple[str, ...] | None = None
    test_counts: Tensor | None = None
    labels_are_numbers: bool = False
    preprocessing: Preprocessing | None = None

    @staticmethod
    def of(federation: Federation) -> FederationInfo:
        """Describe a federation in this process."""
        return FederationInfo(
            federation.ids,
            federation.sizes,
            federation.test.x[:2],
            federation.n_classes,
            federation.has_groups,
            federation.validation is not None,
            tuple(len(client.test) for client in federation.clients),
            federation.class_names,
            _count_classes([client.test.y for client in federation.clients], federation.n_classes),
            federation.labels_are_numbers,
            federation.preprocessing,
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.sample.shape[1:])

    @property
    def inputs(self) -> Inputs:
        """The examples that a model of it takes."""
        return Inputs(self.input_shape, self.class_names, self.sample.dtype, self.preprocessing)


def _count_classes(labels: Sequence[Tensor], n_classes: int) -> Tensor | None:
    if n_classes == 0:
        return None
    return torch.stack([torch.bincount(y.cpu(), minlength=n_classes) for y in labels])
