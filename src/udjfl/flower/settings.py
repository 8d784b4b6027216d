"""The configuration of a Flower run: its keys are the settings below, with hyphens.

Other keys are the app's own, for its data functions; but a key that is nearly one of these is
taken for a mistake.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from udjfl.errors import SettingsError
from udjfl.flower.data import ServerData
from udjfl.flower.strategy import MAX_UPDATE_RATIO, MethodStrategy
from udjfl.methods import Method
from udjfl.methods import method as build_method
from udjfl.models import ModelChoice, check_model
from udjfl.settings import Settings, TrainingSettings, validate_settings

# Settings of the simulator without a meaning here: clients drop out by themselves, and compute as
# their machines allow.
SIMULATOR_ONLY = ("drop_out", "engine", "device", "workers")
SIMILAR = 0.85


class FlowerSettings(Settings):
    """All keys. The model is that of the apps unless the configuration names one."""

    training: TrainingSettings = TrainingSettings()
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
    out: Annotated[str, Field(description="the run folder, on the server; empty: none")] = ""
    resume: Annotated[
        bool, Field(description="continue the run that is in the folder, if there is one")
    ] = False
    report_uncertainties: Annotated[
        bool, Field(description="ask for uncertainties even if the method does not need them")
    ] = False
    max_update_norm: Annotated[
        float, Field(ge=0, description="a longer update is unusable; 0: any finite one is used")
    ] = 0.0
    max_update_ratio: Annotated[
        float,
        Field(
            ge=0,
            description="an update longer than so many times the round's median is unusable, with "
            "three clients or more; 0: no such limit",
        ),
    ] = MAX_UPDATE_RATIO
    reference: Annotated[
        str, Field(description="folder of a finished FedAvg run, for psi and budgets; empty: none")
    ] = ""
    record_scores: Annotated[
        bool,
        Field(
            description="ask for scores even if the method does not need them, so that the run can "
            "be the reference of a budget"
        ),
    ] = False


def read_settings(config: Mapping[str, Any]) -> tuple[FlowerSettings, Method]:
    """Read a run's configuration and the method it names; all mistakes are reported at once."""
    fields = FlowerSettings.flat_fields()
    keys = {name.replace("_", "-"): name for name in fields if name not in SIMULATOR_ONLY}
    mistakes = [
        f"{key}: no such key. Did you mean {near[0]!r}?"
        for key in config
        if key not in keys and (near := difflib.get_close_matches(key, keys, 1, SIMILAR))
    ]
    values = {name: config[key] for key, name in keys.items() if key in config}
    if not values.get("model"):
        values.pop("model", None)
    settings = FlowerSettings()
    try:
        settings = validate_settings(FlowerSettings, values)
    except SettingsError as error:
        mistakes += [_with_hyphens(line) for line in error.mistakes]
    try:
        if "model" in values:
            check_model(str(values["model"]))
    except SettingsError as error:
        mistakes += error.mistakes
    try:
        method = build_method(str(values.get("method", settings.method)))
    except SettingsError as error:
        mistakes += error.mistakes
    if mistakes:
        raise SettingsError(mistakes)
    return settings, method


def _with_hyphens(line: str) -> str:
    """Return a mistake with the key as it is written in a configuration."""
    field, colon, rest = line.partition(":")
    return field.replace("_", "-") + colon + rest


def make_strategy(
    config: Mapping[str, Any], model: ModelChoice, data: ServerData
) -> MethodStrategy:
    """Make the strategy that a configuration asks for; `model` is the app's own."""
    s, method = read_settings(config)
    return MethodStrategy(
        method,
        settings=s.training,
        clients=s.clients,
        seed=s.seed,
        quorum=s.quorum or None,
        timeout=s.round_timeout,
        wait_timeout=s.wait_timeout,
        out=s.out or None,
        resume=s.resume,
        server_data=data,
        report_uncertainties=s.report_uncertainties,
        model=None if config.get("model") else model,
        max_update_norm=s.max_update_norm or None,
        max_update_ratio=s.max_update_ratio or None,
        reference=s.reference or None,
        record_scores=s.record_scores,
    )
