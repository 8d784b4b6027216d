"""All clients of a round as one batched program, for models that are stacks of linear layers.

Every parameter gains a leading client axis, every matrix product becomes a batched one, and one backward pass serves all
clients: the sum of their losses has each client's own gradient in its own slice. Clients with fewer examples are padded;
padding has weight zero, and a client that has run out of batches stands still.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from udjfl.data.federation import Client
from udjfl.engine.base import Engine, LocalResult, LocalWork, Pooled, batch_order
from udjfl.masks import MaskedLinear, mask
from udjfl.models import WeightNormLinear, normalised, trainable

STACKABLE = (nn.Flatten, nn.Linear, nn.ReLU, WeightNormLinear, MaskedLinear)


def why_not(module: nn.Module, input_axes: int = 1) -> str | None:
    """Why a model for inputs of so many axes (an image has three) cannot be stacked, or None if it can."""
    if type(module) is not nn.Sequential:
        return f"{type(module).__name__} is not an nn.Sequential"
    for layer in module:
        if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1):
            return "it has a Flatten layer that keeps some axes"
        if type(layer) not in STACKABLE:
            return f"it has a {type(layer).__name__} layer"
        if isinstance(layer, nn.Linear) and layer.bias is None:
            return "it has a linear layer without bias"
    if input_axes > 1 and not isinstance(module[0], nn.Flatten):
        return "it does not flatten its input first"
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    by_design = {f"{name}.weight" for name, layer in module.named_children() if isinstance(layer, MaskedLinear)}
    if frozen != by_design:
        return "some of its parameters are frozen"
    if sum(len(list(layer.parameters())) for layer in module) != len(list(module.parameters())):
        return "some of its layers share parameters"
    if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        return "it has forward hooks"
    return None


class StackedEngine(Engine):
    name = "stacked"

    def __init__(self, module: nn.Module, clients: Sequence[Client], device: str = "cpu") -> None:
        super().__init__(module, clients, device)
        longest = max(len(data) for data in self.train_data)
        self.x = torch.stack([_padded(data.x.flatten(1), longest) for data in self.train_data])
        self.y = torch.stack([_padded(data.y, longest) for data in self.train_data])
        groups = [data.group for data in self.train_data if data.group is not None]
        self.groups = torch.stack([_padded(g, longest) for g in groups]) if len(groups) == len(clients) else None
        self.shapes = [p.shape for p in trainable(module)]

    def train(
        self, vector: Tensor, buffers: Tensor, rows: Sequence[int], work: LocalWork, address: tuple[int, str, int]
    ) -> LocalResult:
        vector = vector.to(self.device)
        index, weight = self._batches(rows, work, address)
        parameters = [part.clone().requires_grad_() for part in self._split(vector.expand(len(rows), -1))]
        at_start = self.received_losses(vector, buffers, rows) if work.loss_at == "received" else None
        places = torch.tensor(rows, device=self.device)
        running, first = self._descend(parameters, places, index, weight, work)
        trained = _joined(parameters)
        steps = (weight.sum(dim=2) > 0).sum(dim=0).to(torch.float64).cpu()
        losses = at_start if at_start is not None else (running.cpu() / steps)
        if work.loss_at == "final":
            losses = torch.stack(
                [self.evaluate(trained[i], buffers, Pooled([self.train_data[r]]))[0][0] for i, r in enumerate(rows)]
            )
        first_deltas = None if first is None else vector - first
        return LocalResult(vector - trained, losses, steps, buffers.expand(len(rows), -1), first_deltas)

    def _split(self, vectors: Tensor) -> list[Tensor]:
        """Vectors [N, D] as the model's tensors, each with a client axis in front."""
        parts = torch.split(vectors, [shape.numel() for shape in self.shapes], dim=1)
        return [part.reshape(len(vectors), *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def _batches(self, rows: Sequence[int], work: LocalWork, address: tuple[int, str, int]) -> tuple[Tensor, Tensor]:
        """For each step and client, which examples [S, N, B] and their weights (1/batch size; 0 for padding)."""
        per_client = []
        width = min(work.batch_size, max(len(self.train_data[row]) for row in rows))
        for row in rows:
            n = len(self.train_data[row])
            epochs = batch_order(n, work.epochs, address, self.clients[row].id)
            padded = nn.functional.pad(epochs, (0, -n % width), value=-1)
            per_client.append(padded.view(-1, width))
        longest = max(len(batches) for batches in per_client)
        index = torch.stack([_padded(batches, longest, fill=-1) for batches in per_client], dim=1)
        real = (index >= 0).to(torch.float32)
        weight = real / real.sum(dim=2, keepdim=True).clamp_min(1)
        # Padding repeats the batch's first example, so that it cannot bring in a number the batch does not have.
        index = torch.where(index >= 0, index, index[:, :, :1]).clamp_min(0)
        return index.to(self.device), weight.to(self.device)

    def _descend(
        self, parameters: list[Tensor], rows: Tensor, index: Tensor, weight: Tensor, work: LocalWork
    ) -> tuple[Tensor, Tensor | None]:
        """SGD with momentum on all clients at once, in place; the sum of each client's batch losses, and the first step."""
        velocities: list[Tensor] = []
        first = None
        pull = None if work.pull is None else self._split(work.pull.to(parameters[0])[None])
        total = torch.zeros(len(rows), dtype=torch.float64, device=self.device)
        all_active = (weight[:, :, 0] > 0).all(dim=1).tolist()
        for step, (step_index, step_weight) in enumerate(zip(index, weight, strict=True)):
            x, y = self.x[rows[:, None], step_index], self.y[rows[:, None], step_index]
            logits = self._forward(parameters, x)
            each = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view_as(step_weight)
            losses = (each * step_weight).sum(dim=1)
            goal = losses
            if work.objective is not None:
                groups = None if self.groups is None else self.groups[rows[:, None], step_index]
                multipliers = None if work.multipliers is None else work.multipliers.to(each)
                goal = work.objective(each, step_weight, groups, multipliers)
            gradients: Sequence[Tensor] = torch.autograd.grad(goal.sum(), parameters)
            if pull is not None and work.pull_share:
                gradients = [torch.lerp(g, p, work.pull_share) for g, p in zip(gradients, pull, strict=True)]
            active = step_weight[:, 0] > 0
            total += torch.where(active, losses.detach(), 0.0)
            with torch.no_grad():
                velocities = (
                    [v.mul_(work.momentum).add_(g) for v, g in zip(velocities, gradients, strict=True)]
                    if velocities
                    else list(gradients)
                )
                for p, v in zip(parameters, velocities, strict=True):
                    if all_active[step]:
                        p.sub_(v, alpha=work.lr)
                    else:
                        p.copy_(torch.where(active.view(-1, *[1] * (v.ndim - 1)), p - work.lr * v, p))
            if work.first_step and step == 0:
                first = _joined(parameters)
        return total, first

    def _forward(self, parameters: list[Tensor], x: Tensor) -> Tensor:
        """The module's forward pass with a client axis in front: x [N, B, features] -> logits [N, B, classes]."""
        values = iter(parameters)
        layers = cast(nn.Sequential, self.module)
        for layer in layers:
            if isinstance(layer, nn.Linear):
                weight, bias = next(values), next(values)
                x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
            elif isinstance(layer, WeightNormLinear):
                direction, scale, bias = next(values), next(values), next(values)
                x = torch.baddbmm(bias.unsqueeze(1), x, normalised(direction, scale).transpose(1, 2))
            elif isinstance(layer, MaskedLinear):
                x = torch.bmm(x, (layer.weight * mask(next(values), layer.keep)).transpose(1, 2))
            elif isinstance(layer, nn.ReLU):
                x = x.relu()
        return x


def _joined(parameters: list[Tensor]) -> Tensor:
    """The model's tensors as vectors [N, D]."""
    with torch.no_grad():
        return torch.cat([p.flatten(1) for p in parameters], dim=1)


def _padded(rows: Tensor, length: int, fill: float = 0) -> Tensor:
    """The rows, then rows of `fill` up to the length."""
    missing = length - len(rows)
    return torch.cat([rows, rows.new_full((missing, *rows.shape[1:]), fill)]) if missing else rows
