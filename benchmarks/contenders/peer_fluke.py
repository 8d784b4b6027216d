"""fluke: `CentralizedFL` with its own client, server and data loader."""

from __future__ import annotations

from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from torchmetrics import Accuracy

from benchmarks.counting import Contender
from benchmarks.work import CLASSES, MODELS, Work, make_data

SETUP = {
    "fedavg": "Clients keep nothing between rounds (`persistency=False`), or momentum would go on; "
    "accuracy is the only metric (seven by default), on the server over all clients' test data at "
    "once; no second evaluation at the end of a run."
}


def start(work: Work, variant: str) -> Fluke:  # noqa: ARG001 - the interface
    return Fluke(work)


class FedAvg(CentralizedFL):
    def finalize(self) -> None:
        """Leave out the second evaluation."""


class Fluke(Contender):
    def __init__(self, work: Work) -> None:
        self.work, data = work, make_data(work)
        self.train = [self._loader(d.x, d.y, work.batch, shuffle=True) for d in data]
        self.test = self._loader(
            torch.cat([d.x_test for d in data]), torch.cat([d.y_test for d in data]), work.test
        )
        environment = FlukeENV()
        environment.set_evaluator(
            LossAndAccuracy(1, CLASSES, accuracy=Accuracy(task="multiclass", num_classes=CLASSES))
        )
        environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=True)

    @staticmethod
    def _loader(
        x: torch.Tensor, y: torch.Tensor, batch: int, shuffle: bool = False
    ) -> FastDataLoader:
        return FastDataLoader(x, y, num_labels=CLASSES, batch_size=batch, shuffle=shuffle)

    def prepare(self) -> None:
        client = {
            "batch_size": self.work.batch,
            "local_epochs": 1,
            "loss": torch.nn.CrossEntropyLoss,
            "persistency": False,
            "optimizer": {"name": "SGD", "lr": self.work.lr, "momentum": self.work.momentum},
            "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1.0},
        }
        settings = DDict(client=client, server={"weighted": True}, model=MODELS[self.work.model]())
        container = DummyDataContainer(self.train, [None] * len(self.train), self.test, CLASSES)
        self.algorithm = FedAvg(len(self.train), DataSplitter(container), settings)

    def run(self, rounds: int) -> dict[str, float]:
        self.algorithm.run(rounds, 1.0)
        return FlukeENV().get_evaluator().last


class LossAndAccuracy(ClassificationEval):
    """Measures the loss too, as the other contenders do."""

    last: dict[str, float]

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        scores = super().evaluate(*args, **{**kwargs, "loss_fn": torch.nn.CrossEntropyLoss()})
        self.last = {"loss": float(scores["loss"]), "accuracy": float(scores["accuracy"])}
        return scores
