"""Stacks of linear layers, many models at a time, with their gradients written out.

A model here is a list of layers: linear, weight-normalised linear or masked linear, with or without a ReLU behind it. K
clients train S settings each: every tensor of the model has two axes in front, [K, S, ...]. All settings of a client see the
same batch, so the first layers of all S stand side by side in one wide matrix product with the client's data; from there on
every product is batched over the K * S models. Autograd is not involved: it would keep every intermediate result, and add as
many passes over memory again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from udjfl.masks import MaskedLinear, mask
from udjfl.models import WeightNormLinear


@dataclass(frozen=True)
class Layer:
    """One linear layer: which of the model's tensors are its own, and whether a ReLU follows.

    `first` is the place of its first tensor among the model's trainable ones, `count` how many it has.
    """

    module: nn.Module
    first: int
    count: int
    relu: bool


def layers_of(module: nn.Sequential) -> list[Layer]:
    """The layers of a model that `stacked.why_not` has no objection to."""
    found: list[Layer] = []
    place = 0
    for part in module:
        if isinstance(part, nn.ReLU):
            if found:
                found[-1] = Layer(found[-1].module, found[-1].first, found[-1].count, relu=True)
            continue
        count = sum(p.requires_grad for p in part.parameters())
        if count:
            found.append(Layer(part, place, count, relu=False))
            place += count
    return found


class Stack:
    """K * S models of one shape; `tensors` are the model's trainable tensors, each [K, S, ...], updated in place."""

    def __init__(self, layers: Sequence[Layer], tensors: list[Tensor]) -> None:
        self.layers = layers
        self.tensors = tensors

    def head(self, clients: int) -> Stack:
        """The models of the first clients, sharing memory with these."""
        return Stack(self.layers, [t[:clients] for t in self.tensors])

    def own(self, layer: Layer) -> list[Tensor]:
        return self.tensors[layer.first : layer.first + layer.count]

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Logits [K * S, B, C] for inputs [K, B, F]; the input of every layer, and every layer's weight, for `backward`."""
        inputs, weights = [x], []
        h = x
        for number, layer in enumerate(self.layers):
            weight, bias = self._effective(layer)
            weights.append(weight)
            h = _first(h, weight, bias) if number == 0 else _later(h, weight, bias)
            if layer.relu:
                h = h.relu_()
            inputs.append(h)
        return h, inputs[:-1], weights

    def _effective(self, layer: Layer) -> tuple[Tensor, Tensor | None]:
        """The weight [K, S, out, in] and bias [K, S, out] that a layer multiplies with."""
        own = self.own(layer)
        if isinstance(layer.module, WeightNormLinear):
            direction, scale, bias = own
            return direction * (scale / torch.linalg.vector_norm(direction, dim=-1)).unsqueeze(-1), bias
        if isinstance(layer.module, MaskedLinear):
            return layer.module.weight * mask(own[0], layer.module.keep), None
        return own[0], own[1]

    def backward(self, d: Tensor, inputs: list[Tensor], outputs: Tensor, weights: list[Tensor], into: Update) -> None:
        """Hand every tensor's gradient to `into`, given that of the logits [K * S, B, C]. `d` is used up."""
        after = outputs
        for number in reversed(range(len(self.layers))):
            layer = self.layers[number]
            if layer.relu:
                d = torch.ops.aten.threshold_backward(d, after, 0)
            h, weight = inputs[number], weights[number]
            self._hand_over(layer, d, h, weight, into)
            if number > 0:
                d = torch.bmm(d, weight.expand(len(d) // weight.shape[1], -1, -1, -1).flatten(0, 1))
            after = h

    def _hand_over(self, layer: Layer, d: Tensor, h: Tensor, weight: Tensor, into: Update) -> None:
        """The gradients of one layer, from d [K * S, B, out] at its output and its input h, to where they are added up.

        That of the weight is d' h. For the first layer h is [K, B, F], one for all settings of a client.
        """
        own = self.own(layer)
        left, right = _side_by_side(d, h, weight)
        if isinstance(layer.module, WeightNormLinear):
            gradient = torch.bmm(left, right).view(-1, *weight.shape[1:])
            direction, scale, _ = own
            length = torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
            unit = direction / length * (length / length)  # NaN, not zero, once the length has overflown: that run diverged
            along = (gradient * unit).sum(dim=-1)
            into.add(layer.first, (gradient - unit * along.unsqueeze(-1)) * (scale.unsqueeze(-1) / length))
            into.add(layer.first + 1, along)
        elif isinstance(layer.module, MaskedLinear):
            into.add(layer.first, torch.bmm(left, right).view(-1, *weight.shape[1:]) * layer.module.weight)
        else:
            into.add_product(layer.first, left, right)
        if layer.count > 1:
            into.add(layer.first + layer.count - 1, d.sum(dim=1).view(-1, *own[-1].shape[1:]))


class Update:
    """SGD with momentum on a stack of models: velocity <- momentum velocity + gradient; tensor <- tensor - lr velocity.

    The gradient of a plain weight is a matrix product, which is added to the velocity as it is computed. `lr` is a number, or
    one for each setting [S]. `pull` has the model's tensors [1, S, ...], mixed into the gradient by its share.
    """

    def __init__(
        self, lr: Tensor | float, momentum: float, pull: Sequence[Tensor] | None = None, pull_share: float = 0.0
    ) -> None:
        self.lr, self.momentum = lr, momentum
        self.pull = pull if pull_share else None
        self.share = pull_share if pull is not None else 0.0
        self.velocities: dict[int, Tensor] = {}
        self.clients = 0

    def begin(self, clients: int) -> None:
        """Before the gradients of a step of the first clients; their number never grows."""
        self.clients = clients

    def add(self, place: int, gradient: Tensor) -> None:
        """The gradient [k, S, ...] of the tensor at this place."""
        if place not in self.velocities:
            self.velocities[place] = gradient.mul_(1 - self.share) if self.share else gradient
        else:
            self.velocities[place][: self.clients].mul_(self.momentum).add_(gradient, alpha=1 - self.share)

    def add_product(self, place: int, left: Tensor, right: Tensor) -> None:
        """The same, of a gradient that is the product of two stacks of matrices."""
        if place not in self.velocities:
            product = torch.bmm(left, right)
            self.velocities[place] = product.mul_(1 - self.share) if self.share else product
        else:
            # Settings stand side by side or one below the other from step to step; in memory it is the same.
            velocity = self.velocities[place].view(-1, left.shape[1], right.shape[2])[: len(left)]
            velocity.baddbmm_(left, right, beta=self.momentum, alpha=1 - self.share)

    def apply(self, stack: Stack, make_new: bool) -> Stack:
        """The stack one step further: in place, or as new tensors, which the first step needs: all clients start from one."""
        velocities = [
            self.velocities[place].view(-1, *tensor.shape[1:])[: self.clients] for place, tensor in enumerate(stack.tensors)
        ]
        if self.pull is not None:
            for velocity, pull in zip(velocities, self.pull, strict=True):
                velocity.add_(pull, alpha=self.share)
        if isinstance(self.lr, Tensor):
            rates = [self.lr.view(1, -1, *[1] * (tensor.ndim - 2)) for tensor in stack.tensors]
            velocities, rate = [velocity * rate for velocity, rate in zip(velocities, rates, strict=True)], 1.0
        else:
            rate = self.lr
        if make_new:
            pairs = zip(stack.tensors, velocities, strict=True)
            return Stack(stack.layers, [torch.sub(tensor, velocity, alpha=rate) for tensor, velocity in pairs])
        torch._foreach_sub_(stack.tensors, velocities, alpha=rate)
        return stack


def loss_and_slope(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each example [K * S, B], and its gradient by the logits, unweighted; y is [K * S, B]."""
    log_p = torch.log_softmax(logits, dim=2)
    label = y.unsqueeze(2)
    losses = log_p.gather(2, label).squeeze(2).neg_()
    slope = log_p.exp_()
    return losses, slope.scatter_add_(2, label, slope.new_full((1, 1, 1), -1.0).expand_as(label))


def _first(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The first layer: x [K, B, F] with the weights of all S settings side by side -> [K * S, B, H]."""
    clients, settings, hidden, features = weight.shape
    if settings > 1 and not _company_is_free(x.shape[1], features, hidden, settings, x.dtype, x.device):
        each = [_first(x, weight[:, s : s + 1], None if bias is None else bias[:, s : s + 1]) for s in range(settings)]
        return torch.stack(each, dim=1).flatten(0, 1)
    wide = weight.reshape(clients, settings * hidden, features).transpose(1, 2).expand(len(x), -1, -1)
    h = torch.bmm(x, wide) if bias is None else torch.baddbmm(bias.reshape(clients, 1, -1).expand(len(x), -1, -1), x, wide)
    if settings == 1:
        return h
    return h.view(len(x), -1, settings, hidden).transpose(1, 2).reshape(len(x) * settings, -1, hidden)


@functools.cache
def _company_is_free(batch: int, features: int, hidden: int, settings: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products of this shape, side by side, have the very bits that they have one by one.

    They do where the BLAS library adds up in the same order whatever the width, which for most shapes it does. Where it does
    not, settings are multiplied one by one: what a method computes must not depend on what it is compared with. On a GPU we
    take the speed, and say so.
    """
    if device.type != "cpu":
        return True
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, batch, features, generator=generator, dtype=dtype)
    weight = torch.randn(1, settings * hidden, features, generator=generator, dtype=dtype)
    bias = torch.randn(1, 1, settings * hidden, generator=generator, dtype=dtype)
    d = torch.randn(1, batch, settings * hidden, generator=generator, dtype=dtype)
    forth, back = torch.baddbmm(bias, x, weight.transpose(1, 2)), torch.bmm(d.transpose(1, 2), x)
    plain = torch.bmm(x, weight.transpose(1, 2))
    for s in range(settings):
        own = slice(s * hidden, (s + 1) * hidden)
        if not (
            torch.equal(forth[:, :, own], torch.baddbmm(bias[:, :, own], x, weight[:, own].transpose(1, 2)))
            and torch.equal(plain[:, :, own], torch.bmm(x, weight[:, own].transpose(1, 2)))
            and torch.equal(back[:, own], torch.bmm(d[:, :, own].contiguous().transpose(1, 2), x))
        ):
            return False
    return True


def _later(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Any other layer: h [K * S, B, in] -> [K * S, B, out]."""
    clients = len(h) // weight.shape[1]
    transposed = weight.expand(clients, -1, -1, -1).flatten(0, 1).transpose(1, 2)
    if bias is None:
        return torch.bmm(h, transposed)
    return torch.baddbmm(bias.expand(clients, -1, -1).flatten(0, 1).unsqueeze(1), h, transposed)


def _side_by_side(d: Tensor, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The two stacks of matrices whose product is the gradient of a weight: d' [.., out, B] and h [.., B, in]."""
    settings, hidden, features = weight.shape[1:]
    if len(d) == len(h):  # a later layer, or one setting
        return d.transpose(1, 2), h
    batch = h.shape[1]
    if not _company_is_free(batch, features, hidden, settings, h.dtype, h.device):
        return d.transpose(1, 2), h.repeat_interleave(settings, dim=0)
    wide = d.view(len(h), settings, batch, hidden).transpose(1, 2).reshape(len(h), batch, settings * hidden)
    return wide.transpose(1, 2), h
