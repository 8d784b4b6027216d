"""Settings: what can be chosen, its range and its default; validated all at once."""

from __future__ import annotations

import functools
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from udjfl._files import read_prefix
from udjfl.errors import SettingsError, did_you_mean

MOST_SEEDS = 10_000
MOST_CLIENTS = 100_000
MOST = 2**31 - 1  # of what is only counted
MOST_TOML_BYTES = 1 << 20
OTHER_SPELLINGS = {
    "optimizer": "optimiser",
    "uncertainty_optimizer": "uncertainty_optimiser",
    "server_optimiser": "server_optimizer",
}
OLDER_NAMES = {"entropy": "paper"}  # of measures of uncertainty, in older run folders


def split_names(text: str) -> list[str]:
    """Split names that are separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


class Settings(BaseModel):
    """Base of all settings. Settings may contain others, but are written flat everywhere.

    In TOML files, on the command line, in keywords and in run folders a setting has one name,
    whichever group it belongs to: `rounds`, not `training.rounds`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    @functools.cache
    def groups(cls) -> dict[str, type[Settings]]:
        """Return the settings that these are composed of, by attribute."""
        kinds = {name: field.annotation for name, field in cls.model_fields.items()}
        return {
            name: kind
            for name, kind in kinds.items()
            if isinstance(kind, type) and issubclass(kind, Settings)
        }

    @classmethod
    def group_names(cls) -> list[str]:
        """Return the attributes of all groups, also of groups in groups."""
        inner = [name for group in cls.groups().values() for name in group.group_names()]
        return [*cls.groups(), *inner]

    @classmethod
    @functools.cache
    def flat_fields(cls) -> dict[str, FieldInfo]:
        """Return every setting by its flat name."""
        groups = cls.groups()
        own = {name: field for name, field in cls.model_fields.items() if name not in groups}
        return {k: f for group in groups.values() for k, f in group.flat_fields().items()} | own

    def to_flat(self) -> dict[str, Any]:
        """Return every value by its flat name."""
        values = self.model_dump()
        nested = {k: v for name in self.groups() for k, v in getattr(self, name).to_flat().items()}
        return nested | {name: v for name, v in values.items() if name not in self.groups()}

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, values: Any) -> Any:
        """Sort flat names into the groups they belong to; a name of several goes to each."""
        groups = cls.groups()
        if not isinstance(values, dict) or not groups:
            return values
        nested = dict(values)
        used: set[str] = set()
        for name, group in groups.items():
            if isinstance(nested.get(name), group):
                continue
            given = nested.pop(name, {})
            flat = {key: values[key] for key in group.flat_fields() if key in values}
            used |= flat.keys()
            nested[name] = {**given, **flat} if isinstance(given, dict) else given
        return {key: value for key, value in nested.items() if key not in used - groups.keys()}


# Settings that several commands have.
DataRoot = Annotated[
    str | None,
    Field(description="folder with the data's files; default: UDJFL_DATA, then the cache"),
]
ModelName = Annotated[
    str, Field(description="mlp, cnn, logistic, or your own as package.module:function")
]
Rounds = Annotated[int, Field(ge=1, le=MOST, description="rounds of federated training")]
Device = Annotated[str, Field(description="cpu, cuda, cuda:1, ...")]


def describe_function(value: Any) -> Any:
    """Return a function as `module:name`, for JSON; other values as they are."""
    if not callable(value):
        return value
    return f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', type(value))}"


# A name, package.module:function or, in Python, a function; in JSON always a text.
FunctionOrName = Annotated[str | Callable[..., Any], PlainSerializer(describe_function)]
Workers = Annotated[
    int,
    Field(
        ge=0,
        le=MOST,
        description="cores for each process (0: an equal share); results do not depend on it",
    ),
]


TaskChoice = Annotated[
    Literal["auto", "classification", "binary", "regression"],
    Field(
        description="what is predicted: classes; binary, two classes by a model that may have "
        "one logit; regression, numbers; auto: numbers if the labels are, and of tables classes"
    ),
]


