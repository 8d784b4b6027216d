"""A Flower deployment on this machine, with TLS and SuperNode authentication.

The SuperLink and the SuperNodes are processes of their own:

    with Deployment() as deployment:
        deployment.start(files)                 # a data file for each client id
        deployment.run(APP, {"method": "rawls", "rounds": 3, "out": "runs/rawls"})

Certificates and keys are generated. Each simulated machine has a folder of its own:

    keys/        ca.crt, server.crt, their private keys; key pair and settings of each SuperNode
    superlink/   the state of the SuperLink, and the apps that it received
    nodes/NAME/  the apps that this SuperNode received
    operator/    the config.toml of the operator, who types `flwr run`
    logs/        the output of each process

Nothing leaves the machine: Flower's telemetry and update check are off, and all ports are on the
loopback interface.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from udjfl._files import PRIVATE, write_atomic
from udjfl.deployment import keys
from udjfl.deployment.flwr_command import (
    CONNECTION,
    TIMEOUT,
    FlwrCommand,
    executable,
    flower_environment,
    tail,
    write_run_config,
)
from udjfl.deployment.network import HOST, free_port, is_healthy
from udjfl.deployment.processes import ProcessTree, ignore_interrupts, stop
from udjfl.deployment.service_commands import supernode_program
from udjfl.deployment.toml import ConfigValue, to_toml
from udjfl.deployment.warm import executor_command, executor_environment
from udjfl.errors import DeploymentError

RUN_TIMEOUT = 3600.0
PAUSE = 0.5


@dataclass(frozen=True)
class FinishedRun:
    """A `flwr run` that has ended. `status` is Flower's: finished:completed, finished:failed."""

    run_id: str
    status: str
    output: str

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"


