"""The coordinator's folder: an app, keys, who is admitted, and a SuperLink behind a proxy.

    pyproject.toml    the app and its settings (`udjfl flower init`)
    keys/             ca.key, ca.crt, server.key, server.crt (`udjfl flower keys`)
    nodes/NAME.pub    the public key of each node that is admitted (`udjfl flower up`)
    runs/NAME/        run folders (`udjfl flower run`)
    state/            of the running processes: logs, the SuperLink's database, a secret

Three processes run: the SuperLink, on the loopback interface; the proxy, the only open port; and
a SuperExec, which runs server apps and alone has the secret for it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from udjfl._files import as_argument, make_private_folder, write_atomic
from udjfl.deployment import keys
from udjfl.deployment.admission import (
    TAKEN_BACK,
    NodeFiles,
    admit_only,
    find_taken_back,
    read_node_files,
    read_refused,
)
from udjfl.deployment.control import Control, RunInfo, connect, read_public_key
from udjfl.deployment.flwr_command import CONNECTION, TIMEOUT, FlwrCommand, write_run_config
from udjfl.deployment.network import (
    HOST,
    LOOPBACK,
    check_host,
    free_port,
    is_healthy,
    is_listening,
    parse_address,
)
from udjfl.deployment.service_commands import superexec_command, superlink_command
from udjfl.deployment.submissions import Submitted, append_submitted, read_submitted
from udjfl.deployment.supervisor import (
    Service,
    Supervisor,
    read_log,
    read_running,
    report,
    start_in_background,
)
from udjfl.errors import DeploymentError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
START = 120.0  # seconds that a SuperLink has to start, on a busy machine
PAUSE = 0.3
SUBMITTED, REFUSED = "submitted.jsonl", "refused.json"
SERVICES = ("superlink", "proxy", "superexec")


class Coordinator:
    """The coordinator's folder and what runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.keys, self.state = self.folder / "keys", self.folder / "state"
        self.nodes, self.runs = self.folder / "nodes", self.folder / "runs"
        # Looks at nodes/: the last, and the two that the SuperLink was last brought in line with.
        self._looked: NodeFiles | None = None
        self._synced: tuple[NodeFiles | None, NodeFiles] | None = None
        self._next_sync = 0.0

    @property
    def ca(self) -> Path:
        return self.keys / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.keys / "server.crt"

    def make_keys(self, hosts: Sequence[str], renew: bool = False) -> Path:
        """Make the authority, unless there is one, and the server's certificate.

        With `renew` a certificate takes the place of the one that is there; if no names are given,
        it is for the same.
        """
        for host in hosts:
            check_host(host)
        # The proxy and operators reach the SuperLink on the loopback interface.
        names = list(dict.fromkeys([*hosts, HOST, "localhost"]))
        if renew:
            return keys.renew_server_certificate(self.keys, names if hosts else ())
        if not self.ca.exists():
            keys.make_ca(self.keys)
        return keys.make_server_certificate(self.keys, names)

    def expiry(self) -> datetime | None:
        """Return until when the server's certificate is valid; None if there is none."""
        return keys.read_expiry(self.certificate) if self.certificate.exists() else None

    def admitted(self) -> dict[str, bytes]:
        """Return the public keys of the nodes that are admitted, by name."""
        return read_node_files(self.nodes).keys

    def unreadable(self) -> list[str]:
        """Return what is wrong with files in nodes/ that are no public keys."""
        return list(read_node_files(self.nodes).problems.values())

    def admit(self, paths: Sequence[Path]) -> list[str]:
        """Copy public keys to those that are admitted; a key of the same name is replaced."""
        read: dict[str, tuple[bytes, bytes]] = {}
        for path in paths:
            check_name(path.stem)
            if path.stem in read:
                raise DeploymentError(f"{path}: there are two files for {path.stem}; give one")
            read[path.stem] = (path.read_bytes(), read_public_key(path))
        names: dict[bytes, str] = {}
        for name, key in {
            **self.admitted(),
            **{name: own[1] for name, own in read.items()},
        }.items():
            if key in names:
                raise DeploymentError(
                    f"{name}.pub is the key of {names[key]}: each node makes a key of its own"
                )
            names[key] = name
        self._check_not_taken_back({name: own[1] for name, own in read.items()})
        # An empty folder in the place of one that is away would unregister all nodes.
        if read or not self.state.exists():
            make_private_folder(self.nodes)
        for name, (content, _) in read.items():
            write_atomic(self.nodes / f"{name}.pub", content)
        return list(read)

    def _check_not_taken_back(self, wanted: Mapping[str, bytes]) -> None:
        if self.running() is None or not wanted:
            return
        with self.control() as control:
            taken_back = find_taken_back(control)
        for name, key in wanted.items():
            if key in taken_back:
                raise DeploymentError(f"{name}.pub {TAKEN_BACK}")

    # Running.

    def run_services(self, listen: str) -> None:
        """Run the SuperLink, the proxy and the SuperExec until SIGTERM or SIGINT."""
        parse_address(listen, "listen")
        self.check_files()
        port, home = free_port(), self.state / "superlink"
        address, secret = f"{HOST}:{port}", keys.make_secret(self.state, "superexec")
        proxy = [sys.executable, "-m", "udjfl.deployment.proxy", "--listen", listen]
        proxy += ["--superlink", address, "--ca", str(self.ca)]
        proxy += ["--certificate", str(self.certificate)]
        proxy += ["--key", str(self.keys / "server.key")]
        make_private_folder(home)
        command = superlink_command(port, self.keys, home / "state.db", secret)
        services = [
            Service("superlink", command, home),
            Service("proxy", proxy, home, is_logging_strangers=True),
            Service("superexec", superexec_command(port, secret, self.ca), home),
        ]
        description = {"kind": "coordinator", "listen": listen, "superlink": address}
        self._command().write_connection(address, self.ca)
        Supervisor(self.state, services, description, lambda: self._sync(address)).run()

    def start(self, listen: str) -> None:
        """Start the services in the background and wait until nodes are admitted."""
        parse_address(listen, "listen")
        self.check_files()
        arguments = ["flower", "up", str(self.folder), "--listen", listen, "--foreground"]
        process = start_in_background(arguments, self.state)
        try:
            self.wait_until_open(process)
        except BaseException:
            process.terminate()
            raise

    def wait_until_open(self, process: subprocess.Popen[bytes] | None = None) -> None:
        """Wait until nodes can connect, and each key is admitted or refused."""
        self.check_files()
        deadline = time.monotonic() + START
        while not self.is_open():
            if process is not None and process.poll() is not None:
                raise DeploymentError(f"it did not start:\n{read_log(self.state, 'supervisor')}")
            if time.monotonic() > deadline:
                logs = "\n".join(read_log(self.state, name, 8) for name in SERVICES)
                raise DeploymentError(f"it did not start within {START:.0f} s:\n{logs}")
            time.sleep(PAUSE)

    def is_open(self) -> bool:
        """Tell if the proxy answers, and the SuperLink has every key, but those it refused."""
        running = self.running()
        if running is None or not is_healthy(running["superlink"], self.ca):
            return False
        host, port = parse_address(str(running["listen"]), "listen")
        if not is_listening(LOOPBACK.get(host, host), port):
            return False
        with self.control() as control:
            known = {node.name: node.key for node in control.nodes()}
        files, refused = read_node_files(self.nodes), self.refused()
        # Without a file that can be read, a node stays as it was.
        known = {name: key for name, key in known.items() if name in files.keys}
        return known == {name: key for name, key in files.keys.items() if name not in refused}

    def refused(self) -> dict[str, str]:
        """Return why the SuperLink refuses keys that are in nodes/, by name."""
        return read_refused(self.state / REFUSED, self.admitted())

    def running(self) -> dict[str, Any] | None:
        """Return what the services were started with; None if they are not running."""
        return read_running(self.state)

    def control(self) -> Any:
        """Connect to the control side of the running SuperLink."""
        running = self.running()
        if running is None:
            raise DeploymentError(self._not_running())
        keys.check_authority(self.keys)
        return connect(running["superlink"], self.ca)

    def _not_running(self) -> str:
        command = f"udjfl flower up {as_argument(self.folder)}"
        return f"{self.folder} is not running; start it with `{command}`"

    def _sync(self, address: str) -> None:
        """Make the SuperLink admit the nodes whose keys are in nodes/, and no others."""
        now = time.monotonic()
        if now < self._next_sync:
            return
        self._next_sync = now + 1
        try:
            before, files = self._looked, read_node_files(self.nodes)
            self._looked = files
            self._report_problems(before, files)
            if (before, files) == self._synced or not is_healthy(address, self.ca):
                return
            with connect(address, self.ca) as control:
                admission = admit_only(control, files, before)
            admission.write(make_private_folder(self.state) / REFUSED, files.keys)
            if admission.problems:
                raise DeploymentError("; ".join(admission.problems))
            self._synced = (before, files)
        except Exception as error:  # the services go on, whatever is wrong with a file or an answer
            report(f"nodes: {error!r}")
            self._next_sync = now + 10

    def _report_problems(self, before: NodeFiles | None, files: NodeFiles) -> None:
        """Say once what is wrong with nodes/."""
        for name, problem in files.problems.items():
            if before is None or before.problems.get(name) != problem:
                report(f"nodes: {problem}")
        if not files.exists and (before is None or before.exists):
            report(f"nodes: there is no folder {self.nodes}: who is admitted stays so")

    def check_files(self) -> None:
        """Raise an error unless the certificates and the server's key can be used.

        They have to be there and belong together, and the server's certificate to be valid still.
        """
        folder = as_argument(self.folder)
        for name in ("ca.crt", "server.crt", "server.key"):
            if not (self.keys / name).exists():
                raise DeploymentError(
                    f"{self.keys / name} is missing; make it with `udjfl flower keys {folder} "
                    "--host NAME`, the name by which nodes reach this machine"
                )
        keys.check_server_pair(self.keys)
        end = self.expiry()
        if end is not None and end < datetime.now(UTC):
            raise DeploymentError(
                f"{self.certificate} was valid until {end:%Y-%m-%d}; make a new one with "
                f"`udjfl flower keys {folder} --renew`"
            )

    def _command(self) -> FlwrCommand:
        return FlwrCommand(self.state / "operator", {})

    # Runs.

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """Let one command at a time choose the name of a run and submit it."""
        make_private_folder(self.state)
        try:
            with FileLock(self.state / "submitting.lock", timeout=2 * TIMEOUT):
                yield
        except Timeout:
            raise DeploymentError("another run is being submitted; try again later") from None

    def submit(self, name: str, config: Mapping[str, Any], first_round: int = 0) -> Submitted:
        """Submit a run of the app in this folder; its run folder is runs/NAME."""
        if self.running() is None:
            raise DeploymentError(self._not_running())
        out = self.runs / name
        command = self._command()
        path = write_run_config(command.home / f"run-{name}.toml", {**config, "out": str(out)})
        reply = command.run_json("run", str(self.folder), CONNECTION, "-c", path)
        submitted = Submitted(name, out, int(reply["run-id"]), time.time(), first_round)
        append_submitted(self.state / SUBMITTED, submitted)
        return submitted

    def submitted(self) -> list[Submitted]:
        """Return the runs that were submitted, the latest last."""
        return read_submitted(self.state / SUBMITTED)

    def unfinished(self, control: Control) -> dict[Submitted, RunInfo]:
        """Return the submitted runs that wait or go on, the latest last, and their state."""
        found = control.unfinished()
        return {run: found[run.run_id] for run in self.submitted() if run.run_id in found}

    def is_taken(self, name: str) -> bool:
        """Tell if a run has this name. Its folder is made only when its first round begins."""
        return (self.runs / name).exists() or name in {run.name for run in self.submitted()}


def check_name(name: str) -> None:
    """Raise an error unless this can be the name of a node or a run, and of a file."""
    if not NAME.fullmatch(name):
        raise DeploymentError(
            f"{name!r} is no name: use letters, digits, dots, hyphens and underscores"
        )
    if name.lower().endswith(".pub"):
        raise DeploymentError(
            f"{name!r} is no name but that of a public key; leave out .pub: {name[:-4]}"
        )
