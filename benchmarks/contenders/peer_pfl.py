"""pfl-research: `FederatedAveraging` on its simulated backend."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.counting import Contender
from benchmarks.work import MODELS, Work, make_data

SETUP = {
    "fedavg": "A data set that shuffles in every epoch (its own has the same batches each time); "
    "evaluation by the central callback on all clients' test data, not before training; iterations "
    "are counted from 1, because at 0 it always evaluates the training data before and after."
}


def start(work: Work, variant: str) -> Pfl:  # noqa: ARG001 - the interface
    return Pfl(work)


class Shuffled(PyTorchTensorDataset):
    def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
        x, y = self.raw_data
        for batch in torch.randperm(len(y)).split(batch_size or len(y)):
            yield [x[batch], y[batch]]


class Net(nn.Module):
    """A model with the two functions that pfl expects."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return nn.functional.cross_entropy(self.inner(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        self.eval()
        logits = self.inner(x)
        loss = nn.functional.cross_entropy(logits, y, reduction="sum").item()
        return {
            "loss": Weighted(loss, len(y)),
            "accuracy": Weighted((logits.argmax(dim=1) == y).sum().item(), len(y)),
        }


class Evaluation(CentralEvaluationCallback):
    last: dict[str, float]

    def on_train_begin(self, *, model: Any) -> Metrics:
        return Metrics()

    def after_central_iteration(self, *args: Any, **kwargs: Any) -> Any:
        stop, metrics = super().after_central_iteration(*args, **kwargs)
        self.last = {
            str(name): float(getattr(value, "overall_value", value)) for name, value in metrics
        }
        return stop, metrics


class Pfl(Contender):
    def __init__(self, work: Work) -> None:
        self.work, self.data = work, make_data(work)
        users = [Shuffled((d.x, d.y), user_id=str(i)) for i, d in enumerate(self.data)]
        turn = iter(range(10**9))
        users_in_turn = FederatedDataset(lambda user: users[user], lambda: next(turn) % len(users))
        self.backend = SimulatedBackend(training_data=users_in_turn, val_data=None)
        tests = (torch.cat([d.x_test for d in self.data]), torch.cat([d.y_test for d in self.data]))
        self.evaluation = Evaluation(PyTorchTensorDataset(tests), format_fn=lambda name: name)

    def prepare(self) -> None:
        net = Net(MODELS[self.work.model]())
        local = functools.partial(torch.optim.SGD, momentum=self.work.momentum)
        self.model = PyTorchModel(net, local, torch.optim.SGD(net.parameters(), lr=1.0))

    def run(self, rounds: int) -> dict[str, float]:
        algorithm = FederatedAveraging()
        algorithm._current_central_iteration = 1
        params = NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=rounds + 2,
            train_cohort_size=len(self.data),
            val_cohort_size=0,
        )
        training = NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=self.work.lr, local_batch_size=self.work.batch
        )
        algorithm.run(params, self.backend, self.model, training, callbacks=[self.evaluation])
        last = self.evaluation.last
        return {name: _find_metric(last, name) for name in ("loss", "accuracy")}


def _find_metric(metrics: dict[str, float], ending: str) -> float:
    return next(value for name, value in metrics.items() if name.endswith(ending))
