"""The slots of a method in the round loop: each is filled by a small method whose effect can be told by hand."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from conftest import few_rounds, make_federation
from safetensors.torch import load_file
from torch import Tensor, nn

import udjfl
from udjfl.errors import SettingsError
from udjfl.methods import METHODS, Plan, ServedModels, weighted_sum
from udjfl.methods.base import EXTRAS
from udjfl.models import Mixture, build, to_vector
from udjfl.training.run_folder import RunFolder


class Plain(udjfl.Method):
    """The mean of the updates; keeps what it was told, for the tests to look at."""

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
def _nothing_seen() -> None:
    seen.clear()


def made(kind: type[udjfl.Method], **attributes: Any) -> udjfl.Method:
    """A method class with these slots, made ready for use."""
    return udjfl.parameters(type(kind.__name__, (kind,), attributes))()


def to_drawn_regression(self: Any, module: nn.Module, generator: torch.Generator) -> nn.Module:
    """For `adapt`: logistic regression, whatever was asked for, with numbers from the generator."""
    linear = nn.Linear(4, 3)
    with torch.no_grad():
        for p in linear.parameters():
            p.copy_(torch.rand(p.shape, generator=generator))
    return nn.Sequential(nn.Flatten(), linear)


def vector(result: udjfl.Result) -> Tensor:
    return to_vector(result.model)


# --- what clients are asked for


def test_nothing_is_computed_that_is_not_declared(federation: udjfl.Federation) -> None:
    few_rounds(federation, made(Plain), rounds=1)
    assert seen[0].extras == {}


@pytest.mark.parametrize(
    "name", sorted(set(EXTRAS) - {"validation_accuracies", "group_gaps", "group_gap_gradients"})
)
def test_what_is_declared_arrives_in_its_shape(federation: udjfl.Federation, name: str) -> None:
    few_rounds(federation, made(Plain, needs=frozenset({name})), rounds=1)
    d = seen[0].deltas.shape[1]
    sizes = {"[N]": (3,), "[N, D]": (3, d), "[N, M]": (3, 1)}
    assert set(seen[0].extras) == {name}
    assert seen[0].extras[name].shape == sizes[EXTRAS[name].partition("]")[0] + "]"]


def test_extras_are_of_the_received_model(federation: udjfl.Federation) -> None:
    """In round 1 that is the initial model, so everything can be computed from it again."""
    few_rounds(
        federation,
        made(Plain, needs=frozenset({"accuracies", "gradients", "gradient_norms"})),
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


def with_groups(federation: udjfl.Federation) -> udjfl.Federation:
    clients = tuple(
        udjfl.Client(
            c.id, udjfl.Examples(c.train.x, c.train.y, (c.train.x[:, 0] > 0).long()), c.test
        )
        for c in federation.clients
    )
    return udjfl.Federation(federation.name, clients, federation.test, federation.class_names)


def test_groups_are_asked_for_where_there_are_groups(federation: udjfl.Federation) -> None:
    method = made(Plain, needs_groups=frozenset({"group_gaps", "group_gap_gradients"}))
    few_rounds(federation, method, rounds=1)
    few_rounds(with_groups(federation), method, rounds=1)
    assert seen[0].extras == {}
    assert set(seen[1].extras) == {"group_gaps", "group_gap_gradients"}
    assert (seen[1].extras["group_gaps"] > 0).all()


def test_the_server_knows_its_model(federation: udjfl.Federation) -> None:
    result = few_rounds(federation, made(Plain), rounds=2)
    assert torch.equal(seen[0].model, to_vector(build("mlp", (4,), 3, seed=0, hidden=5)))
    step = weighted_sum(torch.full((3,), 1 / 3), seen[1].deltas)
    assert torch.equal(seen[1].model - step, vector(result))


# --- before training


def test_init_is_told_about_the_federation(federation: udjfl.Federation) -> None:
    told: list[udjfl.Setup] = []

    def init(self: Any, setup: udjfl.Setup) -> dict[str, Tensor]:
        told.append(setup)
        return {}

    method = made(Plain, init=init, notes=lambda self, setup: [f"{len(setup)} clients"])
    result = few_rounds(federation, method, participation=0.5, drop_out=0.1)
    (setup,) = told
    assert (setup.ids, setup.sizes.tolist()) == (federation.ids, [24, 29, 34])
    assert (setup.participation, setup.drop_out, setup.everyone_answers) == (0.5, 0.1, False)
    assert (setup.has_groups, setup.has_validation) == (False, False)
    assert list(setup.layers) == [
        20,
        5,
        15,
        3,
        3,
    ]  # hidden weights and biases; directions, scales and biases of the output
    assert len(setup.model) == sum(setup.layers)
    assert result.notes == ["3 clients"]
    few_rounds(with_groups(federation), method)
    assert told[1].has_groups


def test_notes_are_in_the_file_and_on_the_screen(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    from rich.console import Console

    from udjfl.report.comparison_table import result_view

    result = few_rounds(
        federation, made(Plain, notes=lambda self, setup: ["Mind the step."]), out=tmp_path / "run"
    )
    assert RunFolder(tmp_path / "run").read_json("result.json")["notes"] == ["Mind the step."]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(result_view(result))
    assert "Mind the step." in console.export_text()


def test_a_method_may_train_another_network(federation: udjfl.Federation) -> None:
    """Adapted to logistic regression, whatever was asked for; the uncertainties are still those of the model asked for."""

    method = made(Plain, adapt=to_drawn_regression)
    first, again = few_rounds(federation, method), few_rounds(federation, method)
    assert len(vector(first)) == 15
    assert torch.equal(vector(first), vector(again))
    assert first.uncertainty == few_rounds(federation, "fedavg").uncertainty
    other_seed = few_rounds(federation, method, seed=1, rounds=1)
    assert not torch.equal(vector(other_seed), vector(few_rounds(federation, method, rounds=1)))


# --- who is asked


def test_a_method_may_choose_its_clients(federation: udjfl.Federation) -> None:
    asked_for: list[tuple[int, int]] = []

    def select(
        self: Any, state: Any, n_clients: int, count: int, generator: np.random.Generator
    ) -> list[int]:
        asked_for.append((n_clients, count))
        return [2, 0]

    few_rounds(federation, made(Plain, select=select), participation=0.67)
    assert asked_for == [(3, 2)] * 3
    assert [reports.ids for reports in seen] == [("client-1", "client-3")] * 3
    assert [reports.client_indices.tolist() for reports in seen] == [[0, 2]] * 3


def test_with_everybody_asked_there_is_nothing_to_choose(federation: udjfl.Federation) -> None:
    few_rounds(federation, made(Plain, select=lambda *_: pytest.fail("not to be asked")))
    assert len(seen[0]) == 3


# --- what clients do


def test_an_objective_of_ones_own(federation: udjfl.Federation) -> None:
    """Half the loss at twice the rate is FedAvg among equals."""

    def objective(
        self: Any, losses: Tensor, weights: Tensor, groups: Any, multipliers: Any
    ) -> Tensor:
        return 0.5 * (losses * weights).sum(dim=1)

    half = few_rounds(federation, made(Plain, objective=objective), lr=0.2)
    torch.testing.assert_close(
        vector(half), vector(few_rounds(federation, made(Plain))), rtol=1e-4, atol=1e-5
    )


def test_multipliers_go_to_the_clients_they_are_for(federation: udjfl.Federation) -> None:
    """Client 2 has multiplier 0 and does not move, also when client 1 is not asked and it is the first to answer."""

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
        few_rounds(federation, made(Plain, **slots), participation=0.67, rounds=1, engine=engine)
    for reports in seen:
        assert reports.ids == ("client-2", "client-3")
        assert torch.equal(reports.deltas[0], torch.zeros_like(reports.deltas[0]))
        assert reports.deltas[1].abs().max() > 0


def test_one_full_step_is_the_gradient(federation: udjfl.Federation) -> None:
    plan = {
        "plan": lambda self, state, probe: (state, Plan(one_full_step=True)),
        "needs": frozenset({"gradients"}),
    }
    few_rounds(federation, made(Plain, **plan), rounds=1, batch_size=4, local_epochs=3)
    torch.testing.assert_close(
        seen[0].deltas.double() / 0.1, seen[0].extras["gradients"], rtol=1e-3, atol=1e-5
    )
    assert seen[0].steps.tolist() == [1, 1, 1]
    assert (seen[0].lr, seen[0].momentum) == (0.1, 0.0)


def test_a_plan_can_build_on_a_probe(federation: udjfl.Federation) -> None:
    """The probe of the initial model, then a pull along the mean gradient and nothing else: 1 step of lr times that."""

    def plan(self: Any, state: Any, probe: udjfl.Reports) -> Any:
        assert torch.equal(probe.deltas, torch.zeros_like(probe.deltas))
        assert probe.losses.min() > 0.5
        return {"probed": state["probed"] + 1}, Plan(
            pull=probe.extras["gradients"].mean(dim=0), pull_share=1.0
        )

    slots = {
        "probes": frozenset({"losses", "gradients"}),
        "plan": plan,
        "init": lambda self, setup: {"probed": torch.zeros(())},
        "needs": frozenset({"gradients"}),
    }
    result = few_rounds(federation, made(Plain, **slots), rounds=1, batch_size=100, momentum=0.0)
    expected = 0.1 * seen[0].extras["gradients"].mean(dim=0)
    for row in range(3):
        torch.testing.assert_close(seen[0].deltas[row].double(), expected, rtol=1e-3, atol=1e-6)
    assert result.history.series("test_loss")[1] is not None


def test_a_client_that_fails_at_the_probe_is_left_out() -> None:
    federation = make_federation()
    federation.clients[1].train.x[:] = float("inf")  # spoilt after the federation was checked
    slots = {"probes": frozenset({"losses", "gradients"})}
    result = few_rounds(
        federation,
        made(Plain, **slots),
        on_bad_report="exclude",
        uncertainty=dict.fromkeys(federation.ids, 0.1),
        rounds=1,
    )
    assert seen[0].ids == ("client-1", "client-3")
    assert list(result.history.by_client("excluded", 1)) == ["client-2"]


# --- models of one's own


class Own(Plain):
    """Each client keeps its model and nothing is shared."""

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
    result = few_rounds(federation, made(Own))
    alone = udjfl.Federation(
        "alone", (federation.clients[2],), federation.test, federation.class_names
    )
    model = few_rounds(alone, "fedavg")
    torch.testing.assert_close(
        to_vector(result.model_for("client-3")), vector(model), rtol=1e-4, atol=1e-5
    )
    assert result.client_accuracy["client-3"] == model.client_accuracy["client-3"]
    assert not torch.equal(vector(result), to_vector(result.model_for("client-1")))
    assert result.global_accuracy is not None


def test_models_of_ones_own_are_kept(tmp_path: Path, federation: udjfl.Federation) -> None:
    result = few_rounds(federation, made(Own), out=tmp_path / "run")
    kept = load_file(tmp_path / "run" / "served.safetensors")
    assert torch.equal(kept["models"][1], to_vector(result.model_for("client-2")))
    assert torch.equal(kept["shares"], torch.eye(3))
    with pytest.raises(SettingsError, match="Did you mean 'client-1'"):
        result.model_for("client1")


class Pair(Plain):
    """Two models side by side; client 1 uses the first, client 2 the second, client 3 both alike."""

    needs = frozenset({"losses_of_each"})
    global_model = False
    n_models = 2

    def served(self, state: Any, model: Tensor) -> ServedModels:
        return ServedModels(model.view(2, -1), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]))


def test_two_models_side_by_side(federation: udjfl.Federation) -> None:
    """The first of them is trained as if it were alone, and the clients' losses are those of what they use."""
    result = few_rounds(federation, made(Pair))
    single = few_rounds(federation, made(Plain))
    torch.testing.assert_close(
        to_vector(result.model_for("client-1")), vector(single), rtol=1e-4, atol=1e-5
    )
    first = seen[0]
    assert first.deltas.shape == (3, 2 * len(vector(single)))
    assert first.steps.tolist() == [1, 1, 1]
    each = first.extras["losses_of_each"]
    assert each.shape == (3, 2)
    torch.testing.assert_close(first.losses, torch.stack([each[0, 0], each[1, 1], each[2].mean()]))
    start = first.model.view(2, -1)
    assert not torch.equal(start[0], start[1])  # drawn independently


