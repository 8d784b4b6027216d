"""FedAvg, by hand."""

from __future__ import annotations

import pytest
import torch

from udjfl.errors import ReportError, SettingsError
from udjfl.methods import FedAvg, Reports, method


def three_clients(**changes):
    values = {
        "ids": ["a", "b", "c"],
        "deltas": [[1.0, 0.0], [0.0, 2.0], [-4.0, 4.0]],
        "sizes": [1, 3, 4],
        **changes,
    }
    return Reports(**values)


def test_weights_by_size():
    # 1/8 (1, 0) + 3/8 (0, 2) + 4/8 (-4, 4) = (1/8 - 2, 6/8 + 2).
    state, step, diagnostics = FedAvg().aggregate({}, three_clients())
    assert state == {}
    assert step.tolist() == [-1.875, 2.75]
    assert diagnostics["weight"].tolist() == [0.125, 0.375, 0.5]


def test_uniform_weights():
    # ((1 + 0 - 4) / 3, (0 + 2 + 4) / 3)
    _, step, diagnostics = FedAvg(weights="uniform").aggregate({}, three_clients())
    assert step.tolist() == pytest.approx([-1.0, 2.0])
    assert diagnostics["weight"].tolist() == pytest.approx([1 / 3] * 3)


def test_equal_sizes_are_uniform():
    by_size = FedAvg().aggregate({}, three_clients(sizes=[7, 7, 7]))[1]
    assert torch.equal(by_size, FedAvg(weights="uniform").aggregate({}, three_clients())[1])


def test_sizes_count_by_row_not_by_arrival():
    swapped = Reports(
        ids=["c", "a", "b"], deltas=[[-4.0, 4.0], [1.0, 0.0], [0.0, 2.0]], sizes=[4, 1, 3]
    )
    assert FedAvg().aggregate({}, swapped)[1].tolist() == [-1.875, 2.75]


def test_one_client_becomes_the_model():
    # The server subtracts theta - theta_1, which leaves theta_1.
    theta, theta_1 = torch.tensor([3.0, 5.0]), torch.tensor([2.5, 7.0])
    _, step, _ = FedAvg().aggregate(
        {}, Reports(ids=["a"], deltas=(theta - theta_1)[None], sizes=[9])
    )
    assert torch.equal(theta - step, theta_1)


def test_clients_that_agree_are_followed_exactly():
    _, step, _ = FedAvg().aggregate({}, three_clients(deltas=[[0.25, -8.0]] * 3))
    assert step.tolist() == [0.25, -8.0]


def test_uniform_needs_no_sizes_and_by_size_does():
    bare = three_clients(sizes=None)
    assert FedAvg(weights="uniform").aggregate({}, bare)[1].tolist() == pytest.approx([-1.0, 2.0])
    with pytest.raises(ReportError, match="sizes was left out"):
        FedAvg().aggregate({}, bare)


def test_losses_and_uncertainties_do_not_enter():
    full = three_clients(
        losses=[9.0, 0.1, 3.0], uncertainties=[0.1, 2.0, 0.3], steps=[1, 5, 9], lr=3.0, momentum=0.9
    )
    assert torch.equal(FedAvg().aggregate({}, full)[1], FedAvg().aggregate({}, three_clients())[1])


def test_many_clients_are_summed_in_double_precision():
    # 1 + 999 * 2^-24: in float32 each of the small terms would vanish beside the 1.
    n, small = 1000, 2.0**-24
    deltas = torch.full((n, 1), small)
    deltas[0] = 1.0
    reports = Reports(ids=[str(i) for i in range(n)], deltas=deltas, sizes=[1] * n)
    expected = (1 + (n - 1) * small) / n
    assert FedAvg().aggregate({}, reports)[1].item() == pytest.approx(expected, rel=1e-7)


def test_unknown_weights_are_refused():
    with pytest.raises(SettingsError, match=r"weights.*'sizes'.*uniform"):
        method("fedavg", weights="sizes")
