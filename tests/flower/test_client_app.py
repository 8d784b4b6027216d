"""What a client does with a message, and that nothing leaves it which the method did not declare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from inprocess import (
    FIRST_NODE,
    InProcessGrid,
    client_data,
    made,
    make_federation,
    played,
    with_groups,
    with_validation,
)

from udjfl import DataError, Examples, TrainingSettings
from udjfl.flower import ClientData, ServerData, client_app
from udjfl.flower import messages as wire
from udjfl.methods import ALIASES, METHODS, method

NAMES = [
    *ALIASES,
    *(name for name in METHODS if name != "udj"),
    "fedavg:weights=uniform",
    "qffl:lipschitz=paper",
]


def names_in(content: RecordDict) -> set[str]:
    """Everything that a reply says, by name, but whose it is and of which round."""
    arrays = {name.removeprefix("extra.") for name in content["arrays"]}
    return {*arrays, *content["metrics"], *content["config"]} - {"client-id", "round"}


WORDS = {"losses": "loss", "steps": "steps"}


@pytest.mark.parametrize("name", NAMES)
def test_only_what_the_method_declares_leaves_a_client(name: str) -> None:
    federation = with_validation(make_federation())
    grid = InProcessGrid(federation)
    rule = played(federation, name, grid, rounds=1).method
    seen: dict[str, set[str]] = {}
    for kind, _, _, reply in grid.log:
        seen.setdefault(kind, set()).update(names_in(reply.content))
    declared = {
        WORDS.get(what, what)
        for what in rule.asked - {"sizes", "uncertainties", "validation_accuracies"}
    }
    assert seen.pop("train") == {"delta", *declared}
    about = {"input-shape", "n-classes", "has-groups", "model"}
    assert seen.pop("query.introduce") == {
        *about,
        *(["num-examples"] if "sizes" in rule.asked else []),
    }
    assert seen.pop("evaluate") == {"test-loss", "test-accuracy"}
    if "uncertainties" in rule.asked:
        assert seen.pop("query.uncertainty") == {"uncertainty"}
    if rule.probes:
        assert seen.pop("query.probe") == {WORDS.get(what, what) for what in rule.probes}
    assert seen == {}


def test_what_groups_say_leaves_only_where_there_are_groups() -> None:
    for federation, told in (
        (make_federation(), set()),
        (with_groups(make_federation()), {"group_gaps"}),
    ):
        grid = InProcessGrid(federation)
        played(federation, "mfairfl", grid, rounds=1)
        (_, _, reply), *_ = grid.sent("train")
        assert names_in(reply.content) == {"delta", "loss", *told}


def test_each_client_gets_its_own_model_and_no_other() -> None:
    federation = with_validation(make_federation())
    grid = InProcessGrid(federation)
    strategy = played(federation, "cffl", grid, rounds=2)
    sent = {
        node: torch.from_numpy(content["arrays"]["model"].numpy())
        for node, content, _ in grid.sent("evaluate")
        if content["config"]["round"] == 2
    }
    for place in range(3):
        assert torch.equal(sent[FIRST_NODE + place], strategy.server.state["models"][place][None])


def asked(
    kind: str, data: ClientData, name: str = "rawls", model: Any = "mlp", **about: Any
) -> RecordDict:
    """A client's reply to a bare question."""
    settings = TrainingSettings(hidden=5, uncertainty_epochs=2)
    facts = wire.Facts(method(name), settings, 0).text()
    message = Message(wire.question(facts, {}, {"round": 1, **about}), 7, kind)
    return client_app(model, lambda context: data)(
        message, Context(1, 7, {}, RecordDict(), {})
    ).content


