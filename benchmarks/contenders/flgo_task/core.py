"""Data and evaluation for flgo, in the shapes that it looks for."""

from __future__ import annotations

from typing import Any

import torch
from flgo.benchmark.base import BasicTaskPipe
from flgo.benchmark.toolkits.cv.classification import GeneralCalculator
from torch.utils.data import TensorDataset

from benchmarks.work import Work, make_data


class TaskPipe(BasicTaskPipe):
    def load_data(self, running_time_option: dict[str, Any]) -> dict[str, Any]:
        data = make_data(Work.from_json(running_time_option["work"]))
        tests = TensorDataset(
            torch.cat([d.x_test for d in data]), torch.cat([d.y_test for d in data])
        )
        clients = zip(self.feddata["client_names"], data, strict=True)
        return {
            "server": {"test": tests},
            **{name: {"train": TensorDataset(d.x, d.y), "val": None} for name, d in clients},
        }


TaskCalculator = GeneralCalculator
