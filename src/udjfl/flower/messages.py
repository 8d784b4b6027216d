"""Messages between a server and its clients: how they are written, sent and read.

The record `config` of a message holds texts and numbers, among them the run's specification as
JSON, from which a client builds the same method and trains as the simulator does, and all tensors
in one field (`tensors`). Tensors for one client alone are in a record `own`. A reply has `config`
and `metrics`, single numbers by name. Nothing in a reply is trusted before it was checked.
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Message, MetricRecord, RecordDict
from torch import Tensor, nn

from udjfl.errors import ReportError
from udjfl.flower.errors import error_text, shorten
from udjfl.flower.tensors import (
    BUFFERS,
    CHANGES,
    DELTA,
    EXTRA,
    TensorLimit,
    find_forbidden,
    make_records,
    pack,
    tensors_of,
    values_of,
)
from udjfl.methods import Plan
from udjfl.methods import method as build_method
from udjfl.settings import TrainingSettings, validate_settings
from udjfl.training.judging import JudgedClient
from udjfl.training.replies import ClientReply
from udjfl.training.state import RunSpec

INTRODUCE, UNCERTAINTY, PROBE = "query.introduce", "query.uncertainty", "query.probe"
TRAIN, EVALUATE = "train", "evaluate"
# A request to train may ask for an evaluation too: of the model after an earlier round, which is
# the one to train, or has this before the names of its tensors. What went wrong with it is a text.
EVALUATE_ROUND, EVALUATED, EVALUATION_ERROR = "evaluate-round", "evaluate.", "evaluation-error"
# Names of single numbers in a reply, by those of the columns of `Reports`.
NUMBERS = {
    "losses": "loss",
    "sizes": "num-examples",
    "uncertainties": "uncertainty",
    "steps": "steps",
}
# What a client reports anew in each round; the other numbers are known from its registration.
EACH_ROUND = ("losses", "steps")
LONGEST_ID = 200


def write_spec(spec: RunSpec) -> str:
    """Write down what every client has to know about the run."""
    return json.dumps(
        {
            "method": spec.method.spec_name,
            "params": spec.method.params,
            "training": spec.settings.model_dump(),
            "seed": spec.seed,
            # Empty: the model is the one of the client's app.
            "model": spec.settings.model if spec.model is None else "",
            "report_uncertainties": spec.report_uncertainties,
            "record_scores": spec.record_scores,
        },
        sort_keys=True,
    )


def read_spec(content: RecordDict) -> RunSpec:
    """Read the run's specification from a message."""
    values = json.loads(str(values_of(content)["run"]))
    return RunSpec(
        build_method(values["method"], **values["params"]),
        validate_settings(TrainingSettings, values["training"]),
        values["seed"],
        values["model"] or None,
        values["report_uncertainties"],
        record_scores=values["record_scores"],
    )


def required_numbers(spec: RunSpec, has_buffers: bool) -> frozenset[str]:
    """Return which of losses, sizes, uncertainties and steps the server learns of each client."""
    # The mean of buffers is weighted by the number of examples.
    conditions = {"sizes": has_buffers, "uncertainties": spec.needs_uncertainties}
    needed = {name for name, condition in conditions.items() if condition}
    return frozenset(NUMBERS).intersection(spec.method.needs | needed)


def make_request(
    spec: str,
    packed: bytes,
    values: Mapping[str, str | int | float | bool],
    own: Mapping[str, Tensor] | None = None,
) -> RecordDict:
    """Make the content of a message to a client; `packed` are tensors that all clients get."""
    return RecordDict({**make_records({"run": spec, **values}, packed, pack(own or {}))})


def make_reply(
    client: str,
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, float],
    values: Mapping[str, Any],
) -> RecordDict:
    """Make the content of a client's reply."""
    metrics = MetricRecord({name: float(value) for name, value in numbers.items()})
    records = make_records({"client-id": client, **values}, pack(tensors))
    return RecordDict({"metrics": metrics, **records})


def model_signature(module: nn.Module) -> str:
    """Return the names and shapes of the parameters, and the number of buffers, as text."""
    shapes = {name: list(value.shape) for name, value in module.named_parameters()}
    return json.dumps([shapes, sum(buffer.numel() for buffer in module.buffers())])


def plan_values(plan: Plan) -> dict[str, float | bool]:
    """Return the single values of a plan."""
    return {
        "one-full-step": plan.one_full_step,
        "gradient-share": float(plan.gradient_share),
        "mu": float(plan.mu),
        "personal-mu": float(plan.personal_mu),
    }


def shared_plan_tensors(plan: Plan) -> dict[str, Tensor]:
    """Return the tensors of a plan that all clients get."""
    given = {"anchor": plan.anchor, "shift": plan.shift}
    return {name: value for name, value in given.items() if value is not None and value.ndim == 1}


