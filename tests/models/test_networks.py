"""Models: the built-in ones, a user's own, and the way to one flat vector and back."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from udjfl.errors import SettingsError
from udjfl.models import (
    BUILT_IN,
    WeightNormLinear,
    buffers_from_vector,
    buffers_to_vector,
    build,
    cnn,
    describe,
    from_vector,
    logistic,
    mlp,
    to_vector,
)


def numbers(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_models_give_one_score_per_class(name: str) -> None:
    module = build(name, (3, 8, 8), 5, seed=0)
    assert module(torch.zeros(2, 3, 8, 8)).shape == (2, 5)


def test_sizes_of_the_built_in_models() -> None:
    # The paper's model on 28 x 28 images: 784*64 + 64 hidden; 64*10 directions, 10 lengths and 10 biases.
    assert numbers(mlp((28, 28), 10)) == 784 * 64 + 64 + 640 + 10 + 10
    assert numbers(mlp((28, 28), 10, hidden=3, weight_norm=False)) == 784 * 3 + 3 + 30 + 10
    assert numbers(logistic((2, 3), 4)) == 6 * 4 + 4
    # Two 3x3 convolutions of 16 and 32 channels, each halving the sides: 9 -> 4 -> 2 and 8 -> 4 -> 2.
    assert numbers(cnn((1, 9, 8), 5)) == (9 * 16 + 16) + (9 * 16 * 32 + 32) + (32 * 2 * 2 * 5 + 5)


def test_build_passes_its_choices_to_the_mlp() -> None:
    module = build("mlp", (4,), 3, seed=0, hidden=7, weight_norm=False)
    assert [type(layer) for layer in module] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
    assert module[1].out_features == 7
    assert isinstance(build("mlp", (4,), 3, seed=0)[-1], WeightNormLinear)


def test_weight_norm_is_torchs() -> None:
    """Same output and same gradients as torch's own parametrisation, whose names are original0 and original1."""
    ours, theirs = (
        WeightNormLinear(5, 3),
        nn.utils.parametrizations.weight_norm(nn.Linear(5, 3), dim=0),
    )
    generator = torch.Generator().manual_seed(0)
    from_vector(ours, torch.randn(15 + 3 + 3, generator=generator))
    with torch.no_grad():
        theirs.parametrizations.weight.original0.copy_(ours.scale.unsqueeze(1))
        theirs.parametrizations.weight.original1.copy_(ours.direction)
        theirs.bias.copy_(ours.bias)
    x, y = torch.randn(6, 5, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])
    torch.testing.assert_close(ours(x), theirs(x))
    for layer in (ours, theirs):
        nn.functional.cross_entropy(layer(x), y).backward()
    torch.testing.assert_close(
        ours.scale.grad.unsqueeze(1), theirs.parametrizations.weight.original0.grad
    )
    torch.testing.assert_close(ours.direction.grad, theirs.parametrizations.weight.original1.grad)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)


def test_weight_norm_by_hand() -> None:
    """Direction (3, 4) has length 5; scale 10 makes the weights (6, 8); at x = (1, 1), with bias 1, that is 15."""
    layer = WeightNormLinear(2, 1)
    from_vector(layer, torch.tensor([3.0, 4.0, 10.0, 1.0]))
    assert layer(torch.ones(1, 2)).item() == pytest.approx(15.0)


def test_weight_norm_starts_as_a_plain_layer() -> None:
    layer = WeightNormLinear(5, 3)
    x = torch.ones(2, 5)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.direction, layer.bias))


def test_vector_round_trip() -> None:
    module, other = build("mlp", (4,), 3, seed=0, hidden=5), build("mlp", (4,), 3, seed=1, hidden=5)
    vector = to_vector(module)
    assert vector.shape == (numbers(module),)
    from_vector(other, vector)
    assert torch.equal(to_vector(other), vector)
    assert torch.equal(other[1].weight, module[1].weight)
    vector.zero_()  # a copy: the model keeps its numbers
    assert to_vector(module).abs().sum() > 0


def test_frozen_parameters_are_not_in_the_vector() -> None:
    module = logistic((4,), 3)
    module[1].bias.requires_grad_(False)
    assert torch.equal(to_vector(module), module[1].weight.detach().reshape(-1))


@pytest.mark.parametrize("length", [11, 13])
def test_a_vector_of_the_wrong_length_is_refused(length: int) -> None:
    module = nn.Linear(3, 3)  # 12 numbers
    with pytest.raises((RuntimeError, ValueError)):
        from_vector(module, torch.zeros(length))


def test_buffers_round_trip_and_counters_are_rounded() -> None:
    module = nn.BatchNorm1d(2)
    assert buffers_to_vector(module).tolist() == [0, 0, 1, 1, 0]  # means, variances, batches seen
    buffers_from_vector(module, torch.tensor([1.5, 2.5, 3.5, 4.5, 6.6], dtype=torch.float64))
    assert module.running_mean.tolist() == [1.5, 2.5]
    assert module.num_batches_tracked.item() == 7
    assert module.num_batches_tracked.dtype == torch.int64
    assert buffers_to_vector(logistic((4,), 3)).shape == (0,)


