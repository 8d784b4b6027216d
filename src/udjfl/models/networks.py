"""Models, and the way between a model and one flat vector of its trainable numbers."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from udjfl.errors import SettingsError, did_you_mean
from udjfl.seeds import stream_seed

ModelChoice = str | Callable[..., nn.Module]


class WeightNormLinear(nn.Module):
    """A linear layer whose weight rows are `scale * direction / |direction|` (Salimans & Kingma, NeurIPS 2016).

    Written out rather than through torch's parametrisation, which cannot be batched over clients.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        start = nn.Linear(in_features, out_features)
        self.direction = nn.Parameter(start.weight.detach().clone())
        self.scale = nn.Parameter(start.weight.detach().norm(dim=1))
        self.bias = nn.Parameter(start.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, normalised(self.direction, self.scale), self.bias)


def normalised(direction: Tensor, scale: Tensor) -> Tensor:
    """Rows of the given length along the given directions; any leading axes are batch axes."""
    lengths: Tensor = torch.linalg.vector_norm(direction, dim=-1)
    return direction * (scale / lengths).unsqueeze(-1)


def mlp(
    input_shape: tuple[int, ...], n_classes: int, hidden: int = 64, weight_norm: bool = True
) -> nn.Module:
    """The paper's model: one hidden layer with ReLU, weight normalisation on the output layer."""
    output: nn.Module = (
        WeightNormLinear(hidden, n_classes) if weight_norm else nn.Linear(hidden, n_classes)
    )
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), hidden), nn.ReLU(), output)


def logistic(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), n_classes))


def cnn(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Two convolutions and a linear layer, for images [channels, height, width] of 4x4 pixels or more."""
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise SettingsError(
            f"model: cnn needs images [channels, height, width] of at least 4x4 pixels, the data has {list(input_shape)}"
        )
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), n_classes),
    )


BUILT_IN = ("mlp", "cnn", "logistic")


def check_model(name: str) -> None:
    """Refuse a name that is no built-in model and cannot be imported."""
    if name not in BUILT_IN:
        _imported(name)


def build(
    choice: ModelChoice,
    input_shape: tuple[int, ...],
    n_classes: int,
    seed: int,
    *,
    hidden: int = 64,
    weight_norm: bool = True,
    purpose: str = "model",
) -> nn.Module:
    """A model with initial values that depend on the seed and the purpose alone.

    `choice` is a built-in name, `package.module:function`, or a callable that returns a module. A callable is given
    nothing, or `(input_shape, n_classes)` if it asks for two arguments.
    """
    # Initialisers draw from torch's global generator: give them their own state and put the old one back.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, purpose))
        if choice == "mlp":
            module = mlp(input_shape, n_classes, hidden, weight_norm)
        elif choice == "logistic":
            module = logistic(input_shape, n_classes)
        elif choice == "cnn":
            module = cnn(input_shape, n_classes)
        else:
            module = _call(
                _imported(choice) if isinstance(choice, str) else choice, input_shape, n_classes
            )
    if not isinstance(module, nn.Module) or not any(p.requires_grad for p in module.parameters()):
        raise SettingsError(
            f"model: {describe(choice)} must return a torch.nn.Module with trainable parameters"
        )
    return module


def check_fit(module: nn.Module, x: Tensor, n_classes: int) -> None:
    """Refuse a model that cannot take these inputs, or does not give one score per class."""
    module.eval()
    try:
        with torch.no_grad():
            scores = module(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape = list(x.shape[1:])
        raise SettingsError(
            f"model: cannot take the data's inputs of shape {shape}: {str(error).splitlines()[0]}"
        ) from None
    if not isinstance(scores, Tensor) or scores.shape != (len(x), n_classes):
        given = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise SettingsError(
            f"model: gives {given} for {len(x)} examples; it must give {n_classes} scores for each, one per class"
        )


def describe(choice: ModelChoice) -> str:
    """How a model choice is written down in a run's settings."""
    if isinstance(choice, str):
        return choice
    return f"{getattr(choice, '__module__', '?')}:{getattr(choice, '__qualname__', type(choice).__name__)}"


def _imported(name: str) -> Callable[..., nn.Module]:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise SettingsError(f"model: unknown name {name!r}.{did_you_mean(name, BUILT_IN)}")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"model: cannot import {name!r}: {error}; is it on PYTHONPATH?"
        ) from None
    if not callable(found):
        raise SettingsError(
            f"model: {name!r} is not callable; name a function or class that returns a module"
        )
    return found  # type: ignore[no-any-return]


def _call(
    make: Callable[..., nn.Module], input_shape: tuple[int, ...], n_classes: int
) -> nn.Module:
    if isinstance(make, nn.Module):
        raise SettingsError(
            "model: this is a network; give a function that makes one, so that every run starts afresh"
        )
    given = inspect.signature(make).parameters.values()
    required = [
        p for p in given if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len(required) not in (0, 2) or any(p.kind is p.KEYWORD_ONLY for p in required):
        raise SettingsError(
            f"model: {describe(make)} must take no arguments, or (input_shape, n_classes)"
        )
    return make(input_shape, n_classes) if required else make()


class Mixture(nn.Module):
    """Several models as one: the logarithm of the mixture of their probabilities, in place of logits."""

    def __init__(self, members: Sequence[nn.Module], shares: Tensor) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("log_shares", shares.to(torch.float32).log())

    def forward(self, x: Tensor) -> Tensor:
        log_p = torch.stack([member(x).log_softmax(dim=1) for member in self.members])
        return torch.logsumexp(log_p + self.get_buffer("log_shares")[:, None, None], dim=0)
