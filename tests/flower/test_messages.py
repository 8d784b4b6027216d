"""Messages: every value is read as it was written, and unreadable replies are reported."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, MetricRecord, RecordDict
from in_process_grid import make_federation

from udjfl import Plan, ReportError, SettingsError, TrainingSettings
from udjfl.flower import messages
from udjfl.flower.messages import Reply, read_spec, required_numbers, write_spec
from udjfl.flower.tensors import TensorLimit, pack, tensors_of, values_of
from udjfl.methods import ALIASES, METHODS, Method, method
from udjfl.models import build
from udjfl.training.state import RunSpec


def transmit(content: RecordDict) -> RecordDict:
    """Serialise a message to bytes and read it again."""
    types = {"metrics": MetricRecord}
    return RecordDict(
        {
            name: types.get(name, ConfigRecord).inflate(record.deflate())
            for name, record in content.items()
        }
    )


def make_spec(rule: Method, report_uncertainties: bool = False, **changes: Any) -> RunSpec:
    return RunSpec(rule, TrainingSettings(**changes), 5, None, report_uncertainties)


@pytest.mark.parametrize("name", [*ALIASES, *(name for name in METHODS if name != "udj")])
def test_a_spec_contains_the_method_and_all_settings(name: str) -> None:
    spec = make_spec(method(name), True, lr=0.123, loss_at="final", model="cnn")
    content = transmit(messages.make_request(write_spec(spec), b"", {"round": 1}))
    read = read_spec(content)
    assert (read.method, read.settings, read.seed) == (spec.method, spec.settings, spec.seed)
    assert (read.model, read.report_uncertainties) == ("cnn", True)


def test_a_spec_of_another_version_names_the_unknown_setting() -> None:
    text = write_spec(make_spec(method("fedavg"))).replace('"lr"', '"learning"')
    with pytest.raises(SettingsError, match="learning: no such setting"):
        read_spec(messages.make_request(text, b"", {}))


def test_a_spec_contains_parameters_by_client() -> None:
    for rule in (
        method("udj", beta=(1.0, 2.0), gamma=0.1),
        method("udj", beta={"a": 1.0}, gamma=0.1),
    ):
        content = messages.make_request(write_spec(make_spec(rule)), b"", {})
        assert read_spec(content).method == rule


def test_tensors_keep_their_bits() -> None:
    tensors = {
        "f32": torch.tensor([0.1, -0.0, 1e-45]),
        "f64": torch.tensor([[0.1, math.pi]], dtype=torch.float64),
        "none": torch.zeros(0),
        "one": torch.tensor(2.5, dtype=torch.float64),
    }
    read = tensors_of(transmit(messages.make_request("{}", pack(tensors), {})))
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
        assert read[name].shape == tensor.shape


def test_a_plan_reaches_each_client_with_its_own_multiplier() -> None:
    plan = Plan(
        multipliers=torch.tensor([0.1, 0.2], dtype=torch.float64),
        one_full_step=True,
        gradient_share=0.75,
        mu=0.5,
        anchor=torch.ones(3),
        shift=torch.tensor([[1.0, 2, 3], [4, 5, 6]]),
        personal=torch.tensor([[0.1, 0, 0], [0, 0.2, 0]]),
        personal_mu=2.0,
    )
    read = send_plan(plan, client_index=1)
    assert torch.equal(read.multipliers, torch.tensor([0.2], dtype=torch.float64))
    assert torch.equal(read.anchor, plan.anchor)
    assert torch.equal(read.shift, plan.shift[1:])
    assert torch.equal(read.personal, plan.personal[1:])
    assert (read.gradient_share, read.mu, read.personal_mu) == (0.75, 0.5, 2.0)
    assert read.one_full_step
    assert send_plan(Plan(), client_index=0) == Plan()


def send_plan(plan: Plan, client_index: int) -> Plan:
    """Return a plan as a client reads it from a message."""
    tensors = messages.shared_plan_tensors(plan) | messages.own_plan_tensors(plan, client_index)
    content = transmit(messages.make_request("{}", pack(tensors), messages.plan_values(plan)))
    return messages.read_plan(tensors_of(content), values_of(content))


def test_numbers_keep_their_digits_and_nan_is_kept() -> None:
    reply = Reply.read(
        transmit(
            messages.make_reply("a", {}, {"loss": 0.1 + 0.2, "uncertainty": math.nan}, {"round": 3})
        ),
        "a",
        3,
    )
    assert reply.numbers["loss"] == 0.1 + 0.2
    assert math.isnan(reply.numbers["uncertainty"])
    assert (reply.id, reply.values["round"]) == ("a", 3)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({}),
        RecordDict({"metrics": MetricRecord({}), "config": ConfigRecord({})}),
        RecordDict(
            {
                "metrics": MetricRecord({}),
                "config": ConfigRecord({"client-id": 1}),
            }
        ),
        RecordDict(
            {
                "metrics": MetricRecord({"loss": [1.0]}),
                "config": ConfigRecord({"client-id": "a"}),
            }
        ),
        RecordDict(
            {
                "metrics": MetricRecord({}),
                "config": ConfigRecord({"client-id": "a", "tensors": b"no tensors"}),
            }
        ),
    ],
    ids=["empty", "no id", "a number for an id", "a list", "no tensors"],
)
def test_an_unreadable_reply_is_an_error_that_names_the_client(content: RecordDict) -> None:
    with pytest.raises(ReportError, match="client 'a' in round 2: reply cannot be read") as caught:
        Reply.read(content, "a", 2, allowed={"delta": TensorLimit(torch.float32, 3)})
    assert caught.value.client == "a"


def test_pickled_arrays_are_refused() -> None:
    pickled = pickle.dumps(np.array([{"a": 1}], dtype=object))
    config = ConfigRecord({"client-id": "a", "tensors": pickled})
    content = RecordDict({"metrics": MetricRecord({}), "config": config})
    with pytest.raises(ReportError, match="cannot be read"):
        Reply.read(content, "a", 1, allowed={"delta": TensorLimit(torch.float32, 100)})


def test_clients_report_the_numbers_that_the_method_needs() -> None:
    def numbers(rule: Method, has_buffers: bool = False, **changes: Any) -> set[str]:
        return set(required_numbers(make_spec(rule, **changes), has_buffers))

    uniform = method("fedavg", weights="uniform")
    assert numbers(method("fedavg")) == {"sizes"}
    assert numbers(uniform) == set()
    assert numbers(uniform, has_buffers=True) == {"sizes"}  # the mean of buffers needs them
    assert numbers(method("rawls")) == {"losses", "steps", "uncertainties"}
    assert numbers(method("rawls", step="safe")) == {"losses", "uncertainties"}
    reported = numbers(method("fedfv"), report_uncertainties=True)
    assert reported == {"losses", "uncertainties"}


def test_models_of_other_shapes_have_other_signatures() -> None:
    shape, classes = make_federation().input_shape, 3
    one, same, other = (
        build("mlp", shape, classes, seed, hidden=hidden)
        for seed, hidden in ((0, 5), (1, 5), (0, 6))
    )
    assert (
        messages.model_signature(one)
        == messages.model_signature(same)
        != messages.model_signature(other)
    )