def own_plan_tensors(plan: Plan, client_index: int) -> dict[str, Tensor]:
    """Return the rows [1, ...] of a plan's tensors that belong to one client alone."""
    given = {
        "multiplier": plan.multipliers,
        "anchor": plan.anchor,
        "shift": plan.shift,
        "personal": plan.personal,
    }
    shared = shared_plan_tensors(plan)
    return {
        name: value[client_index : client_index + 1]
        for name, value in given.items()
        if value is not None and name not in shared
    }


def read_plan(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Plan:
    """Read a plan for one client."""
    return Plan(
        multipliers=tensors.get("multiplier"),
        one_full_step=config["one-full-step"],
        gradient_share=config["gradient-share"],
        mu=config["mu"],
        anchor=tensors.get("anchor"),
        shift=tensors.get("shift"),
        personal=tensors.get("personal"),
        personal_mu=config["personal-mu"],
    )


# The score that is judged, and the ends of its interval.
JUDGED, LOW, HIGH = "judged-score", "judged-low", "judged-high"


def judged_numbers(judged: JudgedClient) -> dict[str, float]:
    """Return the numbers in which a client reports the score that is judged."""
    ends = {} if judged.interval is None else dict(zip((LOW, HIGH), judged.interval, strict=True))
    return {JUDGED: judged.value, **ends}


def read_judged(reply: "Reply", round: int) -> JudgedClient:
    """Read the score that is judged from a reply, or raise `ReportError`."""
    value, low, high = (reply.numbers.get(name) for name in (JUDGED, LOW, HIGH))
    if value is None or not math.isfinite(value):
        problem = f"is {value}; it must be a finite number (does the client run the same udjfl?)"
        raise ReportError(reply.id, "judged score", problem, round)
    if low is None or high is None:
        return JudgedClient(value)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        problem = f"is {low} to {high}; it must go from a lower to a higher number"
        raise ReportError(reply.id, "interval of the judged score", problem, round)
    return JudgedClient(value, (low, high))


@dataclass(frozen=True)
class Reply:
    """A client's reply: the types are right, but values and shapes may be anything."""

    id: str
    tensors: dict[str, Tensor]
    numbers: dict[str, float]
    values: dict[str, Any]

    @staticmethod
    def read(
        content: RecordDict,
        client: str,
        round: int | None,
        field: str = "reply",
        allowed: Mapping[str, TensorLimit] | None = None,
    ) -> "Reply":
        """Read the reply of the node that registered as this client, or raise `ReportError`.

        `allowed` has the tensors that it may contain, by name; None: none.
        """
        try:
            values = values_of(content)
            forbidden = find_forbidden(content, allowed or {})
            tensors = {} if forbidden else tensors_of(content)
            numbers = {
                name: _number(value) for name, value in content.metric_records["metrics"].items()
            }
            if not isinstance(values["client-id"], str):
                raise TypeError("its client-id is no text")
            if len(values["client-id"]) > LONGEST_ID:
                raise ValueError(f"its client-id has more than {LONGEST_ID} characters")
        except Exception as error:  # what others send can be broken in any way
            raise ReportError(
                client,
                field,
                f"cannot be read ({type(error).__name__}: {shorten(str(error))}); "
                "does the client run the same udjfl?",
                round,
            ) from None
        if forbidden is not None:
            name = "deltas" if forbidden[0] == DELTA else forbidden[0].removeprefix(EXTRA)
            raise ReportError(client, name, forbidden[1], round)
        return Reply(values["client-id"], tensors, numbers, values)

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """Return a tensor in this dtype, if it is there."""
        tensor = self.tensors.get(name)
        return None if tensor is None else tensor.to(dtype)

    def to_client_reply(
        self, known: Mapping[str, float], extras: Collection[str], dtype: torch.dtype
    ) -> ClientReply:
        """Return the parts of `Reports` in this reply, with numbers known from registration.

        Extras are float64, but for steps of training, which have the model's dtype.
        """
        found = {
            name: self.tensor(EXTRA + name, dtype if name in CHANGES else torch.float64)
            for name in extras
        }
        reported = {name: NUMBERS[name] for name in EACH_ROUND}
        return ClientReply(
            self.id,
            self.tensor(DELTA, dtype),
            {**known, **{k: self.numbers[v] for k, v in reported.items() if v in self.numbers}},
            {name: value for name, value in found.items() if value is not None},
            self.tensor(BUFFERS, torch.float64),
        )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def read_message(
    message: Message,
    client: str,
    field: str = "reply",
    round: int | None = None,
    allowed: Mapping[str, TensorLimit] | None = None,
) -> Reply:
    """Read a client's reply; an error in its place is raised as a `ReportError` about `field`."""
    if message.has_error():
        raise ReportError(client, field, error_text(message), round)
    return Reply.read(message.content, client, round, field, allowed)


def address_message(content: RecordDict, node: int, kind: str, timeout: float) -> Message:
    """Make a message that is never delivered if it is not fetched within the timeout."""
    return Message(content, node, kind, ttl=max(timeout, 1.0))
