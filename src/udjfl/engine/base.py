"""The seam between what clients compute in a round and how it is computed."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from udjfl.data.federation import Client, Examples
from udjfl.models import buffers_from_vector, from_vector
from udjfl.seeds import torch_stream

LossAt = Literal["received", "running", "final"]
EVALUATION_BATCH = 8192


@dataclass(frozen=True)
class LocalWork:
    """How a client trains: SGD with momentum that starts afresh, over its own examples in a random order."""

    lr: float
    momentum: float
    batch_size: int
    epochs: int
    loss_at: LossAt = "received"


@dataclass(frozen=True)
class LocalResult:
    """What the clients of a round computed; row i belongs to the i-th client asked.

    deltas [N, D] the received vector minus the trained one; losses [N] float64; steps [N] optimiser steps taken;
    buffers [N, B] float64, the model's buffers after training.
    """

    deltas: Tensor
    losses: Tensor
    steps: Tensor
    buffers: Tensor


class Engine(ABC):
    """Local training and evaluation of one model on one set of clients.

    The module lends its shape and forward pass; its own numbers are overwritten. Data moves to the device once.
    Which batches a client sees depends on `address` (seed, purpose, round) and on its id alone, never on the engine.
    """

    name: str

    def __init__(self, module: nn.Module, clients: Sequence[Client], device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.module = module.to(self.device)
        self.clients = tuple(clients)
        self.train_data = [_on(client.train, self.device) for client in clients]

    @functools.cached_property
    def _all_train(self) -> Pooled:
        return Pooled(self.train_data)

    @abstractmethod
    def train(
        self,
        vector: Tensor,
        buffers: Tensor,
        rows: Sequence[int],
        work: LocalWork,
        address: tuple[int, str, int],
    ) -> LocalResult:
        """Train the clients at these places from one common model."""

    def received_losses(self, vector: Tensor, buffers: Tensor, rows: Sequence[int]) -> Tensor:
        """Mean training loss of each client at one common model."""
        everybody = list(rows) == list(range(len(self.clients)))
        pooled = self._all_train if everybody else Pooled([self.train_data[row] for row in rows])
        return self.evaluate(vector, buffers, pooled)[0]

    def evaluate(self, vector: Tensor, buffers: Tensor, pooled: Pooled) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy (0 to 1) of one model on each part of the pool, both float64 [parts]."""
        self.load(vector, buffers)
        self.module.eval()
        losses = torch.zeros(pooled.parts, dtype=torch.float64, device=self.device)
        right = torch.zeros_like(losses)
        with torch.no_grad():
            for x, y, part in pooled.batches():
                logits = self.module(x)
                each = nn.functional.cross_entropy(logits, y, reduction="none")
                losses.index_add_(0, part, each.to(torch.float64))
                right.index_add_(0, part, (logits.argmax(dim=1) == y).to(torch.float64))
        return (losses / pooled.sizes).cpu(), (right / pooled.sizes).cpu()

    def probabilities(self, vector: Tensor, buffers: Tensor, row: int) -> Tensor:
        """Softmax, in float64, of one model on one client's training examples."""
        self.load(vector, buffers)
        self.module.eval()
        with torch.no_grad():
            logits = [self.module(x) for x, _, _ in Pooled([self.train_data[row]]).batches()]
        return torch.cat(logits).to(torch.float64).softmax(dim=1).cpu()

    def load(self, vector: Tensor, buffers: Tensor) -> None:
        from_vector(self.module, vector.to(self.device))
        buffers_from_vector(self.module, buffers.to(self.device))


class Pooled:
    """Several data sets laid end to end, so that one forward pass serves them all."""

    def __init__(self, parts: Sequence[Examples]) -> None:
        self.parts = len(parts)
        self.x = torch.cat([part.x for part in parts])
        self.y = torch.cat([part.y for part in parts])
        sizes = torch.tensor([len(part) for part in parts])
        self.part = torch.repeat_interleave(torch.arange(len(parts)), sizes).to(self.x.device)
        self.sizes = sizes.to(self.x.device, torch.float64)

    def batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for start in range(0, len(self.y), EVALUATION_BATCH):
            stop = start + EVALUATION_BATCH
            yield self.x[start:stop], self.y[start:stop], self.part[start:stop]


def batch_order(n_examples: int, epochs: int, address: tuple[int, str, int], client_id: str) -> Tensor:
    """The order in which a client sees its examples: [epochs, n_examples] indices, each row a permutation."""
    generator = torch_stream(*address, client_id)
    return torch.stack([torch.randperm(n_examples, generator=generator) for _ in range(epochs)])


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: the models here are too small for two to help, and sums keep one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _on(examples: Examples, device: torch.device) -> Examples:
    return examples if device.type == "cpu" else Examples(examples.x.to(device), examples.y.to(device))
