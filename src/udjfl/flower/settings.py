"""What can be chosen in the configuration of a Flower run: its keys are the fields below, with hyphens for underscores.

Other keys are the app's own, for its data functions; but one that is nearly a key of ours is taken for a mistake.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from udjfl.errors import SettingsError
from udjfl.flower.data import ServerData
from udjfl.flower.strategy import MethodStrategy
from udjfl.methods import Method, parse_method
from udjfl.models import ModelChoice, check_model
from udjfl.settings import Settings, TrainingSettings, checked, training_part

# Settings of the simulator that mean nothing here: clients drop out by themselves, and compute as their machines allow.
NOT_HERE = ("drop_out", "engine", "device", "workers")
ALMOST = 0.85


class RunOptions(Settings):
    """What concerns the run as a whole. How clients train is in `TrainingSettings`."""

    method: Annotated[str, Field(description="method, as in rawls or udj:theory=rawls:beta=5")] = (
        "rawls"
    )
    seed: Annotated[int, Field(ge=0, description="seed of everything random")] = 0
    clients: Annotated[int, Field(ge=1, description="how many clients to wait for")] = 2
    quorum: Annotated[
        int,
        Field(
            ge=0, description="fewest usable reports in a round; 0: more than half of those asked"
        ),
    ] = 0
    round_timeout: Annotated[
        float, Field(gt=0, description="seconds that clients have for each exchange")
    ] = 3600.0
    wait_timeout: Annotated[
        float, Field(gt=0, description="seconds to wait for all clients before round 1")
    ] = 600.0
    out: Annotated[
        str, Field(description="the run folder, on the server; empty: nothing is kept")
    ] = ""
    resume: Annotated[
        bool, Field(description="go on with the run that is in the folder, if there is one")
    ] = False
    report_uncertainties: Annotated[
        bool, Field(description="ask for uncertainties even if the method does without")
    ] = False
    max_update_norm: Annotated[
        float, Field(ge=0, description="a longer update is unusable; 0: any finite one is used")
    ] = 0.0
    reference: Annotated[
        str, Field(description="folder of a finished FedAvg run, for psi; empty: none")
    ] = ""


class FlowerSettings(RunOptions, TrainingSettings):
    """All keys."""

    model: Annotated[
        str,
        Field(description="mlp, cnn, logistic or package.module:function; empty: the app's own"),
    ] = ""


def read(config: Mapping[str, Any]) -> tuple[FlowerSettings, Method]:
    """The settings in a run's configuration and the method they name; or every mistake in them at once."""
    keys = {
        name.replace("_", "-"): name for name in FlowerSettings.model_fields if name not in NOT_HERE
    }
    mistakes = [
        f"{key}: no such key. Did you mean {near[0]!r}?"
        for key in config
        if key not in keys and (near := difflib.get_close_matches(key, keys, n=1, cutoff=ALMOST))
    ]
    try:
        settings = checked(
            FlowerSettings, {name: config[key] for key, name in keys.items() if key in config}
        )
    except SettingsError as error:
        mistakes += [_as_written(line) for line in error.mistakes]
    try:
        if config.get("model"):
            check_model(str(config["model"]))
    except SettingsError as error:
        mistakes += error.mistakes
    try:
        method = parse_method(str(config.get("method", RunOptions().method)))
    except SettingsError as error:
        mistakes += error.mistakes
    if mistakes:
        raise SettingsError(mistakes)
    return settings, method


def _as_written(line: str) -> str:
    """The mistake with the key as it is in a configuration."""
    field, colon, rest = line.partition(":")
    return field.replace("_", "-") + colon + rest


def strategy(config: Mapping[str, Any], model: ModelChoice, data: ServerData) -> MethodStrategy:
    """The strategy that a configuration asks for. `model` is the app's own."""
    s, method = read(config)
    training = training_part(s).model_copy(update={"model": s.model or TrainingSettings().model})
    return MethodStrategy(
        method,
        settings=training,
        clients=s.clients,
        seed=s.seed,
        quorum=s.quorum or None,
        timeout=s.round_timeout,
        wait_timeout=s.wait_timeout,
        out=s.out or None,
        resume=s.resume,
        server_data=data,
        report_uncertainties=s.report_uncertainties,
        model=None if s.model else model,
        max_update_norm=s.max_update_norm or None,
        reference=s.reference or None,
    )
