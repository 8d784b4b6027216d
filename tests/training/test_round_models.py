"""Methods with another network, models of clients' own, or several models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recording_methods import Plain, make_method, model_vector, seen
from safetensors.torch import load_file
from small_runs import Stopped, make_federation, stop_after, train_briefly
from torch import Tensor, nn

import udjfl
from udjfl.errors import SettingsError
from udjfl.methods import ServedModels
from udjfl.models import Mixture, build, to_vector


@pytest.fixture(autouse=True)
def _forget_reports() -> None:
    seen.clear()


def adapt_to_regression(self: Any, module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Return logistic regression with numbers drawn from the generator, for `adapt`."""
    linear = nn.Linear(4, 3)
    with torch.no_grad():
        for p in linear.parameters():
            p.copy_(torch.rand(p.shape, generator=generator))
    return nn.Sequential(nn.Flatten(), linear)


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


def test_initial_models_of_the_wrong_shape_are_refused(federation: udjfl.Federation) -> None:
    with pytest.raises(SettingsError, match="plain: initial_models returned shape"):
        train_briefly(
            federation,
            make_method(
                Plain, initial_models=lambda self, state, client_indices: torch.zeros(2, 2)
            ),
        )


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


def test_several_models_with_probes_are_refused(federation: udjfl.Federation) -> None:
    with pytest.raises(SettingsError, match="only losses_of_each"):
        train_briefly(federation, make_method(Pair, needs=frozenset({"gradients"})))
