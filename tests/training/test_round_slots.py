"""The slots of a method in the round: each is filled by a method whose effect is known."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import (
    Stopped,
    make_federation,
    rising_uncertainties,
    stop_after,
    train_briefly,
)
from torch import Tensor, nn

import udjfl
from udjfl.errors import SettingsError
from udjfl.methods import METHODS, SERVER_SIDE, Plan, ServedModels, declared_needs, weighted_sum
from udjfl.methods.base import EXTRAS
from udjfl.models import Mixture, build, to_vector
from udjfl.training.run_folder import RunFolder


class Plain(udjfl.Method):
    """The mean of the updates; records the reports it gets, in `seen`."""

    name: ClassVar[str] = "plain"
    title: ClassVar[str] = "Plain"
    paper: ClassVar[str] = "none"
    grade: ClassVar[Any] = "verified"

    def aggregate(self, state: Any, reports: udjfl.Reports) -> Any:
        seen.append(reports)
        return (
            state,
            weighted_sum(torch.full((len(reports),), 1 / len(reports)), reports.deltas),
            {},
        )


seen: list[udjfl.Reports] = []


@pytest.fixture(autouse=True)
def _forget_reports() -> None:
    seen.clear()


def make_method(kind: type[udjfl.Method], **attributes: Any) -> udjfl.Method:
    """Make a method of a subclass with these slots."""
    return udjfl.parameters(type(kind.__name__, (kind,), attributes))()


def adapt_to_regression(self: Any, module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Return logistic regression with numbers drawn from the generator, for `adapt`."""
    linear = nn.Linear(4, 3)
    with torch.no_grad():
        for p in linear.parameters():
            p.copy_(torch.rand(p.shape, generator=generator))
    return nn.Sequential(nn.Flatten(), linear)


def model_vector(result: udjfl.Result) -> Tensor:
    return to_vector(result.model)


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


def test_a_method_may_train_another_network(federation: udjfl.Federation) -> None:
    """It trains logistic regression; the uncertainties are still those of the chosen model."""
    method = make_method(Plain, adapt=adapt_to_regression)
    first, again = train_briefly(federation, method), train_briefly(federation, method)
    assert len(model_vector(first)) == 15
    assert torch.equal(model_vector(first), model_vector(again))
    assert first.uncertainty == train_briefly(federation, "fedavg").uncertainty
    other_seed = train_briefly(federation, method, seed=1, rounds=1)
    assert not torch.equal(
        model_vector(other_seed), model_vector(train_briefly(federation, method, rounds=1))
    )


# --- selection


def test_a_method_may_select_the_clients(federation: udjfl.Federation) -> None:
    calls: list[tuple[int, int]] = []

    def select(
        self: Any, state: Any, n_clients: int, count: int, generator: np.random.Generator
    ) -> list[int]:
        calls.append((n_clients, count))
        return [2, 0]

    train_briefly(federation, make_method(Plain, select=select), participation=0.67)
    assert calls == [(3, 2)] * 3
    assert [reports.ids for reports in seen] == [("client-1", "client-3")] * 3
    assert [reports.client_indices.tolist() for reports in seen] == [[0, 2]] * 3


def test_with_full_participation_nothing_is_selected(federation: udjfl.Federation) -> None:
    train_briefly(
        federation, make_method(Plain, select=lambda *_: pytest.fail("nothing to select"))
    )
    assert len(seen[0]) == 3


# --- local training


def test_a_method_may_change_the_local_objective(federation: udjfl.Federation) -> None:
    """Half the loss at twice the learning rate is the plain mean again."""

    def objective(
        self: Any, losses: Tensor, weights: Tensor, groups: Any, multipliers: Any
    ) -> Tensor:
        return 0.5 * (losses * weights).sum(dim=1)

    half = train_briefly(federation, make_method(Plain, objective=objective), lr=0.2)
    torch.testing.assert_close(
        model_vector(half),
        model_vector(train_briefly(federation, make_method(Plain))),
        rtol=1e-4,
        atol=1e-5,
    )