class TableSettings(Settings):
    """The columns of a table, for data that are one: files, or a source made of columns."""

    target: Annotated[
        str | None,
        Field(description="column of the labels, or a comparison: 'delay>15'; default: none"),
    ] = None
    client: Annotated[
        str | None,
        Field(description="column that names the client of each row; default: a client per file"),
    ] = None
    group: Annotated[
        str | None,
        Field(description="column of groups, such as patients, that no split cuts; default: none"),
    ] = None
    sensitive: Annotated[
        str | None,
        Field(description="column of a sensitive attribute of the rows; default: none"),
    ] = None
    drop: Annotated[list[str], Field(description="columns to leave out, separated by commas")] = []
    categories: Annotated[
        list[str],
        Field(description="columns whose numbers are codes of categories, separated by commas"),
    ] = []
    scaling: Annotated[
        Literal["own", "shared", "none"],
        Field(
            description="means and variances of columns: of a client's own train part, of all "
            "clients by sums, or none"
        ),
    ] = "own"
    test_share: Annotated[
        float | None,
        Field(gt=0, lt=1, description="share of a client's rows in its test part; default: 0.2"),
    ] = None
    task: TaskChoice = "auto"  # also of the training: one setting for both

    @field_validator("drop", "categories", mode="before")
    @classmethod
    def _names_from_text(cls, value: Any) -> Any:
        return split_names(value) if isinstance(value, str) else value

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not their defaults; of tasks only one that labels depend on."""
        values = self.model_dump(include=set(TableSettings.model_fields), exclude_defaults=True)
        if self.task != "regression":
            values.pop("task", None)
        return values


class DataSettings(Settings):
    """The data of a federation."""

    data: Annotated[
        str,
        Field(
            description="name of the data (`udjfl data list`), options after colons: "
            "signs:level=3; or CSV and parquet files, one for each client: hospitals/*.csv; or a "
            "folder of images (client/class/image) or of a saved federation"
        ),
    ] = "dirty-digits"
    data_root: DataRoot = None
    table: TableSettings = TableSettings()
    clients: Annotated[
        int | None,
        Field(
            ge=1,
            le=MOST_CLIENTS,
            description="number of clients; default: that of the data, mostly 5",
        ),
    ] = None
    partition: Annotated[
        str | None,
        Field(
            description="shards, iid, dirichlet[:alpha], quantity[:alpha] or natural; "
            "default: that of the data, mostly shards"
        ),
    ] = None

    @field_validator("data", mode="before")
    @classmethod
    def _join_files(cls, value: Any) -> Any:
        """Join the names of several files by commas."""
        if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
            return value
        if len(value) > 1 and any("," in text for text in value):
            raise ValueError(
                "a file has a comma in its name; give a pattern in quotes: 'data/*.csv'"
            )
        return ",".join(value)


class TrainingSettings(Settings):
    """Training of one method on one federation."""

    model: ModelName = "mlp"
    hidden: Annotated[int, Field(ge=1, le=1_000_000, description="hidden units of the mlp")] = 64
    weight_norm: Annotated[
        bool, Field(description="normalise the weights of the mlp's output layer")
    ] = True
    task: TaskChoice = "auto"
    loss: Annotated[
        FunctionOrName,
        Field(
            description="what clients minimise: cross-entropy; squared-error, absolute-error, "
            "huber or gaussian for regression; package.module:function of outputs and labels; "
            "auto: that of the task"
        ),
    ] = "auto"
    score: Annotated[
        FunctionOrName,
        Field(
            description="what is judged, client by client: accuracy, balanced-accuracy, auroc, "
            "auprc, f1 or log-loss; r2 or rmse for regression; package.module:function of labels "
            "and predictions; auto: accuracy or r2"
        ),
    ] = "auto"
    rounds: Rounds = 100
    optimiser: Annotated[
        Literal["sgd", "adam", "adamw"],
        Field(description="the clients' optimiser; adam and adamw mostly want an lr near 0.001"),
    ] = "sgd"
    lr: Annotated[float, Field(gt=0, le=1e38, description="learning rate of the clients")] = 0.1
    lr_schedule: Annotated[
        str,
        Field(
            description="learning rate over rounds: constant, cosine[:to=0], "
            "step[:every=30:factor=0.1] or exponential[:factor=0.99]"
        ),
    ] = "constant"
    momentum: Annotated[float, Field(ge=0, lt=1, description="momentum of the clients' SGD")] = 0.9
    nesterov: Annotated[bool, Field(description="Nesterov's momentum")] = False
    weight_decay: Annotated[
        float, Field(ge=0, description="decay of the weights in every local step")
    ] = 0.0
    clip_norm: Annotated[
        float, Field(ge=0, description="longest gradient of a local step; 0: not clipped")
    ] = 0.0
    class_weights: Annotated[
        str,
        Field(
            description="weights of the classes in what clients minimise: none, balanced (by each "
            "client's own frequencies), or a number per class: 1,5"
        ),
    ] = "none"
    batch_size: Annotated[int, Field(ge=1, le=MOST, description="examples per optimiser step")] = (
        128
    )
    local_epochs: Annotated[
        int, Field(ge=1, le=10_000, description="passes over a client's data per round")
    ] = 1
    local_steps: Annotated[
        int, Field(ge=0, le=MOST, description="optimiser steps per round instead; 0: epochs")
    ] = 0
    loss_at: Annotated[
        Literal["auto", "received", "running", "final"],
        Field(
            description="the loss a client reports: of the received model, the mean while "
            "training, or of the trained model; auto: received if the method uses losses, else "
            "running, which costs nothing"
        ),
    ] = "auto"
    participation: Annotated[
        float, Field(gt=0, le=1, description="share of the clients asked in each round")
    ] = 1.0
    drop_out: Annotated[
        float, Field(ge=0, lt=1, description="probability that an asked client does not answer")
    ] = 0.0
    holdout: Annotated[
        float,
        Field(
            ge=0,
            le=0.5,
            description="share of each client's train part that is kept to score models on while "
            "they train, for methods with a budget; 0: scores are those of the train part",
        ),
    ] = 0.0
    on_bad_report: Annotated[
        Literal["fail", "exclude"],
        Field(description="stop at an unusable report, or continue without that client"),
    ] = "fail"
    uncertainty: Annotated[
        Literal["crossfit", "paper", "confidence", "ensemble"],
        Field(
            description="measure of a client's uncertainty: crossfit, from examples that a model "
            "did and did not see; paper (older name: entropy), confidence and ensemble, from a "
            "fixed number of epochs"
        ),
    ] = "crossfit"
    uncertainty_epochs: Annotated[
        int,
        Field(
            ge=0,
            le=1_000_000,
            description="epochs each client trains alone for that measure (0: 30, for crossfit "
            "100); crossfit stops at the best number up to this",
        ),
    ] = 0
    uncertainty_lr: Annotated[
        float, Field(gt=0, le=1e38, description="learning rate of that training")
    ] = 0.1
    uncertainty_optimiser: Annotated[
        Literal["sgd", "adam"],
        Field(description="optimiser of that training; the authors' code uses adam"),
    ] = "sgd"
    uncertainty_folds: Annotated[
        int, Field(ge=2, le=1_000, description="folds of crossfit: models trained for each client")
    ] = 5
    uncertainty_models: Annotated[
        int, Field(ge=2, le=1_000, description="number of models in an ensemble")
    ] = 5
    server_optimizer: Annotated[
        str,
        Field(
            description="what the server makes of each method's step: sgd, momentum, adam, yogi "
            "or adagrad, with options as in adam:lr=0.1:b1=0.9:b2=0.99:tau=0.001"
        ),
    ] = "sgd"
    service: Annotated[
        str,
        Field(
            description="what clients are served of the common model: none, prior-rawls, "
            "prior-egalitarian or prior-all[:strength=1], moved to their own class frequencies; "
            "checkpoints[:rho=0.7], earlier models for uncertain clients"
        ),
    ] = "none"
    eval_every: Annotated[
        int,
        Field(
            ge=1,
            le=MOST,
            description="rounds between evaluations; the last round is always evaluated",
        ),
    ] = 1
    checkpoint_every: Annotated[
        int, Field(ge=1, le=MOST, description="rounds between checkpoints")
    ] = 10
    engine: Annotated[
        Literal["auto", "serial", "stacked", "mapped"],
        Field(
            description="how local training is computed: serial, one client at a time; stacked, "
            "all at once, for linear layers; mapped, all at once, for any model on a GPU; "
            "auto: the fastest that suits the model"
        ),
    ] = "auto"
    device: Device = "cpu"
    workers: Workers = 0

    @field_validator("class_weights", mode="before")
    @classmethod
    def _numbers_to_text(cls, value: Any) -> Any:
        return ",".join(map(str, value)) if isinstance(value, list | tuple) else value

    @field_validator("class_weights")
    @classmethod
    def _class_weights_are_positive(cls, value: str) -> str:
        if value in ("none", "balanced"):
            return value
        try:
            is_positive = all(0 < float(part) < math.inf for part in value.split(","))
        except ValueError:
            is_positive = False
        if not is_positive:
            raise ValueError(f"is {value!r}; write none, balanced, or a number above 0 per class")
        return value

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> TrainingSettings:
        if self.nesterov and (self.momentum == 0 or self.optimiser != "sgd"):
            raise ValueError("nesterov: needs optimiser=sgd and momentum above 0")
        return self

    @field_validator("uncertainty", mode="before")
    @classmethod
    def _current_name(cls, value: Any) -> Any:
        return OLDER_NAMES.get(value, value) if isinstance(value, str) else value


class RunSettings(Settings):
    """One method on one federation with one seed."""

    federation: DataSettings = DataSettings()
    training: TrainingSettings = TrainingSettings()
    method: Annotated[
        str, Field(description="a method, as in `rawls` or `udj:theory=rawls:beta=5`")
    ] = "rawls"
    params: Annotated[dict[str, Any], Field(description="the method's parameters")] = {}
    seed: Annotated[int, Field(ge=0, description="seed of everything random")] = 0


class SeedSettings(Settings):
    """The seeds, and how many processes share them."""

    seeds: Annotated[
        list[Annotated[int, Field(ge=0)]],
        Field(
            min_length=1,
            description="number of seeds (from 0), or a list: 0,3,7 (a single one: 7,)",
        ),
    ] = [0, 1, 2, 3, 4]

    jobs: Annotated[
        int, Field(ge=0, le=MOST, description="processes that share the seeds (0: one per core)")
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
                    f"{value} seeds are more than the {MOST_SEEDS} allowed; "
                    f"for the one seed {value} write '{value},'"
                )
            return list(range(value))
        return value

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, value: list[int]) -> list[int]:
        if len(set(value)) != len(value):
            raise ValueError("give each seed once; a seed counted twice makes intervals too narrow")
        return value


class CompareSettings(SeedSettings):
    """Several methods on the same federations."""

    federation: DataSettings = DataSettings()
    training: TrainingSettings = TrainingSettings()

    methods: Annotated[
        list[str],
        Field(min_length=1, description="methods separated by commas; all: the fair ones"),
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
        return split_names(value) if isinstance(value, str) else value


AnySettings = TypeVar("AnySettings", bound=Settings)


def validate_settings(cls: type[AnySettings], values: Mapping[str, Any]) -> AnySettings:
    """Build settings from values by their flat names; a `SettingsError` lists every mistake."""
    known, groups = cls.flat_fields(), cls.group_names()
    mistakes = find_double_spellings(values)
    values = unify_spelling(values)
    mistakes += [f"{k}: no such setting.{did_you_mean(k, known)}" for k in values if k not in known]
    try:
        settings = cls(**{key: value for key, value in values.items() if key in known})
    except ValidationError as error:
        mistakes += describe_mistakes(error, known, groups=groups)
    if mistakes:
        raise SettingsError(mistakes)
    return settings


def find_double_spellings(values: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each setting that is given in both of its spellings."""
    return [
        f"{ours}: is given twice, as {ours} and as {other}; leave one out"
        for other, ours in OTHER_SPELLINGS.items()
        if ours in values and other in values
    ]


