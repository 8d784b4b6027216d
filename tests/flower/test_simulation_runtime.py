"""The app on Flower's simulation runtime, which is Ray: `flwr run apps/flower --stream`."""

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
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr")

from deploying import APP, HOST, Part, free_port, process_table, reached, stop
from flwr.app import Context, RecordDict

import udjfl

pytestmark = pytest.mark.processes

PATIENCE = 1800.0  # seconds; each run starts Ray anew
SMALL = {"rounds": 2, "hidden": 5, "uncertainty_epochs": 2, "eval_every": 2, "lr": 0.4}
METHODS = ("fedavg", "rawls")
FIVE = ["--federation-config", "num-supernodes=5 client-resources-num-cpus=1"]

# Starts a SuperLink as `flwr` does where there is none, but with all the time a busy machine may need for it (`flwr` gives up
# after 15 seconds); types the commands; and then stays: whatever they leave running is its to keep (see Part).
OPERATOR = """
import json, pathlib, subprocess, sys, time, urllib.request
folder, bin, port, commands = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
subprocess.Popen([bin + "/flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", port])
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
    listed = subprocess.run([bin + "/flwr", "list", "--format", "json"], capture_output=True, text=True).stdout
    runs = json.loads(listed[listed.index("{"):])["runs"]
    if all(run["status"].startswith("finished") for run in runs):
        break
    time.sleep(1)
(folder / "new.json").write_text(json.dumps({run["run-id"]: run for run in runs}))
(folder / "new.json").rename(folder / "runs.json")
time.sleep(100_000)
"""


class Runtime:
    """What was typed has ended; the SuperLink is still there."""

    def __init__(self, folder: Path, operator: Part) -> None:
        self.folder, self.operator = folder, operator

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text(encoding="utf-8", errors="replace")

    def status(self, name: str) -> tuple[str, str]:
        """How a run ended, and what Flower says of it."""
        found = re.search(r"started run (\d+)", self.output(name))
        assert found, self.output(name)
        run = json.loads((self.folder / "runs.json").read_text(encoding="utf-8"))[found[1]]
        return run["status"], run["status-details"]

    def others(self) -> dict[int, str]:
        """The command lines of all that was started, without the operator's own."""
        return {
            pid: command_line(pid)
            for pid in self.operator.family()
            if pid != self.operator.process.pid
        }


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'flwr[simulation]'")
    folder = Path(tempfile.mkdtemp(prefix="udjfl-ray-"))  # a short path, as Ray keeps sockets in it
    commands = {
        method: command(folder, method, {"method": method, "clients": 5}) + FIVE
        for method in METHODS
    }
    commands["as-it-is"] = command(folder, "as-it-is", {})
    port = free_port()
    (folder / "home").mkdir()
    connection = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{HOST}:{port}"\ninsecure = true\n'
    (folder / "home" / "config.toml").write_text(connection, encoding="utf-8")
    program = [
        sys.executable,
        "-c",
        OPERATOR,
        str(folder),
        str(Path(sys.executable).parent),
        str(port),
        json.dumps(commands),
    ]
    operator = Part("operator", program, environment(folder), folder / "operator.log")
    try:
        assert reached(lambda: (folder / "runs.json").exists() or not operator.running, PATIENCE)
        assert operator.running, operator.output
        yield Runtime(folder, operator)
    finally:
        family = operator.family()
        stop([operator], grace=1.0)
        shutil.rmtree(folder, ignore_errors=True)
    assert not set(family) & set(process_table())


def command(folder: Path, name: str, changes: dict[str, str | int]) -> list[str]:
    settings = {key.replace("_", "-"): value for key, value in SMALL.items()}
    settings |= {"out": str(folder / "runs" / name), **changes}
    chosen = folder / f"{name}.toml"
    chosen.write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()),
        encoding="utf-8",
    )
    return ["run", str(APP), "--stream", "-c", str(chosen)]


def environment(folder: Path) -> dict[str, str]:
    """Ours, but with a home of its own, and nothing that would reach beyond this machine."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("FLWR_", "RAY_"))
    }
    kept = {key: value for key, value in kept.items() if not key.lower().endswith("_proxy")}
    return (
        kept
        | {
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_TMPDIR": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on any system: Ray then listens on the loopback interface alone
            "UV_OFFLINE": "1",
            "PATH": os.pathsep.join(
                [str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]
            ),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "200",
        }
    )


def command_line(pid: int) -> str:
    return subprocess.run(
        ["ps", "-p", str(pid), "-o", "args="], capture_output=True, text=True, check=False
    ).stdout.strip()


@pytest.mark.parametrize("method", METHODS)
def test_the_numbers_are_the_simulators(method: str, runtime: Runtime) -> None:
    """Five simulated SuperNodes train what udjfl's own simulator trains, and leave the same run folder."""
    assert runtime.status(method)[0] == "finished:completed", runtime.output(method)
    folder = runtime.folder / "runs" / method
    there, model = (
        json.loads((folder / "result.json").read_text(encoding="utf-8")),
        load_file(folder / "model.safetensors"),
    )
    here = udjfl.simulate(udjfl.load("dirty-digits", clients=5, seed=0), method, **SMALL)
    for name, values in here.model.state_dict().items():
        torch.testing.assert_close(model[name], values, rtol=1e-4, atol=1e-5)
    assert there["client_accuracy"] == pytest.approx(here.client_accuracy)
    assert there["global_accuracy"] == pytest.approx(here.global_accuracy)
    if method == "rawls":
        assert there["uncertainty"] == pytest.approx(here.uncertainty, rel=1e-4)


def test_flowers_own_two_supernodes_are_enough(runtime: Runtime) -> None:
    """Without a word about the federation, Flower simulates two SuperNodes, and the app has two clients."""
    assert runtime.status("as-it-is")[0] == "finished:completed", runtime.output("as-it-is")
    result = json.loads(
        (runtime.folder / "runs" / "as-it-is" / "result.json").read_text(encoding="utf-8")
    )
    assert list(result["client_accuracy"]) == ["client-1", "client-2"]


def test_the_runtime_installs_nothing(runtime: Runtime) -> None:
    for method in METHODS:
        assert "No additional application dependencies needed installation" in runtime.output(
            method
        )


def test_a_superlink_that_is_stopped_by_its_id_ends_with_all_it_started(runtime: Runtime) -> None:
    (superlink,) = (pid for pid, line in runtime.others().items() if "flower-superlink" in line)
    os.kill(superlink, signal.SIGTERM)
    assert reached(lambda: not runtime.others(), PATIENCE), runtime.others()


def test_the_app_keeps_flower_from_asking_an_index_for_what_it_needs() -> None:
    about = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {
        re.split(r"[^a-z-]", requirement)[0] for requirement in about["project"]["dependencies"]
    }
    assert needed == {"flwr", "udjfl"} == set(about["tool"]["uv"]["exclude-dependencies"])


def test_a_simulated_client_refuses_another_number_of_clients_than_of_nodes() -> None:
    from udjfl_app import task

    run = {"dataset": "dirty-digits", "seed": 0, "clients": 3, "server-data": ""}
    node = {"partition-id": 0, "num-partitions": 2}
    context = Context(run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config=run)
    with pytest.raises(
        udjfl.DataError,
        match=r"has 2 SuperNodes, the run 3 clients; .*'num-supernodes=3'.*'clients=2'",
    ):
        task.client_data(context)