def test_multipliers_go_to_the_clients_they_are_for(federation: udjfl.Federation) -> None:
    """Client 2 has multiplier 0 and does not move; client 1 is not asked, so client 2 is row 0."""

    def objective(
        self: Any, losses: Tensor, weights: Tensor, groups: Any, multipliers: Tensor
    ) -> Tensor:
        return multipliers * (losses * weights).sum(dim=1)

    slots = {
        "objective": objective,
        "plan": lambda self, state, probe: (
            state,
            Plan(multipliers=torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)),
        ),
        "select": lambda self, state, n, count, generator: [1, 2],
    }
    for engine in ("serial", "stacked", "mapped"):
        train_briefly(
            federation, make_method(Plain, **slots), participation=0.67, rounds=1, engine=engine
        )
    for reports in seen:
        assert reports.ids == ("client-2", "client-3")
        assert torch.equal(reports.deltas[0], torch.zeros_like(reports.deltas[0]))
        assert reports.deltas[1].abs().max() > 0


def test_one_full_step_is_a_step_along_the_gradient(federation: udjfl.Federation) -> None:
    plan = {
        "plan": lambda self, state, probe: (state, Plan(one_full_step=True)),
        "needs": frozenset({"gradients"}),
    }
    train_briefly(federation, make_method(Plain, **plan), rounds=1, batch_size=4, local_epochs=3)
    torch.testing.assert_close(
        seen[0].deltas.double() / 0.1, seen[0].extras["gradients"], rtol=1e-3, atol=1e-5
    )
    assert seen[0].steps.tolist() == [1, 1, 1]
    assert (seen[0].lr, seen[0].momentum) == (0.1, 0.0)


def plan_of(**changes: Any) -> dict[str, Any]:
    """Return the slot `plan` of a method that plans the same in every round."""
    return {"plan": lambda self, state, probe: (state, Plan(**changes))}


def test_a_correction_reaches_the_clients_by_their_index(federation: udjfl.Federation) -> None:
    """Without the gradient one step on all examples is lr times the client's own shift."""
    shift = torch.arange(3.0)[:, None].expand(3, 46) + 1  # of an mlp 4-5-3
    slots = plan_of(gradient_share=0.0, shift=shift)
    train_briefly(
        federation, make_method(Plain, **slots), rounds=6, batch_size=100, participation=0.67
    )
    for reports in seen:
        expected = 0.1 * (reports.client_indices + 1.0)
        assert reports.deltas[:, 0].tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    assert len({tuple(reports.client_indices.tolist()) for reports in seen}) > 1


def test_personal_models_train_on_the_same_batches(federation: udjfl.Federation) -> None:
    """From the received model, and not drawn to it, the change is that of the common model."""

    def plan(self: Any, state: Any, probe: Any) -> Any:
        return state, Plan(personal=state["model"].repeat(3, 1))

    slots = {"plan": plan, "init": lambda self, setup: {"model": setup.model}}
    needs = {"needs": frozenset({"personal_deltas"})}
    train_briefly(federation, make_method(Plain, **slots, **needs), rounds=1)
    torch.testing.assert_close(seen[0].extras["personal_deltas"], seen[0].deltas)


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({"multipliers": torch.ones(2)}, "multipliers of shape [2]; it must be [3]"),
        ({"mu": 1.0, "anchor": torch.ones(2, 46)}, "anchor of shape [2, 46]"),
        ({"shift": torch.ones(45)}, "shift of shape [45]; it must be [46] or [3, 46]"),
        ({"personal": torch.ones(46)}, "personal of shape [46]; it must be [3, 46]"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(reversed(value)),
)
def test_a_plan_with_a_wrong_shape_is_refused(
    federation: udjfl.Federation, changes: dict[str, Any], shape: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(shape)):
        train_briefly(federation, make_method(Plain, **plan_of(**changes)), rounds=1)


