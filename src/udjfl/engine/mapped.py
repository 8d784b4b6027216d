"""All clients of a round at once, for any nn.Module that `torch.func.vmap` supports.

The same step of many clients is one step of a network whose parameters and buffers have one more
axis, the clients. A GPU needs that: one client's batch keeps it busy for a moment only. On a CPU it
is several times as fast as `serial` where steps are so small that they are mostly overhead; with
larger steps it gains nothing (benchmarks/README.md).

Batches are never padded, since layers such as batch norm mix the examples of a batch: clients take
a step together if they have equally many examples left for it. They are sorted by size and begin
every epoch together, so that such clients are neighbours and a step works on slices of the stacked
tensors, without copies. Federations with many different sizes gain least.

The numbers are those of `serial` up to rounding, except where the network draws random numbers
(dropout): these come from the seed as well, but the draws differ and depend on the other clients.
"""

from __future__ import annotations

import copy
import functools
import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from udjfl.data.federation import Examples
from udjfl.engine.adam import Moments
from udjfl.engine.base import Engine, LocalResult, LocalTraining, TrainJob, seeded_generator
from udjfl.engine.batches import batch_order
from udjfl.engine.correction import Correction
from udjfl.errors import DataError, quote_values
from udjfl.seeds import stream_seed
from udjfl.tasks import CROSS_ENTROPY, Criterion, LossFunction
from udjfl.tasks.losses import cross_entropy

# Memory of the clients that train at a time. A constant: dropout's draws depend on the chunks.
CHUNK_BYTES = 1_000_000_000
NO_RULE = re.compile(r"batching rule (?:not implemented )?for (aten::\w+)", re.IGNORECASE)

Named = dict[str, Tensor]


def unsupported_reason(
    module: nn.Module, x: Tensor, criterion: Criterion = CROSS_ENTROPY
) -> str | None:
    """Return why vmap does not support this model and loss, or None if it does.

    Tries two clients with copies of the first example of x.
    """
    network = copy.deepcopy(module).to(x.device).train()
    zeros = torch.zeros(2, 2, dtype=torch.int64, device=x.device)
    with warnings.catch_warnings(record=True) as caught, seeded_generator(0, x.device):
        warnings.simplefilter("always")
        try:
            parameters = {
                name: torch.stack([p.detach()] * 2).requires_grad_()
                for name, p in _trainable(network).items()
            }
            buffers = {name: torch.stack([b] * 2) for name, b in network.named_buffers()}
            labels = zeros.to(x.dtype) if criterion.is_regression else zeros
            losses, _ = _example_losses(
                network, parameters, buffers, x[zeros], labels, criterion.loss
            )
            mapped = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
            loss = criterion.loss(network(x[zeros[0]]), labels[0]).mean()
            own = list(_trainable(network).values())
            plain = torch.autograd.grad(loss, own, allow_unused=True)
        except Exception as error:  # the model's own code may raise anything
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            return _missing_rule(str(error)) or f"vmap cannot take it ({first_line})"
    if [gradient is None for gradient in mapped] != [gradient is None for gradient in plain]:
        return "it does not look up its parameters by their names"
    # Without a rule vmap may still get through, one client after the other, with a warning.
    return next(filter(None, (_missing_rule(str(warning.message)) for warning in caught)), None)


@dataclass(frozen=True)
class _Models:
    """The models of K clients in training: the first axis of every tensor is the clients.

    Anchors and shifts, those of `Correction`, may have one row for all. Velocities are SGD's state;
    with Adam there are moments instead.
    """

    parameters: Named
    velocities: Named
    buffers: Named
    anchors: Named | None
    shifts: Named | None
    moments: Moments | None

    def step(self, clients: slice, gradients: Named, work: LocalTraining) -> None:
        """Take one optimiser step with some clients."""
        if work.correction is not None:
            gradients = {
                name: self._correct(name, clients, gradient, work.correction)
                for name, gradient in gradients.items()
            }
        if self.moments is not None:
            self.moments.step(clients, self.parameters, gradients, work.lr)
            return
        velocities = [self.velocities[name][clients] for name in gradients]
        parameters = [self.parameters[name][clients] for name in gradients]
        torch._foreach_mul_(velocities, work.momentum)
        torch._foreach_add_(velocities, list(gradients.values()))
        torch._foreach_add_(parameters, velocities, alpha=-work.lr)

    def _correct(
        self, name: str, clients: slice, gradient: Tensor, correction: Correction
    ) -> Tensor:
        """Return the corrected gradient of one tensor of some clients' models."""
        corrected = gradient * correction.gradient_share
        if self.anchors is not None:
            offset = self.parameters[name][clients] - _of_clients(self.anchors[name], clients)
            corrected.add_(offset, alpha=correction.mu)
        if self.shifts is not None:
            corrected.add_(_of_clients(self.shifts[name], clients))
        return corrected


