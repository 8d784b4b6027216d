"""Two loops written by hand: a plain one, and one built like that of the authors of UDJ-FL."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from benchmarks.counting import Contender
from benchmarks.work import MODELS, ClientData, Work, make_data

SETUP = {
    "plain": "Nothing: torch's own number of threads, batches by indexing with a permutation.",
    "dataloader": (
        "Built like the code of the authors of UDJ-FL: for each client a deep copy of the model "
        "before and after training, and a DataLoader over two joined data sets, which copies each "
        "example; loss and accuracy are read after every batch; tests use DataLoaders as well and "
        "keep each example's logits, for the entropy."
    ),
}


def start(work: Work, variant: str) -> Contender:
    return {"plain": PlainLoop, "dataloader": DataLoaderLoop}[variant](work)


def train_client(model: nn.Module, data: ClientData, work: Work) -> None:
    """Train one local epoch, in place."""
    optimiser = torch.optim.SGD(model.parameters(), lr=work.lr, momentum=work.momentum)
    model.train()
    for batch in torch.randperm(len(data.y)).split(work.batch):
        optimiser.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(data.x[batch]), data.y[batch]).backward()
        optimiser.step()


@torch.no_grad()
def evaluate_client(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the mean loss, and the accuracy from 0 to 1."""
    model.eval()
    logits = model(x)
    return float(nn.functional.cross_entropy(logits, y)), float(
        (logits.argmax(dim=1) == y).float().mean()
    )


class PlainLoop(Contender):
    """One model, loaded again for each client; settings one after the other."""

    def __init__(self, work: Work) -> None:
        self.work, self.data = work, make_data(work)
        self.prepare()

    def prepare(self) -> None:
        self.model = MODELS[self.work.model]()
        self.servers = [self._state() for _ in range(self.work.settings)]

    def _state(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]

    def _load(self, state: list[Tensor]) -> None:
        with torch.no_grad():
            for p, value in zip(self.model.parameters(), state, strict=True):
                p.copy_(value)

    def run(self, rounds: int) -> dict[str, float]:
        results: list[tuple[float, float]] = []
        for index in range(len(self.servers)):
            for _ in range(rounds):
                self.servers[index], results = self._round(self.servers[index])
        return mean_outcome(results)

    def _round(self, server: list[Tensor]) -> tuple[list[Tensor], list[tuple[float, float]]]:
        total = [torch.zeros_like(value) for value in server]
        for data in self.data:
            self._load(server)
            train_client(self.model, data, self.work)
            for sum_so_far, value in zip(total, self.model.parameters(), strict=True):
                sum_so_far.add_(value.detach(), alpha=1 / len(self.data))
        self._load(total)
        return total, [evaluate_client(self.model, data.x_test, data.y_test) for data in self.data]


class _Subset(Dataset):
    """Some examples of a data set, each copied on access."""

    def __init__(self, x: Tensor, y: Tensor, indices: list[int]) -> None:
        self.x, self.y, self.indices = x, y, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        index = self.indices[number]
        return self.x[index].clone(), self.y[index].clone()


def _loader(x: Tensor, y: Tensor, batch: int, shuffle: bool) -> DataLoader:
    """Return a DataLoader; the two halves stand for a client's clean and ambiguous examples."""
    half = len(y) // 2
    parts = [_Subset(x, y, list(range(half))), _Subset(x, y, list(range(half, len(y))))]
    return DataLoader(ConcatDataset(parts), batch_size=batch, shuffle=shuffle)


class DataLoaderLoop(Contender):
    def __init__(self, work: Work) -> None:
        self.work, data = work, make_data(work)
        self.train = [_loader(d.x, d.y, work.batch, shuffle=True) for d in data]
        self.test = [_loader(d.x_test, d.y_test, work.batch, shuffle=False) for d in data]
        self.prepare()

    def prepare(self) -> None:
        self.model = MODELS[self.work.model]()

    def run(self, rounds: int) -> dict[str, float]:
        results: list[tuple[float, float]] = []
        for _ in range(rounds):
            states = [copy.deepcopy(self._train(loader).state_dict()) for loader in self.train]
            self.model.load_state_dict(
                {name: torch.stack([s[name] for s in states]).mean(dim=0) for name in states[0]}
            )
            results = [self._evaluate(loader) for loader in self.test]
        return mean_outcome(results)

    def _train(self, loader: DataLoader) -> nn.Module:
        model = copy.deepcopy(self.model)
        optimiser = torch.optim.SGD(
            model.parameters(), lr=self.work.lr, momentum=self.work.momentum
        )
        model.train()
        losses, right = [], 0.0
        for x, y in loader:
            optimiser.zero_grad()
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            loss.backward()
            optimiser.step()
            right += (logits.argmax(dim=1) == y).sum().item()
            losses.append(loss.item())
        return model

    def _evaluate(self, loader: DataLoader) -> tuple[float, float]:
        self.model.eval()
        loss, right, seen, all_logits = 0.0, 0, 0, []
        for x, y in loader:
            logits = self.model(x)
            loss += nn.functional.cross_entropy(logits, y, reduction="sum").item()
            right += (logits.argmax(dim=1) == y).sum().item()
            seen += len(y)
            all_logits += list(logits)
        log_p = torch.stack(all_logits).log_softmax(dim=1)
        _entropy = -(log_p.exp() * log_p).sum(dim=1).mean().item()
        return loss / seen, right / seen


def mean_outcome(results: list[tuple[float, float]]) -> dict[str, float]:
    """Return the means over clients, all with as many test examples."""
    return {
        "loss": sum(loss for loss, _ in results) / len(results),
        "accuracy": sum(accuracy for _, accuracy in results) / len(results),
    }
