"""The app on Flower's simulation runtime, which is Ray: `flwr run apps/flower --stream`.

Skipped where Ray is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytest.importorskip("flwr")

from deploy import APP
from shared_deployment import assert_same_model, wait_until

import udjfl
from udjfl.deployment.flwr_command import flower_environment, write_run_config
from udjfl.deployment.network import HOST, free_port
from udjfl.deployment.processes import ProcessTree, process_table, stop

pytestmark = pytest.mark.processes

TIMEOUT = 1800.0  # seconds; each run starts Ray anew
SMALL = {"rounds": 2, "hidden": 5, "uncertainty_epochs": 2, "eval_every": 2, "lr": 0.4}
# Each method with its number of clients. Two are Flower's default: nothing is said about nodes.
CLIENTS = {"fedavg": 2, "rawls": 3}

# Starts a SuperLink as `flwr` does where there is none, but without its limit of 15 seconds, which
# a busy machine exceeds; types the commands; then stays, as the parent of all they leave running.
OPERATOR = """
import json, pathlib, subprocess, sys, time, urllib.request
folder, bin, port = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
commands = json.loads(sys.argv[4])
superlink = [bin + "/flower-superlink", "--insecure", "--simulation"]
subprocess.Popen([*superlink, "--host", "127.0.0.1", "--port", port])
while True:
    time.sleep(1)
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10)
        break
    except OSError:
        pass
for name, arguments in commands.items():
    with (folder / f"{name}.txt").open("wb") as output:
        subprocess.run([bin + "/flwr", *arguments], stdout=output, stderr=output)
while True:
    command = [bin + "/flwr", "list", "--format", "json"]
    listing = subprocess.run(command, capture_output=True, text=True).stdout
    runs = json.loads(listing[listing.index("{"):])["runs"]
    if all(run["status"].startswith("finished") for run in runs):
        break
    time.sleep(1)
(folder / "new.json").write_text(json.dumps({run["run-id"]: run for run in runs}))
(folder / "new.json").rename(folder / "runs.json")
time.sleep(100_000)
"""


class Runtime:
    """A SuperLink in simulation mode after its runs have ended."""

    def __init__(self, folder: Path, operator: ProcessTree) -> None:
        self.folder, self.operator = folder, operator

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text(encoding="utf-8", errors="replace")

    def status(self, name: str) -> str:
        """Return Flower's status of a run that has ended."""
        started = re.search(r"started run (\d+)", self.output(name))
        assert started, self.output(name)
        runs = json.loads((self.folder / "runs.json").read_text(encoding="utf-8"))
        return str(runs[started[1]]["status"])

    def command_lines(self) -> dict[int, str]:
        """Return the command lines of all processes that were started, by process id."""
        operator = self.operator.process.pid
        return {pid: command_line(pid) for pid in self.operator.alive() if pid != operator}


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'flwr[simulation]'")
    folder = Path(tempfile.mkdtemp(prefix="udjfl-ray-"))  # a short path, as Ray keeps sockets in it
    commands = {method: flwr_arguments(folder, method) for method in CLIENTS}
    port = free_port()
    (folder / "home").mkdir()
    (folder / "home" / "config.toml").write_text(
        '[superlink]\ndefault = "here"\n[superlink.here]\n'
        f'address = "{HOST}:{port}"\ninsecure = true\n',
        encoding="utf-8",
    )
    program = [
        sys.executable,
        "-c",
        OPERATOR,
        str(folder),
        str(Path(sys.executable).parent),
        str(port),
        json.dumps(commands),
    ]
    operator = ProcessTree("operator", program, environment(folder), folder / "operator.log")
    try:
        assert wait_until(lambda: (folder / "runs.json").exists() or not operator.running, TIMEOUT)
        assert operator.running, operator.output
        yield Runtime(folder, operator)
    finally:
        pids = operator.alive()
        stop([operator], grace=1.0)
        shutil.rmtree(folder, ignore_errors=True)
    assert not set(pids) & set(process_table())


def flwr_arguments(folder: Path, method: str) -> list[str]:
    clients = CLIENTS[method]
    settings = {key.replace("_", "-"): value for key, value in SMALL.items()}
    settings |= {"method": method, "out": str(folder / "runs" / method)}
    nodes: list[str] = []
    if clients != 2:  # otherwise the app's and Flower's own defaults
        settings["clients"] = clients
        nodes = ["--federation-config", f"num-supernodes={clients} client-resources-num-cpus=1"]
    config = write_run_config(folder / f"{method}.toml", settings)
    return ["run", str(APP), "--stream", "-c", config, *nodes]


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which Flower and Ray stay on this machine."""
    ray = {
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listen on the loopback interface only
        "UV_OFFLINE": "1",
    }
    flower = flower_environment(folder / "home", ray)
    return {key: value for key, value in flower.items() if key in ray or not key.startswith("RAY_")}


def command_line(pid: int) -> str:
    return subprocess.run(
        ["ps", "-p", str(pid), "-o", "args="], capture_output=True, text=True, check=False
    ).stdout.strip()


@pytest.mark.parametrize("method", CLIENTS)
def test_model_and_metrics_equal_the_simulators(method: str, runtime: Runtime) -> None:
    """Simulated SuperNodes train what udjfl's own simulator trains.

    FedAvg runs with the defaults of Flower (two SuperNodes) and of the app (two clients).
    """
    assert runtime.status(method) == "finished:completed", runtime.output(method)
    folder = runtime.folder / "runs" / method
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    federation = udjfl.load("dirty-digits", clients=CLIENTS[method], seed=0)
    simulated = udjfl.simulate(federation, method, **SMALL)
    assert_same_model(load_file(folder / "model.safetensors"), simulated)
    assert list(result["client_scores"]) == list(federation.ids)
    assert result["client_scores"] == pytest.approx(simulated.client_scores)
    assert result["global_accuracy"] == pytest.approx(simulated.global_accuracy)
    if method == "rawls":
        assert result["uncertainty"] == pytest.approx(simulated.uncertainty, rel=1e-4)


def test_the_runtime_installs_nothing(runtime: Runtime) -> None:
    nothing = "No additional application dependencies needed installation"
    for method in CLIENTS:
        assert nothing in runtime.output(method)


def test_stopping_the_superlink_stops_everything_it_started(runtime: Runtime) -> None:
    (superlink,) = (
        pid for pid, line in runtime.command_lines().items() if "flower-superlink" in line
    )
    os.kill(superlink, signal.SIGTERM)
    assert wait_until(lambda: not runtime.command_lines(), TIMEOUT), runtime.command_lines()
