"""One client after the other, for any nn.Module; as many at a time as there are workers."""

from __future__ import annotations

import copy
import functools
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from udjfl.data.federation import Client, Examples
from udjfl.engine.base import Engine, LocalResult, LocalWork, batch_order
from udjfl.engine.workers import spread
from udjfl.errors import DataError
from udjfl.models import buffers_from_vector, buffers_to_vector, from_vector, to_vector, trainable
from udjfl.seeds import stream_seed


@dataclass(frozen=True)
class _Trained:
    vector: Tensor
    buffers: Tensor
    running: Tensor
    steps: int
    first: Tensor | None


class SerialEngine(Engine):
    name = "serial"

    def __init__(self, module: nn.Module, clients: Sequence[Client], device: str = "cpu", workers: int = 1) -> None:
        super().__init__(module, clients, device, workers)
        # Clients that train at the same time need a network each.
        self.spare: queue.SimpleQueue[nn.Module] = queue.SimpleQueue()

    def train(
        self, vector: Tensor, buffers: Tensor, rows: Sequence[int], work: LocalWork, address: tuple[int, str, int]
    ) -> LocalResult:
        at_start = self.received_losses(vector, buffers, rows) if work.loss_at == "received" else None
        vectors = vector.to(self.device).expand(len(rows), -1)

        def piece(place: int, row: int) -> Callable[[], _Trained]:
            own = None if work.multipliers is None else work.multipliers[place : place + 1]
            return lambda: self._train_one(vectors[place], buffers, row, replace(work, multipliers=own), address)

        done = spread([piece(place, row) for place, row in enumerate(rows)], self._workers)
        losses = [trained.running for trained in done]
        if work.loss_at == "final":
            pairs = zip(done, rows, strict=True)
            losses = [self.received_losses(trained.vector, trained.buffers, [row])[0] for trained, row in pairs]
        firsts = [trained.first for trained in done if trained.first is not None]
        return LocalResult(
            deltas=vectors - torch.stack([trained.vector for trained in done]),
            losses=at_start if at_start is not None else torch.stack(losses),
            steps=torch.tensor([trained.steps for trained in done], dtype=torch.float64),
            buffers=torch.stack([trained.buffers for trained in done]),
            first_deltas=vectors - torch.stack(firsts) if firsts else None,
        )

    @functools.cached_property
    def _workers(self) -> int:
        """How many clients may train at a time: one, if the network draws from the one generator that all would share."""
        if self.workers == 1:
            return 1
        network = _with_own_dropout(self.module).train()
        before = torch.get_rng_state()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                network(self.train_data[0].x[:2])
                draws = not torch.equal(before, torch.get_rng_state())
        except (RuntimeError, ValueError):  # a network that two examples do not suit
            return 1
        return 1 if draws else self.workers

    @contextmanager
    def _network(self) -> Iterator[nn.Module]:
        """A network that nobody else is using."""
        try:
            network = self.spare.get_nowait()
        except queue.Empty:
            network = _with_own_dropout(self.module)
        yield network
        self.spare.put(network)

    def _train_one(self, start: Tensor, buffers: Tensor, row: int, work: LocalWork, address: tuple[int, str, int]) -> _Trained:
        """One client's training, in a network of its own."""
        seed = stream_seed(*address, "inside the model", self.clients[row].id)
        with self._network() as network:
            from_vector(network, start)
            buffers_from_vector(network, buffers.to(self.device))
            _seed_dropout(network, seed)
            try:
                if self._workers > 1:
                    running, taken, first = self._descend(network, row, work, address)
                else:
                    # Whatever else draws does so from the global generator: each client gets its own state of it.
                    with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                        torch.manual_seed(seed)
                        running, taken, first = self._descend(network, row, work, address)
            except ValueError as error:  # such as batch norm's, of a batch with one example
                raise DataError(f"client {self.clients[row].id!r} cannot train this model: {error}") from None
            return _Trained(to_vector(network), buffers_to_vector(network), running, taken, first)

    def _descend(
        self, network: nn.Module, row: int, work: LocalWork, address: tuple[int, str, int]
    ) -> tuple[Tensor, int, Tensor | None]:
        """SGD on one client: the mean of the batches' losses, the number of steps, where the first of them led."""
        data = self.train_data[row]
        optimiser = torch.optim.SGD(trainable(network), lr=work.lr, momentum=work.momentum)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        taken = 0
        first = None
        network.train()
        for order in batch_order(len(data), work.epochs, address, self.clients[row].id).to(self.device):
            for batch in order.split(work.batch_size):
                optimiser.zero_grad(set_to_none=True)
                loss, goal = _batch_loss(network, data, batch, work)
                goal.backward()  # type: ignore[no-untyped-call]
                _pull(network, work)
                optimiser.step()
                total += loss.detach()
                taken += 1
                if work.first_step and taken == 1:
                    first = to_vector(network)
        return (total / taken).cpu(), taken, first


def _batch_loss(network: nn.Module, data: Examples, batch: Tensor, work: LocalWork) -> tuple[Tensor, Tensor]:
    """The mean loss of a batch, and what is minimised."""
    logits = network(data.x[batch])
    if work.objective is None:
        loss = nn.functional.cross_entropy(logits, data.y[batch])
        return loss, loss
    each = nn.functional.cross_entropy(logits, data.y[batch], reduction="none")[None]
    groups = None if data.group is None else data.group[batch][None]
    multipliers = None if work.multipliers is None else work.multipliers.to(each)
    goal = work.objective(each, torch.full_like(each, 1 / len(batch)), groups, multipliers)
    return each.mean(), goal[0]


def _pull(network: nn.Module, work: LocalWork) -> None:
    """Mix the work's direction into the gradients."""
    if work.pull is None or not work.pull_share:
        return
    own = trainable(network)
    for p, pull in zip(own, torch.split(work.pull.to(own[0].device), [p.numel() for p in own]), strict=True):
        if p.grad is not None:
            p.grad.mul_(1 - work.pull_share).add_(pull.view_as(p).to(p), alpha=work.pull_share)


class _OwnDropout(nn.Module):
    """nn.Dropout with a generator of its own: the same draws, but clients that train at the same time do not mix them."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.generator = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        keep = 1 - self.p
        return x * torch.empty_like(x).bernoulli_(keep, generator=self.generator) / (keep or 1)

    def __deepcopy__(self, memo: object) -> _OwnDropout:
        return _OwnDropout(self.p)  # a generator cannot be copied, and every client seeds its own


def _with_own_dropout(module: nn.Module) -> nn.Module:
    """A copy whose dropout layers do not draw from the global generator. On a GPU they stay as they are."""
    network = copy.deepcopy(module)
    first = next(network.parameters())
    if first.device.type != "cpu":
        return network
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout and not child.inplace and not child._forward_hooks:
                setattr(parent, name, _OwnDropout(child.p))
    return network


def _seed_dropout(network: nn.Module, seed: int) -> None:
    """All dropout layers of a network share one generator, which they draw from in the order of the forward pass."""
    shared = torch.Generator().manual_seed(seed)
    for layer in network.modules():
        if isinstance(layer, _OwnDropout):
            layer.generator = shared