def unify_spelling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by the names that settings have here."""
    return {OTHER_SPELLINGS.get(key, key): value for key, value in values.items()}


def read_toml(path: Path) -> dict[str, Any]:
    """Read the values of a TOML file, by the names that settings have here."""
    try:
        values = tomllib.loads(read_prefix(path, MOST_TOML_BYTES).decode())
    except OSError as error:
        raise SettingsError(f"config: cannot read {path}: {error.strerror}") from None
    except RecursionError:
        raise SettingsError(f"config: {path} is nested too deeply") from None
    except ValueError as error:  # of the syntax, the encoding, or a number with too many digits
        raise SettingsError(f"config: {path} is not valid TOML: {error}") from None
    mistakes = find_double_spellings(values)
    if mistakes:
        raise SettingsError(mistakes)
    return unify_spelling(values)


def describe_mistakes(
    error: ValidationError,
    known: Iterable[str],
    noun: str = "setting",
    groups: Iterable[str] = (),
) -> list[str]:
    """Return one sentence for each mistake that pydantic found, naming the field.

    `known` are the existing fields; names of `groups` are left out of a field's location.
    """
    lines, names = [], set(groups)
    for mistake in error.errors(include_url=False):
        location = list(mistake["loc"])
        while location and location[0] in names:
            del location[0]
        field = ".".join(str(part) for part in location if not _is_union_branch(part))
        if mistake["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            lines.append(f"{field}: no such {noun}.{did_you_mean(field, known)}")
        elif mistake["type"] == "literal_error":
            options = re.findall(r"'([^']*)'", mistake["ctx"]["expected"])
            hint = did_you_mean(str(mistake["input"]), options)
            lines.append(f"{field}: unknown value {mistake['input']!r}.{hint}")
        elif mistake["type"] == "value_error":
            lines.append(
                f"{field}: {mistake['ctx']['error']}" if field else str(mistake["ctx"]["error"])
            )
        else:
            lines.append(f"{field}: {_lower_first(mistake['msg'])}, got {mistake['input']!r}")
    # Pydantic lists every branch of a union; the first sentence about a field is enough.
    return list({line.partition(":")[0]: line for line in reversed(lines)}.values())[::-1]


def _is_union_branch(part: int | str) -> bool:
    """Tell whether pydantic added this part of a location for a branch of a union."""
    return isinstance(part, str) and (part in ("float", "int", "str") or "[" in part)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
