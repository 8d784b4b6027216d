"""Uncertainty after training alone: the formulas, and the measurement on known data."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import udjfl
from udjfl.engine import SerialEngine, make_engine, one_thread
from udjfl.models import build
from udjfl.settings import TrainingSettings
from udjfl.uncertainty import Uncertainty, decompose, entropies, entropy, measure, train_alone

KINDS = ["paper", "confidence", "ensemble"]


def to_rows(*distributions: list[float]) -> Tensor:
    return torch.tensor(distributions, dtype=torch.float64)


def draw_ensemble(members: int = 4, examples: int = 50, classes: int = 5) -> Tensor:
    """Draw predictions [members, examples, classes], from nearly certain to nearly uniform."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.logspace(-3, 1.5, examples, dtype=torch.float64).unsqueeze(1)
    return (
        scale * torch.randn(members, examples, classes, generator=generator, dtype=torch.float64)
    ).softmax(dim=-1)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_entropy_of_the_uniform_distribution_is_ln_c(classes: int) -> None:
    assert entropy(to_rows([1 / classes] * classes)).item() == pytest.approx(math.log(classes))


def test_entropy_by_hand() -> None:
    # One-hot: 0, with 0 ln 0 = 0. (1/2, 1/4, 1/4): 1/2 ln 2 + 2/4 ln 4 = 1.5 ln 2.
    values = entropy(to_rows([0.0, 1.0, 0.0], [0.5, 0.25, 0.25]))
    assert values.tolist() == pytest.approx([0.0, 1.5 * math.log(2)])
    assert values[0].item() == 0.0


def test_decompose_by_hand() -> None:
    """Two certain members that contradict each other: aleatoric 0, epistemic ln 2."""
    aleatoric, epistemic = decompose(torch.stack([to_rows([1.0, 0.0]), to_rows([0.0, 1.0])]))
    assert aleatoric.tolist() == [0.0]
    assert epistemic.tolist() == pytest.approx([math.log(2)])


def test_the_two_parts_add_up_to_the_entropy_of_the_mean() -> None:
    predictions = draw_ensemble()
    aleatoric, epistemic = decompose(predictions)
    assert aleatoric.shape == epistemic.shape == (50,)
    torch.testing.assert_close(aleatoric + epistemic, entropy(predictions.mean(dim=0)))
    torch.testing.assert_close(aleatoric, sum(entropy(member) for member in predictions) / 4)
    # Mutual information, written as a Kullback-Leibler divergence, which cannot be negative.
    mean = predictions.mean(dim=0)
    divergence = (predictions * (predictions / mean).log()).sum(dim=-1).mean(dim=0)
    torch.testing.assert_close(epistemic, divergence, rtol=1e-6, atol=1e-12)


def test_the_epistemic_part_is_never_negative_and_zero_for_identical_members() -> None:
    assert (decompose(draw_ensemble())[1] >= 0).all()
    alike = draw_ensemble(members=1).expand(3, 50, 5)
    epistemic = decompose(alike)[1]
    assert epistemic.abs().max() < 1e-12
    assert (epistemic >= 0).all()  # no -7e-16, which would be printed as negative


def make_two_points(labels: dict[str, list[int]], scale: float = 1.0) -> udjfl.Federation:
    """Make clients whose examples alternate between two points, -1 and +1 times scale."""
    clients = {}
    for name, y in labels.items():
        x = [[scale * (-1.0) ** (i + 1), scale] for i in range(len(y))]
        clients[name] = (x, y, [[9.0, 1.0]], [0])
    return udjfl.Federation.from_arrays(clients, test=([[8.0, 1.0]], [0]), class_names="abc")


def measure_in(
    federation: udjfl.Federation, seed: int = 0, model: Any = "mlp", **changes: Any
) -> Uncertainty:
    settings = TrainingSettings(**{"hidden": 8, "uncertainty": "paper", **changes})
    module = build(model, federation.input_shape, federation.n_classes, seed, hidden=8)
    engine = make_engine(module, federation.clients, settings.engine)
    with one_thread():
        return measure(federation, engine, settings, seed, model)


# The points are -1, +1, -1, +1, ... In `clean` the label is that of the point, in `coin` half of
# the labels at each point are 1, and in `quarter` one in four.
LABELS = {"clean": [0, 1] * 8, "coin": [0, 0, 1, 1] * 4, "quarter": [0, 0, 0, 0, 0, 0, 1, 1] * 2}


