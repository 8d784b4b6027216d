"""Networks whose weights stay as drawn: training decides which of them are kept.

Every weight has a score. The network uses the weights with the highest scores of each layer and
leaves the others out; gradients reach the scores as if the mask were the scores themselves
("straight through", edge-popup: Ramanujan et al., What's Hidden in a Randomly Weighted Neural
Network?, CVPR 2020, arXiv:1911.13299). Federated Rank Learning (Mozaffari, Shejwalkar, Houmansadr,
Every Vote Counts, USENIX Security 2023, arXiv:2110.04350) trains such networks by voting on the
order of scores.

    weights   fixed: a random sign times sqrt(2 / fan_in); no biases
    scores    at first spread evenly over the range -1/sqrt(fan_in) ... 1/sqrt(fan_in), in random
              order
    mask      1 for the highest `keep` share of a layer's scores, 0 for the others

Two differences from the code published with that paper. It masks by |score| but votes on the order
of the scores as they are, so that the edges ranked last are kept along with the edges ranked first;
here both go by the score. And it draws the scores from that range at random; here they are evenly
spaced, so that no two are alike, and rounded to a binary grid on which differences of scores are
exact in float32: a vote that only reorders scores loses nothing in `model - step`.
"""

import copy
import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

from udjfl.errors import SettingsError
from udjfl.models import WeightNormLinear

# Scores are multiples of 2^-22 times a power of two that is at least their largest: differences fit
# float32's 24 bits.
GRID_BITS = 22


def kept_count(size: int, keep: float) -> int:
    """Return the number of a layer's weights in use: at least one."""
    return max(1, size - math.floor((1 - keep) * size + 1e-9))


def mask(scores: Tensor, keep: float, dims: int = 2) -> Tensor:
    """Return 1 for the highest `keep` share of scores, else 0; gradients pass to the scores as is.

    The last `dims` axes are one layer; a share is taken for each index of the axes before them,
    such as clients.
    """
    flat = scores.detach().flatten(start_dim=scores.ndim - dims)
    highest = flat.topk(kept_count(flat.shape[-1], keep), dim=-1, sorted=False).indices
    hard = torch.zeros_like(flat).scatter(-1, highest, 1.0).reshape(scores.shape)
    return hard + (scores - scores.detach())


class MaskedLinear(nn.Module):
    """A linear layer without bias, whose fixed weights are used where scores are highest."""

    def __init__(
        self, in_features: int, out_features: int, keep: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.keep = keep
        self.weight, self.scores = _draw((out_features, in_features), generator)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight * mask(self.scores, self.keep))


class MaskedConv2d(nn.Module):
    """The same for a convolution like the given one in shape, stride, padding and so on."""

    def __init__(self, like: nn.Conv2d, keep: float, generator: torch.Generator) -> None:
        super().__init__()
        if like.padding_mode != "zeros":
            raise SettingsError(
                "model: masks are trained for convolutions padded with zeros, "
                f"not {like.padding_mode!r}"
            )
        self.keep = keep
        self.stride, self.padding = like.stride, like.padding
        self.dilation, self.groups = like.dilation, like.groups
        self.weight, self.scores = _draw(tuple(like.weight.shape), generator)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight * mask(self.scores, self.keep, dims=4)
        return nn.functional.conv2d(
            x, weight, None, self.stride, self.padding, self.dilation, self.groups
        )


def adapt(module: nn.Module, keep: float, generator: torch.Generator) -> nn.Module:
    """Return a network of the same shape that trains masks.

    Linear layers and convolutions lose their biases and gain scores; layers without parameters are
    copied. A layer with parameters of any other type is refused.
    """
    return _adapt(module, keep, generator, "").train(module.training)


def _adapt(module: nn.Module, keep: float, generator: torch.Generator, path: str) -> nn.Module:
    if type(module) is nn.Sequential:
        inner = [
            (name, _adapt(layer, keep, generator, f"{path}.{name}" if path else name))
            for name, layer in module.named_children()
        ]
        return nn.Sequential(OrderedDict(inner))
    new: nn.Module
    if type(module) is nn.Linear:
        new = MaskedLinear(module.in_features, module.out_features, keep, generator)
    elif type(module) is WeightNormLinear:
        new = MaskedLinear(module.direction.shape[1], module.direction.shape[0], keep, generator)
    elif type(module) is nn.Conv2d:
        new = MaskedConv2d(module, keep, generator)
    elif next(module.parameters(), None) is None:
        return copy.deepcopy(module)
    else:
        where = f" (layer {path!r})" if path else ""
        raise SettingsError(
            f"model: {type(module).__name__}{where} has parameters that cannot be masked; masks "
            "are trained for nn.Linear and nn.Conv2d inside nn.Sequential; choose a model such as "
            "mlp or cnn, or another method"
        )
    first = next(module.parameters())
    return new.to(device=first.device, dtype=first.dtype)


def _draw(shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Parameter, nn.Parameter]:
    """Draw weights that are not trained, and scores that are."""
    fan_in, size = math.prod(shape[1:]), math.prod(shape)
    sign = 2.0 * torch.randint(0, 2, shape, generator=generator) - 1
    bound = 1 / math.sqrt(fan_in)
    grid = 2.0 ** (math.ceil(math.log2(bound)) - GRID_BITS)
    levels = torch.linspace(-bound, bound, size, dtype=torch.float64)
    levels = levels.div(grid).round().mul(grid).to(torch.float32)
    scores = levels[torch.randperm(size, generator=generator)].reshape(shape)
    return nn.Parameter(sign * math.sqrt(2 / fan_in), requires_grad=False), nn.Parameter(scores)
