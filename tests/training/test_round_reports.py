"""What a method receives and returns: extras, notes, scores of the server, and mistakes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_methods import Plain, make_method, model_vector, seen
from small_runs import make_federation, rising_uncertainties, train_briefly
from torch import Tensor, nn

import udjfl
from udjfl.errors import SettingsError
from udjfl.methods import METHODS, SERVER_SIDE, declared_needs, weighted_sum
from udjfl.methods.base import EXTRAS
from udjfl.models import build, to_vector
from udjfl.training.run_folder import RunFolder


@pytest.fixture(autouse=True)
def _forget_reports() -> None:
    seen.clear()


# --- what clients report


def test_extras_that_are_not_declared_are_not_computed(federation: udjfl.Federation) -> None:
    train_briefly(federation, make_method(Plain), rounds=1)
    assert seen[0].extras == {}


@pytest.mark.parametrize(
    "name",
    sorted(
        set(EXTRAS)
        - {"validation_accuracies", "group_gaps", "group_gap_gradients", "personal_deltas"}
    ),
)
def test_a_declared_extra_has_its_shape(federation: udjfl.Federation, name: str) -> None:
    train_briefly(federation, make_method(Plain, needs=frozenset({name})), rounds=1)
    d = seen[0].deltas.shape[1]
    sizes = {"[N]": (3,), "[N, D]": (3, d), "[N, M]": (3, 1)}
    assert set(seen[0].extras) == {name}
    assert seen[0].extras[name].shape == sizes[EXTRAS[name].partition("]")[0] + "]"]


def test_extras_are_of_the_received_model(federation: udjfl.Federation) -> None:
    """In round 1 that is the initial model, so the extras can be computed from it."""
    train_briefly(
        federation,
        make_method(Plain, needs=frozenset({"accuracies", "gradients", "gradient_norms"})),
        rounds=1,
    )
    module = build("mlp", (4,), 3, seed=0, hidden=5)
    for row, client in enumerate(federation.clients):
        logits = module(client.train.x)
        assert (
            seen[0].extras["accuracies"][row]
            == (logits.argmax(dim=1) == client.train.y).to(torch.float64).mean()
        )
        loss = nn.functional.cross_entropy(logits, client.train.y)
        gradient = torch.cat(
            [g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))]
        ).to(torch.float64)
        torch.testing.assert_close(seen[0].extras["gradients"][row], gradient, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(
            seen[0].extras["gradient_norms"][row], gradient.norm(), rtol=1e-4, atol=1e-6
        )


def add_groups(federation: udjfl.Federation) -> udjfl.Federation:
    clients = tuple(
        udjfl.Client(
            c.id, udjfl.Examples(c.train.x, c.train.y, (c.train.x[:, 0] > 0).long()), c.test
        )
        for c in federation.clients
    )
    return udjfl.Federation(federation.name, clients, federation.test, federation.class_names)


def test_extras_of_groups_are_computed_where_there_are_groups(federation: udjfl.Federation) -> None:
    method = make_method(Plain, needs_groups=frozenset({"group_gaps", "group_gap_gradients"}))
    train_briefly(federation, method, rounds=1)
    train_briefly(add_groups(federation), method, rounds=1)
    assert seen[0].extras == {}
    assert set(seen[1].extras) == {"group_gaps", "group_gap_gradients"}
    assert (seen[1].extras["group_gaps"] > 0).all()


def test_reports_contain_the_servers_model(federation: udjfl.Federation) -> None:
    result = train_briefly(federation, make_method(Plain), rounds=2)
    assert torch.equal(seen[0].model, to_vector(build("mlp", (4,), 3, seed=0, hidden=5)))
    step = weighted_sum(torch.full((3,), 1 / 3), seen[1].deltas)
    assert torch.equal(seen[1].model - step, model_vector(result))


# --- before training


def test_init_receives_the_federation(federation: udjfl.Federation) -> None:
    setups: list[udjfl.Setup] = []

    def init(self: Any, setup: udjfl.Setup) -> dict[str, Tensor]:
        setups.append(setup)
        return {}

    method = make_method(Plain, init=init, notes=lambda self, setup: [f"{len(setup)} clients"])
    result = train_briefly(
        federation,
        method,
        participation=0.5,
        drop_out=0.1,
        uncertainty=rising_uncertainties(federation),  # of which there is nothing to note
    )
    (setup,) = setups
    assert (setup.ids, setup.sizes.tolist()) == (federation.ids, [24, 29, 34])
    assert (setup.participation, setup.drop_out, setup.everyone_answers) == (0.5, 0.1, False)
    assert (setup.has_groups, setup.has_validation) == (False, False)
    # Hidden weights and biases; directions, scales and biases of the output.
    assert list(setup.layers) == [20, 5, 15, 3, 3]
    assert len(setup.model) == sum(setup.layers)
    assert result.notes == ["3 clients"]
    train_briefly(add_groups(federation), method)
    assert setups[1].has_groups


def test_notes_are_in_the_result_file_and_in_the_table(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    from rich.console import Console

    from udjfl.report.comparison_table import result_view

    result = train_briefly(
        federation,
        make_method(Plain, notes=lambda self, setup: ["Mind the step."]),
        out=tmp_path / "run",
        uncertainty=rising_uncertainties(federation),
    )
    assert RunFolder(tmp_path / "run").read_json("result.json")["notes"] == ["Mind the step."]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(result_view(result))
    assert "Mind the step." in console.export_text()


def test_the_default_loss_is_received_if_the_method_reads_it(federation: udjfl.Federation) -> None:
    """Otherwise it is the running loss, which costs nothing."""
    of = {
        at: train_briefly(federation, make_method(Plain), loss_at=at).history
        for at in ("auto", "running", "received")
    }
    assert of["auto"].records == of["running"].records != of["received"].records
    using = make_method(Plain, needs=frozenset({"losses"}))
    of = {
        at: train_briefly(federation, using, loss_at=at).history
        for at in ("auto", "running", "received")
    }
    assert of["auto"].records == of["received"].records != of["running"].records


# --- the server's validation data


class Scored(Plain):
    needs = frozenset({"validation_accuracies"})

    def models_to_score(self, state: Any, reports: udjfl.Reports) -> Tensor:
        return reports.model - reports.deltas


def test_the_server_scores_the_models_a_method_names(federation: udjfl.Federation) -> None:
    validation = udjfl.Examples(federation.test.x + 0.5, federation.test.y)
    own = udjfl.Federation(
        federation.name,
        federation.clients,
        federation.test,
        federation.class_names,
        validation=validation,
    )
    train_briefly(own, make_method(Scored), rounds=1)
    module = build("mlp", (4,), 3, seed=0, hidden=5)
    for row, model in enumerate(seen[0].model - seen[0].deltas):
        nn.utils.vector_to_parameters(model, module.parameters())
        right = (module(validation.x).argmax(dim=1) == validation.y).to(torch.float64).mean()
        assert seen[0].extras["validation_accuracies"][row] == right


def test_without_validation_data_the_clients_train_data_are_used(
    federation: udjfl.Federation,
) -> None:
    train_briefly(federation, make_method(Scored), rounds=1)
    module = build("mlp", (4,), 3, seed=0, hidden=5)
    everything = udjfl.Examples.concatenate([client.train for client in federation.clients])
    nn.utils.vector_to_parameters(seen[0].model - seen[0].deltas[0], module.parameters())
    right = (module(everything.x).argmax(dim=1) == everything.y).to(torch.float64).mean()
    assert seen[0].extras["validation_accuracies"][0] == right


def test_a_method_without_models_to_score_is_an_error(federation: udjfl.Federation) -> None:
    with pytest.raises(NotImplementedError, match="has to say of which models"):
        train_briefly(federation, make_method(Plain, needs=frozenset({"validation_accuracies"})))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_declare_only_fields_of_reports(name: str) -> None:
    cls = METHODS[name]
    known = {*EXTRAS, *SERVER_SIDE, "losses", "sizes", "steps", "uncertainties"}
    assert declared_needs(cls) or name == "feddyn"  # which reads the updates alone
    assert {*declared_needs(cls), *cls.needs_groups, *cls.probes} <= known


# --- mistakes of a method


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "a NoneType in place of (state, step, diagnostics)"),
        (({}, torch.zeros(1)), "a tuple in place of"),
        (([], torch.zeros(1), {}), "a list as state"),
        (({"a": 1.0}, torch.zeros(1), {}), "a dict as state"),
        (({}, [0.0], {}), "a list as step"),
        (({}, torch.zeros(1, dtype=torch.int64), {}), r"a tensor of torch.int64 \[1\] as step"),
        (({}, torch.zeros(1, dtype=torch.complex64), {}), "as step"),
        (({}, torch.zeros(1), None), "a NoneType as diagnostics"),
        (({}, torch.zeros(1), {"a": 1.0}), "a dict as diagnostics"),
        (({}, torch.zeros(1), {"a": torch.zeros(2)}), "as diagnostic 'a'"),
    ],
)
def test_what_aggregate_returns_is_checked_and_told_in_words(returned: Any, words: str) -> None:
    method = make_method(Plain, aggregate=lambda self, state, reports: returned)
    with pytest.raises(
        SettingsError, match=rf"Plain: aggregate returned .*{words.split(' in ')[0]}"
    ):
        train_briefly(make_federation(), method)


@pytest.mark.parametrize("size", [3.5e38, -3.4e38])
def test_a_step_or_a_model_that_float32_cannot_hold_stops_the_run(size: float) -> None:
    """The first becomes infinite when it is cast, the model in round 2 by the second."""

    def aggregate(self: Any, state: Any, reports: udjfl.Reports) -> Any:
        return state, torch.full((reports.deltas.shape[1],), size, dtype=torch.float64), {}

    what = "step" if size > 0 else "model"
    with pytest.raises(udjfl.UdjflError, match=rf"{what} is not finite in round|NaN or infinite"):
        train_briefly(make_federation(), make_method(Plain, aggregate=aggregate))