def test_uncertainty_is_the_entropy_of_the_labels_given_the_features() -> None:
    values = measure_in(make_two_points(LABELS), uncertainty_epochs=400).values
    assert list(values) == ["clean", "coin", "quarter"]
    assert 0 < values["clean"] < 0.02
    assert values["coin"] == pytest.approx(math.log(2), abs=0.02)
    assert values["quarter"] == pytest.approx(
        0.25 * math.log(4) + 0.75 * math.log(4 / 3), abs=0.02
    )  # 0.562


def test_confidence_is_one_minus_the_largest_probability() -> None:
    values = measure_in(
        make_two_points(LABELS), uncertainty_epochs=400, uncertainty="confidence"
    ).values
    assert 0 < values["clean"] < 0.01
    assert values["coin"] == pytest.approx(0.5, abs=0.02)
    assert values["quarter"] == pytest.approx(0.25, abs=0.02)


def test_an_ensemble_gives_both_parts() -> None:
    result = measure_in(
        make_two_points(LABELS), uncertainty="ensemble", uncertainty_models=3, uncertainty_epochs=5
    )
    assert result.kind == "ensemble"
    assert result.epistemic is not None
    assert list(result.epistemic) == list(result.values) == ["clean", "coin", "quarter"]
    assert all(
        value > 1e-4 for value in result.epistemic.values()
    )  # after 5 epochs the members still differ
    assert result.values["coin"] > result.values["clean"]
    longer = measure_in(
        make_two_points(LABELS),
        uncertainty="ensemble",
        uncertainty_models=3,
        uncertainty_epochs=400,
    )
    assert longer.values["coin"] == pytest.approx(math.log(2), abs=0.02)
    assert longer.epistemic is not None
    assert (
        longer.epistemic["coin"] < 0.1 * result.epistemic["coin"]
    )  # more training, less epistemic uncertainty
    assert measure_in(make_two_points(LABELS), uncertainty_epochs=1).epistemic is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_numbers(kind: str) -> None:
    how: dict[str, Any] = {"uncertainty": kind, "uncertainty_epochs": 3, "uncertainty_models": 2}
    first = measure_in(make_two_points(LABELS), **how)
    before = torch.random.get_rng_state()
    assert measure_in(make_two_points(LABELS), **how) == first
    assert torch.equal(torch.random.get_rng_state(), before)
    assert measure_in(make_two_points(LABELS), seed=1, **how).values != first.values
    assert all(type(value) is float for value in first.values.values())


def test_the_seed_draws_the_batches_too() -> None:
    """With the same initial model, only the order of the examples differs."""

    def zeros() -> nn.Module:
        module = nn.Linear(2, 3)
        for p in module.parameters():
            nn.init.zeros_(p)
        return module

    how: dict[str, Any] = {"model": zeros, "batch_size": 4, "uncertainty_epochs": 2}
    first = measure_in(make_two_points(LABELS), **how).values
    assert measure_in(make_two_points(LABELS), **how).values == first
    assert measure_in(make_two_points(LABELS), seed=1, **how).values != first


def test_a_client_is_measured_alone() -> None:
    """Its uncertainty is a property of its data: other clients change the last digits at most."""
    every = measure_in(make_two_points(LABELS), uncertainty_epochs=5).values
    only = measure_in(make_two_points({"coin": LABELS["coin"]}), uncertainty_epochs=5).values
    assert only["coin"] == pytest.approx(every["coin"], rel=1e-5)


def test_both_engines_measure_the_same() -> None:
    stacked = measure_in(make_two_points(LABELS), uncertainty_epochs=5).values
    serial = measure_in(make_two_points(LABELS), uncertainty_epochs=5, engine="serial").values
    assert list(serial.values()) == pytest.approx(list(stacked.values()), rel=1e-5)


