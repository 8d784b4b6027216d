"""Random streams. Every random choice names its purpose, so nothing depends on what ran before it.

A stream is addressed by (seed, purpose, ...), for example `(seed, "batches", round, client)`.
Streams with different addresses are independent, and a stream can be opened again at any time: a
resumed run needs no saved generator.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


SEPARATOR = "\x1f"


def stream_seed(seed: int, *address: str | int) -> int:
    """Return a 63-bit number that depends on the seed and on every part of the address."""
    text = SEPARATOR.join(
        [str(int(seed)), *(f"{type(part).__name__}:{_escape(str(part))}" for part in address)]
    )
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _escape(part: str) -> str:
    """Escape the separator, so that no client's name can pass for two parts of an address."""
    return part.replace("\\", "\\\\").replace(SEPARATOR, "\\u")


def numpy_stream(seed: int, *address: str | int) -> np.random.Generator:
    """Open a numpy generator for one purpose."""
    return np.random.default_rng(stream_seed(seed, *address))


def torch_stream(seed: int, *address: str | int) -> torch.Generator:
    """Open a torch generator (on the CPU) for one purpose."""
    import torch

    return torch.Generator().manual_seed(stream_seed(seed, *address))
