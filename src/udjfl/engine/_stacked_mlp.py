"""Stacks of linear layers, many models at a time, with their gradients written out.

A model here is a list of layers: linear, weight-normalised linear or masked linear, with or without a ReLU behind it. K
clients train S settings each: every tensor of the model has two axes in front, [K, S, ...]. All settings of a client see the
same batch, so the first layers of all S stand side by side in one wide matrix product with the client's data; from there on
every product is batched over the K * S models. Autograd is not involved: it would keep every intermediate result, and add as
many passes over memory again.

A step is a dozen small operations, so what can be made once is: the views of the tensors that products need stay valid while
the tensors are updated in place, and a gradient that is a product is added to its velocity by the product itself.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from udjfl.models import WeightNormLinear
from udjfl.models.masked import MaskedLinear, mask


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
    """The layers of a model that `stacked.unsupported_reason` has no objection to."""
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


@dataclass(frozen=True)
class _Matrices:
    """What a layer multiplies with: its weight [K * S, out, in], that transposed, and the bias [K * S, 1, out].

    If `wide`, as the first layer can be, all settings of a client stand side by side: S * out in place of out, K of K * S.
    """

    weight: Tensor
    transposed: Tensor
    bias: Tensor | None
    wide: bool

    @staticmethod
    def of(weight: Tensor, bias: Tensor | None, clients: int, wide: bool) -> _Matrices:
        """From a weight [K, S, out, in] and bias [K, S, out]; K is 1 if all clients have the same."""
        if wide:
            weight, bias = (
                weight.flatten(1, 2).expand(clients, -1, -1),
                None if bias is None else bias.flatten(1).expand(clients, -1),
            )
        else:
            weight = weight.expand(clients, -1, -1, -1).flatten(0, 1)
            bias = None if bias is None else bias.expand(clients, -1, -1).flatten(0, 1)
        return _Matrices(
            weight, weight.transpose(1, 2), None if bias is None else bias.unsqueeze(1), wide
        )

    def times(self, h: Tensor) -> Tensor:
        return (
            torch.bmm(h, self.transposed)
            if self.bias is None
            else torch.baddbmm(self.bias, h, self.transposed)
        )


@dataclass(frozen=True)
class Passed:
    """What a forward pass leaves for the backward one: each layer's input and matrices, and the logits [K * S, B, C]."""

    inputs: list[Tensor]
    matrices: list[_Matrices]
    logits: Tensor


