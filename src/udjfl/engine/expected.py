"""The accuracy to expect where labels are random and their distribution is known."""

from __future__ import annotations

import torch
from torch import Tensor

from udjfl.data.federation import Examples
from udjfl.engine.base import Engine


def expected_accuracy(
    engine: Engine,
    vectors: Tensor,
    shares: Tensor,
    buffers: Tensor,
    examples: Examples,
    offset: Tensor | None = None,
) -> float:
    """Return the mean probability, 0 to 1, that a mixture's prediction is the label.

    `vectors` [K, D] are the models of the mixture and `shares` [K] their weights, which sum to 1;
    one model is a mixture of one; `offset` [C] is added to its logits. The accuracy on labels drawn
    from `label_probabilities` has this mean, and in addition the noise of the draw.
    """
    probabilities = examples.label_probabilities
    assert probabilities is not None, "only used where they are known"
    predicted = engine.mix_predictions(vectors, shares, buffers, examples, offset).argmax(dim=1)
    chances = probabilities.to(torch.float64).gather(1, predicted[:, None])
    return float(chances.mean())