def test_a_plan_can_build_on_a_probe(federation: udjfl.Federation) -> None:
    """The plan replaces the gradient by the probed mean gradient: one step of lr times that."""

    def plan(self: Any, state: Any, probe: udjfl.Reports) -> Any:
        assert torch.equal(probe.deltas, torch.zeros_like(probe.deltas))
        assert probe.losses.min() > 0.5
        return {"probed": state["probed"] + 1}, Plan(
            shift=probe.extras["gradients"].mean(dim=0), gradient_share=0.0
        )

    slots = {
        "probes": frozenset({"losses", "gradients"}),
        "plan": plan,
        "init": lambda self, setup: {"probed": torch.zeros(())},
        "needs": frozenset({"gradients"}),
    }
    result = train_briefly(
        federation, make_method(Plain, **slots), rounds=1, batch_size=100, momentum=0.0
    )
    expected = 0.1 * seen[0].extras["gradients"].mean(dim=0)
    for row in range(3):
        torch.testing.assert_close(seen[0].deltas[row].double(), expected, rtol=1e-3, atol=1e-6)
    assert result.history.series("test_loss")[1] is not None


def test_a_client_with_an_unusable_probe_is_excluded() -> None:
    federation = make_federation()
    federation.clients[1].train.x[:] = float("inf")  # after the federation was checked
    slots = {"probes": frozenset({"losses", "gradients"})}
    result = train_briefly(
        federation,
        make_method(Plain, **slots),
        on_bad_report="exclude",
        uncertainty=dict.fromkeys(federation.ids, 0.1),
        rounds=1,
    )
    assert seen[0].ids == ("client-1", "client-3")
    assert list(result.history.by_client("excluded", 1)) == ["client-2"]


# --- own models of clients


class Own(Plain):
    """Each client trains a model of its own and nothing is shared."""

    def init(self, setup: udjfl.Setup) -> dict[str, Tensor]:
        return {"models": setup.model.repeat(len(setup), 1)}

    def initial_models(self, state: Any, client_indices: Tensor) -> Tensor:
        return state["models"][client_indices]

    def aggregate(self, state: Any, reports: udjfl.Reports) -> Any:
        models = state["models"].clone()
        models[reports.client_indices] -= reports.deltas
        _, step, notes = super().aggregate(state, reports)
        return {"models": models}, step, notes

    def served(self, state: Any, model: Tensor) -> ServedModels:
        return ServedModels(state["models"], torch.eye(len(state["models"])))


def test_clients_with_models_of_their_own_train_alone(federation: udjfl.Federation) -> None:
    """Client 3's model is that of a federation of client 3 alone."""
    result = train_briefly(federation, make_method(Own))
    alone = udjfl.Federation(
        "alone", (federation.clients[2],), federation.test, federation.class_names
    )
    model = train_briefly(alone, "fedavg")
    torch.testing.assert_close(
        to_vector(result.model_for("client-3")), model_vector(model), rtol=1e-4, atol=1e-5
    )
    assert result.client_scores["client-3"] == model.client_scores["client-3"]
    assert not torch.equal(model_vector(result), to_vector(result.model_for("client-1")))
    assert result.global_accuracy is not None


def test_own_models_of_clients_are_saved(tmp_path: Path, federation: udjfl.Federation) -> None:
    result = train_briefly(federation, make_method(Own), out=tmp_path / "run")
    saved = load_file(tmp_path / "run" / "served.safetensors")
    assert torch.equal(saved["models"][1], to_vector(result.model_for("client-2")))
    assert torch.equal(saved["shares"], torch.eye(3))
    with pytest.raises(SettingsError, match="Did you mean 'client-1'"):
        result.model_for("client1")


