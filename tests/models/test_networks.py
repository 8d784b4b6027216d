"""Models: the built-in ones, functions, specifications; vectors to models and back."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from udjfl._spec import Registry
from udjfl.errors import SettingsError
from udjfl.models import (
    MODELS,
    WeightNormLinear,
    buffers_from_vector,
    buffers_to_vector,
    build,
    cnn,
    describe,
    from_vector,
    logistic,
    mlp,
    register_model,
    to_vector,
)


def count_numbers(module: nn.Module) -> int:
    """Return the number of trainable numbers of a model."""
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_built_in_models_give_one_score_per_class(name: str) -> None:
    module = build(name, (3, 8, 8), 5, seed=0)
    assert module(torch.zeros(2, 3, 8, 8)).shape == (2, 5)


def test_sizes_of_the_built_in_models() -> None:
    # The paper's model on 28 x 28 images: 784*64 + 64 numbers of the hidden layer;
    # 64*10 directions, 10 lengths and 10 biases of the output layer.
    assert count_numbers(mlp((28, 28), 10)) == 784 * 64 + 64 + 640 + 10 + 10
    assert count_numbers(mlp((28, 28), 10, hidden=3, weight_norm=False)) == 784 * 3 + 3 + 30 + 10
    assert count_numbers(logistic((2, 3), 4)) == 6 * 4 + 4
    # Two 3x3 convolutions of 16 and 32 channels; each halves the sides: 9, 4, 2 and 8, 4, 2.
    assert count_numbers(cnn((1, 9, 8), 5)) == (9 * 16 + 16) + (9 * 16 * 32 + 32) + (
        32 * 2 * 2 * 5 + 5
    )


def test_build_passes_its_choices_to_the_mlp() -> None:
    module = build("mlp", (4,), 3, seed=0, hidden=7, weight_norm=False)
    assert [type(layer) for layer in module.children()] == [
        nn.Flatten,
        nn.Linear,
        nn.ReLU,
        nn.Linear,
    ]
    assert module[1].out_features == 7
    assert isinstance(build("mlp", (4,), 3, seed=0)[-1], WeightNormLinear)


def test_weight_norm_equals_that_of_torch() -> None:
    """Outputs and gradients are those of torch's parametrisation.

    Torch calls the lengths original0 and the directions original1.
    """
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
    """Direction (3, 4) has length 5, so scale 10 gives weights (6, 8).

    At x = (1, 1), with bias 1, the output is 6 + 8 + 1 = 15.
    """
    layer = WeightNormLinear(2, 1)
    from_vector(layer, torch.tensor([3.0, 4.0, 10.0, 1.0]))
    assert layer(torch.ones(1, 2)).item() == pytest.approx(15.0)


def test_weight_norm_starts_with_the_values_of_a_linear_layer() -> None:
    layer = WeightNormLinear(5, 3)
    x = torch.ones(2, 5)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.direction, layer.bias))


def test_vector_round_trip() -> None:
    module, other = build("mlp", (4,), 3, seed=0, hidden=5), build("mlp", (4,), 3, seed=1, hidden=5)
    vector = to_vector(module)
    assert vector.shape == (count_numbers(module),)
    from_vector(other, vector)
    assert torch.equal(to_vector(other), vector)
    assert torch.equal(other[1].weight, module[1].weight)
    vector.zero_()  # it is a copy: the model does not change
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
    "function", [no_arguments, two_arguments, OwnModel, lambda *_: nn.Linear(4, 3)]
)
def test_a_model_function_is_called(function: Callable[..., nn.Module]) -> None:
    assert count_numbers(build(function, (4,), 3, seed=0)) == 15


def test_a_function_of_another_package_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from torch import nn\nSIZE = 3\ndef small(shape, n):\n    return nn.Linear(shape[0], n)\n"
    )
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
    "no package named": (":net", "model: ':net' is not of the form package.module:Name"),
    "no function named": (
        "udjfl.models:",
        "'udjfl.models:' is not of the form package.module:Name",
    ),
    "options of a model without": ("logistic:hidden=3", "model: logistic has no option 'hidden'."),
    "a misspelt option": (
        "mlp:hiden=3",
        "model: mlp has no option 'hiden'. Did you mean 'hidden'? Known: hidden, weight_norm.",
    ),
    "a required argument as an option": (
        "mlp:n_classes=3",
        "model: mlp has no option 'n_classes'. Known: hidden, weight_norm.",
    ),
    "an option of another type": (
        "mlp:hidden=many",
        "model: hidden must be a whole number, got 'many'",
    ),
    "a flag that is neither": (
        "mlp:weight_norm=perhaps",
        "model: weight_norm must be true or false, got 'perhaps'",
    ),
    "an option twice": ("mlp:hidden=3:hidden=4", "gives hidden twice; give it once"),
    "a value without a key": (
        "mlp:3",
        "model: 'mlp:3' has '3' where key=value was expected, as in mlp:key=value",
    ),
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
    # A network is callable too.
    "a network": (nn.Linear(4, 3), "model: this is a network; give a function that makes one"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_model_is_an_error_that_names_the_mistake(mistake: str) -> None:
    choice, message = WRONG[mistake]
    with pytest.raises(SettingsError, match=re.escape(message)):
        build(choice, (4,), 3, seed=0)


@pytest.mark.parametrize("shape", [(1, 3, 8), (1, 8, 3), (8, 8), (1, 1, 8, 8)])
def test_cnn_refuses_inputs_that_are_not_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(SettingsError, match=r"at least 4x4"):
        cnn(shape, 3)


@pytest.mark.parametrize("choice", [*MODELS, no_arguments])
def test_initial_values_depend_on_seed_and_purpose_alone(choice: Any) -> None:
    shape = (1, 4, 4) if choice != no_arguments else (4,)
    first = to_vector(build(choice, shape, 3, seed=5))
    torch.rand(7)  # change the state of torch's global generator
    assert torch.equal(to_vector(build(choice, shape, 3, seed=5)), first)
    assert not torch.equal(to_vector(build(choice, shape, 3, seed=6)), first)
    assert not torch.equal(to_vector(build(choice, shape, 3, seed=5, purpose="alone 0")), first)


def fail_to_build() -> nn.Module:
    nn.Linear(4, 3)
    raise ZeroDivisionError


@pytest.mark.parametrize("choice", [*MODELS, no_arguments, fail_to_build])
def test_the_global_random_generator_is_left_alone(choice: Any) -> None:
    before = torch.random.get_rng_state()
    with contextlib.suppress(ZeroDivisionError):  # errors of a model function are passed on
        build(choice, (1, 4, 4), 3, seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_model_is_described_by_its_specification_or_its_location() -> None:
    assert describe("mlp") == "mlp"
    assert describe(two_arguments) == f"{__name__}:two_arguments"
    assert describe(OwnModel) == f"{__name__}:OwnModel"


# --- specifications


@pytest.fixture
def models() -> Iterator[Registry[Any]]:
    """Return the registry of models; names that a test adds are removed after it."""
    before = dict(MODELS)
    yield MODELS
    MODELS.clear()
    MODELS.update(before)


def make_net(
    input_shape: tuple[int, ...], n_classes: int, width: int = 2, bias: bool = True, scale=1.0
) -> nn.Module:
    """Build a network with options; `scale` has no annotation: its type is that of its default."""
    first = nn.Linear(input_shape[0], width, bias=bias)
    with torch.no_grad():
        first.weight.fill_(scale)
    return nn.Sequential(first, nn.Linear(width, n_classes, bias=bias))


def test_options_of_a_specification_replace_the_settings() -> None:
    module = build("mlp:hidden=8", (4,), 3, seed=0, hidden=5)
    assert module[1].out_features == 8
    assert isinstance(module[-1], WeightNormLinear)
    module = build("mlp:weight_norm=false", (4,), 3, seed=0, hidden=5)
    assert module[1].out_features == 5
    assert isinstance(module[-1], nn.Linear)
    module = build("mlp:weight-norm=true:hidden=2", (4,), 3, seed=0, weight_norm=False)
    assert (module[1].out_features, type(module[-1])) == (2, WeightNormLinear)


def test_a_specification_gives_the_initial_values_of_the_same_settings() -> None:
    ours, theirs = build("mlp:hidden=8", (4,), 3, seed=1), build("mlp", (4,), 3, seed=1, hidden=8)
    assert torch.equal(to_vector(ours), to_vector(theirs))


def test_every_mistake_in_the_options_is_reported() -> None:
    with pytest.raises(SettingsError) as caught:
        build("mlp:hidden=x:width=3", (4,), 3, seed=0)
    first, second = caught.value.mistakes
    assert first == "model: hidden must be a whole number, got 'x'"
    assert "no option 'width'" in second


def test_a_registered_model_is_built_by_name(models: Registry[Any]) -> None:
    assert register_model("test-net", make_net) is make_net
    assert count_numbers(build("test-net", (4,), 3, seed=0)) == 4 * 2 + 2 + 2 * 3 + 3
    module = build("test-net:width=5:bias=false:scale=2", (4,), 3, seed=0, hidden=64)
    assert count_numbers(module) == 4 * 5 + 5 * 3
    assert module[0].weight.unique().tolist() == [2.0]
    with pytest.raises(
        SettingsError, match=r"Did you mean 'test-net'\? Known: cnn, logistic, mlp, "
    ):
        build("test-nat", (4,), 3, seed=0)
    with pytest.raises(SettingsError, match="model: 'mlp' is taken; choose another name"):
        register_model("mlp", make_net)


def test_a_function_of_another_package_takes_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The annotations are texts, as `from __future__ import annotations` makes them."""
    (tmp_path / "models_with_options.py").write_text(
        "from __future__ import annotations\n"
        "from torch import nn\n"
        "def small(shape, n, *, width: int = 2) -> nn.Module:\n"
        "    return nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, n))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = build("models_with_options:small:width=3", (4,), 3, seed=0)
    assert module[0].out_features == 3
    with pytest.raises(
        SettingsError,
        match=r"models_with_options:small has no option 'wide'.* Did you mean 'width'",
    ):
        build("models_with_options:small:wide=3", (4,), 3, seed=0)


def test_a_model_of_an_installed_package_is_found_by_its_entry_point(
    models: Registry[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("installed-net", "udjfl.models:logistic", "udjfl.models")
    calls: list[tuple[str, str | None]] = []

    def find(group: str, name: str | None = None) -> list[EntryPoint]:
        calls.append((group, name))
        return [point] if (group, name) == ("udjfl.models", "installed-net") else []

    monkeypatch.setattr("importlib.metadata.entry_points", find)
    assert count_numbers(build("installed-net", (4,), 3, seed=0)) == 15
    assert "installed-net" in models
    assert calls == [("udjfl.models", "installed-net")]
    build("installed-net", (4,), 3, seed=0)
    assert len(calls) == 1  # now it is registered
    with pytest.raises(SettingsError, match="model: unknown name 'other-net'"):
        build("other-net", (4,), 3, seed=0)
