"""One round of local work for all clients. Engines differ in speed and agree up to rounding."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from udjfl._threads import available_cores
from udjfl.data.federation import Client
from udjfl.engine import mapped
from udjfl.engine._memory import tune_allocator
from udjfl.engine.base import (
    Engine,
    EvaluationSet,
    LocalResult,
    LocalTraining,
    LossAt,
    TrainJob,
    one_thread,
)
from udjfl.engine.expected import expected_accuracy
from udjfl.engine.mapped import MappedEngine
from udjfl.engine.probes import PROBES, probe
from udjfl.engine.serial import SerialEngine
from udjfl.engine.stacked import StackedEngine, unsupported_reason
from udjfl.errors import SettingsError

logger = logging.getLogger("udjfl")


def make_engine(
    module: nn.Module,
    clients: Sequence[Client],
    engine: Literal["auto", "serial", "stacked", "mapped"] = "auto",
    device: str = "cpu",
    workers: int = 1,
) -> Engine:
    """Return the stacked engine if the model allows it, else one for any model.

    That is the mapped engine on a GPU, or if it is requested, and the model allows it; else the
    serial one, and a warning says why. 0 workers are one for each core.
    """
    check_device(device)
    workers = workers or available_cores()
    if engine == "serial":
        return SerialEngine(module, clients, device, workers)
    reasons = []
    if engine != "mapped":
        reason = unsupported_reason(module, clients[0].train.x.ndim - 1)
        if reason is None:
            return StackedEngine(module, clients, device, workers)
        reasons.append(f"{reason}, so clients cannot be stacked")
    if engine == "mapped" or not _is_cpu(device):
        reason = mapped.unsupported_reason(module, clients[0].train.x[:1].to(device))
        if reason is None:
            return MappedEngine(module, clients, device, workers)
        reasons.append(f"{reason}, so clients cannot be mapped")
    logger.warning("The model is trained one client at a time: %s.", "; ".join(reasons))
    return SerialEngine(module, clients, device, workers)


def _is_cpu(device: str) -> bool:
    return torch.device(device).type == "cpu"


def check_device(device: str) -> None:
    """Raise SettingsError if this device cannot be used here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        first_line = str(error).splitlines()[0]
        raise SettingsError(
            f"device: {device!r} cannot be used here ({first_line}); try device='cpu'"
        ) from None


__all__ = [
    "PROBES",
    "Engine",
    "EvaluationSet",
    "LocalResult",
    "LocalTraining",
    "LossAt",
    "MappedEngine",
    "SerialEngine",
    "StackedEngine",
    "TrainJob",
    "check_device",
    "expected_accuracy",
    "make_engine",
    "one_thread",
    "probe",
    "tune_allocator",
    "unsupported_reason",
]