class MappedEngine(Engine):
    """Trains many clients at a time through `torch.func.vmap`."""

    name = "mapped"

    def _prepare(self) -> None:
        self.network = copy.deepcopy(self.module).train()
        self.examples = Examples.concatenate(self.train_data)
        self.starts = [0, *itertools.accumulate(self.sizes)]

    def train_many(self, jobs: Sequence[TrainJob]) -> list[LocalResult]:
        return [self._train(job) for job in jobs]

    def _train(self, job: TrainJob) -> LocalResult:
        work, client_indices = job.work, job.client_indices
        assert not work.is_general, "see `engine.demands`"
        n = len(client_indices)
        vectors = job.vector.to(self.device).expand(n, -1)
        buffers = job.buffers.to(self.device)
        sizes = [self.sizes[index] for index in client_indices]
        steps = torch.tensor([work.count_steps(size) for size in sizes], dtype=torch.float64)
        deltas = vectors.new_empty(vectors.shape)
        first_deltas = torch.empty_like(deltas) if work.first_step else None
        after = buffers.new_empty(n, len(buffers))
        running = torch.empty(n, dtype=torch.float64, device=self.device)
        order = sorted(range(n), key=lambda row: -sizes[row])
        size = self._chunk_size(max(sizes), work)
        for rows in (order[begin : begin + size] for begin in range(0, n, size)):
            indices, own = [client_indices[row] for row in rows], self._work_of(work, rows)
            models = self._start_models(vectors[rows], buffers, own)
            running[rows], first = self._train_models(models, indices, own, job.address)
            deltas[rows] = vectors[rows] - _rows(models.parameters)
            if models.buffers:
                after[rows] = _rows(models.buffers).to(after)
            if first_deltas is not None:
                first_deltas[rows] = vectors[rows] - torch.cat(first)
        losses = running.cpu() / steps
        if work.loss_at == "received":
            losses = self.train_losses(job.vector, buffers, client_indices)
        elif work.loss_at == "final":
            losses = self._final_losses(vectors - deltas, after, client_indices)
        return LocalResult(deltas, losses, steps, after, first_deltas)

    def _work_of(self, work: LocalTraining, rows: list[int]) -> LocalTraining:
        """Return the work of the clients in these rows."""
        correction, multipliers = work.correction, work.multipliers
        return replace(
            work,
            correction=None if correction is None else correction.of_rows(rows, self.device),
            multipliers=None if multipliers is None else multipliers[rows].to(self.device),
        )

    def _start_models(self, vectors: Tensor, buffers: Tensor, work: LocalTraining) -> _Models:
        """Return the models before training, of parameters [K, D] and buffers [B] for all."""
        like = _trainable(self.network)
        parameters = _tensors(vectors, like)
        with_adam = work.optimiser == "adam"
        correction = work.correction or Correction()
        anchor = vectors if correction.anchor is None else correction.anchor
        shift = correction.shift
        return _Models(
            parameters,
            {} if with_adam else {name: torch.zeros_like(p) for name, p in parameters.items()},
            _tensors(buffers.expand(len(vectors), -1), dict(self.network.named_buffers())),
            _tensors(anchor.view(-1, anchor.shape[-1]), like) if correction.mu else None,
            None if shift is None else _tensors(shift.view(-1, shift.shape[-1]), like),
            Moments.zeros(parameters) if with_adam else None,
        )

    def _train_models(
        self,
        models: _Models,
        client_indices: Sequence[int],
        work: LocalTraining,
        address: tuple[int, str, int],
    ) -> tuple[Tensor, list[Tensor]]:
        """Train the models of clients, the largest first.

        Returns the sums of their batches' losses [K], and the models after the first step.
        """
        orders = self._orders(client_indices, work.epochs, address)
        ids = [self.clients[index].id for index in client_indices]
        total = torch.zeros(len(ids), dtype=torch.float64, device=self.device)
        first: list[Tensor] = []
        steps = list(
            _steps_of_epoch([self.sizes[index] for index in client_indices], work.batch_size)
        )
        with seeded_generator(stream_seed(*address, "inside the model", *ids), self.device):
            for epoch, (clients, columns) in itertools.product(range(work.epochs), steps):
                try:
                    batch = orders[epoch, clients, columns]
                    total[clients] += self._step(models, clients, batch, work)
                except ValueError as error:  # such as batch norm's, of a batch with one example
                    why = quote_values(str(error))
                    raise DataError(
                        f"client {ids[clients.start]!r} cannot train this model: {why}"
                    ) from None
                if work.first_step and epoch == 0 and columns.start == 0:
                    first.append(_rows({name: p[clients] for name, p in models.parameters.items()}))
        return total, first

    def _step(self, models: _Models, clients: slice, batch: Tensor, work: LocalTraining) -> Tensor:
        """Take one step with some clients on batches [k, B]; return their mean losses before it."""
        parameters = {
            name: p[clients].detach().requires_grad_() for name, p in models.parameters.items()
        }
        buffers = {name: b[clients] for name, b in models.buffers.items()}
        x, y = self._inputs(self.examples.x[batch]), self.examples.y[batch]
        loss = self.criterion.loss
        losses, new_buffers = _example_losses(self.network, parameters, buffers, x, y, loss)
        objectives = losses.mean(dim=1)
        if work.objective is not None:
            # Outside vmap: an objective may look at the values in its tensors.
            groups = None if self.examples.group is None else self.examples.group[batch]
            multipliers = None if work.multipliers is None else work.multipliers[clients].to(losses)
            weights = torch.full_like(losses, 1 / batch.shape[1])
            objectives = work.objective(losses, weights, groups, multipliers)
        values = torch.autograd.grad(objectives.sum(), list(parameters.values()), allow_unused=True)
        gradients = {name: g for name, g in zip(parameters, values, strict=True) if g is not None}
        with torch.no_grad():
            models.step(clients, gradients, work)
            for name, buffer in buffers.items():
                buffer.copy_(new_buffers[name])
        return losses.detach().mean(dim=1)

    def _orders(
        self, client_indices: Sequence[int], epochs: int, address: tuple[int, str, int]
    ) -> Tensor:
        """Return the examples of clients in the order in which each sees its own.

        They are positions among all examples, [epochs, K, size of the largest client].
        """
        largest = self.sizes[client_indices[0]]
        orders = torch.zeros(epochs, len(client_indices), largest, dtype=torch.int64)
        for row, index in enumerate(client_indices):
            order = batch_order(self.sizes[index], epochs, address, self.clients[index].id)
            orders[:, row, : self.sizes[index]] = order + self.starts[index]
        return orders.to(self.device)

    def _chunk_size(self, largest: int, work: LocalTraining) -> int:
        """Return how many clients train at a time.

        Each has parameters, the optimiser's state, gradients, a batch and intermediate results.
        """
        parameter_bytes = sum(p.nbytes for p in _trainable(self.network).values())
        example_bytes = self._inputs(self.examples.x[0]).nbytes + 2 * self._activation_bytes
        copies = 4 if work.optimiser == "sgd" else 6
        batch_bytes = min(work.batch_size, largest) * example_bytes
        order_bytes = 8 * work.epochs * largest
        return max(1, CHUNK_BYTES // (copies * parameter_bytes + batch_bytes + order_bytes))

    @functools.cached_property
    def _activation_bytes(self) -> int:
        """The memory that one more example in a batch takes until the backward pass."""
        two, four = (
            _saved_bytes(self.network, self._inputs(self.examples.x[[0] * count]))
            for count in (2, 4)
        )
        return (four - two) // 2


def _example_losses(
    network: nn.Module,
    parameters: Named,
    buffers: Named,
    x: Tensor,
    y: Tensor,
    loss: LossFunction = cross_entropy,
) -> tuple[Tensor, Named]:
    """Return the loss of each example [k, B] at its client's model, and the new buffers."""

    def losses_of_one(
        parameters: Named, buffers: Named, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Named]:
        # A network that replaces its buffers, rather than writing into them, does so in this dict.
        tensors = {**parameters, **buffers}
        losses = loss(functional_call(network, tensors, (x,)), y)
        return losses, {name: tensors[name] for name in buffers}

    return vmap(losses_of_one, randomness="different")(parameters, buffers, x, y)


def _steps_of_epoch(sizes: Sequence[int], batch_size: int) -> Iterator[tuple[slice, slice]]:
    """Yield the steps of one epoch: which clients, and which part of their order.

    Sizes never rise, so clients with equal batches are neighbours.
    """
    for begin in range(0, sizes[0], batch_size):
        stop = 0
        widths = (min(batch_size, size - begin) for size in sizes if size > begin)
        for width, group in itertools.groupby(widths):
            start, stop = stop, stop + len(list(group))
            yield slice(start, stop), slice(begin, begin + width)


def _of_clients(tensor: Tensor, clients: slice) -> Tensor:
    """Return the rows of some clients, or the one row for all."""
    return tensor if len(tensor) == 1 else tensor[clients]


def _trainable(network: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def _tensors(rows: Tensor, like: Mapping[str, Tensor]) -> Named:
    """Copy rows [K, D] into tensors [K, ...] of these shapes and types; counters are rounded."""
    parts = torch.split(rows, [tensor.numel() for tensor in like.values()], dim=1)
    tensors = {}
    for (name, tensor), part in zip(like.items(), parts, strict=True):
        values = part if tensor.is_floating_point() else part.round()
        tensors[name] = values.reshape(-1, *tensor.shape).to(tensor.dtype, copy=True).contiguous()
    return tensors


def _rows(tensors: Named) -> Tensor:
    """Return tensors [K, ...] as rows [K, D]."""
    columns = [
        tensor.flatten(1) if tensor.ndim > 1 else tensor[:, None] for tensor in tensors.values()
    ]
    return torch.cat(columns, dim=1)


def _saved_bytes(network: nn.Module, x: Tensor) -> int:
    """Return the size of what a forward pass saves for the backward pass."""
    sizes: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    network = copy.deepcopy(network)  # batch norm changes its buffers
    with (
        seeded_generator(0, x.device),
        torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor),
    ):
        _ = network(x)  # kept until all are counted: freed memory would be used and counted again
    return sum(sizes.values())


def _missing_rule(message: str) -> str | None:
    match = NO_RULE.search(message)
    return f"vmap has no rule for {match[1]}" if match else None
