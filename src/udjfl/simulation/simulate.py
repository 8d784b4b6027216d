"""The round loop: one method on one federation, in this process."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from udjfl._threads import cores, sharing
from udjfl.data import Federation
from udjfl.engine import make_engine, one_thread
from udjfl.errors import NotDefinedError, ReportError, SettingsError
from udjfl.methods import Method, parse_method
from udjfl.methods.reports import number_problem
from udjfl.models import ModelChoice, describe
from udjfl.settings import TrainingSettings, checked
from udjfl.simulation.lockstep import Failure, Player, play
from udjfl.training import rounds as rounds_of
from udjfl.training.asking import Asking, Roster
from udjfl.training.keeping import (
    check_complete,
    check_same_uncertainty,
    finished,
    known_uncertainty,
    run_description,
    run_folder,
)
from udjfl.training.result import Result
from udjfl.training.rounds import Beginning, Loop, Progress, Server, evaluate
from udjfl.training.run_folder import History
from udjfl.uncertainty import Uncertainty

logger = logging.getLogger("udjfl")


def simulate(
    federation: Federation,
    method: Method | str,
    model: ModelChoice = "mlp",
    *,
    rounds: int = 100,
    lr: float = 0.1,
    momentum: float = 0.9,
    batch_size: int = 128,
    local_epochs: int = 1,
    seed: int = 0,
    reference: Result | None = None,
    hidden: int = 64,
    weight_norm: bool = True,
    loss_at: Literal["auto", "received", "running", "final"] = "auto",
    participation: float = 1.0,
    drop_out: float = 0.0,
    on_bad_report: Literal["fail", "exclude"] = "fail",
    uncertainty: Literal["entropy", "confidence", "ensemble"] | Mapping[str, float] = "entropy",
    uncertainty_epochs: int = 30,
    uncertainty_lr: float = 0.1,
    uncertainty_optimiser: Literal["sgd", "adam"] = "sgd",
    uncertainty_models: int = 5,
    eval_every: int = 1,
    checkpoint_every: int = 10,
    engine: Literal["auto", "serial", "stacked", "mapped"] = "auto",
    device: str = "cpu",
    workers: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Train one method on one federation and say what it did to each client.

    `method` is a method or a name (`udjfl.method` builds one with parameters). `reference` is the result of FedAvg on the
    same federation and seed: with it the metrics include psi. `uncertainty` names a measure, or gives the numbers by
    client id. `out` keeps the run in a folder; with `resume=True` a run found there goes on where it stopped.
    `progress(stage, done, total)` is called as work goes on. The other settings are described in
    `udjfl.settings.TrainingSettings`.
    """
    chosen = {
        name: value for name, value in locals().items() if name in TrainingSettings.model_fields
    }
    chosen["model"] = describe(model)
    mistakes: list[str] = []
    given = None
    if not isinstance(uncertainty, str):
        del chosen["uncertainty"]
        given = Uncertainty("given", given_uncertainties(uncertainty))
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        mistakes.append(f"seed: is {seed!r}; give a whole number from 0")
    try:
        settings = checked(TrainingSettings, chosen)
    except SettingsError as error:
        mistakes += error.mistakes
    try:
        rule = _as_method(method)
    except SettingsError as error:
        mistakes += error.mistakes
    if mistakes:
        raise SettingsError(mistakes)
    return run(
        federation,
        rule,
        settings,
        seed,
        model=model,
        reference=reference,
        uncertainty=given,
        out=out,
        resume=resume,
        progress=progress,
    )


def _as_method(given: Method | str) -> Method:
    if isinstance(given, Method):
        return given
    if isinstance(given, str):
        return parse_method(given)
    shown = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
    raise SettingsError(
        f"method: got {shown}; give a name, or a method as udjfl.method(...) makes it"
    )


def given_uncertainties(values: Mapping[str, float]) -> dict[str, float]:
    """Uncertainties a caller gave, as plain numbers by client id."""
    if not isinstance(values, Mapping):
        raise SettingsError(
            f"uncertainty: is {values!r}; name a measure, or give a number for each client id"
        )
    plain: dict[str, float] = {}
    for name, value in values.items():
        try:
            plain[str(name)] = float(value)
        except (TypeError, ValueError):
            raise SettingsError(
                f"uncertainty: of client {name!r} is {value!r}; give a number above zero"
            ) from None
        problem = number_problem({"uncertainties": plain[str(name)]})
        if problem:
            raise ReportError(str(name), *problem)
    return plain


