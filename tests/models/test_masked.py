"""Mask-trained layers: weights in use, gradients, what is drawn, and models that adapt."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from udjfl.errors import SettingsError
from udjfl.models import cnn, logistic, mlp, to_vector, trainable
from udjfl.models.masked import MaskedConv2d, MaskedLinear, adapt, kept_count, mask


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_highest_scores_are_kept():
    # By the score, not by its size: -9 is the lowest.
    assert mask(torch.tensor([[0.1, -9.0], [0.3, 0.2]]), 0.5).tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("size", "keep", "kept"), [(4, 0.5, 2), (5, 0.5, 3), (10, 0.9, 9), (10, 0.3, 3), (3, 0.01, 1)]
)
def test_the_share_keep_is_kept(size, keep, kept):
    assert kept_count(size, keep) == kept
    assert mask(torch.rand(1, size, generator=generator()), keep).sum() == kept
    assert mask(torch.zeros(1, size), keep).sum() == kept  # of equal scores, no more


def test_a_mask_per_leading_index():
    scores = torch.randn(3, 2, 4, 5, generator=generator())
    together = mask(scores, 0.4)
    for i in range(3):
        for j in range(2):
            assert torch.equal(together[i, j], mask(scores[i, j], 0.4))
    assert torch.equal(torch.func.vmap(lambda s: mask(s, 0.4))(scores[:, 0]), together[:, 0])
    assert mask(scores, 0.4, dims=4).sum() == 48


def test_the_gradient_passes_straight_through():
    # output = x . (w * mask): each score's gradient is x * w, kept or not.
    layer = MaskedLinear(3, 1, 0.4, generator())
    x = torch.tensor([[1.0, 2.0, -4.0]])
    layer(x).sum().backward()
    assert layer.scores.grad is not None
    torch.testing.assert_close(layer.scores.grad, x * layer.weight)
    assert layer.weight.grad is None


def test_a_linear_layer_uses_the_kept_weights():
    layer = MaskedLinear(4, 2, 0.5, generator())
    x = torch.randn(3, 4, generator=generator(1))
    kept = layer.scores.flatten().argsort()[4:]
    weight = torch.zeros(8)
    weight[kept] = layer.weight.flatten()[kept]
    torch.testing.assert_close(layer(x), x @ weight.reshape(2, 4).T)


def test_a_convolution_is_that_of_its_kept_weights():
    like = nn.Conv2d(2, 4, kernel_size=3, stride=2, padding=1, groups=2)
    layer = MaskedConv2d(like, 0.25, generator())
    assert layer.weight.shape == like.weight.shape
    x = torch.randn(1, 2, 6, 6, generator=generator(1))
    with torch.no_grad():
        like.weight.copy_(layer.weight * (layer.scores > layer.scores.flatten().sort().values[26]))
        like.bias.zero_()  # type: ignore[union-attr]
    torch.testing.assert_close(layer(x), like(x))
    assert (like.weight != 0).sum() == 9  # a quarter of 36


def test_weights_and_scores_are_drawn_as_documented():
    layer = MaskedLinear(50, 40, 0.5, generator())
    assert layer.weight.unique().tolist() == pytest.approx([-0.2, 0.2])  # sqrt(2/50)
    assert 800 < (layer.weight > 0).sum() < 1200
    scores = layer.scores.detach().flatten()
    assert len(scores.unique()) == 2000
    assert scores.abs().max() <= 50**-0.5 + 1e-6
    assert scores.mean().abs() < 1e-6
    assert not torch.equal(scores, scores.sort().values)


@pytest.mark.parametrize("fan_in", [3, 50, 784])
def test_differences_of_scores_are_exact(fan_in):
    scores = MaskedLinear(fan_in, 64, 0.5, generator()).scores.detach().flatten()
    other = scores[torch.randperm(len(scores), generator=generator(1))]
    assert scores.dtype == torch.float32
    assert torch.equal(scores - (scores - other), other)


def test_an_adapted_mlp_trains_scores_only():
    model = mlp((2, 3), 4, hidden=5)
    before = to_vector(model)
    masked = adapt(model, 0.5, generator())
    layers = [type(layer) for layer in masked.children()]
    assert layers == [nn.Flatten, MaskedLinear, nn.ReLU, MaskedLinear]
    assert [p.shape for p in trainable(masked)] == [(5, 6), (4, 5)]
    assert masked(torch.zeros(7, 2, 3)).shape == (7, 4)
    assert torch.equal(to_vector(model), before)  # the given one is left alone


def test_an_adapted_cnn_and_logistic_run():
    masked = adapt(cnn((1, 8, 8), 3), 0.5, generator())
    assert masked(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    assert len(trainable(masked)) == 3
    assert adapt(logistic((4,), 3), 0.5, generator())(torch.zeros(2, 4)).shape == (2, 3)
    assert isinstance(adapt(nn.Linear(4, 3), 0.5, generator()), MaskedLinear)


def test_containers_inside_containers_keep_names_mode_and_dtype():
    model = (
        nn.Sequential(
            nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)), nn.BatchNorm1d(3, affine=False)
        )
        .double()
        .eval()
    )
    masked = adapt(model, 0.5, generator())
    assert isinstance(masked[0][0], MaskedLinear)
    assert masked[1] is not model[1]
    assert not masked.training
    assert not masked[0][1].training
    assert to_vector(masked).dtype == torch.float64


def test_draws_come_from_the_generator_alone():
    model = mlp((4,), 3)
    torch.manual_seed(0)
    one = adapt(model, 0.5, generator(5)).state_dict()
    torch.manual_seed(1)
    two, three = (adapt(model, 0.5, generator(seed)).state_dict() for seed in (5, 6))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not any(torch.equal(one[name], three[name]) for name in one)


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (nn.BatchNorm1d(3), "BatchNorm1d.*'1'"),
        (nn.Sequential(nn.ReLU(), nn.LSTM(3, 3)), "LSTM.*'1.1'"),
        (nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular"), "circular"),
    ],
)
def test_other_layers_with_parameters_are_refused(layer, named):
    with pytest.raises(SettingsError, match=named):
        adapt(nn.Sequential(nn.Linear(2, 3), layer), 0.5, generator())


def test_training_the_scores_learns():
    # Which of two points an example is near to: 30 steps on the mask alone settle it.
    x = torch.randn(60, 2, generator=generator(2)) * 0.3 + torch.tensor(
        [[1.0, -1.0], [-1.0, 1.0]]
    ).repeat(30, 1)
    y = torch.tensor([0, 1]).repeat(30)
    model = adapt(mlp((2,), 2, hidden=16), 0.5, generator(3))
    optimiser = torch.optim.SGD(trainable(model), lr=0.4)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 < losses[0]
