"""A Flower deployment on this machine: a SuperLink and SuperNodes as real processes, with TLS and SuperNode authentication.

    with Deployment() as deployment:
        deployment.start_superlink()
        for name, data in files.items():
            deployment.add_node(name, {"client-id": name, "data": str(data)})
        deployment.wait_online(files)
        deployment.run("apps/flower", {"method": "rawls", "rounds": 3, "out": "runs/rawls"})

Certificates and keys are made on the spot. Every machine of the pretended federation has a folder of its own:

    keys/        ca.crt, server.crt, their private keys, and each SuperNode's key pair
    superlink/   the SuperLink's state, and the apps it was sent
    nodes/NAME/  the apps that SuperNode was sent
    operator/    the config.toml of whoever types `flwr run`
    logs/        what each process printed

Nothing is sent to anybody: Flower's telemetry and update check are off, and every port is on the loopback interface.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import flower_keys
from flower_processes import Part, stop, uninterrupted

HOST = "127.0.0.1"
NAME = "here"  # what the connection is called in the operator's config.toml
PATIENCE = 300.0  # seconds for anything to start: a busy machine needs a while to import torch for everybody
PAUSE = 0.5
Value = str | int | float | bool


class DeploymentError(RuntimeError):
    """A part of the deployment did not do what it was asked. The message has the end of its log."""


@dataclass(frozen=True)
class Finished:
    """One `flwr run` that has ended. `status` is Flower's word for how: finished:completed, finished:failed, ..."""

    run_id: str
    status: str
    output: str

    @property
    def completed(self) -> bool:
        return self.status == "finished:completed"


