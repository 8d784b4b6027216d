"""One round of local work for all clients. `choose` picks how it is computed; the numbers are the same either way."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from udjfl._threads import cores
from udjfl.data.federation import Client
from udjfl.engine import mapped
from udjfl.engine.base import (
    Engine,
    EvaluationSet,
    LocalResult,
    LocalTraining,
    LossAt,
    TrainJob,
    one_thread,
)
from udjfl.engine.mapped import MappedEngine
from udjfl.engine.probes import PROBES, probe
from udjfl.engine.serial import SerialEngine
from udjfl.engine.stacked import StackedEngine, unsupported_reason
from udjfl.errors import SettingsError

logger = logging.getLogger("udjfl")
_said: set[str] = set()


def make_engine(
    module: nn.Module,
    clients: Sequence[Client],
    engine: Literal["auto", "serial", "stacked", "mapped"] = "auto",
    device: str = "cpu",
    workers: int = 1,
) -> Engine:
    """The stacked engine where the model allows it; else, on a GPU or if asked for, the mapped one; else the serial one.

    Why a model must be trained one client at a time is said once. 0 workers: one for each core.
    """
    check_device(device)
    workers = workers or cores()
    if engine == "serial":
        return SerialEngine(module, clients, device, workers)
    reasons = []
    if engine != "mapped":
        reason = unsupported_reason(module, clients[0].train.x.ndim - 1)
        if reason is None:
            return StackedEngine(module, clients, device, workers)
        reasons.append(f"{reason}, so clients cannot be stacked")
    if engine == "mapped" or not _on_cpu(device):
        reason = mapped.unsupported_reason(module, clients[0].train.x[:1].to(device))
        if reason is None:
            return MappedEngine(module, clients, device, workers)
        reasons.append(f"{reason}, so clients cannot be mapped")
    said = "; ".join(reasons)
    if said not in _said:
        _said.add(said)
        logger.warning("The model is trained one client at a time: %s.", said)
    return SerialEngine(module, clients, device, workers)


def _on_cpu(device: str) -> bool:
    """Whether one client's work fills the device, as it does a core. It leaves most of a GPU idle."""
    return torch.device(device).type == "cpu"


def check_device(device: str) -> None:
    """Refuse a device that cannot be used here."""
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
    "choose",
    "one_thread",
    "probe",
    "unsupported_reason",
]
