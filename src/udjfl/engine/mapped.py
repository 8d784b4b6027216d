"""All clients of a round at once, for any nn.Module that `torch.func.vmap` can take: meant for GPUs.

One client's batch keeps a GPU busy for a moment only; here the same step of many clients is one step of a network whose
parameters and buffers have one more axis, the clients. On a CPU it gains where images and batches are small, and loses where
they are not.

No batch is ever padded, since layers such as batch norm mix the examples of a batch: clients take a step together if they have
equally many examples left for it. They stand in the order of their sizes and begin every epoch together, so those are always
neighbours, and a step works on slices of the stacked numbers, without copies. Federations with many different sizes gain least.

The numbers are those of `serial` up to rounding, except where the network draws random numbers (dropout): those come from the
seed as well, so the same seed gives the same numbers, but they are other draws, and they depend on who else takes part.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from udjfl.data.federation import Client, Examples
from udjfl.engine.adam import Moments
from udjfl.engine.base import Engine, LocalResult, LocalTraining, batch_order, own_randomness
from udjfl.engine.recurrent import written_out
from udjfl.errors import DataError
from udjfl.seeds import stream_seed

# What clients that train at a time may take up. Not what happens to be free: dropout's draws depend on who is together.
CHUNK_BYTES = 1_000_000_000
NO_RULE = re.compile(r"batching rule (?:not implemented )?for (aten::\w+)", re.IGNORECASE)

Named = dict[str, Tensor]


def unsupported_reason(module: nn.Module, x: Tensor) -> str | None:
    """Why clients cannot be mapped over this model, or None if they can. Two clients try it, on copies of x's first example."""
    network = copy.deepcopy(module).to(x.device).train()
    zeros = torch.zeros(2, 2, dtype=torch.int64, device=x.device)
    with warnings.catch_warnings(record=True) as said, own_randomness(0, x.device):
        warnings.simplefilter("always")
        try:
            parameters = {
                name: torch.stack([p.detach()] * 2).requires_grad_()
                for name, p in _trainable(network).items()
            }
            buffers = {name: torch.stack([b] * 2) for name, b in network.named_buffers()}
            losses, _ = _losses(network, parameters, buffers, x[zeros], zeros)
            mapped = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
            alone = nn.functional.cross_entropy(network(x[zeros[0]]), zeros[0])
            plain = torch.autograd.grad(
                alone, list(_trainable(network).values()), allow_unused=True
            )
        except (
            Exception
        ) as error:  # whatever the model's own code makes of tensors that are not quite tensors
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            return _without_rule(str(error)) or f"vmap cannot take it ({first_line})"
    if [gradient is None for gradient in mapped] != [gradient is None for gradient in plain]:
        return "it does not look up its parameters by their names"
    # Where vmap has no rule it may still get through, one client after the other, and warns of it.
    return next(filter(None, (_without_rule(str(warning.message)) for warning in said)), None)


@dataclass(frozen=True)
class _Models:
    """The models of K clients while they train: every tensor has the clients as its first axis. Pulls are one for all.

    Velocities are what SGD remembers, and there are none if `moments` are there, which are Adam's.
    """

    parameters: Named
    velocities: Named
    buffers: Named
    pulls: Named | None
    moments: Moments | None

    def move(self, who: slice, gradients: Named, work: LocalTraining) -> None:
        """One step of some clients."""
        values = list(gradients.values())
        if self.pulls is not None:
            values = [
                g.mul(1 - work.pull_share).add_(self.pulls[name], alpha=work.pull_share)
                for name, g in gradients.items()
            ]
        if self.moments is not None:
            self.moments.move(
                who, self.parameters, dict(zip(gradients, values, strict=True)), work.lr
            )
            return
        velocities = [self.velocities[name][who] for name in gradients]
        torch._foreach_mul_(velocities, work.momentum)
        torch._foreach_add_(velocities, values)
        torch._foreach_add_(
            [self.parameters[name][who] for name in gradients], velocities, alpha=-work.lr
        )


