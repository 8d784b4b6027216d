"""The serial engine: memory formats, and when it uses other processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_cases import make_clients, make_work, train
from torch import Tensor, nn

from udjfl.engine import SerialEngine
from udjfl.engine.base import ForkPoolEngine
from udjfl.models import cnn, mlp


class Viewed(nn.Module):
    """A `view` of the output of a convolution works in the usual memory format only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu().view(len(x), -1))


def test_channels_are_last_in_memory_unless_the_network_does_not_work_so() -> None:
    clients = make_clients([4, 4], (1, 8, 8))
    assert SerialEngine(Viewed(), clients)._layout is torch.preserve_format
    assert SerialEngine(cnn((1, 8, 8), 3), clients)._layout is torch.channels_last
    assert SerialEngine(mlp((1, 8, 8), 3), clients)._layout is torch.preserve_format
    result = train(SerialEngine, Viewed(), make_work(), clients)
    assert torch.isfinite(result.deltas).all()


@pytest.mark.parametrize(
    ("make", "size", "shape", "batch_size", "is_shared"),
    [
        (lambda: nn.Linear(3, 3), 4, (3,), 4, False),  # two tiny steps
        (lambda: nn.Linear(3, 3), 100, (3,), 4, True),  # 50 tiny steps
        (lambda: mlp((784,), 3), 100, (784,), 200, False),  # 10 million multiplications
        (lambda: mlp((784,), 3), 1000, (784,), 1000, True),  # 100 million
        (lambda: cnn((1, 28, 28), 3), 40, (1, 28, 28), 40, True),  # few parameters, many pixels
    ],
)
def test_sizes_decide_whether_other_processes_help(
    make: Any,
    size: int,
    shape: tuple[int, ...],
    batch_size: int,
    is_shared: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decisions: list[bool] = []
    do_all = ForkPoolEngine._map

    def record(self: Any, tasks: Any, shapes: Any, share: bool, costs: Any = ()) -> Any:
        decisions.append(share)
        return do_all(self, tasks, shapes, False)

    monkeypatch.setattr(ForkPoolEngine, "_map", record)
    work = make_work(epochs=1, batch_size=batch_size, loss_at="running")
    train(SerialEngine, make(), work, make_clients([size, size], shape), workers=2)
    assert decisions == [is_shared]
