"""Losses and criteria."""

from __future__ import annotations

import doctest

import pytest
import torch
from torch import nn

from udjfl.errors import SettingsError
from udjfl.tasks import LOSSES, Task, check_loss, losses, make_criterion
from udjfl.tasks.criterion import explained_variance, spread


def test_docstring_examples() -> None:
    result = doctest.testmod(losses, extraglobs={"torch": torch})
    assert (result.failed, result.attempted) == (0, 5)


def test_the_gaussian_loss_is_torchs_up_to_a_constant() -> None:
    outputs, labels = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.ones(6)
    ours = losses.gaussian(outputs, labels)
    theirs = nn.functional.gaussian_nll_loss(
        outputs[:, 0], labels, losses.variance(outputs), reduction="none"
    )
    torch.testing.assert_close(ours - ours[0], theirs - theirs[0])
    assert bool((ours >= 0).all())


def test_every_loss_gives_one_value_of_at_least_zero_per_example() -> None:
    for name, loss in LOSSES.items():
        labels = torch.tensor([0, 1]) if name == "cross-entropy" else torch.tensor([0.5, -3.0])
        values = loss(torch.tensor([[1.0, 2.0], [0.0, -2.0]]), labels)
        assert values.shape == (2,)
        assert bool((values >= 0).all())


def test_r_squared_by_hand() -> None:
    criterion = make_criterion("regression")
    labels = torch.tensor([1.0, 2.0, 3.0])
    # Errors 0, 1, 0: mean 1/3; variance 2/3.
    outputs = torch.tensor([[1.0], [3.0], [3.0]])
    assert float(criterion.mean_score(outputs, labels)) == pytest.approx(0.5)
    assert float(explained_variance(spread(labels), spread(labels))) == 0.0
    assert float(spread(torch.ones(3))) == 1.0  # nothing to explain: no division by zero


@pytest.mark.parametrize(
    ("task", "loss", "message"),
    [
        ("classification", "huber", "huber is not for labels that are classes; try cross-entropy"),
        ("regression", "cross-entropy", "not for labels that are numbers; try squared-error"),
        ("classification", "cross-entrpy", "Did you mean 'cross-entropy'"),
        ("classification", "math:pi", "is not callable"),
    ],
)
def test_a_wrong_loss_is_named(task: str, loss: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_criterion(task, loss)


def test_what_a_loss_returns_is_checked() -> None:
    outputs, labels = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)

    def check(loss: object) -> None:
        check_loss(make_criterion("classification", loss), outputs, labels)

    check(lambda outputs, labels: outputs.square().sum(dim=1))
    with pytest.raises(SettingsError, match=r'gives \[\] for 3 examples.*reduction="none"'):
        check(nn.CrossEntropyLoss())
    with pytest.raises(SettingsError, match="below 0"):
        check(lambda outputs, labels: outputs.sum(dim=1) - 1)
    with pytest.raises(SettingsError, match="cannot take outputs"):
        check(lambda outputs, labels: outputs @ labels)


def test_a_task_must_fit_the_labels() -> None:
    with pytest.raises(SettingsError, match="binary is for two classes, the data has 3"):
        Task.of("binary", "auto", 3, False)
    with pytest.raises(SettingsError, match="the labels are classes"):
        Task.of("regression", "auto", 3, False)
    with pytest.raises(SettingsError, match="the labels are numbers"):
        Task.of("classification", "auto", 0, True)
    assert Task.of("auto", "auto", 0, True).name == "regression"
    assert Task.of("auto", "gaussian", 0, True).n_outputs == 2
    assert Task.of("auto", "auto", 3, False) == Task("classification", 3)