class Pair(Plain):
    """Two models; client 1 uses the first, client 2 the second, client 3 the mean of both."""

    needs = frozenset({"losses_of_each"})
    global_model = False
    n_models = 2

    def served(self, state: Any, model: Tensor) -> ServedModels:
        return ServedModels(model.view(2, -1), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]))


def test_several_models_are_trained_side_by_side(federation: udjfl.Federation) -> None:
    """The first is trained as if it were alone; a client's loss is that of what it uses."""
    result = train_briefly(federation, make_method(Pair))
    single = train_briefly(federation, make_method(Plain))
    torch.testing.assert_close(
        to_vector(result.model_for("client-1")), model_vector(single), rtol=1e-4, atol=1e-5
    )
    first = seen[0]
    assert first.deltas.shape == (3, 2 * len(model_vector(single)))
    assert first.steps.tolist() == [1, 1, 1]
    each = first.extras["losses_of_each"]
    assert each.shape == (3, 2)
    torch.testing.assert_close(first.losses, torch.stack([each[0, 0], each[1, 1], each[2].mean()]))
    start = first.model.view(2, -1)
    assert not torch.equal(start[0], start[1])  # drawn independently


def test_without_a_global_model_there_is_no_global_accuracy(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    result = train_briefly(federation, make_method(Pair), out=tmp_path / "run")
    assert result.global_accuracy is None
    assert result.metrics["global_accuracy"] is None
    assert "no single model" in result.undefined["global_accuracy"]
    assert result.history.series("test_accuracy") == {1: None, 2: None, 3: None}
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert set(result.client_scores) == set(federation.ids)


def test_a_mixture_gives_the_evaluated_predictions(federation: udjfl.Federation) -> None:
    result = train_briefly(federation, make_method(Pair))
    mixture = result.model_for("client-3")
    assert isinstance(mixture, Mixture)
    test = federation.clients[2].test
    with torch.no_grad():
        right = (mixture(test.x).argmax(dim=1) == test.y).to(torch.float64).mean()
        members = [
            result.model_for(name)(test.x).softmax(dim=1) for name in ("client-1", "client-2")
        ]
        torch.testing.assert_close(mixture(test.x).exp(), (members[0] + members[1]) / 2)
    assert result.client_scores["client-3"] == pytest.approx(100 * float(right))


def test_methods_with_several_models_refuse_buffers(federation: udjfl.Federation) -> None:
    def build_with_batch_norm() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

    for kind in (Own, Pair):
        with pytest.raises(SettingsError, match="buffers"):
            train_briefly(federation, make_method(kind), model=build_with_batch_norm)


@pytest.mark.parametrize("kind", [Own, Pair])
def test_a_stopped_run_with_several_models_resumes(
    tmp_path: Path, federation: udjfl.Federation, kind: type[udjfl.Method]
) -> None:
    method, settings = (
        make_method(kind),
        {"rounds": 4, "checkpoint_every": 1, "participation": 0.67},
    )
    whole = train_briefly(federation, method, **settings)

    with pytest.raises(Stopped):
        train_briefly(
            federation, method, out=tmp_path / "run", on_progress=stop_after(2), **settings
        )
    resumed = train_briefly(federation, method, out=tmp_path / "run", resume=True, **settings)
    assert resumed.history.records == whole.history.records
    assert torch.equal(resumed.served.models, whole.served.models)


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


def test_the_state_of_a_plan_is_passed_to_the_next_round(federation: udjfl.Federation) -> None:
    counts: list[float] = []

    def plan(self: Any, state: Any, probe: Any) -> Any:
        counts.append(float(state["count"]))
        return {"count": state["count"] + 1}, Plan()

    train_briefly(
        federation,
        make_method(Plain, plan=plan, init=lambda self, setup: {"count": torch.zeros(())}),
    )
    assert counts == [0.0, 1.0, 2.0]


def test_after_an_exclusion_at_the_probe_clients_train_their_own_models() -> None:
    """Client 2 is excluded; client 3 starts from its own model, not from client 2's."""
    federation = make_federation()
    federation.clients[1].train.x[:] = float("inf")

    def init(self: Any, setup: udjfl.Setup) -> dict[str, Tensor]:
        return {"models": torch.stack([setup.model * scale for scale in (1.0, 2.0, 3.0)])}

    method = make_method(Own, init=init, probes=frozenset({"losses"}), needs=frozenset({"losses"}))
    how = {
        "on_bad_report": "exclude",
        "uncertainty": dict.fromkeys(federation.ids, 0.1),
        "rounds": 1,
    }
    train_briefly(federation, method, **how)
    assert seen[0].ids == ("client-1", "client-3")
    module = build("mlp", (4,), 3, seed=0, hidden=5)
    nn.utils.vector_to_parameters(3 * to_vector(module), module.parameters())
    third = federation.clients[2].train
    assert float(seen[0].losses[1]) == pytest.approx(
        nn.functional.cross_entropy(module(third.x), third.y).item(), rel=1e-5
    )


def test_each_of_several_models_is_adapted_with_its_own_stream(
    federation: udjfl.Federation,
) -> None:
    """`adapt` draws other numbers for each model."""
    train_briefly(federation, make_method(Pair, adapt=adapt_to_regression), rounds=1)
    first, second = seen[0].model.view(2, -1)
    assert not torch.equal(first, second)


def test_a_model_with_share_zero_is_not_part_of_a_mixture(federation: udjfl.Federation) -> None:
    shares = torch.tensor([[0.0, 1.0], [0.25, 0.75], [1.0, 0.0]])
    served = make_method(
        Pair, served=lambda self, state, model: ServedModels(model.view(2, -1), shares)
    )
    result = train_briefly(federation, served)
    assert torch.equal(to_vector(result.model_for("client-1")), result.served.models[1])
    assert torch.equal(to_vector(result.model_for("client-3")), result.served.models[0])
    mixture = result.model_for("client-2")
    torch.testing.assert_close(mixture.log_shares.exp(), torch.tensor([0.25, 0.75]))


@pytest.mark.parametrize("indices", [[], [7], [0, 0], [-1]])
def test_a_wrong_selection_is_refused(federation: udjfl.Federation, indices: list[int]) -> None:
    with pytest.raises(SettingsError, match="plain: select returned the indices"):
        train_briefly(federation, make_method(Plain, select=lambda *_: indices), participation=0.67)


def test_initial_models_of_the_wrong_shape_are_refused(federation: udjfl.Federation) -> None:
    with pytest.raises(SettingsError, match="plain: initial_models returned shape"):
        train_briefly(
            federation,
            make_method(
                Plain, initial_models=lambda self, state, client_indices: torch.zeros(2, 2)
            ),
        )


def test_several_models_with_probes_are_refused(federation: udjfl.Federation) -> None:
    with pytest.raises(SettingsError, match="only losses_of_each"):
        train_briefly(federation, make_method(Pair, needs=frozenset({"gradients"})))


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


def test_what_plan_returns_is_checked_and_told_in_words() -> None:
    method = make_method(Plain, plan=lambda self, state, probe: state)
    with pytest.raises(SettingsError, match="Plain: plan returned a dict; return"):
        train_briefly(make_federation(), method)


@pytest.mark.parametrize("size", [3.5e38, -3.4e38])
def test_a_step_or_a_model_that_float32_cannot_hold_stops_the_run(size: float) -> None:
    """The first becomes infinite when it is cast, the model in round 2 by the second."""

    def aggregate(self: Any, state: Any, reports: udjfl.Reports) -> Any:
        return state, torch.full((reports.deltas.shape[1],), size, dtype=torch.float64), {}

    what = "step" if size > 0 else "model"
    with pytest.raises(udjfl.UdjflError, match=rf"{what} is not finite in round|NaN or infinite"):
        train_briefly(make_federation(), make_method(Plain, aggregate=aggregate))
