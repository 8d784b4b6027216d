"""The expected accuracy, by hand and against the accuracy on drawn labels."""

from __future__ import annotations

import pytest
import torch
from engine_cases import ENGINES

from udjfl.data import Client, Examples
from udjfl.engine import EvaluationSet, expected_accuracy
from udjfl.models import logistic

NO_BUFFERS = torch.zeros(0, dtype=torch.float64)
KINDS = pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)

# Logistic regression on one feature: class 1 if it is positive, else class 0. The second model
# says the opposite, less decidedly.
VECTORS = torch.tensor([[-1.0, 1.0, 0.0, 0.0], [0.5, -0.5, 0.0, 0.0]])


def make_test_part() -> Examples:
    x = torch.tensor([[1.0], [2.0], [-1.0], [-2.0]])
    probabilities = torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.875, 0.125], [0.0, 1.0]])
    return Examples(x, torch.tensor([0, 1, 0, 1]), label_probabilities=probabilities)


def make_engine(kind):
    return kind(logistic((1,), 2), [Client("a", make_test_part(), make_test_part())])


@KINDS
def test_expected_accuracy_of_one_model_by_hand(kind) -> None:
    # Predictions 1, 1, 0, 0 have probabilities 0.75, 0.5, 0.875 and 0: 2.125 of 4.
    engine, part = make_engine(kind), make_test_part()
    one = torch.ones(1)
    assert expected_accuracy(engine, VECTORS[:1], one, NO_BUFFERS, part) == 2.125 / 4
    # The other model predicts 0, 0, 1, 1: all the rest.
    assert expected_accuracy(engine, VECTORS[1:], one, NO_BUFFERS, part) == 1 - 2.125 / 4


@KINDS
def test_expected_accuracy_of_a_mixture_by_hand(kind) -> None:
    # With 0.9 of the first model it decides, with 0.1 the second one does.
    engine, part = make_engine(kind), make_test_part()
    for shares, expected in (([0.9, 0.1], 2.125 / 4), ([0.1, 0.9], 1 - 2.125 / 4)):
        mixture = torch.tensor(shares)
        assert expected_accuracy(engine, VECTORS, mixture, NO_BUFFERS, part) == expected


@KINDS
def test_with_certain_labels_it_is_the_accuracy(kind) -> None:
    engine = make_engine(kind)
    part = make_test_part().with_certain_labels(2)
    _, accuracies = engine.evaluate(VECTORS[0], NO_BUFFERS, EvaluationSet([part]))
    expected = expected_accuracy(engine, VECTORS[:1], torch.ones(1), NO_BUFFERS, part)
    assert expected == float(accuracies[0]) == 0.5  # right for 1 and 2 of labels 0, 1, 0, 1


def test_it_is_the_mean_over_drawn_labels() -> None:
    engine, part = make_engine(ENGINES["serial"]), make_test_part()
    assert part.label_probabilities is not None
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(part.label_probabilities, 4000, replacement=True, generator=generator)
    many = Examples(part.x.repeat_interleave(4000, dim=0), drawn.flatten())
    _, accuracy = engine.evaluate_mixture(VECTORS[:1], torch.ones(1), NO_BUFFERS, many)
    expected = expected_accuracy(engine, VECTORS[:1], torch.ones(1), NO_BUFFERS, part)
    assert accuracy == pytest.approx(expected, abs=0.01)
