"""One client after the other, for any nn.Module."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from udjfl.data.federation import Examples
from udjfl.engine.base import Engine, LocalResult, LocalWork, batch_order
from udjfl.errors import DataError
from udjfl.models import buffers_to_vector, to_vector, trainable
from udjfl.seeds import stream_seed


class SerialEngine(Engine):
    name = "serial"

    def train(
        self, vector: Tensor, buffers: Tensor, rows: Sequence[int], work: LocalWork, address: tuple[int, str, int]
    ) -> LocalResult:
        deltas, losses, steps, after, firsts = [], [], [], [], []
        at_start = self.received_losses(vector, buffers, rows) if work.loss_at == "received" else None
        vectors = vector.to(self.device).expand(len(rows), -1)
        for place, row in enumerate(rows):
            self.load(vectors[place], buffers)
            # Dropout and its like draw from the global generator: each client gets its own state of it.
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                torch.manual_seed(stream_seed(*address, "inside the model", self.clients[row].id))
                try:
                    running, taken, first = self._train_one(row, place, work, address)
                except ValueError as error:  # such as batch norm's, of a batch with one example
                    raise DataError(f"client {self.clients[row].id!r} cannot train this model: {error}") from None
            trained, trained_buffers = to_vector(self.module), buffers_to_vector(self.module)
            if work.loss_at == "final":
                running = self.received_losses(trained, trained_buffers, [row])[0]
            deltas.append(vectors[place] - trained)
            if first is not None:
                firsts.append(vectors[place] - first)
            losses.append(running)
            steps.append(taken)
            after.append(trained_buffers)
        return LocalResult(
            deltas=torch.stack(deltas),
            losses=at_start if at_start is not None else torch.stack(losses),
            steps=torch.tensor(steps, dtype=torch.float64),
            buffers=torch.stack(after),
            first_deltas=torch.stack(firsts) if firsts else None,
        )

    def _train_one(
        self, row: int, place: int, work: LocalWork, address: tuple[int, str, int]
    ) -> tuple[Tensor, int, Tensor | None]:
        """Train the loaded module on one client: the mean of the batches' losses, the number of steps, the first of them."""
        data = self.train_data[row]
        optimiser = torch.optim.SGD(trainable(self.module), lr=work.lr, momentum=work.momentum)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        taken = 0
        first = None
        self.module.train()
        for order in batch_order(len(data), work.epochs, address, self.clients[row].id).to(self.device):
            for batch in order.split(work.batch_size):
                optimiser.zero_grad(set_to_none=True)
                loss, goal = self._batch_loss(data, batch, place, work)
                goal.backward()  # type: ignore[no-untyped-call]
                self._pull(work)
                optimiser.step()
                total += loss.detach()
                taken += 1
                if work.first_step and taken == 1:
                    first = to_vector(self.module)
        return (total / taken).cpu(), taken, first

    def _batch_loss(self, data: Examples, batch: Tensor, place: int, work: LocalWork) -> tuple[Tensor, Tensor]:
        """The mean loss of a batch, and what is minimised."""
        logits = self.module(data.x[batch])
        if work.objective is None:
            loss = nn.functional.cross_entropy(logits, data.y[batch])
            return loss, loss
        each = nn.functional.cross_entropy(logits, data.y[batch], reduction="none")[None]
        groups = None if data.group is None else data.group[batch][None]
        multipliers = None if work.multipliers is None else work.multipliers[place : place + 1].to(each)
        goal = work.objective(each, torch.full_like(each, 1 / len(batch)), groups, multipliers)
        return each.mean(), goal[0]

    def _pull(self, work: LocalWork) -> None:
        """Mix the work's direction into the gradients."""
        if work.pull is None or not work.pull_share:
            return
        own = trainable(self.module)
        for p, pull in zip(own, torch.split(work.pull.to(self.device), [p.numel() for p in own]), strict=True):
            if p.grad is not None:
                p.grad.mul_(1 - work.pull_share).add_(pull.view_as(p).to(p), alpha=work.pull_share)
