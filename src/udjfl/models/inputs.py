"""Features as they are stored, turned into the inputs of a model when a batch is made."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BRIGHTEST = 255


def to_inputs(x: Tensor, network: nn.Module) -> Tensor:
    """Return a batch of features as a network takes it.

    float32 stays as it is. uint8 are pixels: they become float32 from 0 to 1. Other integers become
    float32. A network with an embedding gets all integers as int64: they are indices.
    """
    if x.is_floating_point():
        return x
    if takes_indices(network):
        return x.to(torch.int64)
    return write_inputs(x, torch.empty_like(x, dtype=torch.float32))


def write_inputs(x: Tensor, out: Tensor) -> Tensor:
    """Write features as float32 into memory of their shape, pixels from 0 to 1; return it."""
    out.copy_(x)
    return out.div_(BRIGHTEST) if x.dtype == torch.uint8 else out


def takes_indices(network: nn.Module) -> bool:
    """Tell whether a network looks its inputs up in a table."""
    return any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in network.modules())
