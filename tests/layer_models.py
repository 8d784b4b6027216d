"""Models with layers beyond linear ones, the shape of an example, and whether it has indices."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class LastStep(nn.Module):
    """The output of an LSTM after its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]


class Mean(nn.Module):
    """The mean over steps."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(3, 4), layer, Mean(), nn.Linear(4, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)),
        (6,),
        False,
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.0), nn.ReLU(), nn.Linear(5, 3)),
        (6,),
        False,
    ),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)),
        (1, 4, 4),
        False,
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(20, 3)),
        (5,),
        True,
    ),
    "lstm": (lambda: nn.Sequential(LastStep(), nn.Linear(5, 3)), (4, 3), False),
    "encoder": (encoder, (4, 3), False),
}
