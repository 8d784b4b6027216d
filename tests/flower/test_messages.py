"""Everything comes out of a message as it went in."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from inprocess import make_federation

from udjfl import Plan, ReportError, SettingsError, TrainingSettings
from udjfl.flower import messages as wire
from udjfl.flower.messages import Facts, Reply
from udjfl.methods import ALIASES, METHODS, method
from udjfl.models import build


def through(content: RecordDict) -> RecordDict:
    """As the network has it: bytes."""
    arrays, config = content["arrays"], content["config"]
    records = {
        "arrays": ArrayRecord(
            {k: Array(a.dtype, a.shape, a.stype, bytes(a.data)) for k, a in arrays.items()}
        ),
        "config": ConfigRecord.inflate(config.deflate()),
    }
    if "metrics" in content:
        records["metrics"] = MetricRecord.inflate(content["metrics"].deflate())
    return RecordDict(records)


@pytest.mark.parametrize("name", [*ALIASES, *(name for name in METHODS if name != "udj")])
def test_facts_build_the_same_method_and_settings(name: str) -> None:
    facts = Facts(method(name), TrainingSettings(lr=0.123, loss_at="final"), 5, "cnn", True)
    content = through(wire.question(facts.text(), {}, {"round": 1}))
    assert Facts.read(wire.config_of(content)) == facts


def test_facts_of_another_version_are_refused_in_words() -> None:
    text = Facts(method("fedavg"), TrainingSettings(), 0).text().replace('"lr"', '"learning"')
    with pytest.raises(SettingsError, match="learning: no such setting"):
        Facts.read({"facts": text})


def test_parameters_by_client_survive() -> None:
    for rule in (
        method("udj", beta=(1.0, 2.0), gamma=0.1),
        method("udj", beta={"a": 1.0}, gamma=0.1),
    ):
        assert Facts.read({"facts": Facts(rule, TrainingSettings(), 0).text()}).method == rule


def test_tensors_keep_their_bits() -> None:
    tensors = {
        "f32": torch.tensor([0.1, -0.0, 1e-45]),
        "f64": torch.tensor([[0.1, math.pi]], dtype=torch.float64),
        "none": torch.zeros(0),
        "one": torch.tensor(2.5, dtype=torch.float64),
    }
    found = wire.unpacked(through(wire.question("{}", tensors, {})))
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
        assert found[name].shape == tensor.shape


def test_a_plan_comes_to_each_client_with_its_own_multiplier() -> None:
    plan = Plan(
        torch.tensor([0.1, 0.2], dtype=torch.float64), torch.ones(3), 0.25, one_full_step=True
    )
    content = wire.question(
        "{}", {**wire.multiplier(plan, 1), **wire.pull(plan)}, wire.plan_numbers(plan)
    )
    found = wire.read_plan(wire.unpacked(content), wire.config_of(content))
    assert torch.equal(found.multipliers, torch.tensor([0.2], dtype=torch.float64))
    assert torch.equal(found.pull, plan.pull)
    assert (found.pull_share, found.one_full_step) == (0.25, True)
    nothing = wire.question(
        "{}", {**wire.multiplier(Plan(), 0), **wire.pull(Plan())}, wire.plan_numbers(Plan())
    )
    assert wire.read_plan(wire.unpacked(nothing), wire.config_of(nothing)) == Plan()


def test_numbers_keep_their_digits_and_nan_is_told() -> None:
    reply = Reply.read(
        through(wire.answer("a", {}, {"loss": 0.1 + 0.2, "uncertainty": math.nan}, {"round": 3})),
        "a",
        3,
    )
    assert reply.numbers["loss"] == 0.1 + 0.2
    assert math.isnan(reply.numbers["uncertainty"])
    assert (reply.id, reply.about["round"]) == ("a", 3)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({}),
        RecordDict(
            {"arrays": ArrayRecord({}), "metrics": MetricRecord({}), "config": ConfigRecord({})}
        ),
        RecordDict(
            {
                "arrays": ArrayRecord({}),
                "metrics": MetricRecord({}),
                "config": ConfigRecord({"client-id": 1}),
            }
        ),
        RecordDict(
            {
                "arrays": ArrayRecord({}),
                "metrics": MetricRecord({"loss": [1.0]}),
                "config": ConfigRecord({"client-id": "a"}),
            }
        ),
        RecordDict(
            {
                "arrays": ArrayRecord(
                    {"delta": Array("float32", (3,), "numpy.ndarray", b"no array")}
                ),
                "metrics": MetricRecord({}),
                "config": ConfigRecord({"client-id": "a"}),
            }
        ),
        RecordDict(
            {
                "arrays": ArrayRecord({"delta": Array(np.array([object()]).astype("S"))}),
                "metrics": MetricRecord({}),
                "config": ConfigRecord({"client-id": "a"}),
            }
        ),
    ],
    ids=["empty", "no id", "a number for an id", "a list", "no array", "texts"],
)
def test_what_cannot_be_read_is_an_error_that_names_the_client(content: RecordDict) -> None:
    with pytest.raises(ReportError, match="client 'a' in round 2: reply cannot be read") as caught:
        Reply.read(content, "a", 2)
    assert caught.value.client == "a"


def test_pickles_are_not_opened() -> None:
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    arrays = ArrayRecord({"delta": Array("object", (1,), "numpy.ndarray", stream.getvalue())})
    content = RecordDict(
        {"arrays": arrays, "metrics": MetricRecord({}), "config": ConfigRecord({"client-id": "a"})}
    )
    with pytest.raises(ReportError, match="cannot be read"):
        Reply.read(content, "a", 1)


def test_what_is_owed_follows_the_method() -> None:
    settings = TrainingSettings()
    assert Facts(method("fedavg"), settings, 0).owed(False) == {"sizes"}
    assert Facts(method("fedavg", weights="uniform"), settings, 0).owed(False) == set()
    assert Facts(method("fedavg", weights="uniform"), settings, 0).owed(True) == {
        "sizes"
    }  # the mean of buffers needs them
    assert Facts(method("rawls"), settings, 0).owed(False) == {"losses", "steps", "uncertainties"}
    assert Facts(method("rawls", step="safe"), settings, 0).owed(False) == {
        "losses",
        "uncertainties",
    }
    assert Facts(method("fedfv"), settings, 0, report_uncertainties=True).owed(False) == {
        "losses",
        "uncertainties",
    }


def test_models_of_other_shapes_have_other_signatures() -> None:
    shape, classes = make_federation().input_shape, 3
    one, same, other = (
        build("mlp", shape, classes, seed, hidden=hidden)
        for seed, hidden in ((0, 5), (1, 5), (0, 6))
    )
    assert wire.signature(one) == wire.signature(same) != wire.signature(other)
