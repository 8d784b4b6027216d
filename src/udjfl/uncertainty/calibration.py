"""Temperature scaling: one number that makes predictions less, or more, confident.

Guo, Pleiss, Sun, Weinberger, "On calibration of modern neural networks", ICML 2017. The logits z
are divided by T, chosen to minimise the mean log loss on examples that the model did not see. At
that T the mean entropy of the predictions equals their mean log loss: setting the derivative by 1/T
to zero gives mean z_y = mean sum_c q_c z_c, and both are mean [ln sum_c exp(z_c / T)] less that
over T. "How unsure" and "how often surprised" are then one number.
"""

from __future__ import annotations

import math

from torch import Tensor

# Without bounds, a few examples that are all predicted rightly would make the temperature 0.
LOWEST, HIGHEST = 0.25, 4.0
HALVINGS = 25


def fit_temperature(log_p: Tensor, labels: Tensor) -> float:
    """Return the temperature that minimises the log loss of log-probabilities [n, C]; bounded."""
    at_label = float(log_p.gather(1, labels[:, None]).mean())
    low, high = LOWEST, HIGHEST
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        # The loss is convex in 1/T; this is its derivative.
        expected = ((log_p / middle).softmax(dim=1) * log_p).sum(dim=1).mean()
        if float(expected) > at_label:
            low = middle  # more confident than right
        else:
            high = middle
    return math.sqrt(low * high)


def log_losses(log_p: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """Return -ln p of each label, [n], at this temperature."""
    scaled = (log_p / temperature).log_softmax(dim=1)
    return -scaled.gather(1, labels[:, None])[:, 0]
