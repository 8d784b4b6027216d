"""One client after the other, for any nn.Module."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from udjfl.engine.base import Engine, LocalResult, LocalWork, batch_order
from udjfl.errors import DataError
from udjfl.models import buffers_to_vector, to_vector, trainable
from udjfl.seeds import stream_seed


class SerialEngine(Engine):
    name = "serial"

    def train(
        self, vector: Tensor, buffers: Tensor, rows: Sequence[int], work: LocalWork, address: tuple[int, str, int]
    ) -> LocalResult:
        deltas, losses, steps, after = [], [], [], []
        at_start = self.received_losses(vector, buffers, rows) if work.loss_at == "received" else None
        for row in rows:
            self.load(vector, buffers)
            # Dropout and its like draw from the global generator: each client gets its own state of it.
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                torch.manual_seed(stream_seed(*address, "inside the model", self.clients[row].id))
                try:
                    running, taken = self._train_one(row, work, address)
                except ValueError as error:  # such as batch norm's, of a batch with one example
                    raise DataError(f"client {self.clients[row].id!r} cannot train this model: {error}") from None
            trained, trained_buffers = to_vector(self.module), buffers_to_vector(self.module)
            if work.loss_at == "final":
                running = self.received_losses(trained, trained_buffers, [row])[0]
            deltas.append(vector.to(self.device) - trained)
            losses.append(running)
            steps.append(taken)
            after.append(trained_buffers)
        return LocalResult(
            deltas=torch.stack(deltas),
            losses=at_start if at_start is not None else torch.stack(losses),
            steps=torch.tensor(steps, dtype=torch.float64),
            buffers=torch.stack(after),
        )

    def _train_one(self, row: int, work: LocalWork, address: tuple[int, str, int]) -> tuple[Tensor, int]:
        """Train the loaded module on one client; the mean of the batches' losses, and the number of steps."""
        data = self.train_data[row]
        optimiser = torch.optim.SGD(trainable(self.module), lr=work.lr, momentum=work.momentum)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        taken = 0
        self.module.train()
        for order in batch_order(len(data), work.epochs, address, self.clients[row].id).to(self.device):
            for batch in order.split(work.batch_size):
                optimiser.zero_grad(set_to_none=True)
                loss = nn.functional.cross_entropy(self.module(data.x[batch]), data.y[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                total += loss.detach()
                taken += 1
        return (total / taken).cpu(), taken
