"""FedNova by hand, and its relation to FedAvg."""

from __future__ import annotations

import pytest
import torch
from method_helpers import close, diagnostics_of, random_reports, step_of, two_clients

from udjfl.methods import FedAvg
from udjfl.methods._local_steps import count_gradients
from udjfl.methods.fednova import FedNova


def test_by_hand_without_momentum() -> None:
    # a = (1, 3), p = (1/4, 3/4): sum p a = 10/4. step = 5/2 (1/4 (1, 0) + 3/4 (0, 2) / 3)
    close(step_of(FedNova(), two_clients(momentum=0.0)), [5 / 8, 5 / 4])
    # p = 1/2: sum p a = 2. step = 2 (1/2 (1, 0) + 1/2 (0, 2) / 3)
    close(step_of(FedNova(weights="uniform"), two_clients(momentum=0.0)), [1.0, 2 / 3])


def test_by_hand_with_momentum() -> None:
    # With m = 1/2: a_1 = [1 - 1/2] / (1/2) = 1 and a_3 = [3 - 7/8] / (1/2) = 17/4, the coefficients
    # of the three gradients being 7/4, 3/2 and 1. sum p a = 1/4 + 51/16 = 55/16.
    close(count_gradients(torch.tensor([1.0, 3.0]), 0.5), [1.0, 17 / 4])
    assert 7 / 4 + 3 / 2 + 1 == 17 / 4
    close(step_of(FedNova(), two_clients()), [55 / 64, 55 / 16 * 3 / 4 * 2 / (17 / 4)])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_equal_steps_it_is_fedavg(momentum: float) -> None:
    reports = random_reports(steps=[7, 7, 7, 7], momentum=momentum)
    close(step_of(FedNova(), reports), step_of(FedAvg(), reports), rtol=1e-9)


def test_a_client_with_the_same_mean_gradient_and_more_steps_counts_as_much() -> None:
    """Deltas of s lr g for mean gradients g: the step is (sum p a) lr sum p g."""
    reports = two_clients(deltas=[[1.0, 0.0], [0.0, 3.0]], sizes=[1, 1], momentum=0.0)
    assert step_of(FedNova(), reports).tolist() == [1.0, 1.0]


def test_diagnostics_by_hand() -> None:
    # As above without momentum: weights 5/2 (1/4, 3/4 / 3) = (5/8, 5/8), which sum to 5/4.
    said = diagnostics_of(FedNova(), two_clients(momentum=0.0))
    close(said["weight"], [0.5, 0.5])
    close(said["step_scale"], 5 / 4)