class Stack:
    """K * S models of one shape; `tensors` are the model's trainable tensors, each [K, S, ...], or [1, S, ...] for all alike.

    The tensors may be changed in place: what is prepared here are views of them.
    """

    def __init__(self, layers: Sequence[Layer], tensors: Sequence[Tensor], clients: int) -> None:
        self.layers, self.tensors, self.clients = layers, list(tensors), clients
        self.settings = tensors[0].shape[1]
        self.prepared = [
            _Matrices.of(*self._effective(layer), clients, wide=number == 0)
            if isinstance(layer.module, nn.Linear)
            else None
            for number, layer in enumerate(layers)
        ]

    def forward(self, x: Tensor) -> Passed:
        """Logits for inputs [K, B, F]."""
        wide = self._side_by_side(x.shape[1])
        h = x if wide else x.repeat_interleave(self.settings, dim=0)
        inputs: list[Tensor] = []
        all_matrices: list[_Matrices] = []
        for number, layer in enumerate(self.layers):
            matrices = self.prepared[number]
            if matrices is None or (matrices.wide and not wide):
                matrices = _Matrices.of(
                    *self._effective(layer), self.clients, wide=number == 0 and wide
                )
            inputs.append(h)
            all_matrices.append(matrices)
            h = matrices.times(h)
            if layer.relu:
                h.relu_()
            if matrices.wide and self.settings > 1:  # side by side -> one below the other
                h = (
                    h.view(self.clients, -1, self.settings, h.shape[2] // self.settings)
                    .transpose(1, 2)
                    .flatten(0, 1)
                )
        return Passed(inputs, all_matrices, h)

    def backward(self, passed: Passed, d: Tensor, into: Update) -> None:
        """Hand every tensor's gradient to `into`, given that of the logits [K * S, B, C]."""
        after = passed.logits
        for number in reversed(range(len(self.layers))):
            layer, h, matrices = self.layers[number], passed.inputs[number], passed.matrices[number]
            if layer.relu:
                d = torch.ops.aten.threshold_backward(d, after, 0)
            if layer.count > 1:
                into.add(layer.first + layer.count - 1, d.sum(dim=1))
            if matrices.wide and self.settings > 1:  # one below the other -> side by side
                wide = (
                    d.view(self.clients, self.settings, h.shape[1], -1).transpose(1, 2).flatten(2)
                )
                self._hand_over(layer, wide.transpose(1, 2), h, into)
            else:
                self._hand_over(layer, d.transpose(1, 2), h, into)
            if number > 0:
                d = torch.bmm(d, matrices.weight)
            after = h

    def _side_by_side(self, batch: int) -> bool:
        """Whether the first layers of a client's settings are multiplied in one product."""
        if self.settings == 1:
            return True
        first = self._own(self.layers[0])[0]
        return _company_is_free(
            batch, first.shape[3], first.shape[2], self.settings, first.dtype, first.device
        )

    def _own(self, layer: Layer) -> list[Tensor]:
        return self.tensors[layer.first : layer.first + layer.count]

    def _effective(self, layer: Layer) -> tuple[Tensor, Tensor | None]:
        """The weight [K, S, out, in] and bias [K, S, out] that a layer multiplies with."""
        own = self._own(layer)
        if isinstance(layer.module, WeightNormLinear):
            direction, scale, bias = own
            return direction * (scale / torch.linalg.vector_norm(direction, dim=-1)).unsqueeze(
                -1
            ), bias
        if isinstance(layer.module, MaskedLinear):
            return layer.module.weight * mask(own[0], layer.module.keep), None
        return own[0], own[1]

    def _hand_over(self, layer: Layer, left: Tensor, h: Tensor, into: Update) -> None:
        """The gradients of one layer but for its bias. Its weight's is `left` [.., out, B] times its input h [.., B, in]."""
        if isinstance(layer.module, nn.Linear):
            into.add_product(layer.first, left, h)
            return
        own = self._own(layer)
        gradient = torch.bmm(left, h).view(self.clients, *own[0].shape[1:])
        if isinstance(layer.module, MaskedLinear):
            into.add(layer.first, gradient.mul_(layer.module.weight))
            return
        direction, scale = own[:2]
        length = torch.linalg.vector_norm(direction, dim=-1)
        length = length * (
            length / length
        )  # NaN, not infinity, once it has overflown: that run diverged
        along = (gradient * direction).sum(dim=-1) / length
        stretch = scale / length
        gradient.mul_(stretch.unsqueeze(-1)).addcmul_(
            direction, (along * stretch / length).unsqueeze(-1), value=-1
        )
        into.add(layer.first, gradient)
        into.add(layer.first + 1, along)


class Update:
    """SGD with momentum on a stack of models: velocity <- momentum velocity + gradient; tensor <- tensor - lr velocity.

    All clients begin at `start`; `models`, tensors [K, S, ...], are where they are from the first step on. `lrs` has a number
    for each setting. `pull` has the model's tensors [1, S, ...], mixed into the gradient by its share.
    """

    def __init__(
        self,
        start: Sequence[Tensor],
        clients: int,
        lrs: Sequence[float],
        momentum: float,
        pull: Sequence[Tensor] | None = None,
        pull_share: float = 0.0,
    ) -> None:
        self.start, self.lrs, self.momentum = start, lrs, momentum
        self.models = [tensor.new_empty(clients, *tensor.shape[1:]) for tensor in start]
        self.velocities = [torch.empty_like(model) for model in self.models]
        self.pull = pull if pull_share else None
        self.share = pull_share if pull is not None else 0.0
        self.at_start = True
        self.decay = torch.tensor(
            momentum, dtype=start[0].dtype
        )  # made here once, not in every product with a number
        self.only(clients)

    def only(self, clients: int) -> None:
        """From here on, only the first of the clients take steps."""
        self.moving = [model[:clients] for model in self.models]
        self.velocities = [velocity[:clients] for velocity in self.velocities]
        self.views: dict[tuple[int, int], Tensor] = {}
        self.products: dict[tuple[int, int], Tensor] = {}

    def add(self, place: int, gradient: Tensor) -> None:
        """The gradient of the tensor at this place, [k, S, ...] or [k * S, ...]."""
        velocity = self.views.get((place, gradient.ndim))
        if velocity is None:
            velocity = self.views[place, gradient.ndim] = self.velocities[place].view_as(gradient)
        if self.at_start:
            torch.mul(gradient, 1 - self.share, out=velocity)
        else:
            velocity.mul_(self.decay).add_(gradient, alpha=1 - self.share)

    def add_product(self, place: int, left: Tensor, right: Tensor) -> None:
        """The same, of a gradient that is the product of two stacks of matrices."""
        # Settings stand side by side or one below the other from step to step; in memory it is the same.
        rows = left.shape[1]
        velocity = self.products.get((place, rows))
        if velocity is None:
            velocity = self.products[place, rows] = self.velocities[place].view(
                -1, rows, right.shape[2]
            )
        velocity.baddbmm_(
            left, right, beta=0 if self.at_start else self.momentum, alpha=1 - self.share
        )

    def mix(self, pull: Sequence[Tensor]) -> None:
        """Add the pull's share."""
        for velocity, own in zip(self.velocities, pull, strict=True):
            velocity.add_(own, alpha=self.share)

    def apply(self) -> None:
        """One step."""
        if self.pull is not None:
            self.mix(self.pull)
        before = self.start if self.at_start else self.moving
        if len(set(self.lrs)) > 1:
            for old, velocity, new in zip(before, self.velocities, self.moving, strict=True):
                for s, lr in enumerate(self.lrs):
                    torch.sub(old[:, s], velocity[:, s], alpha=lr, out=new[:, s])
        elif self.at_start:
            for old, velocity, new in zip(before, self.velocities, self.moving, strict=True):
                torch.sub(old, velocity, alpha=self.lrs[0], out=new)
        else:
            torch._foreach_sub_(self.moving, self.velocities, alpha=self.lrs[0])
        self.at_start = False


def log_softmax_at(logits: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """log p [K * S, B, 1] of the labels [K * S, B, 1], and the gradient of -log p by the logits, unweighted."""
    log_p = torch.log_softmax(logits, dim=2)
    at_label = log_p.gather(2, label)
    return at_label, log_p.exp_().scatter_(2, label, -1.0, reduce="add")


@functools.cache
def _company_is_free(
    batch: int, features: int, hidden: int, settings: int, dtype: torch.dtype, device: torch.device
) -> bool:
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
            torch.equal(
                forth[:, :, own], torch.baddbmm(bias[:, :, own], x, weight[:, own].transpose(1, 2))
            )
            and torch.equal(plain[:, :, own], torch.bmm(x, weight[:, own].transpose(1, 2)))
            and torch.equal(back[:, own], torch.bmm(d[:, :, own].contiguous().transpose(1, 2), x))
        ):
            return False
    return True
