"""A coordinator and nodes as `udjfl flower` runs them, each with a process that restarts the rest.

The fault app of tests/flower takes the place of an app that `udjfl flower init` wrote.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.data_files import server_file, write_data_files
from deployed_study import processes_below
from shared_deployment import FAULT_APP, DeployedRun

import udjfl
from udjfl.deployment.coordinator import Coordinator
from udjfl.deployment.network import HOST, free_port
from udjfl.deployment.node import Node
from udjfl.deployment.supervisor import read_log, stop_running
from udjfl.errors import DeploymentError

PATIENCE = 900.0  # seconds


class DeployedNodes:
    """A node for each client of a federation, and the coordinator; stopped with the `with` block.

    It takes the place of a `DeployedFederation` and of its deployment in a `DeployedRun`.
    """

    def __init__(self, folder: Path, federation: udjfl.Federation) -> None:
        self.folder, self.federation, self.port = folder, federation, free_port()
        self.coordinator = Coordinator(folder / "study")
        shutil.copytree(FAULT_APP, self.coordinator.folder)
        self.files = write_data_files(federation, folder / "data")
        self.nodes = {name: Node(folder / "nodes" / name) for name in federation.ids}
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._numbers = itertools.count(1)

    def __enter__(self) -> DeployedNodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_coordinator(self) -> None:
        """Make all keys, and start the coordinator."""
        self.coordinator.make_keys(["localhost"])
        self.coordinator.admit([node.make_key(name) for name, node in self.nodes.items()])
        command = ["flower", "up", str(self.coordinator.folder), "--listen", f"{HOST}:{self.port}"]
        subprocess.run([sys.executable, "-m", "udjfl", *command], check=True)

    def start_nodes(self, addresses: Mapping[str, str] | None = None, *, stock: str = "") -> None:
        """Start all nodes, and wait until they are online.

        `addresses` has what some nodes connect to in place of the coordinator; `stock` is the
        client that runs with Flower's own programs.
        """
        for name in self.nodes:
            self.start_node(name, (addresses or {}).get(name), stock=name == stock)
            time.sleep(1)  # all at once would be slower
        self.wait_online()

    def start_node(
        self,
        name: str,
        address: str | None = None,
        *,
        stock: bool = False,
        environment: Mapping[str, str] | None = None,
        around: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a node in the background.

        environment  further variables for all of its processes
        around       a command that runs the node's command, which follows it
        """
        node = self.nodes[name]
        files = {"ca": str(self.coordinator.ca), "data": str(self.files[name])}
        node.configure({"server": address or f"localhost:{self.port}", **files})
        command = [*around, sys.executable, "-m", "udjfl", "flower", "node", str(node.folder)]
        command += ["--foreground", *(["--stock"] if stock else [])]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started[name] = process
        return process

    def stop_node(self, name: str) -> None:
        if name in self._started:
            process = self._started.pop(name)
            process.terminate()
            process.wait()

    def online(self) -> set[str]:
        with contextlib.suppress(DeploymentError), self.coordinator.control() as control:
            return {node.name for node in control.nodes() if node.status == "online"}
        return set()

    def wait_online(self, names: Iterable[str] | None = None) -> None:
        wanted = set(self.nodes if names is None else names)
        wait_until(lambda: wanted <= self.online())

    def wait_offline(self, names: Iterable[str]) -> None:
        gone = set(names)
        wait_until(lambda: not gone & self.online())

    def log_of(self, name: str, service: str = "supernode") -> str:
        """Return the log of a node's service."""
        return read_log(self.nodes[name].state, service, None)

    def stop(self) -> None:
        """Stop everything, the nodes first."""
        for process in self._started.values():
            process.terminate()
        for name in self.nodes:
            self.stop_node(name)
        stop_running(self.coordinator.state)

    def left_behind(self) -> dict[int, str]:
        """Return the processes that are still there."""
        return processes_below(self.folder)

    def notes(self) -> list[Path]:
        """Return the notes on messages that are in progress, of all nodes."""
        return sorted(self.folder.glob("nodes/*/state/messages/*"))

    # Runs.

    @property
    def server_file(self) -> Path:
        return server_file(self.folder / "data")

    def new_run(self, **settings: Any) -> DeployedRun:
        """Return a run that has not been started."""
        folder = self.folder / "runs" / f"run{next(self._numbers)}"
        return DeployedRun(self, self, folder, FAULT_APP, settings)

    def submit(self, app: Path, config: Mapping[str, Any]) -> str:
        """Submit a run; its run folder is where the coordinator has those of all runs."""
        out = Path(str(config["out"]))
        out.symlink_to(self.coordinator.runs / out.parent.name)
        return str(self.coordinator.submit(out.parent.name, config).run_id)

    def outcome(self, run_id: str) -> str | None:
        """Return how a run has ended; None while it goes on, or nobody can tell."""
        with contextlib.suppress(DeploymentError), self.coordinator.control() as control:
            info = control.run(int(run_id))
            return info.state if info.is_finished else None
        return None

    def wait_for_run(self, run_id: str) -> str:
        """Wait for the end of a run; return how it ended."""
        wait_until(lambda: self.outcome(run_id) is not None)
        return str(self.outcome(run_id))

    def log(self, run_id: str) -> str:
        """Return what server apps have printed."""
        return read_log(self.coordinator.state, "superexec", 60)


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.5)
