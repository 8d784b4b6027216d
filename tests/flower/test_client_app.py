"""A client's replies contain only what the method declares; its data are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from in_process_grid import (
    FIRST_NODE,
    InProcessGrid,
    client_data,
    make_federation,
    make_strategy,
    run_strategy,
    tensors_of,
    with_groups,
    with_validation,
)

from udjfl import DataError, Examples, TrainingSettings
from udjfl.flower import ClientData, ServerData, client_app, messages
from udjfl.methods import ALIASES, METHODS, method
from udjfl.training.state import RunSpec

NAMES = [
    *ALIASES,
    *(name for name in METHODS if name != "udj"),
    "fedavg:weights=uniform",
    "qffl:lipschitz=paper",
]


def names_in(content: RecordDict) -> set[str]:
    """Return the names of all values in a reply, without the client's id and the round."""
    tensors = {name.removeprefix("extra.") for name in tensors_of(content)}
    texts = set(content["config"]) - {"client-id", "round", "tensors"}
    return {*tensors, *content["metrics"], *texts}


WORDS = {"losses": "loss", "steps": "steps"}


@pytest.mark.parametrize("name", NAMES)
def test_only_what_the_method_declares_leaves_a_client(name: str) -> None:
    federation = with_validation(make_federation())
    grid = InProcessGrid(federation)
    rule = run_strategy(federation, name, grid, rounds=1).spec.method
    seen: dict[str, set[str]] = {}
    for kind, _, _, reply in grid.log:
        seen.setdefault(kind, set()).update(names_in(reply.content))
    declared = {
        WORDS.get(what, what)
        for what in rule.needs - {"sizes", "uncertainties", "validation_accuracies", "model"}
    }
    assert seen.pop("train") == {"delta", *declared}
    about = {"input-shape", "input-type", "n-classes", "has-groups", "model"}
    assert seen.pop("query.introduce") == {
        *about,
        *(["num-examples"] if "sizes" in rule.needs else []),
    }
    assert seen.pop("evaluate") == {"test-loss", "test-accuracy"}
    if "uncertainties" in rule.needs:
        # A mark goes with an uncertainty that does not tell the quality of the data.
        assert seen.pop("query.uncertainty") - {"unreliable"} == {"uncertainty"}
    if rule.probes:
        assert seen.pop("query.probe") == {WORDS.get(what, what) for what in rule.probes}
    assert seen == {}


def test_group_gaps_leave_only_clients_with_groups() -> None:
    for federation, extra in (
        (make_federation(), set()),
        (with_groups(make_federation()), {"group_gaps"}),
    ):
        grid = InProcessGrid(federation)
        run_strategy(federation, "mfairfl", grid, rounds=1)
        (_, _, reply), *_ = grid.sent("train")
        assert names_in(reply.content) == {"delta", "loss", *extra}


def test_each_client_gets_its_own_model_and_no_other() -> None:
    federation = with_validation(make_federation())
    grid = InProcessGrid(federation)
    strategy = run_strategy(federation, "cffl", grid, rounds=2)
    sent = {
        node: tensors_of(content)["model"]
        for node, content, _ in grid.sent("evaluate")
        if content["config"]["round"] == 2
    }
    for index in range(3):
        assert torch.equal(
            sent[FIRST_NODE + index], strategy.log.server.state["models"][index][None]
        )


def ask_client(
    kind: str, data: ClientData, name: str = "rawls", model: Any = "mlp", **about: Any
) -> RecordDict:
    """Return a client's reply to a message without arrays."""
    settings = TrainingSettings(hidden=5, uncertainty_epochs=2)
    spec = messages.write_spec(RunSpec(method(name), settings, report_uncertainties=False))
    message = Message(messages.make_request(spec, b"", {"round": 1, **about}), 7, kind)
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
    settings = TrainingSettings(hidden=5, uncertainty_epochs=2)
    spec = messages.write_spec(RunSpec(method("rawls"), settings))

    def uncertainty() -> float:
        return app(
            Message(messages.make_request(spec, b"", {"round": 1}), 7, "query.uncertainty"), context
        ).content["metrics"]["uncertainty"]

    value = uncertainty()
    current[0] = second  # other data
    assert uncertainty() == value
    context.state = RecordDict()  # another run
    assert uncertainty() != value


def test_remarks_on_the_uncertainty_are_logged_and_only_a_mark_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = torch.arange(40.0).view(20, 2) / 40
    data = ClientData("a", (x, [1] * 20), (x + 1, [1] * 20), 3)
    with caplog.at_level("WARNING", "udjfl"):
        reply = ask_client("query.uncertainty", data)
    assert set(reply["metrics"]) == {"uncertainty", "unreliable"}
    one_class, tiny = (record.getMessage() for record in caplog.records)
    assert one_class.startswith("The uncertainty of this client's data: One class only")
    assert "So few examples" in tiny


def test_a_client_refuses_to_send_an_uncertainty_that_is_not_needed() -> None:
    from udjfl import SettingsError

    with pytest.raises(SettingsError, match="fedavg: does not need uncertainties"):
        ask_client("query.uncertainty", client_data(make_federation(), "client-1"), "fedavg")


def test_the_epistemic_part_is_sent_only_with_report_uncertainties() -> None:
    federation = make_federation()
    changes = {"uncertainty": "ensemble", "uncertainty_models": 2, "rounds": 1}
    assert run_strategy(federation, "rawls", **changes).result.epistemic is None
    assert set(
        run_strategy(federation, "rawls", report_uncertainties=True, **changes).result.epistemic
    ) == set(federation.ids)


def test_the_model_in_the_settings_replaces_the_apps() -> None:
    federation = make_federation()
    strategy = make_strategy(federation, "fedavg", model=None)
    strategy.start(InProcessGrid(federation, "logistic"))  # the settings win over the app's model
    assert (strategy.spec.model, strategy.spec.settings.model) == (None, "mlp")
    named = client_data(federation, "client-1")
    assert "weight" in ask_client("query.introduce", named, model="logistic")["config"]["model"]


def test_mistakes_in_client_data_name_the_client_and_the_part() -> None:
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
    with pytest.raises(DataError, match="client 'a': n_classes is -1"):
        ClientData("a", (x, y), (x + 1, y), -1)
    with pytest.raises(DataError, match="a client's id is empty"):
        ClientData("", (x, y), (x + 1, y), 2)


def test_client_data_may_be_lists_tensors_or_examples() -> None:
    equal_parts = [
        ([[0.0], [1.0]], [0, 1]),
        (torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1])),
        Examples(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1])),
    ]
    for train in equal_parts:
        data = ClientData(7, train, ([[2.0]], [0]), 2)  # type: ignore[arg-type]
        assert data.id == "7"
        assert torch.equal(data.federation.clients[0].train.x, torch.tensor([[0.0], [1.0]]))


def test_mistakes_in_server_data_name_the_part() -> None:
    x, y = np.zeros((3, 2)), [0, 1, 0]
    assert ServerData((x, y), None, (2,), 2).validation is None
    with pytest.raises(
        DataError, match=r"the global test set: one example has shape \(2,\), input_shape is \(3,\)"
    ):
        ServerData((x, y), None, (3,), 2)
    with pytest.raises(DataError, match="the server's validation set: labels go from 0 to 1"):
        ServerData(None, (x, y), (2,), 1)


def test_a_data_function_with_a_wrong_return_type_is_reported() -> None:
    with pytest.raises(DataError, match=r"returned tuple; it must return udjfl.flower.ClientData"):
        ask_client("query.introduce", (1, 2))  # type: ignore[arg-type]