def test_without_a_global_model_there_is_no_global_accuracy(
    tmp_path: Path, federation: udjfl.Federation
) -> None:
    result = few_rounds(federation, made(Pair), out=tmp_path / "run")
    assert result.global_accuracy is None
    assert result.metrics["global_accuracy"] is None
    assert "no single model" in result.undefined["global_accuracy"]
    assert result.history.series("test_accuracy") == {1: None, 2: None, 3: None}
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert set(result.client_accuracy) == set(federation.ids)


def test_a_mixture_predicts_what_was_evaluated(federation: udjfl.Federation) -> None:
    result = few_rounds(federation, made(Pair))
    mixture = result.model_for("client-3")
    assert isinstance(mixture, Mixture)
    test = federation.clients[2].test
    with torch.no_grad():
        right = (mixture(test.x).argmax(dim=1) == test.y).to(torch.float64).mean()
        members = [
            result.model_for(name)(test.x).softmax(dim=1) for name in ("client-1", "client-2")
        ]
        torch.testing.assert_close(mixture(test.x).exp(), (members[0] + members[1]) / 2)
    assert result.client_accuracy["client-3"] == pytest.approx(100 * float(right))


def test_several_models_cannot_share_buffers(federation: udjfl.Federation) -> None:
    def with_batch_norm() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

    for kind in (Own, Pair):
        with pytest.raises(SettingsError, match="buffers"):
            few_rounds(federation, made(kind), model=with_batch_norm)