def no_arguments() -> nn.Module:
    return nn.Linear(4, 3)


def two_arguments(input_shape: tuple[int, ...], n_classes: int, depth: int = 1) -> nn.Module:
    return nn.Sequential(*[nn.Linear(input_shape[0], n_classes) for _ in range(depth)])


class OwnModel(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.scores = nn.Linear(input_shape[0], n_classes)


@pytest.mark.parametrize(
    "make", [no_arguments, two_arguments, OwnModel, lambda *anything: nn.Linear(4, 3)]
)
def test_a_callable_of_ones_own(make: Callable[..., nn.Module]) -> None:
    assert numbers(build(make, (4,), 3, seed=0)) == 15


def test_a_model_named_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from torch import nn\nSIZE = 3\n\ndef small(shape, n):\n    return nn.Linear(shape[0], n)\n"
    (tmp_path / "models_of_this_test.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    module = build("models_of_this_test:small", (4,), 3, seed=0)
    assert isinstance(module, nn.Linear)
    with pytest.raises(SettingsError, match=r"model: 'models_of_this_test:SIZE' is not callable"):
        build("models_of_this_test:SIZE", (4,), 3, seed=0)
    with pytest.raises(
        SettingsError, match=r"model: cannot import 'models_of_this_test:large'.*large"
    ):
        build("models_of_this_test:large", (4,), 3, seed=0)


ARITY = "must take no arguments, or (input_shape, n_classes)"
NO_MODULE = "must return a torch.nn.Module with trainable parameters"
WRONG: dict[str, tuple[Any, str]] = {
    "a typing mistake": (
        "mpl",
        "model: unknown name 'mpl'. Did you mean 'mlp'? Known: cnn, logistic, mlp.",
    ),
    "no such package": ("no_such_package:net", "model: cannot import 'no_such_package:net'"),
    "no package named": (":net", "model: cannot import ':net'"),
    "no function named": ("udjfl.models:", "model: cannot import 'udjfl.models:'"),
    "images needed": (
        "cnn",
        "cnn needs images [channels, height, width] of at least 4x4 pixels, the data has [4]",
    ),
    "one argument": (lambda shape: nn.Linear(4, 3), ARITY),
    "three arguments": (lambda a, b, c: nn.Linear(4, 3), ARITY),
    "an argument by name": (lambda *, width: nn.Linear(width, 3), ARITY),
    "returns a text": (lambda: "a network", NO_MODULE),
    "nothing to train": (lambda: nn.ReLU(), NO_MODULE),
    "all frozen": (lambda: nn.Linear(4, 3).requires_grad_(False), NO_MODULE),
    # It is callable, so this mistake is easily made; what it needs is a function that makes a new one.
    "a network, not a function that makes one": (nn.Linear(4, 3), "model: "),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_model_says_what_to_do(mistake: str) -> None:
    choice, message = WRONG[mistake]
    with pytest.raises(SettingsError, match=re.escape(message)):
        build(choice, (4,), 3, seed=0)


@pytest.mark.parametrize("shape", [(1, 3, 8), (1, 8, 3), (8, 8), (1, 1, 8, 8)])
def test_cnn_refuses_what_is_no_image(shape: tuple[int, ...]) -> None:
    with pytest.raises(SettingsError, match=r"at least 4x4"):
        cnn(shape, 3)


@pytest.mark.parametrize("choice", [*BUILT_IN, no_arguments])
def test_initial_values_depend_on_seed_and_purpose_alone(choice: Any) -> None:
    shape = (1, 4, 4) if choice != no_arguments else (4,)
    first = to_vector(build(choice, shape, 3, seed=5))
    torch.rand(7)  # other ambient state
    assert torch.equal(to_vector(build(choice, shape, 3, seed=5)), first)
    assert not torch.equal(to_vector(build(choice, shape, 3, seed=6)), first)
    assert not torch.equal(to_vector(build(choice, shape, 3, seed=5, purpose="alone 0")), first)


def fails() -> nn.Module:
    nn.Linear(4, 3)
    raise ZeroDivisionError


@pytest.mark.parametrize("choice", [*BUILT_IN, no_arguments, fails])
def test_ambient_random_numbers_are_left_alone(choice: Any) -> None:
    before = torch.random.get_rng_state()
    with contextlib.suppress(
        ZeroDivisionError
    ):  # a mistake inside the user's function stays the user's to see
        build(choice, (1, 4, 4), 3, seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_how_a_model_is_written_down() -> None:
    assert describe("mlp") == "mlp"
    assert describe(two_arguments) == f"{__name__}:two_arguments"
    assert describe(OwnModel) == f"{__name__}:OwnModel"