class Deployment:
    """Starts the parts, and stops all of them, with everything they started, when the block ends, however it ends.

    `folder` is kept if given, and otherwise a temporary one that is removed. `keep_state` has the SuperLink write its state
    (registered keys, runs) to a file, so that it can be killed and started again.
    """

    def __init__(self, folder: Path | None = None, *, keep_state: bool = False) -> None:
        self._temporary = folder is None
        self.folder = (
            Path(tempfile.mkdtemp(prefix="udjfl-flower-")) if folder is None else folder.resolve()
        )
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.keys, self.keep_state = self.folder / "keys", keep_state
        self.superlink: Part | None = None
        self.nodes: dict[str, Part] = {}
        self.node_ids: dict[str, str] = {}  # what Flower calls the SuperNodes
        self.port = 0
        self._runs = 0

    def __enter__(self) -> Deployment:
        try:
            self.ca = flower_keys.make_ca(self.keys)
            flower_keys.make_server_certificate(self.keys, [HOST, "localhost"])
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything: the SuperNodes first, so that they can say goodbye."""
        with uninterrupted():
            stop(self.nodes.values())
            stop([self.superlink] if self.superlink else [])
            self.nodes, self.superlink = {}, None
            if self._temporary:
                shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def start_superlink(self) -> Part:
        """Start the SuperLink, or start it again after it was stopped or killed, on the same port."""
        self.port = self.port or free_port()
        command = [
            _executable("flower-superlink"),
            "--host",
            HOST,
            "--port",
            str(self.port),
            "--ssl-ca-certfile",
            str(self.ca),
            "--ssl-certfile",
            str(self.keys / "server.crt"),
            "--ssl-keyfile",
            str(self.keys / "server.key"),
            "--enable-supernode-auth",
            # Otherwise the SuperLink would fetch and install whatever an app names as its dependencies.
            "--disable-runtime-dependency-installation",
        ]
        if self.keep_state:
            command += ["--database", str(self.folder / "superlink" / "state.db")]
        self.superlink = self._start("superlink", command, "superlink")
        self._write_connection()
        self._wait("the SuperLink", self._superlink_answers, [self.superlink])
        self.superlink.remember()
        return self.superlink

    def _superlink_answers(self) -> bool:
        try:
            with urllib.request.build_opener(
                urllib.request.ProxyHandler({}),
                urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.ca)),
            ).open(f"https://{self.address}/health", timeout=10) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _write_connection(self) -> None:
        home = self.folder / "operator"
        home.mkdir(parents=True, exist_ok=True)
        lines = [
            "[superlink]",
            f'default = "{NAME}"',
            f"[superlink.{NAME}]",
            f'address = "{self.address}"',
        ]
        lines.append(f"root-certificates = {json.dumps(str(self.ca))}")
        (home / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def add_node(self, name: str, config: Mapping[str, Value]) -> Part:
        """Make a key pair, register the public key, start the SuperNode."""
        flower_keys.make_node_key(self.keys, name)
        self.register(name)
        return self.start_node(name, config)

    def register(self, name: str) -> str:
        """Tell the SuperLink about a public key; returns the SuperNode's id at Flower."""
        reply = self._flwr(
            "supernode",
            "register",
            str(self.keys / f"{name}.pub"),
            NAME,
            "--name",
            name,
            "--format",
            "json",
        )
        self.node_ids[name] = str(_last_json(reply)["node-id"])
        return self.node_ids[name]

    def start_node(
        self,
        name: str,
        config: Mapping[str, Value],
        *,
        key: str | None = "own",
        root_certificates: Path | str | None = "ours",
        insecure: bool = False,
        address: str | None = None,
        options: Iterable[str] = (),
    ) -> Part:
        """Start a SuperNode that has its key pair already. The other arguments are for what must not work.

        `key` is the name of another key pair or None for no key at all, `root_certificates` another authority's certificate
        or None for those of the system, `insecure` leaves TLS out, `address` is another than the SuperLink's.
        """
        command = [
            _executable("flower-supernode"),
            "--superlink",
            address or self.address,
            "--host",
            HOST,
            "--port",
            str(free_port()),
            "--node-config",
            " ".join(f"{field}={_toml(value)}" for field, value in config.items()),
        ]
        if key is not None:
            command += [
                "--auth-supernode-private-key",
                str(self.keys / (name if key == "own" else key)),
            ]
        trusted = self.ca if root_certificates == "ours" else root_certificates
        if insecure:
            command.append("--insecure")
        elif trusted is not None:
            command += ["--root-certificates", str(trusted)]
        self.nodes[name] = self._start(name, [*command, *options], f"nodes/{name}")
        return self.nodes[name]

    def start_swarm(self, files: Mapping[str, Path], pause: float) -> Part:
        """A node for each of these clients' data files, all in one process and all online: for tests of load and benchmarks.

        `pause` is how many seconds a node waits before it asks again for work; see flower_swarm.py.
        """
        listing = self.folder / "operator" / "swarm.json"
        listing.write_text(
            json.dumps({name: str(path) for name, path in files.items()}), encoding="utf-8"
        )
        command = [
            sys.executable,
            str(Path(__file__).with_name("flower_swarm.py")),
            NAME,
            str(listing),
            "--pause",
            str(pause),
        ]
        swarm = self.nodes["swarm"] = self._start("swarm", command, "operator")
        self._wait("the swarm", lambda: f"{len(files)} nodes are online" in swarm.output, [swarm])
        return swarm

    def online(self) -> set[str]:
        """The names of the SuperNodes that the SuperLink sees."""
        nodes = _last_json(self._flwr("supernode", "list", NAME, "--format", "json"))["nodes"]
        seen = {str(node["node-id"]) for node in nodes if node["status"] == "online"}
        return {name for name, node_id in self.node_ids.items() if node_id in seen}

    def wait_online(self, names: Iterable[str]) -> None:
        """Wait until these SuperNodes are at work."""
        wanted = set(names)
        self._wait(
            f"the SuperNodes {sorted(wanted)}",
            lambda: wanted <= self.online(),
            [self.nodes[name] for name in wanted],
        )
        for name in wanted:
            self.nodes[name].remember()

    def wait_offline(self, names: Iterable[str]) -> None:
        """Wait until the SuperLink has noticed that these are gone: of one that was killed it learns after a minute or so.

        Before that it refuses to let it in again, taking it for a second one with the same key.
        """
        gone = set(names)
        self._wait(f"the end of {sorted(gone)}", lambda: not gone & self.online(), [])

    def begin(self, app: Path | str, config: Mapping[str, Value]) -> str:
        """Submit a run and return its id without waiting for it."""
        return str(
            _last_json(self._flwr(*self._submission(app, config), "--format", "json"))["run-id"]
        )

    def run(
        self,
        app: Path | str,
        config: Mapping[str, Value],
        timeout: float = 3600.0,
        watch: Callable[[], None] = lambda: None,
    ) -> Finished:
        """Submit a run and follow its log to its end. `watch` is called every now and then until then."""
        command = [_executable("flwr"), *self._submission(app, config), "--stream"]
        following = self._start(f"run-{self._runs}", command, "operator")

        def ended() -> bool:
            watch()
            return not following.running

        try:
            self._wait(f"the end of {following.name}", ended, [], timeout)
        finally:
            following.kill()
        found = re.search(r"started run (\d+)", following.output)
        if not found:
            raise DeploymentError(f"flwr run did not start a run:\n{_tail(following.output)}")
        return Finished(found[1], self.wait(found[1], timeout), following.output)

    def _submission(self, app: Path | str, config: Mapping[str, Value]) -> list[str]:
        self._runs += 1
        settings = (
            self.folder / "operator" / f"run-{self._runs}.toml"
        )  # in a file, a value may have any characters in it
        settings.write_text(
            "".join(f"{key} = {_toml(value)}\n" for key, value in config.items()), encoding="utf-8"
        )
        return ["run", str(Path(app).resolve()), NAME, "-c", str(settings)]

    def status(self, run_id: str) -> str:
        """pending, starting, running, or finished: and how."""
        (run,) = _last_json(self._flwr("list", NAME, "--run-id", run_id, "--format", "json"))[
            "runs"
        ]
        return str(run["status"])

    def wait(self, run_id: str, timeout: float = 3600.0) -> str:
        """Wait for a run to end; its last status."""
        self._wait(f"run {run_id}", lambda: self.status(run_id).startswith("finished"), [], timeout)
        return self.status(run_id)

    def log(self, run_id: str) -> str:
        """What the run has printed on the server so far."""
        return self._flwr("log", run_id, NAME, "--show")

    def flwr(
        self, *arguments: str, home: Path | None = None, timeout: float = PATIENCE
    ) -> subprocess.CompletedProcess[str]:
        """One `flwr` command, as the operator types it; what it prints is in `stdout`, errors and all."""
        return subprocess.run(
            [_executable("flwr"), *arguments],
            env=self._environment(home or self.folder / "operator"),
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            check=False,
        )

    def _flwr(self, *arguments: str, timeout: float = PATIENCE) -> str:
        done = self.flwr(*arguments, timeout=timeout)
        if done.returncode:
            raise DeploymentError(
                f"flwr {' '.join(arguments)} ended with {done.returncode}:\n{_tail(done.stdout)}"
            )
        return done.stdout

    def _start(self, name: str, command: list[str], home: str) -> Part:
        (self.folder / home).mkdir(parents=True, exist_ok=True, mode=0o700)
        return Part(
            name,
            command,
            self._environment(self.folder / home),
            self.folder / "logs" / f"{name}.log",
        )

    def _environment(self, home: Path) -> dict[str, str]:
        """Ours without settings of Flower's or a proxy's, which would reach beyond this machine."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
        kept = {key: value for key, value in kept.items() if not key.lower().endswith("_proxy")}
        here = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
        flower = {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        # All SuperNodes share this machine: one thread each, or they wait for each other.
        return {
            **kept,
            **flower,
            "PATH": here,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "200",
        }

    def _wait(
        self, what: str, done: Callable[[], bool], parts: Sequence[Part], timeout: float = PATIENCE
    ) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            ended = [part for part in parts if not part.running]
            if ended:
                raise DeploymentError(
                    f"{ended[0].name} ended with {ended[0].process.returncode}:\n{_tail(ended[0].output)}"
                )
            if time.monotonic() > deadline:
                logs = "\n".join(f"{part.name}:\n{_tail(part.output)}" for part in parts)
                raise DeploymentError(f"waited {timeout:.0f} s for {what} in vain\n{logs}")
            time.sleep(PAUSE)


def free_port() -> int:
    """A port of the loopback interface that nobody uses now, from below those that systems give to outgoing connections."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port


def _executable(name: str) -> str:
    """The command of the environment we run in, whether or not it is activated."""
    path = Path(sys.executable).parent / name
    found = str(path) if path.exists() else shutil.which(name)
    if not found:
        raise DeploymentError(f"there is no {name}; install Flower: pip install 'udjfl[flower]'")
    return found


def _toml(value: Value) -> str:
    return json.dumps(value)


def _last_json(text: str) -> dict[str, Any]:
    """The JSON object a command printed, with or without notes before it."""
    begin = text.find("{")
    if begin < 0:
        raise DeploymentError(f"expected JSON, got:\n{_tail(text)}")
    found, _ = json.JSONDecoder().raw_decode(text[begin:])
    if not found.get("success", True):
        raise DeploymentError(found.get("error-message", text))
    return found  # type: ignore[no-any-return]


def _tail(text: str, lines: int = 25) -> str:
    return "\n".join(text.splitlines()[-lines:])
