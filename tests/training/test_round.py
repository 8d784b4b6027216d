"""Rounds of whole runs: participation, unusable reports, own methods, models and buffers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import torch
from pydantic import Field
from small_runs import (
    make_client_arrays,
    make_federation,
    make_federation_of,
    model_bytes,
    rising_uncertainties,
    train_briefly,
)
from torch import Tensor, nn

import udjfl
from udjfl.errors import ReportError, UdjflError
from udjfl.models import build, to_vector

# --- participation


def test_participation_asks_that_share_in_each_round_and_all_over_time() -> None:
    federation = make_federation(n_clients=5, n=8)
    history = train_briefly(
        federation, participation=0.4, rounds=12, uncertainty=rising_uncertainties(federation)
    ).history
    asked = [set(history.by_client("train_loss", t)) for t in range(1, 13)]
    assert all(len(clients) == 2 for clients in asked)
    assert set.union(*asked) == set(federation.ids)
    assert len({frozenset(clients) for clients in asked}) > 3
    # All clients are evaluated, asked or not.
    assert all(len(history.by_client("test_accuracy", t)) == 5 for t in range(1, 13))


def test_at_least_one_client_is_asked(federation: udjfl.Federation) -> None:
    history = train_briefly(federation, participation=0.01).history
    assert all(len(history.by_client("train_loss", t)) == 1 for t in (1, 2, 3))


def test_clients_that_drop_out_are_recorded_as_absent() -> None:
    federation = make_federation(n_clients=5, n=8)
    history = train_briefly(
        federation,
        participation=0.8,
        drop_out=0.5,
        rounds=20,
        uncertainty=rising_uncertainties(federation),
    ).history
    n_absent = 0
    for t in range(1, 21):
        absent, present = (
            set(history.by_client("absent", t)),
            set(history.by_client("train_loss", t)),
        )
        assert len(absent) + len(present) == 4  # those asked
        assert not absent & present
        n_absent += len(absent)
    assert 20 < n_absent < 60  # of 80, half on average


def test_a_round_without_clients_leaves_the_model_unchanged() -> None:
    federation = make_federation_of(a=make_client_arrays(8), b=make_client_arrays(9))
    how: dict[str, Any] = {
        "drop_out": 0.8,
        "uncertainty": {"a": 0.1, "b": 0.2},
        "model": lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)),
    }
    history = train_briefly(federation, rounds=8, **how).history
    empty = [t for t in range(2, 9) if len(history.by_client("absent", t)) == 2]
    assert empty, "choose another seed: every round has a client"
    before, after = (
        train_briefly(federation, rounds=empty[0] - 1, **how),
        train_briefly(federation, rounds=empty[0], **how),
    )
    assert model_bytes(after) == model_bytes(before)
    assert history.by_client("train_loss", empty[0]) == {}
    assert history.by_client("test_loss", empty[0]) == history.by_client("test_loss", empty[0] - 1)


# --- unusable reports


def test_a_client_that_diverges_stops_the_run_by_default() -> None:
    """Its first step takes the weights to about 1e30, its second overflows."""
    bad = make_federation_of(a=make_client_arrays(8), b=make_client_arrays(9, scale=1e30))
    with pytest.raises(ReportError) as caught:
        train_briefly(bad, batch_size=4, uncertainty=rising_uncertainties(bad))
    assert (caught.value.client, caught.value.round, caught.value.field) == ("b", 1, "deltas")


def test_a_client_that_diverges_can_be_excluded() -> None:
    bad = make_federation_of(
        a=make_client_arrays(8), b=make_client_arrays(9, scale=1e30), c=make_client_arrays(10)
    )
    result = train_briefly(
        bad, batch_size=4, on_bad_report="exclude", uncertainty={"a": 0.1, "b": 0.2, "c": 0.3}
    )
    for t in (1, 2, 3):
        assert list(result.history.by_client("excluded", t)) == ["b"]
        assert list(result.history.by_client("train_loss", t)) == ["a", "c"]
        assert "deltas" in str(result.history.by_client("excluded", t)["b"])
    others = make_federation_of(a=make_client_arrays(8), c=make_client_arrays(10))
    without = train_briefly(others, batch_size=4, uncertainty={"a": 0.1, "c": 0.3})
    torch.testing.assert_close(
        to_vector(result.model), to_vector(without.model), rtol=1e-5, atol=1e-6
    )


def test_a_round_with_all_clients_excluded_leaves_the_model_unchanged() -> None:
    bad = make_federation_of(a=make_client_arrays(8, scale=1e30))
    result = train_briefly(bad, batch_size=4, on_bad_report="exclude", uncertainty={"a": 0.1})
    assert [list(result.history.by_client("excluded", t)) for t in (1, 2, 3)] == [["a"]] * 3
    assert torch.equal(to_vector(result.model), to_vector(build("mlp", (4,), 3, seed=0, hidden=5)))


def test_a_client_whose_uncertainty_cannot_be_measured_can_be_excluded(tmp_path: Path) -> None:
    """Its training diverges alone too. With a run folder the result is the same."""
    bad = make_federation_of(
        a=make_client_arrays(8), b=make_client_arrays(9, scale=1e30), c=make_client_arrays(10)
    )
    with pytest.raises(UdjflError, match="'b'"):
        train_briefly(bad, batch_size=4)
    for out in (None, tmp_path / "run"):
        result = train_briefly(bad, batch_size=4, on_bad_report="exclude", out=out)
        assert [list(result.history.by_client("excluded", t)) for t in (1, 2, 3)] == [["b"]] * 3
        assert all(value is None or math.isfinite(value) for value in result.metrics.values())


def test_buffers_that_are_not_finite_are_refused_too() -> None:
    """Batch norm scales huge features down, but their variance, 1e60, overflows."""
    bad = make_federation_of(a=make_client_arrays(8), b=make_client_arrays(9, scale=1e30))

    def build_model() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))

    with pytest.raises(ReportError) as caught:
        train_briefly(bad, model=build_model, uncertainty=rising_uncertainties(bad))
    assert (caught.value.client, caught.value.round) == ("b", 1)
    result = train_briefly(
        bad, model=build_model, uncertainty=rising_uncertainties(bad), on_bad_report="exclude"
    )
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())


# --- own methods and models


@udjfl.parameters
class LargestOnly(udjfl.Method):
    """Follows the largest client alone, and counts the rounds."""

    name: ClassVar[str] = "largest"
    title: ClassVar[str] = "Largest only"
    paper: ClassVar[str] = "none"
    grade: ClassVar[Literal["verified", "partial", "recalled"]] = "recalled"
    share: Annotated[float, Field(ge=0, le=1)] = 1.0

    def init(self, setup: udjfl.Setup) -> dict[str, Tensor]:
        return {"rounds": torch.zeros(()), "shape": torch.tensor([len(setup), len(setup.model)])}

    def aggregate(self, state: Any, reports: udjfl.Reports) -> Any:
        counted = {**state, "rounds": state["rounds"] + 1}
        step = self.share * reports.deltas[reports.sizes.argmax()]
        return counted, step, {"round_count": counted["rounds"], "size": reports.sizes}


def test_a_method_of_a_user_is_run_like_any_other(federation: udjfl.Federation) -> None:
    result = train_briefly(federation, LargestOnly())
    # The state is passed from round to round.
    assert result.history.series("round_count") == {1: 1.0, 2: 2.0, 3: 3.0}
    assert list(result.history.by_client("size", 3).values()) == [24.0, 29.0, 34.0]
    largest = federation.clients[2]
    alone = udjfl.Federation("alone", (largest,), federation.test, federation.class_names)
    torch.testing.assert_close(
        to_vector(result.model), to_vector(train_briefly(alone).model), rtol=1e-5, atol=1e-6
    )
    untouched = train_briefly(federation, LargestOnly(share=0))
    assert torch.equal(
        to_vector(untouched.model), to_vector(build("mlp", (4,), 3, seed=0, hidden=5))
    )


class WrongShape(LargestOnly):
    def aggregate(self, state: Any, reports: udjfl.Reports) -> Any:
        return state, reports.deltas, {}  # one row per client, where one step is needed


class ScalarStep(LargestOnly):
    def aggregate(self, state: Any, reports: udjfl.Reports) -> Any:
        return state, torch.tensor(0.1), {}  # would be broadcast to all parameters


class InfiniteStep(LargestOnly):
    def aggregate(self, state: Any, reports: udjfl.Reports) -> Any:
        return state, reports.deltas[0] * math.inf, {}


@pytest.mark.parametrize(
    ("method", "message"),
    [(WrongShape(), "shape"), (ScalarStep(), "shape"), (InfiniteStep(), "not finite in round 1")],
    ids=["rows", "scalar", "infinite"],
)
def test_an_unusable_step_is_refused(
    federation: udjfl.Federation, method: udjfl.Method, message: str
) -> None:
    with pytest.raises(UdjflError, match=message):
        train_briefly(federation, method)


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.second(self.first(x).relu()))
        return out


def test_a_model_with_tied_weights_can_be_saved(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    result = train_briefly(federation, model=Tied, out=tmp_path / "run")
    assert isinstance(result.model, Tied)
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_frozen_parameters_do_not_change(federation: udjfl.Federation) -> None:
    def build_model() -> nn.Module:
        module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        module[0].requires_grad_(False)
        return module

    start, result = (
        build(build_model, (4,), 3, seed=0),
        train_briefly(federation, model=build_model),
    )
    assert torch.equal(result.model[0].weight, start[0].weight)
    assert not torch.equal(result.model[2].weight, start[2].weight)


def test_batch_norm_statistics_are_averaged_by_size() -> None:
    """One round, one batch each.

    Client a has 0, 2 (mean 1, variance 2), client b 4, 6 three times (mean 5, variance 6/5).
    Running mean 0.1 * mean and variance 0.9 + 0.1 * variance, weights 2/8 and 6/8:
    mean 0.1 * (1/4 + 15/4) = 0.4, variance 0.9 + 0.1 * (2/4 + 3.6/4) = 1.04
    """
    data = {
        "a": ([[0.0], [2.0]], [0, 1], [[9.0]], [0]),
        "b": ([[4.0], [6.0]] * 3, [0, 1] * 3, [[8.0]], [0]),
    }
    federation = udjfl.Federation.from_arrays(data, test=([[7.0]], [1]))
    how: dict[str, Any] = {"rounds": 1, "uncertainty": {"a": 0.1, "b": 0.2}}
    result = train_briefly(
        federation, model=lambda: nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)), **how
    )
    norm = result.model[0]
    assert norm.running_mean.item() == pytest.approx(0.4)
    assert norm.running_var.item() == pytest.approx(1.04)
    assert norm.num_batches_tracked.item() == 1


def test_batch_norm_on_a_batch_of_one_example_is_an_error_that_names_the_client() -> None:
    """Batch norm cannot train on a single example."""
    federation = make_federation_of(a=make_client_arrays(8), b=make_client_arrays(1))
    with pytest.raises(UdjflError, match="'b'"):
        train_briefly(
            federation,
            model=lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)),
            uncertainty=rising_uncertainties(federation),
        )


def test_the_reported_loss_is_the_chosen_one() -> None:
    """With one client and one batch a round, received and running are the same.

    The final loss is then the received loss of the next round.
    """
    federation = make_federation_of(a=make_client_arrays(10))
    losses = {
        at: list(train_briefly(federation, loss_at=at).history.series("train_loss", "a").values())
        for at in ("received", "running", "final")
    }
    start, data = build("mlp", (4,), 3, seed=0, hidden=5), federation.clients[0].train
    assert losses["received"][0] == pytest.approx(
        nn.functional.cross_entropy(start(data.x), data.y).item()
    )
    assert losses["running"] == pytest.approx(losses["received"])
    assert losses["final"][:2] == pytest.approx(losses["received"][1:], rel=1e-5)
    assert losses["final"][0] < losses["received"][0]


def test_history_by_round_and_by_client(federation: udjfl.Federation) -> None:
    history = train_briefly(federation, "rawls").history
    for metric in ("train_loss", "weight", "step_share", "curvature", "test_accuracy", "test_loss"):
        assert list(history.series(metric, "client-2")) == [1, 2, 3], metric
        assert list(history.by_client(metric, 2)) == list(federation.ids), metric
    for metric in ("step_norm", "test_accuracy", "test_loss"):
        assert list(history.series(metric)) == [1, 2, 3], metric
    assert sum(history.by_client("weight", 1).values()) == pytest.approx(1.0)  # type: ignore[arg-type]
    assert history.series("no such metric") == {}
    assert history.by_client("train_loss", 4) == {}


def test_evaluations_are_eval_every_rounds_apart(federation: udjfl.Federation) -> None:
    history = train_briefly(federation, rounds=5, eval_every=2).history
    assert list(history.series("test_accuracy")) == [2, 4, 5]  # the last round is always evaluated
    assert list(history.series("test_loss", "client-1")) == [2, 4, 5]
    assert list(history.series("train_loss", "client-1")) == [1, 2, 3, 4, 5]
