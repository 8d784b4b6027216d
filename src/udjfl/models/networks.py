"""The built-in networks, and how a model is built from its specification."""

import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from udjfl._spec import Registry, parse_spec
from udjfl.errors import SettingsError, did_you_mean, show_short
from udjfl.models.inputs import to_inputs
from udjfl.seeds import stream_seed
from udjfl.settings.validation import describe_rule

ModelChoice = str | Callable[..., nn.Module]


class WeightNormLinear(nn.Module):
    """A linear layer with weight rows `scale * direction / |direction|`.

    Salimans & Kingma, NeurIPS 2016.

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
    """Return rows of the given length along the given directions; leading axes are batch axes."""
    lengths: Tensor = torch.linalg.vector_norm(direction, dim=-1)
    return direction * (scale / lengths).unsqueeze(-1)


def mlp(
    input_shape: tuple[int, ...], n_classes: int, hidden: int = 64, weight_norm: bool = True
) -> nn.Module:
    """Build the paper's model: one hidden layer with ReLU, weight normalisation at the output."""
    output: nn.Module = (
        WeightNormLinear(hidden, n_classes) if weight_norm else nn.Linear(hidden, n_classes)
    )
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), hidden), nn.ReLU(), output)


def logistic(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Build multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), n_classes))


def cnn(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Build two convolutions and a linear layer, for images of at least 4x4 pixels."""
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise SettingsError(
            "model: cnn needs images [channels, height, width] of at least 4x4 pixels, the data "
            f"has {list(input_shape)}"
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


ModelFunction = Callable[..., nn.Module]
MODELS: Registry[ModelFunction] = Registry("model", "udjfl.models")


def register_model(name: str, function: ModelFunction) -> ModelFunction:
    """Make a model known by name, as in `model="my-net"` or `--model my-net:width=32`.

    `function` takes nothing or `(input_shape, n_classes)`, and options with defaults as keywords;
    it returns a `torch.nn.Module`.
    """
    return MODELS.register(name, function)


for _function in (mlp, cnn, logistic):
    register_model(_function.__name__, _function)


def check_model(name: str) -> None:
    """Raise an error for a name that is no registered model and cannot be imported."""
    _find_model(name)


def build(
    choice: ModelChoice,
    input_shape: tuple[int, ...],
    n_classes: int,
    seed: int,
    *,
    hidden: int = 64,
    weight_norm: bool = True,
    purpose: str = "model",
    one_logit: bool = False,
) -> nn.Module:
    """Build a model whose initial values depend on the seed and the purpose alone.

    `choice` is a specification, `name:key=value` or `package.module:function`, or a function that
    returns a module. A function gets nothing, or `(input_shape, n_classes)` if it takes two
    arguments. `hidden` and `weight_norm` are for the mlp, unless its specification has them. With
    `one_logit` a model with one output is completed to one score for each of two classes.
    """
    function, options = _find_model(choice) if isinstance(choice, str) else (choice, {})
    if function is mlp:
        options = {"hidden": hidden, "weight_norm": weight_norm, **options}
    # Initialisers draw from torch's global generator: it gets a state of its own, and then its
    # old one back.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, purpose))
        try:
            module = _call(function, input_shape, n_classes, options)
        except Exception as error:
            if not isinstance(choice, str) or isinstance(error, SettingsError):
                raise
            # What a text names may fail in its own code, or be too large for the memory.
            reason = (str(error).splitlines() or [""])[0]
            raise SettingsError(
                f"model: {choice} failed: {type(error).__name__}: {reason}"
            ) from error
    if not isinstance(module, nn.Module) or not any(p.requires_grad for p in module.parameters()):
        raise SettingsError(
            f"model: {describe(choice)} must return a torch.nn.Module with trainable parameters"
        )
    is_built_in = function in (mlp, cnn, logistic)
    return complete_logits(module) if one_logit and not is_built_in else module


def complete_logits(module: nn.Module) -> nn.Module:
    """Return a model with scores (0, z) for two classes from one with a single logit z.

    The softmax of the two is the sigmoid of the logit. A model that has two scores keeps them. The
    names of the parameters of an nn.Sequential stay; those of other modules begin with `model.`.
    """
    if type(module) is nn.Sequential:
        return nn.Sequential(OrderedDict([*module.named_children(), ("two_scores", TwoScores())]))
    return OneLogit(module)


class TwoScores(nn.Module):
    """A layer that puts 0, the score of the first class, before a single logit."""

    def forward(self, x: Tensor) -> Tensor:
        logits = x[:, None] if x.ndim == 1 else x
        return logits if logits.shape[1] != 1 else torch.cat([torch.zeros_like(logits), logits], 1)


class OneLogit(nn.Module):
    """A model with a single logit, completed to two scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.two_scores = model, TwoScores()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.two_scores(self.model(x))
        return scores


def check_fit(module: nn.Module, x: Tensor, n_outputs: int, is_regression: bool = False) -> None:
    """Raise an error for a model that cannot take these inputs, or has the wrong outputs.

    It must have `n_outputs`, one score per class; in regression one number or two, in one axis or
    two.
    """
    module.eval()
    try:
        with torch.no_grad():
            scores = module(to_inputs(x, module))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shape = list(x.shape[1:])
        raise SettingsError(
            f"model: cannot take the data's inputs of shape {shape}: {str(error).splitlines()[0]}"
        ) from None
    outputs = tuple(scores.shape) if isinstance(scores, Tensor) else None
    n = len(x)
    allowed = ((n,), (n, 1), (n, 2)) if is_regression else ((n, n_outputs),)
    if outputs not in allowed:
        given = list(outputs) if outputs is not None else type(scores).__name__
        wanted = f"{n_outputs} scores for each, one per class"
        if is_regression:
            wanted = "one number for each, or a mean and a log variance"
        hint = ""
        if not is_regression and n_outputs == 2 and outputs in ((n,), (n, 1)):
            hint = "; for one logit choose task='binary'"
        raise SettingsError(f"model: gives {given} for {n} examples; it must give {wanted}{hint}")


def describe(choice: ModelChoice) -> str:
    """Return a model choice as it is written in a run's settings."""
    if isinstance(choice, str):
        return choice
    module = getattr(choice, "__module__", "?")
    return f"{module}:{getattr(choice, '__qualname__', type(choice).__name__)}"


def _find_model(text: str) -> tuple[ModelFunction, dict[str, Any]]:
    """Return the function of a specification, and its options in the types it declares."""
    spec = parse_spec(text, "model")
    function = MODELS.find(spec.name)
    if not callable(function):
        raise SettingsError(
            f"model: {spec.name!r} is not callable; name a function or class that returns a module"
        )
    if not spec.options:
        return function, {}
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except (TypeError, ValueError, NameError):
        raise SettingsError(
            f"model: {spec.name} does not say which options it has; leave them out"
        ) from None
    known = [name for name, p in parameters.items() if p.default is not p.empty]
    mistakes: list[str] = []
    options: dict[str, Any] = {}
    for key, value in spec.options.items():
        if key not in known:
            mistakes.append(f"model: {spec.name} has no option {key!r}.{did_you_mean(key, known)}")
            continue
        annotation = parameters[key].annotation
        kind = (
            type(parameters[key].default) if annotation is inspect.Parameter.empty else annotation
        )
        try:
            options[key] = TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            (mistake, *_) = error.errors(include_url=False)
            mistakes.append(f"model: {key} {describe_rule(mistake)}, got {show_short(value)}")
    if mistakes:
        raise SettingsError(mistakes)
    return function, options


def _call(
    function: ModelFunction,
    input_shape: tuple[int, ...],
    n_classes: int,
    options: Mapping[str, Any],
) -> nn.Module:
    if isinstance(function, nn.Module):
        raise SettingsError(
            "model: this is a network; give a function that makes one, so that every run starts "
            "from its own initial values"
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise SettingsError(
            f"model: {describe(function)} does not say which arguments it takes; name a function"
        ) from None
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p for p in parameters if p.default is p.empty and p.kind not in variadic]
    if len(required) not in (0, 2) or any(p.kind is p.KEYWORD_ONLY for p in required):
        raise SettingsError(
            f"model: {describe(function)} must take no arguments, or (input_shape, n_classes)"
        )
    return function(*((input_shape, n_classes) if required else ()), **options)


class ShiftedLogits(nn.Module):
    """A model with a fixed offset [C] added to its logits."""

    def __init__(self, model: nn.Module, offset: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("offset", offset.to(next(model.parameters())))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits + self.get_buffer("offset")


class Mixture(nn.Module):
    """Several models as one: its logits are the logarithms of the mixed probabilities."""

    def __init__(self, members: Sequence[nn.Module], shares: Tensor) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("log_shares", shares.to(torch.float32).log())

    def forward(self, x: Tensor) -> Tensor:
        log_p = torch.stack([member(x).log_softmax(dim=1) for member in self.members])
        return torch.logsumexp(log_p + self.get_buffer("log_shares")[:, None, None], dim=0)
