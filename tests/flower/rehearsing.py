"""Two clients on a real deployment, and runs of tests/flower/rehearsal on it: what goes wrong there goes wrong on purpose."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from deploying import Deployment, Finished, flower_demo, reached
from safetensors.torch import load_file

import udjfl
from udjfl.training.run_folder import History, RunFolder

APP = Path(__file__).parent / "rehearsal"
TRAINING = {"hidden": 5, "lr": 0.4, "uncertainty_epochs": 2}


class Stage:
    """A deployment with a SuperNode for each client of a federation; every run has a folder of its own."""

    def __init__(self, deployment: Deployment, federation: udjfl.Federation) -> None:
        self.deployment, self.federation = deployment, federation
        self.files = flower_demo.write_data(federation, deployment.folder / "data")
        flower_demo.start(deployment, self.files, lambda line: None)
        self.honest, self.liar = federation.ids[0], federation.ids[-1]
        self._numbers = itertools.count()

    def act(self, **settings: Any) -> Act:
        return Act(self, self.deployment.folder / "runs" / str(next(self._numbers)), settings)

    def start_again(self, name: str) -> None:
        self.deployment.start_node(name, {"client-id": name, "data": str(self.files[name])})
        self.deployment.wait_online([name])


class Act:
    """One run and its gates: see rehearsal_app."""

    def __init__(self, stage: Stage, folder: Path, settings: dict[str, Any]) -> None:
        self.stage, self.out, self.gates, self.models = (
            stage,
            folder / "out",
            folder / "gates",
            folder / "models",
        )
        self.gates.mkdir(parents=True)
        self.models.mkdir()
        own = {
            "clients": len(stage.federation.clients),
            "out": str(self.out),
            "gates": str(self.gates),
            "shown": str(self.models),
            "server-data": str(stage.deployment.folder / "data" / "server" / "data.npz"),
        }
        self.settings = {
            **own,
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }

    def run(self, **changes: Any) -> Finished:
        return self.stage.deployment.run(APP, {**self.settings, **changes})

    def begin(self) -> str:
        return self.stage.deployment.begin(APP, self.settings)

    def close(self, t: int) -> None:
        (self.gates / f"closed-{t}").touch()

    def open(self, t: int) -> None:
        (self.gates / f"closed-{t}").unlink()

    def heard(self, word: str) -> bool:
        """Wait for a word from the server or a client."""
        return reached((self.gates / word).exists)

    @property
    def history(self) -> History:
        return History(list(RunFolder.open(self.out).read_records()))

    @property
    def model(self) -> dict[str, torch.Tensor]:
        return load_file(self.out / "model.safetensors")
