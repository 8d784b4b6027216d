"""Stacks of linear layers, many models at a time, with their gradients written out.

A model is a list of layers: linear, weight-normalised linear or masked linear, with or without a
ReLU after it. K clients train S settings each: every tensor of the model has two more axes, in
front: [K, S, ...]. All settings of a client see the same batch, so the first layers of all S are
side by side in one wide matrix product with the client's data; every later product is batched over
the K * S models. Autograd is not involved: it would keep every intermediate result and pass over
memory as many times again.

A step is a dozen small operations, so whatever can be prepared once is: the views of tensors that
products need stay valid while the tensors are updated in place, and a gradient that is a product is
added to its velocity by the product itself.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from udjfl.engine.batches import ALIGNMENT
from udjfl.engine.correction import Correction
from udjfl.models import WeightNormLinear
from udjfl.models.masked import MaskedLinear, mask


@dataclass(frozen=True)
class Layer:
    """One linear layer, and whether a ReLU follows.

    It has `count` of the model's trainable tensors, from number `first` on.
    """

    module: nn.Module
    first: int
    count: int
    relu: bool


def layers_of(module: nn.Sequential) -> list[Layer]:
    """Return the layers of a model for which `stacked.unsupported_reason` is None."""
    layers: list[Layer] = []
    first = 0
    for part in module:
        if isinstance(part, nn.ReLU):
            if layers:
                layers[-1] = replace(layers[-1], relu=True)
            continue
        count = sum(p.requires_grad for p in part.parameters())
        if count:
            layers.append(Layer(part, first, count, relu=False))
            first += count
    return layers


@dataclass(frozen=True)
class _Matrices:
    """A layer's weight [K * S, out, in], its transpose, and its bias [K * S, 1, out].

    If `wide`, as the first layer can be, all settings of a client are side by side: S * out in
    place of out, K in place of K * S.
    """

    weight: Tensor
    transposed: Tensor
    bias: Tensor | None
    wide: bool

    @staticmethod
    def of(weight: Tensor, bias: Tensor | None, clients: int, wide: bool) -> _Matrices:
        """Make them of a weight [K, S, out, in] and a bias [K, S, out]; K is 1 if all are equal."""
        if wide:
            weight = weight.flatten(1, 2).expand(clients, -1, -1)
            bias = None if bias is None else bias.flatten(1).expand(clients, -1)
        else:
            weight = weight.expand(clients, -1, -1, -1).flatten(0, 1)
            bias = None if bias is None else bias.expand(clients, -1, -1).flatten(0, 1)
        row = None if bias is None else bias.unsqueeze(1)
        return _Matrices(weight, weight.transpose(1, 2), row, wide)

    def apply(self, h: Tensor) -> Tensor:
        if self.bias is None:
            return torch.bmm(h, self.transposed)
        return torch.baddbmm(self.bias, h, self.transposed)


@dataclass(frozen=True)
class ForwardPass:
    """Values that the backward pass needs: each layer's input and matrices, and the logits.

    The logits are [K * S, B, C].
    """

    inputs: list[Tensor]
    matrices: list[_Matrices]
    logits: Tensor


class Stack:
    """K * S models of one shape, given by their tensors [K, S, ...], or [1, S, ...] if K are equal.

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

    def forward(self, x: Tensor) -> ForwardPass:
        """Compute the logits for inputs [K, B, F]."""
        wide = self._is_wide(x.shape[1])
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
            h = matrices.apply(h)
            if layer.relu:
                h.relu_()
            if matrices.wide and self.settings > 1:  # side by side -> one below the other
                h = (
                    h.view(self.clients, -1, self.settings, h.shape[2] // self.settings)
                    .transpose(1, 2)
                    .flatten(0, 1)
                )
        return ForwardPass(inputs, all_matrices, h)

    def backward(self, forward: ForwardPass, d: Tensor, update: Update) -> None:
        """Add every tensor's gradient to the update, given that of the logits [K * S, B, C]."""
        output = forward.logits
        for number in reversed(range(len(self.layers))):
            layer, h, matrices = (
                self.layers[number],
                forward.inputs[number],
                forward.matrices[number],
            )
            if layer.relu:
                # In place: else it would have the strides of `output`, and be added up in another
                # order where those are not its own, as with one client.
                torch.ops.aten.threshold_backward.grad_input(d, output, 0, grad_input=d)
            if layer.count > 1:
                update.add(layer.first + layer.count - 1, d.sum(dim=1))
            if matrices.wide and self.settings > 1:  # one below the other -> side by side
                wide = (
                    d.view(self.clients, self.settings, h.shape[1], -1).transpose(1, 2).flatten(2)
                )
                self._add_gradients(layer, wide.transpose(1, 2), h, update)
            else:
                self._add_gradients(layer, d.transpose(1, 2), h, update)
            if number > 0:
                d = torch.bmm(d, matrices.weight)
            output = h

    def _is_wide(self, batch: int) -> bool:
        """Return whether the first layers of a client's settings are multiplied in one product."""
        if self.settings == 1:
            return True
        first = self._tensors_of(self.layers[0])[0]
        return _wide_product_is_exact(
            batch, first.shape[3], first.shape[2], self.settings, first.dtype, first.device
        )

    def _tensors_of(self, layer: Layer) -> list[Tensor]:
        return self.tensors[layer.first : layer.first + layer.count]

    def _effective(self, layer: Layer) -> tuple[Tensor, Tensor | None]:
        """Return the weight [K, S, out, in] and the bias [K, S, out] that a layer applies."""
        tensors = self._tensors_of(layer)
        if isinstance(layer.module, WeightNormLinear):
            direction, scale, bias = tensors
            stretch = scale / torch.linalg.vector_norm(direction, dim=-1)
            return direction * stretch.unsqueeze(-1), bias
        if isinstance(layer.module, MaskedLinear):
            return layer.module.weight * mask(tensors[0], layer.module.keep), None
        return tensors[0], tensors[1]

    def _add_gradients(self, layer: Layer, left: Tensor, h: Tensor, update: Update) -> None:
        """Add the gradients of one layer but for its bias.

        That of its weight is the product of `left` [.., out, B] and its input h [.., B, in].
        """
        if isinstance(layer.module, nn.Linear):
            update.add_product(layer.first, left, h)
            return
        tensors = self._tensors_of(layer)
        gradient = torch.bmm(left, h).view(self.clients, *tensors[0].shape[1:])
        if isinstance(layer.module, MaskedLinear):
            update.add(layer.first, gradient.mul_(layer.module.weight))
            return
        direction, scale = tensors[:2]
        length = torch.linalg.vector_norm(direction, dim=-1)
        # NaN in place of infinity: a run whose length overflows has diverged.
        length = length * (length / length)
        along = (gradient * direction).sum(dim=-1) / length
        stretch = scale / length
        gradient.mul_(stretch.unsqueeze(-1)).addcmul_(
            direction, (along * stretch / length).unsqueeze(-1), value=-1
        )
        update.add(layer.first, gradient)
        update.add(layer.first + 1, along)


@dataclass(frozen=True)
class StackedCorrection:
    """A correction with its tensors as those of the model: [K, 1, ...], or [1, 1, ...] for all."""

    weights: Correction
    anchors: Sequence[Tensor] | None
    shifts: Sequence[Tensor] | None

    def add_to(
        self, gradients: Sequence[Tensor], models: Sequence[Tensor], start: Sequence[Tensor]
    ) -> None:
        """Add mu (theta - anchor) + shift to the gradients of the first clients."""
        anchors = start if self.anchors is None else self.anchors
        if self.weights.mu and models is not anchors:
            for gradient, model, anchor in zip(gradients, models, anchors, strict=True):
                offset = model - anchor[: len(gradient)]
                gradient.add_(offset, alpha=self.weights.mu)
        if self.shifts is not None:
            for gradient, shift in zip(gradients, self.shifts, strict=True):
                gradient.add_(shift[: len(gradient)])


class Update:
    """SGD with momentum on a stack of models.

        velocity <- momentum velocity + gradient
        tensor   <- tensor - lr velocity

    All clients begin at `start`; from the first step on `models` are their tensors [K, S, ...].
    There is a learning rate for each setting. A correction of the gradient is that of one setting.
    """

    def __init__(
        self,
        start: Sequence[Tensor],
        n_clients: int,
        lrs: Sequence[float],
        momentum: float,
        correction: StackedCorrection | None = None,
    ) -> None:
        self.start, self.lrs, self.momentum = start, lrs, momentum
        self.models = [tensor.new_empty(n_clients, *tensor.shape[1:]) for tensor in start]
        self.velocities = [torch.empty_like(model) for model in self.models]
        self.correction = correction
        self.share = 1.0 if correction is None else correction.weights.gradient_share
        self.at_start = True
        # A tensor made once, not in every product with a number.
        self.decay = torch.tensor(momentum, dtype=start[0].dtype)
        self.keep_clients(n_clients)

    def keep_clients(self, count: int) -> None:
        """Let only the first `count` clients take further steps."""
        self.moving = [model[:count] for model in self.models]
        self.velocities = [velocity[:count] for velocity in self.velocities]
        self.views: dict[tuple[int, int], Tensor] = {}
        self.products: dict[tuple[int, int], Tensor] = {}

    def add(self, index: int, gradient: Tensor) -> None:
        """Add the gradient of the tensor with this index, [k, S, ...] or [k * S, ...]."""
        velocity = self.views.get((index, gradient.ndim))
        if velocity is None:
            velocity = self.views[index, gradient.ndim] = self.velocities[index].view_as(gradient)
        if self.at_start:
            torch.mul(gradient, self.share, out=velocity)
        else:
            velocity.mul_(self.decay).add_(gradient, alpha=self.share)

    def add_product(self, index: int, left: Tensor, right: Tensor) -> None:
        """Add a gradient that is the product of two stacks of matrices."""
        # Settings are side by side or one below the other: the same in memory.
        rows = left.shape[1]
        velocity = self.products.get((index, rows))
        if velocity is None:
            velocity = self.velocities[index].view(-1, rows, right.shape[2])
            self.products[index, rows] = velocity
        beta = 0 if self.at_start else self.momentum
        velocity.baddbmm_(left, right, beta=beta, alpha=self.share)

    def step(self) -> None:
        """Update the models."""
        before = self.start if self.at_start else self.moving
        if self.correction is not None:
            self.correction.add_to(self.velocities, before, self.start)
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
    """Return log p [K * S, B, 1] of the labels, and the gradient of -log p by the logits."""
    if class_axis_may_move(logits.shape[2], logits.dtype, logits.device):
        log_p = torch.log_softmax(by_class(logits), dim=1)[:, :, : logits.shape[1]]
        log_p = log_p.transpose(1, 2).contiguous()
    else:
        log_p = torch.log_softmax(logits, dim=2)
    at_label = log_p.gather(2, label)
    return at_label, log_p.exp_().scatter_(2, label, -1.0, reduce="add")


def by_class(logits: Tensor) -> Tensor:
    """Return logits [N, B, C] as [N, C, B], with B padded by zeros.

    Over few classes torch takes ten times as long if they are adjacent in memory. What is left
    over of B after whole registers it computes in another way, with other bits.
    """
    n_models, n_rows, n_classes = logits.shape
    if n_rows % ALIGNMENT == 0:
        return logits.transpose(1, 2).contiguous()
    moved = logits.new_zeros(n_models, n_classes, n_rows + -n_rows % ALIGNMENT)
    moved[:, :, :n_rows] = logits.transpose(1, 2)
    return moved


@functools.cache
def class_axis_may_move(n_classes: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the softmax has the same bits `by_class`.

    It does if torch adds up the classes one by one, as it does if they fit a register.
    """
    if device.type != "cpu":
        return False
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(16, 96, n_classes, generator=generator, dtype=dtype)
    moved = torch.log_softmax(logits.transpose(1, 2).contiguous(), dim=1)
    return torch.equal(torch.log_softmax(logits, dim=2), moved.transpose(1, 2))


@functools.cache
def _wide_product_is_exact(
    batch: int, features: int, hidden: int, settings: int, dtype: torch.dtype, device: torch.device
) -> bool:
    """Return whether products of this shape, side by side, have the bits that they have one by one.

    They do where the BLAS library adds up in the same order whatever the width, as for most shapes.
    Elsewhere settings are multiplied one by one: the numbers of a method must not depend on the
    methods it is compared with. A GPU always multiplies side by side, so there they may, in the
    last digits.
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