def run(
    federation: Federation,
    method: Method,
    settings: TrainingSettings,
    seed: int,
    *,
    model: ModelChoice | None = None,
    reference: Result | None = None,
    uncertainty: Uncertainty | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Result:
    """`simulate` with its settings in one value."""
    entry = Entry(method, out, progress)
    (result,) = run_together(
        federation,
        [entry],
        settings,
        seed,
        model=model,
        reference=reference,
        uncertainty=uncertainty,
        resume=resume,
    )
    if not isinstance(result, Result):
        raise result
    return result


@dataclass(frozen=True)
class Entry:
    """One method of several that are trained together: where its run is kept, and whom to tell how far it is."""

    method: Method
    out: str | os.PathLike[str] | None = None
    progress: Progress | None = None


def run_together(
    federation: Federation,
    entries: Sequence[Entry],
    settings: TrainingSettings,
    seed: int,
    *,
    model: ModelChoice | None = None,
    reference: Result | None = None,
    uncertainty: Uncertainty | None = None,
    resume: bool = False,
    first_is_reference: bool = False,
) -> list[Result | Failure]:
    """Several methods on one federation, round by round side by side; each gets the numbers it would get alone.

    A method whose training fails, or that is not defined for this federation, has its error in place of a result. `reference`
    is for all of them; with `first_is_reference` it is the result of the first.
    """
    _check_reference(reference, federation, seed)
    with one_thread(), sharing(settings.workers or cores()), contextlib.ExitStack() as ending:
        plain = fitting_model(federation, settings, seed, model)
        beginnings = [
            _begun(federation, entry.method, settings, seed, model, plain) for entry in entries
        ]
        engine = make_engine(
            plain, federation.clients, settings.engine, settings.device, settings.workers
        )
        ending.callback(engine.close)
        if uncertainty is not None:
            check_complete(uncertainty, federation)
        players: list[Player | Failure] = []
        for entry, beginning in zip(entries, beginnings, strict=True):
            if isinstance(beginning, NotDefinedError):
                players.append(beginning)
                continue
            # From here on nothing the caller chose can be wrong: only now is anything written.
            module, server, notes = beginning
            folder, history = None, History()
            if entry.out is not None:
                folder = run_folder(
                    entry.out,
                    run_description(federation, entry.method, settings, seed, module),
                    resume,
                )
                check_same_uncertainty(folder, federation, uncertainty)
                checkpoint, history = folder.rewind()
                server = (
                    Server.from_tensors(checkpoint.round, checkpoint.tensors)
                    if checkpoint
                    else server
                )
            uncertainty = known_uncertainty(
                federation, engine, settings, seed, model, uncertainty, folder, entry.progress
            )
            own = engine
            if module is not plain:
                own = make_engine(
                    module, federation.clients, settings.engine, settings.device, settings.workers
                )
                ending.callback(own.close)
            loop = Loop(Asking(federation, entry.method, settings, seed, own, uncertainty))
            players.append(Player(loop, server, history, folder, entry.progress, notes))
        play([player for player in players if isinstance(player, Player)])
        return _results(players, reference, first_is_reference)


def _results(
    players: Sequence[Player | Failure], reference: Result | None, first_is_reference: bool
) -> list[Result | Failure]:
    results: list[Result | Failure] = []
    for player in players:
        if not isinstance(player, Player):
            results.append(player)
            continue
        if first_is_reference and results and isinstance(results[0], Result):
            reference = results[0]
        results.append(player.failure or _finished(player, reference))
    return results


def _check_reference(reference: Result | None, federation: Federation, seed: int) -> None:
    if reference is not None and set(reference.client_accuracy) != set(federation.ids):
        raise SettingsError(
            "reference: has other clients; use the result of FedAvg on the same federation"
        )
    if reference is not None and reference.method.name != "fedavg":
        raise SettingsError(
            f"reference: is a result of {reference.method.label}; psi is measured from FedAvg"
        )
    if reference is not None and reference.seed != seed:
        raise SettingsError(
            f"reference: has seed {reference.seed}, this run has seed {seed}; use FedAvg with the same seed"
        )


def _begun(
    federation: Federation,
    method: Method,
    settings: TrainingSettings,
    seed: int,
    model: ModelChoice | None,
    plain: nn.Module,
) -> Beginning | NotDefinedError:
    try:
        return beginning(federation, method, settings, seed, model, plain)
    except NotDefinedError as error:
        return error


def beginning(
    federation: Federation,
    method: Method,
    settings: TrainingSettings,
    seed: int,
    model: ModelChoice | None,
    plain: nn.Module,
) -> Beginning:
    """The network that this method trains, the server before round 1, and what the method has to say about it all."""
    return rounds_of.beginning(Roster.of(federation), method, settings, seed, model, plain)


def fitting_model(
    federation: Federation, settings: TrainingSettings, seed: int, model: ModelChoice | None = None
) -> nn.Module:
    """The initial model of a run, known to fit the data and the device."""
    return rounds_of.fitting_model(Roster.of(federation), settings, seed, model)


def _finished(player: Player, reference: Result | None) -> Result:
    loop, server = player.loop, player.server
    evaluated = player.evaluated or evaluate([loop], [server])[0]
    module = copy.deepcopy(loop.engine.module).cpu()  # the engine's own serves other methods too
    before = reference.client_accuracy if reference else None
    return finished(
        loop.method,
        loop.seed,
        module,
        server,
        evaluated,
        loop.federation.ids,
        loop.uncertainty,
        player.history,
        player.folder,
        player.notes,
        before,
    )