@pytest.mark.parametrize("kind", [Own, Pair])
def test_a_stopped_run_goes_on_as_it_was(
    tmp_path: Path, federation: udjfl.Federation, kind: type[udjfl.Method]
) -> None:
    method, settings = made(kind), {"rounds": 4, "checkpoint_every": 1, "participation": 0.67}
    whole = few_rounds(federation, method, **settings)

    class Stop(Exception):
        pass

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "training" and done == 2:
            raise Stop

    with pytest.raises(Stop):
        few_rounds(federation, method, out=tmp_path / "run", progress=stop, **settings)
    resumed = few_rounds(federation, method, out=tmp_path / "run", resume=True, **settings)
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
    few_rounds(own, made(Scored), rounds=1)
    module = build("mlp", (4,), 3, seed=0, hidden=5)
    for row, model in enumerate(seen[0].model - seen[0].deltas):
        nn.utils.vector_to_parameters(model, module.parameters())
        right = (module(validation.x).argmax(dim=1) == validation.y).to(torch.float64).mean()
        assert seen[0].extras["validation_accuracies"][row] == right


def test_without_validation_data_the_clients_train_data_serve(federation: udjfl.Federation) -> None:
    few_rounds(federation, made(Scored), rounds=1)
    module = build("mlp", (4,), 3, seed=0, hidden=5)
    everything = udjfl.Examples.joined([client.train for client in federation.clients])
    nn.utils.vector_to_parameters(seen[0].model - seen[0].deltas[0], module.parameters())
    right = (module(everything.x).argmax(dim=1) == everything.y).to(torch.float64).mean()
    assert seen[0].extras["validation_accuracies"][0] == right


