"""One real deployment for all tests with processes, and runs of the fault app on it.

Everything that these tests need from `udjfl` and from apps/flower/deploy is imported here.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from deploy.data_files import server_file, write_data_files
from deploy.local import Deployment, FinishedRun
from safetensors.torch import load_file
from torch.nn.utils import parameters_to_vector

import udjfl
from udjfl.deployment.processes import stop
from udjfl.training.records import History
from udjfl.training.run_folder import RunFolder

FAULT_APP = Path(__file__).parent / "fault_app"
SUPERNODE = [sys.executable, str(Path(__file__).with_name("quick_supernode.py"))]
POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}  # seconds; Flower's default is 1
TRAINING = {"hidden": 5, "lr": 0.4, "uncertainty_epochs": 2}
SECRET = (b"PRIVATE KEY", b"BEGIN CERTIFICATE", b"ecdsa-sha2", b"openssh-key")


def make_deployment(*, keep_state: bool = False) -> Deployment:
    """Return a deployment with short waits; it is started by its `with` block."""
    return Deployment(keep_state=keep_state, supernode=SUPERNODE, environment=POLL)


class DeployedFederation:
    """A deployment with a SuperNode for each client of a federation."""

    def __init__(self, deployment: Deployment, federation: udjfl.Federation) -> None:
        self.deployment, self.federation = deployment, federation
        self.files = write_data_files(federation, deployment.folder / "data")
        deployment.start(self.files)
        self.honest, self.faulty = federation.ids[0], federation.ids[-1]
        self._numbers = itertools.count()

    @property
    def server_file(self) -> Path:
        return server_file(self.deployment.folder / "data")

    def new_run(self, app: Path = FAULT_APP, **settings: Any) -> DeployedRun:
        """Return a run with a folder of its own that has not been started."""
        folder = self.deployment.folder / "runs" / str(next(self._numbers))
        return DeployedRun(self.deployment, self, folder, app, settings)

    def restart_node(self, name: str, warm: bool = True) -> None:
        """Start a node again; `warm` says whether its client is kept warm from now on."""
        config = {"client-id": name, "data": str(self.files[name])}
        self.deployment.start_node(name, config, warm=warm)
        self.deployment.wait_online([name])

    def replace_node(self, name: str, warm: bool = True) -> None:
        """Stop a node, and start it again."""
        stop([self.deployment.nodes[name]])
        self.deployment.wait_offline([name])
        self.restart_node(name, warm)

    def notes(self) -> list[Path]:
        """Return the notes on messages that are in progress, of all nodes."""
        return sorted((self.deployment.folder / "nodes").glob("*/messages/*"))


class Submits(Protocol):
    """Where runs are submitted to."""

    def submit(self, app: Path, config: Mapping[str, Any]) -> str: ...


class HasData(Protocol):
    """A file for each client, and one for the server."""

    @property
    def files(self) -> Mapping[str, Path]: ...
    @property
    def server_file(self) -> Path: ...


class DeployedRun:
    """One run of an app. The fault app's gates hold it before a round; see fault_app."""

    def __init__(
        self,
        deployment: Submits,
        federation: HasData,
        folder: Path,
        app: Path,
        settings: Mapping[str, Any],
    ) -> None:
        self.deployment, self.app = deployment, app
        self.out, self.gates, self.models = folder / "out", folder / "gates", folder / "models"
        self.gates.mkdir(parents=True)
        self.models.mkdir()
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        self.settings = {
            "clients": len(federation.files),
            "out": str(self.out),
            "server-data": str(federation.server_file),
            **given,
        }
        if app == FAULT_APP:
            self.settings |= {"gates": str(self.gates), "snapshots": str(self.models)}

    def run(self, **changes: Any) -> FinishedRun:
        assert isinstance(self.deployment, Deployment)
        return self.deployment.run(self.app, {**self.settings, **changes})

    def submit(self) -> str:
        return self.deployment.submit(self.app, self.settings)

    def close_gate(self, round: int) -> None:
        (self.gates / f"closed-{round}").touch()

    def open_gate(self, round: int) -> None:
        (self.gates / f"closed-{round}").unlink()

    def release(self, round: int) -> None:
        """Let the client reply that waits in a round."""
        (self.gates / f"release-{round}").touch()

    def wait_for(self, event: str) -> bool:
        """Wait for an event of the server or a client, for example `waiting-2`."""
        return wait_until((self.gates / event).exists)

    @property
    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.out / "result.json").read_text(encoding="utf-8"))
        return result

    def model_after(self, round: int) -> torch.Tensor:
        """Return the model vector that the fault app saved after a round."""
        return torch.from_numpy(np.load(self.models / f"{round}.npy"))

    @property
    def history(self) -> History:
        return History(list(RunFolder.open(self.out).read_records()))

    @property
    def model(self) -> dict[str, torch.Tensor]:
        return load_file(self.out / "model.safetensors")


def simulate_every_round(
    federation: udjfl.Federation, method: str, rounds: int, **training: Any
) -> list[torch.Tensor]:
    """Return the simulator's model vector after each round."""
    results = [
        udjfl.simulate(federation, method, rounds=t, **training) for t in range(1, rounds + 1)
    ]
    return [parameters_to_vector(result.model.parameters()).detach() for result in results]


def assert_same_model(model: Mapping[str, torch.Tensor], simulated: udjfl.Result) -> None:
    """Compare a deployed run's final model with the simulator's, up to float rounding."""
    for name, values in simulated.model.state_dict().items():
        torch.testing.assert_close(model[name], values, rtol=1e-4, atol=1e-5)


def files_with_secrets(folder: Path) -> list[str]:
    """Return the files below a folder that contain a key or certificate or are named like one."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    named = [path for path in files if path.suffix in (".key", ".crt", ".pem", ".pub")]
    holding = [path for path in files if any(mark in path.read_bytes() for mark in SECRET)]
    return sorted({str(path.relative_to(folder)) for path in [*named, *holding]})


def wait_until(done: Callable[[], bool], seconds: float = 600.0) -> bool:
    """Wait until `done` returns True; return False if it does not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.1)
    return done()
