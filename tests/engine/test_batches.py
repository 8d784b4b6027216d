"""Inputs of batches: the features of the examples as numbers, in memory that batches share."""

from __future__ import annotations

import pytest
import torch

from udjfl.data.examples import Examples
from udjfl.engine import EvaluationSet
from udjfl.engine._stacked_evaluation import EvaluationBatch
from udjfl.engine.batches import Batch, InputBuffer


def make_batch(n_clients: int, positions: list[int]) -> Batch:
    where = torch.tensor(positions)
    labels = torch.zeros(n_clients, len(positions) // n_clients, 1, dtype=torch.int64)
    return Batch(n_clients, where, labels, labels.float())


@pytest.mark.parametrize(
    ("features", "numbers"),
    [
        (torch.arange(12.0).view(4, 3), torch.arange(12.0).view(4, 3)),
        (torch.arange(12, dtype=torch.int16).view(4, 3), torch.arange(12.0).view(4, 3)),
        (
            torch.arange(244, 256, dtype=torch.uint8).view(4, 3),
            torch.arange(244.0, 256.0).view(4, 3) / 255,
        ),
    ],
)
def test_each_batch_has_the_inputs_of_its_examples(
    features: torch.Tensor, numbers: torch.Tensor
) -> None:
    buffer = InputBuffer(features)
    for n_clients, positions in ((2, [3, 1, 0, 2]), (2, [0, 0, 1, 3]), (1, [2, 1]), (2, [1, 3])):
        inputs = buffer.gather(make_batch(n_clients, positions))
        assert inputs.shape == (n_clients, len(positions) // n_clients, 3)
        assert inputs.dtype == torch.float32
        assert torch.equal(inputs.view(-1, 3), numbers[positions])
    first, second = (buffer.gather(make_batch(1, [i, i])) for i in (0, 1))
    assert first.data_ptr() == second.data_ptr()


def test_evaluation_inputs_of_each_set_begin_at_64_bytes() -> None:
    """As those of float32 do: with 5 x 7 values, the second set would begin elsewhere."""
    generator = torch.Generator().manual_seed(0)
    sets = [
        EvaluationSet([Examples(torch.randint(0, 256, (5, 7), generator=generator).byte(), labels)])
        for labels in torch.tensor([[0] * 5, [1] * 5])
    ]
    inputs = EvaluationBatch(sets, 1)._inputs(slice(0, 5))
    assert torch.equal(inputs, torch.stack([data.x.float() / 255 for data in sets]))
    assert all(own.data_ptr() % 64 == 0 for own in inputs)