class Deployment:
    """Starts the processes; stops them and their descendants at the end of the `with` block.

    `folder` is kept if given; the default is a temporary folder, which is removed.
    `keep_state` makes the SuperLink store registered keys and runs in a file, so that it can be
    killed and started again. `supernode` replaces the command `flower-supernode`; `environment`
    is added to the environment of all processes. `warm` gives each SuperNode short waits and an
    executor that keeps its client warm (`udjfl.deployment.supernode`, `udjfl.deployment.warm`);
    without it, Flower waits for seconds and starts a Python per message.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        keep_state: bool = False,
        supernode: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        warm: bool = True,
    ) -> None:
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="udjfl-flower-")) if folder is None else folder
        self.folder = self.folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.keys, self.keep_state = self.folder / "keys", keep_state
        self._supernode, self._extra = supernode, dict(environment or {})
        self.command = FlwrCommand(self.folder / "operator", self._extra)
        self.superlink: ProcessTree | None = None
        self.warm = warm
        self.nodes: dict[str, ProcessTree] = {}
        self.executors: dict[str, ProcessTree] = {}
        self.node_ids: dict[str, str] = {}  # Flower's ids of the registered SuperNodes
        self.port = 0
        self._runs, self._ports = 0, dict[str, int]()

    def __enter__(self) -> Deployment:
        try:
            self.ca = keys.make_ca(self.keys)
            keys.make_server_certificate(self.keys, [HOST, "localhost"])
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything, the SuperNodes first, so that they can sign off."""
        with ignore_interrupts():
            stop([*self.nodes.values(), *self.executors.values()])
            stop([self.superlink] if self.superlink else [])
            self.nodes, self.executors, self.superlink = {}, {}, None
            if self._temporary:
                shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def start(
        self, files: Mapping[str, Path], report: Callable[[str], None] = lambda _: None
    ) -> None:
        """Start the SuperLink and a SuperNode for each client, given the clients' data files."""
        report("Certificates: an authority of our own, and the server's, signed by it.")
        self.start_superlink()
        report(f"SuperLink: https://{self.address}, accepts only SuperNodes with registered keys.")
        for name, path in files.items():
            self.add_node(name, {"client-id": name, "data": str(path)})
            report(f"SuperNode {name}: its key is registered, its data file is {path}.")
        self.wait_online(files)
        report(f"All {len(files)} SuperNodes are online.")

    def start_superlink(self) -> ProcessTree:
        """Start the SuperLink, or start it again on the same port after it was killed."""
        self.port = self.port or free_port()
        command = [executable("flower-superlink"), "--host", HOST, "--port", str(self.port)]
        command += ["--ssl-ca-certfile", str(self.ca)]
        command += ["--ssl-certfile", str(self.keys / "server.crt")]
        command += ["--ssl-keyfile", str(self.keys / "server.key")]
        command += ["--enable-supernode-auth"]
        # Without this flag the SuperLink installs the dependencies that an app names.
        command += ["--disable-runtime-dependency-installation"]
        if self.keep_state:
            command += ["--database", str(self.folder / "superlink" / "state.db")]
        self.superlink = self._start_process("superlink", command, "superlink")
        self.command.write_connection(self.address, self.ca)
        healthy = functools.partial(is_healthy, self.address, self.ca)
        self._wait("the SuperLink", healthy, [self.superlink])
        self.superlink.update()
        return self.superlink

    def add_node(self, name: str, config: Mapping[str, ConfigValue]) -> ProcessTree:
        """Make a key pair, register the public key and start the SuperNode."""
        keys.make_node_key(self.keys, name)
        self.register(name)
        return self.start_node(name, config)

    def register(self, name: str) -> str:
        """Register a public key at the SuperLink; return Flower's id of the SuperNode."""
        key = str(self.keys / f"{name}.pub")
        reply = self.command.run_json("supernode", "register", key, CONNECTION, "--name", name)
        self.node_ids[name] = str(reply["node-id"])
        return self.node_ids[name]

    def start_node(
        self,
        name: str,
        config: Mapping[str, ConfigValue],
        *,
        key: str | None = "own",
        root_certificates: Path | str | None = "ours",
        insecure: bool = False,
        address: str | None = None,
        options: Iterable[str] = (),
        warm: bool | None = None,
    ) -> ProcessTree:
        """Start a SuperNode whose key pair exists. The other arguments are for refusals.

        `key` names another key pair, or None for no key. `root_certificates` is the certificate
        of another authority, or None for those of the system. `insecure` turns TLS off.
        `address` replaces the address of the SuperLink, `warm` the deployment's own.
        """
        warm = self.warm if warm is None else warm
        command = [*(self._supernode or supernode_program(stock=not warm))]
        command += ["--superlink", address or self.address]
        port = free_port()
        command += ["--host", HOST, "--port", str(port)]
        if warm:
            command += ["--isolation", "process"]
            command += ["--superexec-auth-secret-file", str(keys.make_secret(self.keys, name))]
        # In a file: other users of a machine can read the command lines of its processes.
        config_file = self.keys / f"{name}.toml"
        write_atomic(config_file, to_toml(config).encode(), PRIVATE)
        command += ["--node-config", str(config_file)]
        if key is not None:
            private_key = self.keys / (name if key == "own" else key)
            command += ["--auth-supernode-private-key", str(private_key)]
        trusted = self.ca if root_certificates == "ours" else root_certificates
        if insecure:
            command.append("--insecure")
        elif trusted is not None:
            command += ["--root-certificates", str(trusted)]
        self.nodes[name] = self._start_process(name, [*command, *options], f"nodes/{name}")
        if warm:
            self.start_executor(name, port)
        return self.nodes[name]

    def start_executor(self, name: str, port: int | None = None) -> ProcessTree:
        """Start the executor beside a SuperNode, or start it again after it was killed."""
        if name in self.executors:
            stop([self.executors[name]])
        self._ports[name] = self._ports[name] if port is None else port
        command = executor_command(
            f"{HOST}:{self._ports[name]}",
            keys.make_secret(self.keys, name),
            messages=self.folder / "nodes" / name / "messages",
            supernode_pid=self.nodes[name].process.pid,
        )
        tree = self._start_process(f"{name}-executor", command, f"nodes/{name}")
        self.executors[name] = tree
        return tree

    def start_swarm(self, files: Mapping[str, Path], pause: float) -> ProcessTree:
        """Start a node for each client in a single process: for load tests and benchmarks.

        `pause` is the number of seconds between a node's requests for work; see swarm.py.
        """
        listing = self.command.home / "swarm.json"
        paths = {name: str(path) for name, path in files.items()}
        listing.write_text(json.dumps(paths), encoding="utf-8")
        script = str(Path(__file__).with_name("swarm.py"))
        command = [sys.executable, script, CONNECTION, str(listing), "--pause", str(pause)]
        swarm = self.nodes["swarm"] = self._start_process("swarm", command, "operator")
        self._wait("the swarm", lambda: f"{len(files)} nodes are online" in swarm.output, [swarm])
        return swarm

    def online(self) -> set[str]:
        """Return the names of the SuperNodes that the SuperLink considers online."""
        nodes = self.command.run_json("supernode", "list", CONNECTION)["nodes"]
        online = {str(node["node-id"]) for node in nodes if node["status"] == "online"}
        return {name for name, node_id in self.node_ids.items() if node_id in online}

    def wait_online(self, names: Iterable[str]) -> None:
        """Wait until these SuperNodes are online."""
        wanted = set(names)
        what, trees = f"the SuperNodes {sorted(wanted)}", [self.nodes[name] for name in wanted]
        self._wait(what, lambda: wanted <= self.online(), trees)
        for tree in trees:
            tree.update()

    def wait_offline(self, names: Iterable[str]) -> None:
        """Wait until the SuperLink has noticed that these SuperNodes are gone.

        It notices a killed SuperNode after two missed heartbeats, about a minute. Until then it
        refuses a new SuperNode with the same key.
        """
        gone = set(names)
        self._wait(f"the end of {sorted(gone)}", lambda: not gone & self.online(), [])

    def submit(self, app: Path | str, config: Mapping[str, ConfigValue]) -> str:
        """Submit a run and return its id without waiting for its end."""
        return str(self.command.run_json(*self._submission(app, config))["run-id"])

    def run(
        self,
        app: Path | str,
        config: Mapping[str, ConfigValue],
        timeout: float = RUN_TIMEOUT,
        watch: Callable[[], None] = lambda: None,
    ) -> FinishedRun:
        """Submit a run and wait for its end. `watch` is called repeatedly until then."""
        command = [executable("flwr"), *self._submission(app, config), "--stream"]
        stream = self._start_process(f"run-{self._runs}", command, "operator")

        def ended() -> bool:
            watch()
            return not stream.running

        try:
            self._wait(f"the end of {stream.name}", ended, [], timeout)
        finally:
            stream.kill()
        started = re.search(r"started run (\d+)", stream.output)
        if not started:
            raise DeploymentError(f"flwr run did not start a run:\n{tail(stream.output)}")
        return FinishedRun(started[1], self.wait_for_run(started[1], timeout), stream.output)

    def _submission(self, app: Path | str, config: Mapping[str, ConfigValue]) -> list[str]:
        self._runs += 1
        path = write_run_config(self.command.home / f"run-{self._runs}.toml", config)
        return ["run", str(Path(app).resolve()), CONNECTION, "-c", path]

    def wait_for_run(self, run_id: str, timeout: float = RUN_TIMEOUT) -> str:
        """Wait for the end of a run and return its final status."""
        status = ""

        def ended() -> bool:
            nonlocal status
            (run,) = self.command.run_json("list", CONNECTION, "--run-id", run_id)["runs"]
            status = str(run["status"])
            return status.startswith("finished")

        self._wait(f"run {run_id}", ended, [], timeout)
        return status

    def log(self, run_id: str) -> str:
        """Return the output of a run on the server so far."""
        return self.command.run("log", run_id, CONNECTION, "--show")

    def flwr(self, *arguments: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a `flwr` command; `home` replaces the operator's folder."""
        return self.command.try_run(*arguments, home=home)

    def _start_process(self, name: str, command: list[str], home: str) -> ProcessTree:
        folder = self.folder / home
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        environment = executor_environment(flower_environment(folder, self._extra))
        return ProcessTree(name, command, environment, self.folder / "logs" / f"{name}.log")

    def _wait(
        self,
        what: str,
        done: Callable[[], bool],
        trees: Sequence[ProcessTree],
        timeout: float = TIMEOUT,
    ) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            for tree in trees:
                if not tree.running:
                    code, log = tree.process.returncode, tail(tree.output)
                    raise DeploymentError(f"{tree.name} ended with {code}:\n{log}")
            if time.monotonic() > deadline:
                logs = "\n".join(f"{tree.name}:\n{tail(tree.output)}" for tree in trees)
                raise DeploymentError(f"waited {timeout:.0f} s for {what} in vain\n{logs}")
            time.sleep(PAUSE)