def test_a_method_that_scores_nothing_says_what_is_missing(federation: udjfl.Federation) -> None:
    with pytest.raises(NotImplementedError, match="has to say of which models"):
        few_rounds(federation, made(Plain, needs=frozenset({"validation_accuracies"})))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_declare_only_what_there_is(name: str) -> None:
    kind = METHODS[name]
    known = {*EXTRAS, "losses", "sizes", "steps", "uncertainties"}
    assert {*kind.needs, *kind.needs_groups, *kind.probes} <= known


# --- what a method gets wrong is said in words


def test_a_plans_state_goes_on_to_the_next_round(federation: udjfl.Federation) -> None:
    counts: list[float] = []

    def plan(self: Any, state: Any, probe: Any) -> Any:
        counts.append(float(state["count"]))
        return {"count": state["count"] + 1}, Plan()

    few_rounds(
        federation, made(Plain, plan=plan, init=lambda self, setup: {"count": torch.zeros(())})
    )
    assert counts == [0.0, 1.0, 2.0]


def test_exclusion_at_the_probe_keeps_everyones_own_model() -> None:
    """Client 2 is spoilt; client 3 must go on from its own model, not from client 2's."""
    federation = make_federation()
    federation.clients[1].train.x[:] = float("inf")

    def init(self: Any, setup: udjfl.Setup) -> dict[str, Tensor]:
        return {"models": torch.stack([setup.model * scale for scale in (1.0, 2.0, 3.0)])}

    method = made(Own, init=init, probes=frozenset({"losses"}), needs=frozenset({"losses"}))
    how = {
        "on_bad_report": "exclude",
        "uncertainty": dict.fromkeys(federation.ids, 0.1),
        "rounds": 1,
    }
    few_rounds(federation, method, **how)
    assert seen[0].ids == ("client-1", "client-3")
    module = build("mlp", (4,), 3, seed=0, hidden=5)
    nn.utils.vector_to_parameters(3 * to_vector(module), module.parameters())
    third = federation.clients[2].train
    assert float(seen[0].losses[1]) == pytest.approx(
        nn.functional.cross_entropy(module(third.x), third.y).item(), rel=1e-5
    )


