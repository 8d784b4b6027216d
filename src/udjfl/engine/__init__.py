"""One round of local work for all clients. Engines differ in speed and agree up to rounding."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from udjfl._threads import available_cores
from udjfl.data.federation import Client
from udjfl.engine import mapped
from udjfl.engine._fork_pool import can_fork
from udjfl.engine._memory import tune_allocator
from udjfl.engine.base import (
    Engine,
    EvaluationJob,
    EvaluationSet,
    LocalResult,
    LocalTraining,
    LossAt,
    TrainJob,
    one_thread,
)
from udjfl.engine.batches import ALIGNMENT
from udjfl.engine.correction import Correction
from udjfl.engine.demands import Demands, training_options
from udjfl.engine.expected import expected_accuracy
from udjfl.engine.mapped import MappedEngine
from udjfl.engine.parts import EnginePart, evaluate_together, train_together
from udjfl.engine.probes import PROBES, probe
from udjfl.engine.serial import SerialEngine
from udjfl.engine.stacked import StackedEngine, is_exact_in_company, unsupported_reason
from udjfl.errors import SettingsError
from udjfl.models import to_inputs

logger = logging.getLogger("udjfl")
PLAIN = Demands()


def make_engine(
    module: nn.Module,
    clients: Sequence[Client],
    engine: Literal["auto", "serial", "stacked", "mapped"] = "auto",
    device: str = "cpu",
    workers: int = 1,
    demands: Demands = PLAIN,
) -> Engine:
    """Return the stacked engine if the model and the demands allow it, else one for any model.

    That is the mapped engine on a GPU, or if it is requested, and model and demands allow it; else
    the serial one, and a warning says why. 0 workers are one for each core.
    """
    check_device(device)
    workers, criterion = workers or available_cores(), demands.criterion
    if engine == "serial":
        return SerialEngine(module, clients, device, workers, criterion)
    reasons = []
    if engine != "mapped":
        reason = _why_not_stacked(module, clients, demands)
        if reason is None:
            return StackedEngine(module, clients, device, workers)
        reasons.append(f"{reason}, so clients cannot be stacked")
    if engine == "mapped" or not _is_cpu(device):
        example = to_inputs(clients[0].train.x[:1].to(device), module)
        reason = next(iter(demands.general_only), None) or mapped.unsupported_reason(
            module, example, criterion
        )
        if reason is None:
            return MappedEngine(module, clients, device, workers, criterion)
        reasons.append(f"{reason}, so clients cannot be mapped")
    logger.warning("The model is trained one client at a time: %s.", "; ".join(reasons))
    return SerialEngine(module, clients, device, workers, criterion)


def _why_not_stacked(module: nn.Module, clients: Sequence[Client], demands: Demands) -> str | None:
    own = unsupported_reason(module, clients[0].train.x.ndim - 1)
    return own or next(iter(demands.stacking_reasons), None)


def make_engines(
    modules: Sequence[nn.Module],
    clients: Sequence[Sequence[Client]],
    engine: Literal["auto", "serial", "stacked", "mapped"] = "auto",
    device: str = "cpu",
    workers: int = 1,
    demands: Demands = PLAIN,
) -> list[Engine]:
    """Return an engine for each federation: parts of one if their clients can train together.

    `modules` are models of one shape, one for each federation.
    """
    if len(modules) == 1 or not can_join(modules, clients, engine, device, demands):
        pairs = zip(modules, clients, strict=True)
        return [make_engine(module, own, engine, device, workers, demands) for module, own in pairs]
    whole = StackedEngine(
        modules[0], [c for own in clients for c in own], device, workers or available_cores()
    )
    firsts = itertools.accumulate((len(own) for own in clients), initial=0)
    return [EnginePart(whole, first, len(own)) for first, own in zip(firsts, clients, strict=False)]


def can_join(
    modules: Sequence[nn.Module],
    clients: Sequence[Sequence[Client]],
    engine: Literal["auto", "serial", "stacked", "mapped"] = "auto",
    device: str = "cpu",
    demands: Demands = PLAIN,
) -> bool:
    """Tell whether one engine can train the clients of several federations without a difference.

    That is the stacked one, on a CPU, if the models and the data of each client begin at a multiple
    of 64 bytes however many there are.
    """
    x = clients[0][0].train.x
    shapes = {(str(module), *(p.shape for p in module.parameters())) for module in modules}
    formats = {(c.train.x.shape[1:], c.train.group is None) for own in clients for c in own}
    return (
        engine in ("auto", "stacked")
        and _is_cpu(device)
        and _why_not_stacked(modules[0], clients[0], demands) is None
        and is_exact_in_company(modules[0])
        and x.shape[1:].numel() % ALIGNMENT == 0
        and len(shapes) == len(formats) == 1
    )


def _is_cpu(device: str) -> bool:
    return torch.device(device).type == "cpu"


def check_device(device: str) -> None:
    """Raise SettingsError if this device cannot be used here."""
    try:
        torch.zeros(1, device=device).cpu()  # `meta` has no numbers to come back
    except (RuntimeError, AssertionError, NotImplementedError, ValueError, TypeError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise SettingsError(
            f"device: {device!r} cannot be used here ({first_line}); try device='cpu'"
        ) from None


__all__ = [
    "PROBES",
    "Correction",
    "Demands",
    "Engine",
    "EnginePart",
    "EvaluationJob",
    "EvaluationSet",
    "LocalResult",
    "LocalTraining",
    "LossAt",
    "MappedEngine",
    "SerialEngine",
    "StackedEngine",
    "TrainJob",
    "can_fork",
    "can_join",
    "check_device",
    "evaluate_together",
    "expected_accuracy",
    "make_engine",
    "make_engines",
    "one_thread",
    "probe",
    "train_together",
    "training_options",
    "tune_allocator",
    "unsupported_reason",
]
