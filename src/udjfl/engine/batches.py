"""Which examples a client sees in which step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from udjfl.models import write_inputs
from udjfl.seeds import torch_stream

# Batches of a plan are padded to a multiple of this many examples, 64 bytes of float32. The
# matrices of all models then begin at such a boundary, and a product adds up in the same order for
# each of them.
ALIGNMENT = 16


def batch_order(
    n_examples: int, epochs: int, address: tuple[int, str, int], client_id: str
) -> Tensor:
    """Return the order in which a client sees its examples: a permutation of them in each row.

    The result [epochs, n_examples] depends on the arguments only, whatever engine trains.
    """
    generator = torch_stream(*address, client_id)
    orders = [torch.randperm(n_examples, generator=generator) for _ in range(epochs)]
    return torch.stack(orders) if epochs > 1 else orders[0][None]


@dataclass(frozen=True)
class Batch:
    """One step of the first k clients of a chunk: B examples for each, padding included.

    positions  [k * B] of the examples among those of the federation
    labels     [k * S, B, 1]
    weights    [k * S, B, 1] of the examples in their client's mean; 0 for padding
    """

    n_clients: int
    positions: Tensor
    labels: Tensor
    weights: Tensor


class InputBuffer:
    """The inputs of one batch after the other, in memory that batches of one shape share.

    Features [n, F] that are not float32 are gathered as they are, and become numbers there.
    """

    def __init__(self, features: Tensor) -> None:
        self.features = features
        self.inputs = features.new_empty(0, 0, features.shape[1], dtype=torch.float32)
        self.stored: Tensor | None = None

    def gather(self, batch: Batch) -> Tensor:
        """Return the inputs of a batch, [k, B, F]; they last until the next batch is gathered."""
        shape = (batch.n_clients, batch.labels.shape[1])
        if self.inputs.shape[:2] != shape:
            self.inputs = self.inputs.new_empty(*shape, self.inputs.shape[2])
            self.stored = None
        rows = self.inputs.view(len(batch.positions), -1)
        if self.features.is_floating_point():
            torch.index_select(self.features, 0, batch.positions, out=rows)
            return self.inputs
        if self.stored is None:
            self.stored = torch.empty_like(rows, dtype=self.features.dtype)
        write_inputs(torch.index_select(self.features, 0, batch.positions, out=self.stored), rows)
        return self.inputs


@dataclass(frozen=True)
class BatchPlan:
    """The batches of clients with certain sizes, whatever the order of their examples.

    order    [steps, K, width] of positions in all their examples: client after client, each
             client's in the order in which it sees them
    weights  [steps, K * S, width, 1] of the examples
    steps    for each step the number of clients that take it and the width of its batches
    """

    order: Tensor
    weights: Tensor
    steps: list[tuple[int, int]]


def plan_batches(
    sizes: tuple[int, ...], batch_size: int, epochs: int, n_settings: int
) -> BatchPlan:
    """Return the batches of clients whose numbers of steps never rise from one to the next."""
    width = min(batch_size, max(sizes))
    padded = [
        nn.functional.pad(torch.arange(epochs * n).view(epochs, n), (0, -n % width), value=-1)
        for n in sizes
    ]
    order = torch.full((padded[0].numel() // width, len(sizes), width), -1)
    start = 0
    for index, (positions, n) in enumerate(zip(padded, sizes, strict=True)):
        batches = positions.view(-1, width)
        order[: len(batches), index] = torch.where(batches >= 0, batches + start, -1)
        start += epochs * n
    order = nn.functional.pad(order, (0, -width % ALIGNMENT), value=-1)
    is_real = order >= 0
    counts = is_real.sum(dim=2)
    means = is_real / counts.clamp_min(1)[:, :, None]
    weights = means.repeat_interleave(n_settings, dim=1).unsqueeze(3)
    # Padding repeats the batch's first example, so that no other number can enter the batch.
    order = torch.where(is_real, order, order[:, :, :1]).clamp_min(0)
    active = (counts > 0).sum(dim=1).tolist()
    widths = [math.ceil(count / ALIGNMENT) * ALIGNMENT for count in counts.amax(dim=1).tolist()]
    return BatchPlan(order, weights, list(zip(active, widths, strict=True)))