def test_the_settings_of_the_measurement_are_used() -> None:
    untrained = measure_in(
        make_two_points(LABELS), uncertainty_epochs=1, uncertainty_lr=1e-9, lr=0.5, local_epochs=9
    ).values
    trained = measure_in(
        make_two_points(LABELS), uncertainty_epochs=50, uncertainty_lr=0.1, lr=1e-9, local_epochs=1
    ).values
    assert untrained["clean"] == pytest.approx(
        untrained["coin"], rel=1e-6
    )  # one model, the same two points
    assert trained["clean"] < 0.5 * untrained["clean"]


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_the_models_that_clients_trained_alone_have_the_measured_entropies(optimiser: str) -> None:
    federation = make_two_points(LABELS)
    settings = TrainingSettings(
        hidden=8, uncertainty="paper", uncertainty_epochs=4, uncertainty_optimiser=optimiser
    )  # type: ignore[arg-type]
    engine = make_engine(build("mlp", (2,), 3, 0, hidden=8), federation.clients, "serial")
    with one_thread():
        trained = train_alone(federation, engine, settings, seed=0)
        values = entropies(federation, engine, trained)
        assert values == measure(federation, engine, settings, seed=0).values
        assert list(values) == ["clean", "coin", "quarter"]
        # By hand, from the predictions of the client's own model on its own examples.
        for row, (vector, buffers) in enumerate(trained):
            by_hand = entropy(engine.probabilities(vector, buffers, row)).mean()
            assert values[federation.ids[row]] == pytest.approx(float(by_hand))
    assert len({vector.numpy().tobytes() for vector, _ in trained}) == 3


def test_members_of_an_ensemble_differ_by_their_number() -> None:
    federation = make_two_points(LABELS)
    settings = TrainingSettings(hidden=8, uncertainty_epochs=1)
    engine = make_engine(build("mlp", (2,), 3, 0, hidden=8), federation.clients, "serial")
    with one_thread():
        first, again, second = (
            train_alone(federation, engine, settings, 0, number=number)[0][0]
            for number in (0, 0, 1)
        )
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_the_optimiser_of_the_measurement_is_used() -> None:
    by_sgd, by_adam = (
        measure_in(make_two_points(LABELS), uncertainty_epochs=3, uncertainty_optimiser=name).values
        for name in ("sgd", "adam")
    )
    assert by_sgd != by_adam
    assert all(value > 0 for value in by_adam.values())


def test_the_entropy_of_a_model_that_diverged_is_nan() -> None:
    federation = make_two_points({"coin": LABELS["coin"]})
    engine = make_engine(build("logistic", (2,), 3, 0), federation.clients, "serial")
    with one_thread():
        assert math.isnan(
            entropies(federation, engine, [(torch.full((9,), math.nan), torch.empty(0))])["coin"]
        )


def test_progress_counts_the_models_of_an_ensemble(federation: udjfl.Federation) -> None:
    settings = TrainingSettings(uncertainty="ensemble", uncertainty_models=3, uncertainty_epochs=1)
    module = build("logistic", (4,), 3, 0)
    seen: list[tuple[int, int]] = []
    measure(
        federation,
        SerialEngine(module, federation.clients),
        settings,
        0,
        "logistic",
        lambda *at: seen.append(at),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_model_with_buffers_is_measured_with_those_of_the_client() -> None:
    """The statistics of batch norm are the client's own, after its training."""

    def build_model() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))

    values = measure_in(
        make_two_points(LABELS, scale=50.0), model=build_model, uncertainty_epochs=200
    ).values
    assert values["clean"] < 0.05
    assert values["coin"] == pytest.approx(math.log(2), abs=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_one_class_and_one_example_give_a_finite_positive_number(kind: str) -> None:
    federation = make_two_points(
        {"one class": [1] * 12, "one example": [2], "usual": LABELS["coin"]}
    )
    values = measure_in(federation, uncertainty=kind, uncertainty_models=2).values
    assert all(0 < value < math.log(3) for value in values.values()), values
    assert values["usual"] == max(values.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_certain_in_floating_point_still_gives_a_positive_number(kind: str) -> None:
    """With features of 1000 and one class, the softmax is exactly one-hot after one step.

    The step moves the scores by 0.1 * 1000 * 1000. The server refuses an uncertainty of 0.
    """
    federation = make_two_points({"one class": [1] * 12}, scale=1000.0)
    value = measure_in(
        federation, model="logistic", uncertainty=kind, uncertainty_models=2, uncertainty_epochs=3
    ).values["one class"]
    assert 0 < value < 1e-6
