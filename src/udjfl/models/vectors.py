"""Flatten a model's trainable parameters and buffers into vectors, and write vectors back."""

import torch
from torch import Tensor, nn


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that training changes, in the module's own order."""
    return [p for p in module.parameters() if p.requires_grad]


def to_vector(module: nn.Module) -> Tensor:
    """Return all trainable numbers as one vector (a copy)."""
    return torch.cat([p.detach().reshape(-1) for p in trainable(module)])


def from_vector(module: nn.Module, vector: Tensor) -> None:
    """Write a vector's numbers into the module."""
    with torch.no_grad():
        for p, values in zip(
            trainable(module),
            torch.split(vector, [p.numel() for p in trainable(module)]),
            strict=True,
        ):
            p.copy_(values.view_as(p))


def buffers_to_vector(module: nn.Module) -> Tensor:
    """Return all buffers, such as the statistics of batch norm, as one float64 vector."""
    parts = [b.detach().reshape(-1).to(torch.float64) for b in module.buffers()]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def buffers_from_vector(module: nn.Module, vector: Tensor) -> None:
    """Write a vector's numbers into the buffers; counters are rounded."""
    buffers = list(module.buffers())
    with torch.no_grad():
        for b, values in zip(
            buffers, torch.split(vector, [b.numel() for b in buffers]), strict=True
        ):
            shaped = values.view_as(b)
            b.copy_(shaped if b.is_floating_point() else shaped.round())
