"""The work that every contender does: data, models, and the arithmetic of a round."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

FEATURES, SIDE, CLASSES, HIDDEN = 784, 28, 10, 64
POOL, SMALL_HIDDEN = 12, 16
# Clusters are so far apart that a round or two show whether momentum and shuffling were used; label
# noise keeps the loss away from zero, where all contenders would look alike.
SPREAD, LABEL_NOISE = 0.07, 0.1


@dataclass(frozen=True)
class Work:
    """One round: `clients` train on `train` examples each and are tested on `test` each.

    `settings` is the number of settings trained side by side, as in a grid; all share the data.
    """

    clients: int = 5
    train: int = 4800
    test: int = 1200
    model: str = "mlp"
    batch: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    settings: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Work:
        return Work(**json.loads(text))

    def expected(self, rounds: int) -> dict[str, int]:
        """Return the optimiser steps, training examples and test examples of so many rounds."""
        each = rounds * self.clients * self.settings
        return {
            "steps": each * math.ceil(self.train / self.batch),
            "examples": each * self.train,
            "tested": each * self.test,
        }


@dataclass(frozen=True)
class ClientData:
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def make_data(work: Work) -> list[ClientData]:
    """Return the same examples in every process: ten noisy clusters.

    Training examples are sorted by class: a contender that does not shuffle ends with a visibly
    worse model.
    """
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, FEATURES, generator=generator) * SPREAD
    clients = []
    for _ in range(work.clients):
        x, y = _examples(work.train, centres, generator)
        order = torch.argsort(y, stable=True)
        clients.append(ClientData(x[order], y[order], *_examples(work.test, centres, generator)))
    if work.model == "cnn":
        return [ClientData(_images(c.x), c.y, _images(c.x_test), c.y_test) for c in clients]
    return clients


def _examples(count: int, centres: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    true = torch.randint(CLASSES, (count,), generator=generator)
    x = torch.randn(count, FEATURES, generator=generator).add_(centres[true])
    wrong = torch.rand(count, generator=generator) < LABEL_NOISE
    return x, torch.where(wrong, torch.randint(CLASSES, (count,), generator=generator), true)


def _images(x: Tensor) -> Tensor:
    return x.view(-1, 1, SIDE, SIDE)


# Models start from the same parameters everywhere: contenders differ in the order of batches only.
# They are functions of a module, so that another process can build them.


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
    )


def gelu() -> nn.Sequential:
    """An MLP with layers for which no engine has special code."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(FEATURES, HIDDEN),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Linear(HIDDEN, CLASSES),
    )


def small() -> nn.Sequential:
    """A model so small that a step is mostly overhead: averages of 12 features, GELU, dropout."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.AvgPool1d(POOL),
        nn.Linear(FEATURES // POOL, SMALL_HIDDEN),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Linear(SMALL_HIDDEN, CLASSES),
    )


def cnn() -> nn.Sequential:
    """Two convolutions and a linear layer: `udjfl.models.cnn`, for processes without udjfl."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (SIDE // 4) ** 2, CLASSES),
    )


MODELS: dict[str, Callable[[], nn.Sequential]] = {
    "mlp": mlp,
    "gelu": gelu,
    "small": small,
    "cnn": cnn,
}

# Multiplications per example in each layer that has weights, first to last.
PRODUCTS = {
    "mlp": [FEATURES * HIDDEN, HIDDEN * CLASSES],
    "gelu": [FEATURES * HIDDEN, HIDDEN * CLASSES],
    "small": [FEATURES // POOL * SMALL_HIDDEN, SMALL_HIDDEN * CLASSES],
    "cnn": [SIDE**2 * 9 * 16, (SIDE // 2) ** 2 * 9 * 16 * 32, 32 * (SIDE // 4) ** 2 * CLASSES],
}


def flops(work: Work) -> int:
    """Return the floating-point operations in the matrix products of one round.

    A multiplication with its addition is two. Training takes three products per layer: the output,
    the gradient of the weights and the gradient of the input, which the first layer does not need.
    Testing takes one. Everything else (activations, loss, the optimiser, averaging) is left out: no
    program can do less.
    """
    first, *others = PRODUCTS[work.model]
    training = 2 * (2 * first + 3 * sum(others))
    testing = 2 * (first + sum(others))
    return work.settings * work.clients * (work.train * training + work.test * testing)
