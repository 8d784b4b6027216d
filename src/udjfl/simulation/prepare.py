"""Bring methods to the beginning of round 1, and find the mistakes in all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from udjfl.errors import NotDefinedError, SettingsError
from udjfl.methods import FedAvg, Method
from udjfl.models import ModelChoice
from udjfl.settings import TrainingSettings
from udjfl.simulation.reference import unknown_scores
from udjfl.training.federation_info import FederationInfo
from udjfl.training.server_optimizer import parse_server_optimizer
from udjfl.training.server_state import ServerState, initial_state
from udjfl.training.service import parse_service
from udjfl.training.state import Run, RunSpec


@dataclass(frozen=True)
class StartedMethod:
    """A method before round 1: its run, its network, its server and its notes."""

    run: Run
    module: nn.Module
    server: ServerState
    notes: list[str]


@dataclass(frozen=True)
class PreparedMethods:
    """The model before any method adapted it, and each method's start or why it has none."""

    base_model: nn.Module
    starts: list[StartedMethod | NotDefinedError]


def prepare_methods(
    info: FederationInfo,
    methods: Sequence[Method],
    settings: TrainingSettings,
    seed: int,
    model: ModelChoice | None,
) -> PreparedMethods:
    """Bring methods to the beginning of round 1. Mistakes in all of them are reported at once."""
    starts: list[StartedMethod | NotDefinedError] = []
    mistakes: list[str] = []
    base_model: nn.Module | None = None
    parse_service(settings.service)  # once: it would be a mistake in every method
    parse_server_optimizer(settings.server_optimizer)
    is_reference = any(method.needs_reference for method in methods)
    for method in methods:
        record_scores = is_reference and method == FedAvg()
        spec = RunSpec(method, settings, seed, model, record_scores=record_scores)
        base_model = spec.build_model(info) if base_model is None else base_model
        # FedAvg's scores come when it has been trained; nothing is known for now.
        unknown = unknown_scores(info.ids)
        reference = unknown if method.needs_reference else None
        alone = unknown[0] if settings.holdout and method.needs_alone else None
        try:
            run = Run(spec, info)
            started = initial_state(run, base_model, reference, alone)
            starts.append(StartedMethod(run, *started))
        except NotDefinedError as error:
            starts.append(error)
        except SettingsError as error:
            mistakes += error.mistakes
    if mistakes:
        raise SettingsError(mistakes)
    assert base_model is not None, "there is a method"
    return PreparedMethods(base_model, starts)