class MappedEngine(Engine):
    name = "mapped"

    def __init__(
        self, module: nn.Module, clients: Sequence[Client], device: str = "cpu", workers: int = 1
    ) -> None:
        super().__init__(module, clients, device, workers)
        self.network = copy.deepcopy(self.module).train()
        self.examples = Examples.joined(self.train_data)
        self.starts = [0, *itertools.accumulate(len(data) for data in self.train_data)]

    def train(
        self,
        vector: Tensor,
        buffers: Tensor,
        rows: Sequence[int],
        work: LocalTraining,
        address: tuple[int, str, int],
    ) -> LocalResult:
        vectors, buffers = vector.to(self.device).expand(len(rows), -1), buffers.to(self.device)
        sizes = [len(self.train_data[row]) for row in rows]
        steps = torch.tensor(
            [work.epochs * math.ceil(size / work.batch_size) for size in sizes], dtype=torch.float64
        )
        deltas = vectors.new_empty(vectors.shape)
        firsts = torch.empty_like(deltas) if work.first_step else None
        after = buffers.new_empty(len(rows), len(buffers))
        running = torch.empty(len(rows), dtype=torch.float64, device=self.device)
        order = sorted(range(len(rows)), key=lambda place: -sizes[place])
        size = self._chunk_size(max(sizes), work)
        for chunk in (order[begin : begin + size] for begin in range(0, len(order), size)):
            own = replace(
                work,
                multipliers=None
                if work.multipliers is None
                else work.multipliers[chunk].to(self.device),
            )
            models = self._received(vectors[chunk], buffers, work)
            running[chunk], first = self._descend(
                models, [rows[place] for place in chunk], own, address
            )
            deltas[chunk] = vectors[chunk] - _rows(models.parameters)
            if models.buffers:
                after[chunk] = _rows(models.buffers).to(after)
            if firsts is not None:
                firsts[chunk] = vectors[chunk] - torch.cat(first)
        losses = running.cpu() / steps
        if work.loss_at == "received":
            losses = self.received_losses(vector, buffers, rows)
        elif work.loss_at == "final":
            each = zip(vectors - deltas, after, rows, strict=True)
            losses = torch.cat(
                [
                    self.received_losses(trained, own_buffers, [row])
                    for trained, own_buffers, row in each
                ]
            )
        return LocalResult(deltas, losses, steps, after, firsts)

    def _received(self, vectors: Tensor, buffers: Tensor, work: LocalTraining) -> _Models:
        """Models as clients receive them: [K, D] their numbers, and the buffers, which are one vector for all."""
        like = _trainable(self.network)
        parameters = _tensors(vectors, like)
        with_adam = work.optimiser == "adam"
        return _Models(
            parameters,
            {} if with_adam else {name: torch.zeros_like(p) for name, p in parameters.items()},
            _tensors(buffers.expand(len(vectors), -1), dict(self.network.named_buffers())),
            None
            if work.pull is None or not work.pull_share
            else _tensors(work.pull.to(self.device)[None], like),
            Moments.of(parameters) if with_adam else None,
        )

    def _descend(
        self,
        models: _Models,
        rows: Sequence[int],
        work: LocalTraining,
        address: tuple[int, str, int],
    ) -> tuple[Tensor, list[Tensor]]:
        """Train the models of clients, the largest first: sums of their batches' losses [K], and where the first step led."""
        orders = self._orders(rows, work.epochs, address)
        ids = [self.clients[row].id for row in rows]
        total = torch.zeros(len(rows), dtype=torch.float64, device=self.device)
        first: list[Tensor] = []
        plan = list(_together([len(self.train_data[row]) for row in rows], work.batch_size))
        with own_randomness(stream_seed(*address, "inside the model", *ids), self.device):
            for epoch, (who, columns) in itertools.product(range(work.epochs), plan):
                try:
                    total[who] += self._step(models, who, orders[epoch, who, columns], work)
                except ValueError as error:  # such as batch norm's, of a batch with one example
                    raise DataError(
                        f"client {ids[who.start]!r} cannot train this model: {error}"
                    ) from None
                if work.first_step and epoch == 0 and columns.start == 0:
                    first.append(_rows({name: p[who] for name, p in models.parameters.items()}))
        return total, first

    def _step(self, models: _Models, who: slice, batch: Tensor, work: LocalTraining) -> Tensor:
        """One step of some clients, on batches [k, B] of all examples. Their mean losses [k] before it."""
        parameters = {
            name: p[who].detach().requires_grad_() for name, p in models.parameters.items()
        }
        buffers = {name: b[who] for name, b in models.buffers.items()}
        losses, changed = _losses(
            self.network, parameters, buffers, self.examples.x[batch], self.examples.y[batch]
        )
        goals = losses.mean(dim=1)
        if work.objective is not None:
            # Objectives are written for many clients, and may look at the values in their tensors: they stay outside of vmap.
            groups = None if self.examples.group is None else self.examples.group[batch]
            multipliers = None if work.multipliers is None else work.multipliers[who].to(losses)
            goals = work.objective(
                losses, torch.full_like(losses, 1 / batch.shape[1]), groups, multipliers
            )
        gradients = torch.autograd.grad(goals.sum(), list(parameters.values()), allow_unused=True)
        with torch.no_grad():
            models.move(
                who,
                {name: g for name, g in zip(parameters, gradients, strict=True) if g is not None},
                work,
            )
            for name, buffer in buffers.items():
                buffer.copy_(changed[name])
        return losses.detach().mean(dim=1)

    def _orders(self, rows: Sequence[int], epochs: int, address: tuple[int, str, int]) -> Tensor:
        """[epochs, K, size of the largest] places of clients' examples among all examples, as each client sees them."""
        orders = torch.zeros(epochs, len(rows), len(self.train_data[rows[0]]), dtype=torch.int64)
        for place, row in enumerate(rows):
            size = len(self.train_data[row])
            orders[:, place, :size] = (
                batch_order(size, epochs, address, self.clients[row].id) + self.starts[row]
            )
        return orders.to(self.device)

    def _chunk_size(self, largest: int, work: LocalTraining) -> int:
        """How many clients train at a time: each has parameters, the optimiser's, gradients, a batch, and what lies between."""
        numbers = sum(p.nbytes for p in _trainable(self.network).values())
        an_example = self.examples.x[0].nbytes + 2 * self._bytes_an_example
        kept = 4 if work.optimiser == "sgd" else 6
        each = (
            kept * numbers + min(work.batch_size, largest) * an_example + 8 * work.epochs * largest
        )
        return max(1, CHUNK_BYTES // each)

    @functools.cached_property
    def _bytes_an_example(self) -> int:
        """What one more example in a batch makes the network keep for its backward pass."""
        few, more = (_bytes_kept(self.network, self.examples.x[[0] * count]) for count in (2, 4))
        return (more - few) // 2


def _losses(
    network: nn.Module, parameters: Named, buffers: Named, x: Tensor, y: Tensor
) -> tuple[Tensor, Named]:
    """The loss of each example [k, B], each client's with its own parameters and buffers, and the buffers afterwards."""

    def of_one(parameters: Named, buffers: Named, x: Tensor, y: Tensor) -> tuple[Tensor, Named]:
        numbers = {
            **parameters,
            **buffers,
        }  # where the network leaves new buffers, should it not write into the old ones
        with written_out(network):
            logits = functional_call(network, numbers, (x,))
        return nn.functional.cross_entropy(logits, y, reduction="none"), {
            name: numbers[name] for name in buffers
        }

    return vmap(of_one, randomness="different")(parameters, buffers, x, y)


def _together(sizes: Sequence[int], batch_size: int) -> Iterator[tuple[slice, slice]]:
    """The steps of one epoch: which clients, and which part of their order. Sizes fall, so equal batches are neighbours."""
    for begin in range(0, sizes[0], batch_size):
        stop = 0
        for width, alike in itertools.groupby(
            min(batch_size, size - begin) for size in sizes if size > begin
        ):
            start, stop = stop, stop + len(list(alike))
            yield slice(start, stop), slice(begin, begin + width)


def _trainable(network: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def _tensors(rows: Tensor, like: Mapping[str, Tensor]) -> Named:
    """Rows [K, D] as tensors [K, ...] of these shapes and types, which own their memory; counters are rounded."""
    parts = torch.split(rows, [tensor.numel() for tensor in like.values()], dim=1)
    found = {}
    for (name, tensor), part in zip(like.items(), parts, strict=True):
        values = part if tensor.is_floating_point() else part.round()
        found[name] = values.reshape(-1, *tensor.shape).to(tensor.dtype, copy=True).contiguous()
    return found


def _rows(tensors: Named) -> Tensor:
    """Tensors [K, ...] as rows [K, D]."""
    return torch.cat(
        [tensor.flatten(1) if tensor.ndim > 1 else tensor[:, None] for tensor in tensors.values()],
        dim=1,
    )


def _bytes_kept(network: nn.Module, x: Tensor) -> int:
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    network = copy.deepcopy(network)  # batch norm remembers what it sees
    with (
        own_randomness(0, x.device),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        _ = network(x)  # held until we have counted: freed memory would be used, and counted, again
    return sum(kept.values())


def _without_rule(message: str) -> str | None:
    found = NO_RULE.search(message)
    return f"vmap has no rule for {found[1]}" if found else None
