"""Temperature scaling, on predictions whose best temperature is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from udjfl.uncertainty import entropy
from udjfl.uncertainty.calibration import HIGHEST, LOWEST, fit_temperature, log_losses


def two_class(logit: float, n_right: int, n_wrong: int) -> tuple[Tensor, Tensor]:
    """Return predictions that all say class 0 with this logit, and their labels."""
    logits = torch.tensor([[logit, 0.0]], dtype=torch.float64).repeat(n_right + n_wrong, 1)
    return logits.log_softmax(dim=1), torch.tensor([0] * n_right + [1] * n_wrong)


@pytest.mark.parametrize("logit", [1.0, 2.0, 6.0])
def test_temperature_by_hand(logit: float) -> None:
    # Right in 3 of 4 cases: the best logit is ln 3, so T = logit / ln 3.
    temperature = fit_temperature(*two_class(logit, 3, 1))
    assert temperature == pytest.approx(min(logit / math.log(3), HIGHEST), rel=1e-6)


def test_temperatures_are_bounded() -> None:
    assert fit_temperature(*two_class(2.0, 5, 0)) == pytest.approx(LOWEST)  # without a bound 0
    assert fit_temperature(*two_class(2.0, 2, 3)) == pytest.approx(HIGHEST)  # without a bound inf
    assert fit_temperature(*two_class(0.0, 3, 1)) > 0  # nothing to scale


def test_at_the_best_temperature_the_mean_entropy_is_the_mean_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    log_p = (3 * torch.randn(500, 4, generator=generator, dtype=torch.float64)).log_softmax(dim=1)
    labels = torch.multinomial((log_p / 1.7).softmax(dim=1), 1, generator=generator)[:, 0]
    temperature = fit_temperature(log_p, labels)
    assert temperature == pytest.approx(1.7, rel=0.15)
    at_best = float(log_losses(log_p, labels, temperature).mean())
    assert at_best == pytest.approx(float(entropy((log_p / temperature).softmax(dim=1)).mean()))
    for other in (0.9 * temperature, 1.1 * temperature):
        assert float(log_losses(log_p, labels, other).mean()) > at_best


def test_losses_by_hand() -> None:
    log_p = torch.tensor([[0.8, 0.2], [0.5, 0.5]], dtype=torch.float64).log()
    labels = torch.tensor([1, 0])
    assert log_losses(log_p, labels).tolist() == pytest.approx([math.log(5), math.log(2)])
    # At temperature 1/2 the odds of 4 become 16.
    assert log_losses(log_p, labels, 0.5)[0].item() == pytest.approx(math.log(17))
