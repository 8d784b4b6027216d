"""Settings: what can be chosen, its range, its default. From keywords, flags or a TOML file; every mistake at once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from udjfl.errors import SettingsError, did_you_mean

MOST_SEEDS = 10_000


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSettings(Settings):
    """Which federation."""

    data: Annotated[
        str,
        Field(
            description="name of the data (`udjfl data list`), options after colons: signs:level=3"
        ),
    ] = "dirty-digits"
    data_root: Annotated[
        str | None,
        Field(
            description="folder with the data, for those that need files; default: UDJFL_DATA, then the cache"
        ),
    ] = None
    clients: Annotated[
        int | None,
        Field(ge=1, description="number of clients; default: as the data have it, mostly 5"),
    ] = None
    partition: Annotated[
        str | None,
        Field(
            description="shards, iid, dirichlet[:alpha], quantity[:alpha] or natural; default: the data's own, mostly shards"
        ),
    ] = None


class TrainingSettings(Settings):
    """How one method is trained on one federation."""

    model: Annotated[
        str, Field(description="mlp, cnn, logistic, or your own as package.module:function")
    ] = "mlp"
    hidden: Annotated[int, Field(ge=1, description="hidden units of the mlp")] = 64
    weight_norm: Annotated[
        bool, Field(description="normalise the weights of the mlp's output layer")
    ] = True
    rounds: Annotated[int, Field(ge=1, description="rounds of federated training")] = 100
    lr: Annotated[float, Field(gt=0, le=1e38, description="learning rate of the clients' SGD")] = (
        0.1
    )
    momentum: Annotated[float, Field(ge=0, lt=1, description="momentum of the clients' SGD")] = 0.9
    batch_size: Annotated[int, Field(ge=1, description="examples per optimiser step")] = 128
    local_epochs: Annotated[
        int, Field(ge=1, description="passes over a client's data per round")
    ] = 1
    loss_at: Annotated[
        Literal["auto", "received", "running", "final"],
        Field(
            description="the loss a client reports: at the received model, while training, or after it; "
            "auto: received if the method uses losses, else running, which costs nothing"
        ),
    ] = "auto"
    participation: Annotated[
        float, Field(gt=0, le=1, description="share of the clients asked each round")
    ] = 1.0
    drop_out: Annotated[
        float, Field(ge=0, lt=1, description="chance that an asked client does not answer")
    ] = 0.0
    on_bad_report: Annotated[
        Literal["fail", "exclude"],
        Field(description="stop at an unusable report, or go on without that client"),
    ] = "fail"
    uncertainty: Annotated[
        Literal["entropy", "confidence", "ensemble"],
        Field(description="how a client's uncertainty is measured"),
    ] = "entropy"
    uncertainty_epochs: Annotated[
        int, Field(ge=1, description="epochs a client trains alone for it")
    ] = 30
    uncertainty_lr: Annotated[
        float, Field(gt=0, le=1e38, description="learning rate of that training")
    ] = 0.1
    uncertainty_optimiser: Annotated[
        Literal["sgd", "adam"],
        Field(description="optimiser of that training; adam is the authors' code's"),
    ] = "sgd"
    uncertainty_models: Annotated[int, Field(ge=2, description="size of the ensemble")] = 5
    eval_every: Annotated[
        int, Field(ge=1, description="rounds between evaluations (the last is always one)")
    ] = 1
    checkpoint_every: Annotated[int, Field(ge=1, description="rounds between checkpoints")] = 10
    engine: Annotated[
        Literal["auto", "serial", "stacked", "mapped"],
        Field(
            description="how local work is computed: serial, one client at a time; stacked, all at once, for linear layers; "
            "mapped, all at once, for any model on a GPU; auto: whichever of these suits"
        ),
    ] = "auto"
    device: Annotated[str, Field(description="cpu, cuda, cuda:1, ...")] = "cpu"
    workers: Annotated[
        int, Field(ge=0, description="cores to use (0: all); the numbers do not depend on it")
    ] = 0


class RunSettings(DataSettings, TrainingSettings):
    """One method on one federation with one seed."""

    method: Annotated[
        str, Field(description="method, as in `rawls` or `udj:theory=rawls:beta=5`")
    ] = "rawls"
    params: Annotated[dict[str, Any], Field(description="the method's parameters")] = {}
    seed: Annotated[int, Field(ge=0, description="seed of everything random")] = 0


class SeedSettings(Settings):
    """Which seeds, and how they are shared out."""

    seeds: Annotated[
        list[Annotated[int, Field(ge=0)]],
        Field(min_length=1, description="how many seeds (from 0), or which: 0,3,7 (one alone: 7,)"),
    ] = [0, 1, 2, 3, 4]

    jobs: Annotated[
        int, Field(ge=0, description="processes that share the seeds (0: one for each core)")
    ] = 1

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds_from_count_or_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = (
                int(value)
                if value.strip().isdigit()
                else [part.strip() for part in value.split(",") if part.strip()]
            )
        if isinstance(value, int) and not isinstance(value, bool):
            if value > MOST_SEEDS:
                raise ValueError(
                    f"{value} seeds are more than the {MOST_SEEDS} allowed; for the one seed {value} write '{value},'"
                )
            return list(range(value))
        return value

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, value: list[int]) -> list[int]:
        if len(set(value)) != len(value):
            raise ValueError("give each seed once; a seed counted twice makes intervals too narrow")
        return value


class CompareSettings(DataSettings, TrainingSettings, SeedSettings):
    """Several methods on the same federations."""

    methods: Annotated[
        list[str], Field(min_length=1, description="methods, separated by commas, or all")
    ] = [
        "fedavg",
        "rawls",
        "egalitarian",
        "utilitarian",
        "desert",
    ]
    params: Annotated[
        dict[str, Any], Field(description="parameters for each method that has them")
    ] = {}

    @field_validator("methods", mode="before")
    @classmethod
    def _methods_from_text(cls, value: Any) -> Any:
        return (
            [part.strip() for part in value.split(",") if part.strip()]
            if isinstance(value, str)
            else value
        )


class ReproduceSettings(SeedSettings):
    """One table of the paper."""

    data: Annotated[
        str,
        Field(
            description="dirty-mnist, cure-tsr, signs, dirty-digits or heart; options after colons"
        ),
    ] = "dirty-mnist"
    data_root: Annotated[
        str | None,
        Field(
            description="folder with the data, for those that need files; default: UDJFL_DATA, then the cache"
        ),
    ] = None
    profile: Annotated[
        Literal["paper", "authors"],
        Field(description="as the paper says, or as its authors' code does where it can be run"),
    ] = "paper"
    rounds: Annotated[int, Field(ge=1, description="rounds of federated training")] = 500
    epochs: Annotated[int, Field(ge=1, description="epochs each client trains alone")] = 500
    model: Annotated[
        str, Field(description="mlp, cnn, logistic, or your own as package.module:function")
    ] = "mlp"
    device: Annotated[str, Field(description="cpu, cuda, cuda:1, ...")] = "cpu"
    workers: Annotated[
        int, Field(ge=0, description="cores to use (0: all); the numbers do not depend on it")
    ] = 0


def training_part(settings: TrainingSettings) -> TrainingSettings:
    """Only what concerns training, of settings that say more."""
    return TrainingSettings(
        **{name: getattr(settings, name) for name in TrainingSettings.model_fields}
    )


AnySettings = TypeVar("AnySettings", bound=Settings)


def checked(kind: type[AnySettings], values: Mapping[str, Any]) -> AnySettings:
    """Settings from plain values, or a SettingsError that lists every mistake."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise SettingsError(sentences(error, kind.model_fields)) from None


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"config: cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config: {path} is not valid TOML: {error}") from None