def test_models_side_by_side_are_each_adapted_anew(federation: udjfl.Federation) -> None:
    """`adapt` that draws gives every one of the models other numbers."""

    few_rounds(federation, made(Pair, adapt=to_drawn_regression), rounds=1)
    first, second = seen[0].model.view(2, -1)
    assert not torch.equal(first, second)


def test_a_share_of_zero_in_front_is_no_member(federation: udjfl.Federation) -> None:
    shares = torch.tensor([[0.0, 1.0], [0.25, 0.75], [1.0, 0.0]])
    served = made(Pair, served=lambda self, state, model: ServedModels(model.view(2, -1), shares))
    result = few_rounds(federation, served)
    assert torch.equal(to_vector(result.model_for("client-1")), result.served.models[1])
    assert torch.equal(to_vector(result.model_for("client-3")), result.served.models[0])
    mixture = result.model_for("client-2")
    torch.testing.assert_close(mixture.log_shares.exp(), torch.tensor([0.25, 0.75]))


@pytest.mark.parametrize("places", [[], [7], [0, 0], [-1]])
def test_a_selection_that_makes_no_sense(federation: udjfl.Federation, places: list[int]) -> None:
    with pytest.raises(SettingsError, match="plain: select gave the places"):
        few_rounds(federation, made(Plain, select=lambda *_: places), participation=0.67)


def test_received_models_of_the_wrong_shape(federation: udjfl.Federation) -> None:
    with pytest.raises(SettingsError, match="plain: received gave shape"):
        few_rounds(
            federation,
            made(Plain, initial_models=lambda self, state, client_indices: torch.zeros(2, 2)),
        )


def test_side_by_side_and_probes_do_not_go_together(federation: udjfl.Federation) -> None:
    with pytest.raises(SettingsError, match="only losses_of_each"):
        few_rounds(federation, made(Pair, needs=frozenset({"gradients"})))


def test_which_loss_is_free(federation: udjfl.Federation) -> None:
    """By default the loss of the received model is computed for methods that use it, and the running one is taken else."""
    of = {
        at: few_rounds(federation, made(Plain), loss_at=at).history
        for at in ("auto", "running", "received")
    }
    assert of["auto"].records == of["running"].records != of["received"].records
    using = made(Plain, needs=frozenset({"losses"}))
    of = {
        at: few_rounds(federation, using, loss_at=at).history
        for at in ("auto", "running", "received")
    }
    assert of["auto"].records == of["received"].records != of["running"].records
