"""flgo: its FedAvg on a task made of our data."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import flgo
from flgo.algorithm import fedavg
from flgo.experiment.logger.simple_logger import SimpleLogger

from benchmarks.counting import Contender
from benchmarks.work import MODELS, Work

SETUP = {
    "fedavg": "All clients each round, no validation data held out, momentum; the logger leaves "
    "out the evaluation before training, prints nothing and writes no file; one thread, its own "
    "default."
}


def start(work: Work, variant: str) -> Flgo:  # noqa: ARG001 - the interface
    sys.argv = sys.argv[:1]  # it reads its options from the command line too
    return Flgo(work)


class Logger(SimpleLogger):
    has_begun = False

    def log_once(self, *args, **kwargs) -> None:
        if self.has_begun:
            super().log_once(*args, **kwargs)
        self.has_begun = True

    def show_current_output(self, *args, **kwargs) -> None:
        pass

    def save_output_as_json(self, *args, **kwargs) -> None:
        pass


class Flgo(Contender):
    def __init__(self, work: Work) -> None:
        self.work = work
        self.folder = tempfile.TemporaryDirectory()
        task = Path(self.folder.name)
        for name in ("record", "log"):
            (task / name).mkdir()
        (task / "info").write_text(
            json.dumps({"benchmark": "benchmarks.contenders.flgo_task", "scene": "horizontal"})
        )
        (task / "data.json").write_text(
            json.dumps({"client_names": [f"Client{i}" for i in range(work.clients)]})
        )
        self.prepare()

    def prepare(self) -> None:
        option = {
            "num_epochs": 1,
            "learning_rate": self.work.lr,
            "momentum": self.work.momentum,
            "batch_size": self.work.batch,
            "sample": "full",
            "proportion": 1.0,
            "train_holdout": 0.0,
            "test_batch_size": self.work.test,
            "gpu": [],
            "log_level": "ERROR",
            "no_log_console": True,
            "no_tqdm": True,
            "work": self.work.to_json(),
        }
        model = flgo.convert_model(MODELS[self.work.model])
        self.server = flgo.init(self.folder.name, fedavg, option, model=model, Logger=Logger)

    def run(self, rounds: int) -> dict[str, float]:
        self.server.num_rounds = rounds
        self.server.run()
        output = self.server.gv.logger.output
        return {"loss": output["test_loss"][-1], "accuracy": output["test_accuracy"][-1]}
