"""Two readings of the paper's experiment: as the paper says, and as its authors' code does.

`paper` takes the paper at its word where it speaks, and plain defaults where it does not: SGD without momentum (none is
mentioned), H_i at the model the clients received, desert's own beta_i for each client, and its step with the absolute values
that make it a descent (docs/steps.md). `authors` takes the choices of the authors' code that can be run at all. Choices that
cannot are the paper's there too; experiments/DEVIATIONS.md lists all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from udjfl.data.source import parse_data
from udjfl.methods.udj import StepRule
from udjfl.settings import ReproduceSettings, TrainingSettings

ProfileName = Literal["paper", "authors"]

ALONE_LR = 0.001
# Alone, plain SGD at the paper's learning rate takes 19,000 steps on Dirty-MNIST. Where an epoch has fewer steps, as many
# epochs would leave models nearly as they began; the learning rate is larger there by as much as the steps are fewer.
ALONE_LR_OF_SGD = {"signs": 0.005, "dirty-digits": 0.0125, "heart": 0.02}


@dataclass(frozen=True)
class Profile:
    """How the experiment is read.

    `data_options` are options of a source, by its name; `uncertainties`, where there are some, replace measured ones, from
    client-1 on; `discards_fedmgda` is for code that solves FedMGDA+'s problem and then averages all the same.
    """

    name: ProfileName
    line: str
    training: Mapping[str, Any]
    step: StepRule
    data_options: Mapping[str, str] = field(default_factory=dict)
    uncertainties: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    discards_fedmgda: bool = False


PROFILES: dict[str, Profile] = {
    "paper": Profile(
        name="paper",
        line="as the paper says: plain SGD, losses at the received model, beta_i per client, desert's step made a descent",
        training={"momentum": 0.0, "loss_at": "received", "uncertainty_optimiser": "sgd"},
        step="safe",
    ),
    "authors": Profile(
        name="authors",
        line="as the authors' code does: momentum 0.9, losses while training, Adam alone, its uncertainties, FedMGDA+ = FedAvg",
        training={"momentum": 0.9, "loss_at": "running", "uncertainty_optimiser": "adam"},
        step="authors",
        data_options={"dirty-mnist": "split=pairs"},
        uncertainties={
            "dirty-mnist": (0.033, 0.061, 0.117, 0.189, 0.234),
            "cure-tsr": (0.357, 0.492, 0.5, 0.824, 0.913),
        },
        discards_fedmgda=True,
    ),
}


def training_settings(settings: ReproduceSettings, **changes: Any) -> TrainingSettings:
    """The training of a table: 64 hidden units, learning rate 0.1, batches of 128, one local epoch, as the paper has it."""
    profile, name = PROFILES[settings.profile], settings.data.partition(":")[0]
    plain = profile.training["uncertainty_optimiser"] == "sgd"
    about = {
        "model": settings.model,
        "rounds": settings.rounds,
        "lr": 0.1,
        "batch_size": 128,
        "local_epochs": 1,
        "uncertainty_epochs": settings.epochs,
        "uncertainty_lr": ALONE_LR_OF_SGD.get(name, ALONE_LR) if plain else ALONE_LR,
        # Nothing is decided by what lies between; the curves stay readable, and the time goes into training.
        "eval_every": min(50, settings.rounds),
        "checkpoint_every": 50,
        "device": settings.device,
        "workers": settings.workers,
    }
    return TrainingSettings(**{**about, **profile.training, **changes})


def data_of(settings: ReproduceSettings) -> str:
    """The data with what the profile has to say about them, unless the reader said it."""
    name, chosen = parse_data(settings.data)
    option = PROFILES[settings.profile].data_options.get(name)
    return (
        settings.data
        if option is None or option.partition("=")[0] in chosen
        else f"{settings.data}:{option}"
    )


def given_uncertainties(settings: ReproduceSettings) -> dict[str, float] | None:
    """The uncertainties that the profile takes as given, by client."""
    values = PROFILES[settings.profile].uncertainties.get(settings.data.partition(":")[0])
    return (
        None
        if values is None
        else {f"client-{number}": value for number, value in enumerate(values, start=1)}
    )
