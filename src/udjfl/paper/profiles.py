"""Two readings of the paper's experiment: as the paper says, and as its authors' code does.

`paper` does what the paper says, and takes plain defaults where it is silent: SGD without momentum
(none is mentioned), H_i at the model the clients received, for desert a beta_i for each client, and
a step with the absolute values that make it a descent (docs/steps.md). `authors` takes the choices
of the authors' code that can be run; the others are the paper's there, too.
experiments/DEVIATIONS.md lists all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from udjfl.data.source import parse_data
from udjfl.methods.udj import StepRule
from udjfl.paper.settings import ReproduceSettings
from udjfl.settings import TrainingSettings

ProfileName = Literal["paper", "authors"]

ALONE_LR = 0.001
# Alone, plain SGD at the paper's learning rate takes 19,000 steps on Dirty-MNIST. On data with
# fewer steps per epoch, as many epochs would leave the models nearly untrained; there the learning
# rate is larger by the factor by which the steps are fewer.
ALONE_LR_OF_SGD = {"signs": 0.005, "dirty-digits": 0.0125, "heart": 0.02}


@dataclass(frozen=True)
class Profile:
    """A reading of the experiment.

    summary           one line, printed below tables
    training          training settings that differ from those of `training_settings`
    data_options      options of a data source, by its name
    shard_options     options of its shards, by its name
    uncertainties     values that replace measured ones, by data source, from client-1 on
    discards_fedmgda  the code solves FedMGDA+'s problem and then averages all the same
    """

    name: ProfileName
    summary: str
    training: Mapping[str, Any]
    step: StepRule
    data_options: Mapping[str, str] = field(default_factory=dict)
    shard_options: Mapping[str, str] = field(default_factory=dict)
    uncertainties: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    discards_fedmgda: bool = False


PROFILES: dict[str, Profile] = {
    "paper": Profile(
        name="paper",
        summary="as the paper says: plain SGD, losses at the received model, beta_i per client, "
        "desert's step made a descent",
        training={"momentum": 0.0, "loss_at": "received", "uncertainty_optimiser": "sgd"},
        step="safe",
    ),
    "authors": Profile(
        name="authors",
        summary="as the authors' code does: momentum 0.9, losses while training, Adam alone, "
        "its uncertainties, its shards with copies on both sides, FedMGDA+ = FedAvg",
        training={"momentum": 0.9, "loss_at": "running", "uncertainty_optimiser": "adam"},
        step="authors",
        data_options={"dirty-mnist": "split=pairs"},
        shard_options={"dirty-mnist": "order=kept"},
        uncertainties={
            "dirty-mnist": (0.033, 0.061, 0.117, 0.189, 0.234),
            "cure-tsr": (0.357, 0.492, 0.5, 0.824, 0.913),
        },
        discards_fedmgda=True,
    ),
}


def training_settings(
    settings: ReproduceSettings, changes: Mapping[str, Any] | None = None
) -> TrainingSettings:
    """Return the training settings of a table; `changes` override those of the profile.

    Learning rate 0.1, batches of 128 and one local epoch are the paper's.
    """
    profile, name = PROFILES[settings.profile], data_name(settings)
    plain_sgd = profile.training["uncertainty_optimiser"] == "sgd"
    common = {
        "uncertainty": "paper",
        "model": settings.model,
        "rounds": settings.rounds,
        "lr": 0.1,
        "batch_size": 128,
        "local_epochs": 1,
        "uncertainty_epochs": settings.epochs,
        "uncertainty_lr": ALONE_LR_OF_SGD.get(name, ALONE_LR) if plain_sgd else ALONE_LR,
        # Tables use the last evaluation only; a few more keep the curves readable.
        "eval_every": min(50, settings.rounds),
        "checkpoint_every": 50,
        "device": settings.device,
        "workers": settings.workers,
    }
    return TrainingSettings(**{**common, **profile.training, **(changes or {})})


def data_name(settings: ReproduceSettings) -> str:
    """Return the name of the data without its options."""
    return settings.data.partition(":")[0]


def profile_data(settings: ReproduceSettings) -> str:
    """Return the data with the options of the profile, unless the settings choose those."""
    name, chosen = parse_data(settings.data)
    option = PROFILES[settings.profile].data_options.get(name)
    if option is None or option.partition("=")[0] in chosen:
        return settings.data
    return f"{settings.data}:{option}"


def profile_uncertainties(settings: ReproduceSettings) -> dict[str, float] | None:
    """Return the uncertainties that the profile takes as given, by client."""
    values = PROFILES[settings.profile].uncertainties.get(data_name(settings))
    if values is None:
        return None
    return {f"client-{number}": value for number, value in enumerate(values, start=1)}