def sentences(error: ValidationError, known: Iterable[str], noun: str = "setting") -> list[str]:
    """One plain sentence per mistake pydantic found, naming the field. `known` are the fields there are."""
    lines = []
    for mistake in error.errors(include_url=False):
        field = ".".join(str(part) for part in mistake["loc"] if not _is_union_branch(part))
        if mistake["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            lines.append(f"{field}: no such {noun}.{did_you_mean(field, known)}")
        elif mistake["type"] == "literal_error":
            options = re.findall(r"'([^']*)'", mistake["ctx"]["expected"])
            lines.append(
                f"{field}: unknown value {mistake['input']!r}.{did_you_mean(str(mistake['input']), options)}"
            )
        elif mistake["type"] == "value_error":
            lines.append(
                f"{field}: {mistake['ctx']['error']}" if field else str(mistake["ctx"]["error"])
            )
        else:
            lines.append(f"{field}: {_lower_first(mistake['msg'])}, got {mistake['input']!r}")
    # Pydantic tells of every branch of a union; the first sentence about a field is enough.
    return list({line.partition(":")[0]: line for line in reversed(lines)}.values())[::-1]


def _is_union_branch(part: int | str) -> bool:
    """Pydantic adds the branch of a union to a location ('float', 'tuple[float, ...]'); no reader asked for it."""
    return isinstance(part, str) and (part in ("float", "int", "str") or "[" in part)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
