"""What goes over the network, and how it is read again: nothing that comes from outside is believed before it was checked.

A message has two records. `arrays` holds tensors by name; `config` holds texts and numbers, among them the facts of the run as
JSON, from which a client builds the same method and trains as the simulator does. A reply has these and `metrics`, single
numbers by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor, nn

from udjfl.errors import ReportError
from udjfl.methods import Method, Plan, method
from udjfl.settings import TrainingSettings, checked

INTRODUCE, UNCERTAINTY, PROBE, TRAIN, EVALUATE = (
    "query.introduce",
    "query.uncertainty",
    "query.probe",
    "train",
    "evaluate",
)
# Names of single numbers in a reply, by those of the columns of `Reports`.
NUMBERS = {
    "losses": "loss",
    "sizes": "num-examples",
    "uncertainties": "uncertainty",
    "steps": "steps",
}


@dataclass(frozen=True)
class Facts:
    """What every client is told about the run. `model` names the model, or is empty: the client's app has its own."""

    method: Method
    settings: TrainingSettings
    seed: int
    model: str = ""
    report_uncertainties: bool = False

    def text(self) -> str:
        about = {
            "method": self.method.name,
            "params": self.method.params,
            "training": self.settings.model_dump(),
            "seed": self.seed,
            "model": self.model,
            "report_uncertainties": self.report_uncertainties,
        }
        return json.dumps(about, sort_keys=True)

    @staticmethod
    def read(config: Mapping[str, Any]) -> Facts:
        about = json.loads(config["facts"])
        rule = method(about["method"], **about["params"])
        settings = checked(TrainingSettings, about["training"])
        return Facts(rule, settings, about["seed"], about["model"], about["report_uncertainties"])

    @property
    def tells_uncertainty(self) -> bool:
        """Whether clients are asked for their uncertainty."""
        return self.report_uncertainties or "uncertainties" in self.method.asked

    def owed(self, has_buffers: bool) -> set[str]:
        """What the server learns of each client, of losses, sizes, uncertainties and steps. Means of buffers need sizes."""
        names = set(NUMBERS).intersection(self.method.asked)
        return {
            *names,
            *(["sizes"] if has_buffers else []),
            *(["uncertainties"] if self.tells_uncertainty else []),
        }


def question(
    facts: str, tensors: Mapping[str, Tensor | Array], about: Mapping[str, str | int | float | bool]
) -> RecordDict:
    """The content of a message to a client."""
    return RecordDict(
        {"arrays": packed(tensors), "config": ConfigRecord({"facts": facts, **about})}
    )


def answer(
    client: str,
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, float],
    about: Mapping[str, Any],
) -> RecordDict:
    """The content of a client's reply."""
    return RecordDict(
        {
            "arrays": packed(tensors),
            "metrics": MetricRecord({name: float(value) for name, value in numbers.items()}),
            "config": ConfigRecord({"client-id": client, **about}),
        }
    )


def packed(tensors: Mapping[str, Tensor | Array]) -> ArrayRecord:
    return ArrayRecord(arrays(tensors))


def arrays(tensors: Mapping[str, Tensor | Array]) -> dict[str, Array]:
    """As Flower has them: bytes. Records share them, so what all clients get is made once, and is in memory once."""
    return {
        name: tensor
        if isinstance(tensor, Array)
        else Array(tensor.detach().cpu().contiguous().numpy())
        for name, tensor in tensors.items()
    }


def unpacked(content: RecordDict) -> dict[str, Tensor]:
    return {
        name: torch.from_numpy(array.numpy())
        for name, array in content.array_records["arrays"].items()
    }


def config_of(content: RecordDict) -> ConfigRecord:
    return content.config_records["config"]


def signature(module: nn.Module) -> str:
    """The names and shapes of what is trained, and how many buffers there are: equal if client and server have one model."""
    shapes = {name: list(value.shape) for name, value in module.named_parameters()}
    return json.dumps([shapes, sum(buffer.numel() for buffer in module.buffers())])


def multiplier(plan: Plan, row: int) -> dict[str, Tensor]:
    """What of a plan concerns the client at this place alone."""
    return {} if plan.multipliers is None else {"multiplier": plan.multipliers[row : row + 1]}


def pull(plan: Plan) -> dict[str, Tensor]:
    """What of a plan is the same for all."""
    return {} if plan.pull is None else {"pull": plan.pull}


def plan_numbers(plan: Plan) -> dict[str, float | bool]:
    return {"pull-share": float(plan.pull_share), "one-full-step": plan.one_full_step}


def read_plan(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Plan:
    return Plan(
        tensors.get("multiplier"),
        tensors.get("pull"),
        config["pull-share"],
        config["one-full-step"],
    )


@dataclass(frozen=True)
class Reply:
    """A client's reply, read: whatever is in it has the right type, but may have any value and shape."""

    id: str
    tensors: dict[str, Tensor]
    numbers: dict[str, float]
    about: dict[str, Any]

    @staticmethod
    def read(content: RecordDict, client: str, round: int | None) -> Reply:
        """The reply of the node that introduced itself as this client. One that cannot be read is a `ReportError`."""
        try:
            about = dict(config_of(content))
            tensors = unpacked(content)
            numbers = {
                name: _number(value) for name, value in content.metric_records["metrics"].items()
            }
            if not isinstance(about["client-id"], str):
                raise TypeError("its client-id is no text")
        except Exception as error:  # what others send can be broken in any way
            problem = f"cannot be read ({type(error).__name__}: {error}); does the client run the same udjfl?"
            raise ReportError(client, "reply", problem, round) from None
        return Reply(about["client-id"], tensors, numbers, about)

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor | None:
        found = self.tensors.get(name)
        return None if found is None else found.to(dtype)

    def extras(self, names: Iterable[str], dtype: torch.dtype) -> dict[str, Tensor]:
        """What of these is there: numbers in float64, but steps of training as the model has it."""
        kinds = {"first_deltas": dtype}
        found = {
            name: self.tensor(f"extra.{name}", kinds.get(name, torch.float64)) for name in names
        }
        return {name: value for name, value in found.items() if value is not None}


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)
