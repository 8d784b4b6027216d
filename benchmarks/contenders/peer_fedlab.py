"""FedLab: its serial trainer and synchronous server in its standalone pipeline."""

from __future__ import annotations

import logging

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils.functional import evaluate
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.counting import Contender
from benchmarks.work import MODELS, Work, make_data

SETUP = {
    "fedavg": "An optimiser with momentum, reset between clients (its own has none, and all "
    "clients share one); shuffling DataLoaders; each client's test data in one batch through its "
    "`evaluate`."
}


def start(work: Work, variant: str) -> FedLab:  # noqa: ARG001 - the interface
    return FedLab(work)


class Loaders:
    """A data set as the trainer expects it."""

    def __init__(self, work: Work) -> None:
        data = make_data(work)
        self.train = [TensorDataset(d.x, d.y) for d in data]
        self.test = [
            DataLoader(TensorDataset(d.x_test, d.y_test), batch_size=work.test) for d in data
        ]

    def get_dataloader(self, client: int, batch_size: int) -> DataLoader:
        return DataLoader(self.train[client], batch_size=batch_size, shuffle=True)


class Trainer(SGDSerialClientTrainer):
    def setup_momentum(self, work: Work) -> None:
        self.setup_optim(1, work.batch, work.lr)
        self.optimizer = torch.optim.SGD(
            self._model.parameters(), lr=work.lr, momentum=work.momentum
        )

    def train(self, *args, **kwargs):
        self.optimizer.state.clear()
        return super().train(*args, **kwargs)


class Pipeline(StandalonePipeline):
    tests: list[DataLoader]

    def evaluate(self) -> None:
        criterion = torch.nn.CrossEntropyLoss()
        self.results = [evaluate(self.handler.model, criterion, loader) for loader in self.tests]


class FedLab(Contender):
    def __init__(self, work: Work) -> None:
        self.work, self.loaders = work, Loaders(work)
        logging.disable(logging.INFO)

    def prepare(self) -> None:
        trainer = Trainer(MODELS[self.work.model](), self.work.clients)
        trainer.setup_dataset(self.loaders)
        trainer.setup_momentum(self.work)
        handler = SyncServerHandler(MODELS[self.work.model](), global_round=0, sample_ratio=1.0)
        self.pipeline = Pipeline(handler, trainer)
        self.pipeline.tests = self.loaders.test

    def run(self, rounds: int) -> dict[str, float]:
        self.pipeline.handler.global_round = rounds
        self.pipeline.main()
        # With one batch for each client, the sum of the batches' losses is its mean loss.
        results = self.pipeline.results
        return {
            "loss": sum(loss for loss, _ in results) / len(results),
            "accuracy": sum(float(accuracy) for _, accuracy in results) / len(results),
        }