def test_the_uncertainty_is_measured_once_in_a_run() -> None:
    federation = make_federation()
    first, second = (
        client_data(federation, "client-1"),
        client_data(federation, "client-2", id="client-1"),
    )
    current = [first]
    app = client_app("mlp", lambda context: current[0])
    context = Context(1, 7, {}, RecordDict(), {})
    facts = wire.Facts(method("rawls"), TrainingSettings(hidden=5, uncertainty_epochs=2), 0).text()

    def told() -> float:
        return app(
            Message(wire.question(facts, {}, {"round": 1}), 7, "query.uncertainty"), context
        ).content["metrics"]["uncertainty"]

    value = told()
    current[0] = second  # other data
    assert told() == value
    context.state = RecordDict()  # another run
    assert told() != value


def test_a_client_does_not_tell_an_uncertainty_that_is_not_needed() -> None:
    from udjfl import SettingsError

    with pytest.raises(SettingsError, match="fedavg: does not need uncertainties"):
        asked("query.uncertainty", client_data(make_federation(), "client-1"), "fedavg")


def test_the_epistemic_part_is_told_only_to_who_asks_for_reports() -> None:
    federation = make_federation()
    changes = {"uncertainty": "ensemble", "uncertainty_models": 2, "rounds": 1}
    assert played(federation, "rawls", **changes).result.epistemic is None
    assert set(
        played(federation, "rawls", report_uncertainties=True, **changes).result.epistemic
    ) == set(federation.ids)


def test_settings_may_name_the_model() -> None:
    federation = make_federation()
    strategy = made(federation, "fedavg", model=None)
    strategy.start(
        InProcessGrid(federation, "logistic")
    )  # the app has another, and does as it is told
    assert strategy.facts.model == "mlp"
    named = client_data(federation, "client-1")
    assert "weight" in asked("query.introduce", named, model="logistic")["config"]["model"]


def test_client_data_are_checked_and_the_mistakes_name_client_and_part() -> None:
    x, y = np.zeros((3, 2)), [0, 1, 0]
    with pytest.raises(DataError) as caught:
        ClientData("a", (x, [0, 1]), (x[:0], []), 2)
    assert "client 'a', train part: x has 3 rows and y has 2 labels" in str(caught.value)
    assert "client 'a', test part: is empty" in str(caught.value)
    with pytest.raises(DataError, match="client 'a', test part: labels go from 0 to 5"):
        ClientData("a", (x, y), (x + 1, [0, 5, 0]), 2)
    with pytest.raises(
        DataError, match="client 'a', train part: 3 of 3 examples are also test examples"
    ):
        ClientData("a", (x, y), (x, y), 2)
    with pytest.raises(
        DataError, match=r"client 'a', train part: give a tuple \(x, y\); got 3 values"
    ):
        ClientData("a", (x, y, y), (x + 1, y), 2)
    with pytest.raises(DataError, match="client 'a': n_classes is 0"):
        ClientData("a", (x, y), (x + 1, y), 0)
    with pytest.raises(DataError, match="a client's id is empty"):
        ClientData("", (x, y), (x + 1, y), 2)


def test_client_data_may_be_lists_tensors_or_examples() -> None:
    made_of = [
        ([[0.0], [1.0]], [0, 1]),
        (torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1])),
        Examples(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1])),
    ]
    for train in made_of:
        data = ClientData(7, train, ([[2.0]], [0]), 2)  # type: ignore[arg-type]
        assert data.id == "7"
        assert torch.equal(data.federation.clients[0].train.x, torch.tensor([[0.0], [1.0]]))


def test_server_data_are_checked() -> None:
    x, y = np.zeros((3, 2)), [0, 1, 0]
    assert ServerData((x, y), None, (2,), 2).validation is None
    with pytest.raises(
        DataError, match=r"the global test set: one example has shape \(2,\), input_shape is \(3,\)"
    ):
        ServerData((x, y), None, (3,), 2)
    with pytest.raises(DataError, match="the server's validation set: labels go from 0 to 1"):
        ServerData(None, (x, y), (2,), 1)


def test_a_data_function_that_returns_something_else_is_named() -> None:
    with pytest.raises(DataError, match=r"returned tuple; it must return udjfl.flower.ClientData"):
        asked("query.introduce", (1, 2))  # type: ignore[arg-type]
