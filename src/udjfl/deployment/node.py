"""A node's folder: its key, its settings, and a SuperNode that runs client apps on its data.

    keys/NAME, NAME.pub   the key pair (`udjfl flower keys --node NAME`); NAME is the client's id
    node.toml             the settings (`udjfl flower node` writes its flags to it)
    sent.jsonl            a line for every reply that was sent: when, which numbers, which tensors
    state/                of the running processes: logs, received apps, a secret

Two processes run: the SuperNode, which connects to the federation and listens on the loopback
interface only; and an executor, which runs client apps and alone has the secret for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from udjfl._files import PRIVATE, as_argument, parse_toml, write_atomic
from udjfl.deployment import keys
from udjfl.deployment.coordinator import check_name
from udjfl.deployment.network import HOST, free_port, parse_address
from udjfl.deployment.service_commands import superexec_command, supernode_command, warm_command
from udjfl.deployment.supervisor import (
    LOGS,
    Service,
    Supervisor,
    already_running,
    read_log,
    read_running,
    start_in_background,
)
from udjfl.deployment.toml import to_toml
from udjfl.errors import DeploymentError, show_short
from udjfl.settings.validation import describe_mistakes

START = 120.0  # seconds that a SuperNode has to connect before `udjfl flower node` returns
NO_ANSWER = 20.0  # seconds after which it returns if the last request got no answer
PAUSE = 0.3
# pandas imports pyarrow, whose allocator starts a thread; an executor with threads cannot fork.
NO_ARROW_THREAD = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
STARTING = "Starting Flower SuperNode"  # what a SuperNode logs first
CONNECTED = "SuperNode ID"  # what a SuperNode logs once the SuperLink has admitted it
# Logged for each request that gets no answer; and what follows from an answer after that. Flower
# logs the first of these only if the same request succeeds.
LOST = "Connection attempt failed"
FOUND = ("Connection successful", "Receiving: ", "Received successfully", "Sent successfully")
UNREACHED = (
    "{server} does not answer: is the coordinator up (`udjfl flower up`), and is this its address?"
)
REASONS = {  # in the log of a SuperNode that cannot connect; the first that is there
    "certificate has expired": "the server's certificate has expired (the coordinator renews it), "
    "or the clock of this machine is wrong",
    "certificate is not yet valid": "the clock of this machine is behind: the server's certificate "
    "is not valid yet",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not signed by {ca}, or not for the "
    "name in {server}: compare ca.crt with the coordinator's",
    "Failed to activate SuperNode": "the coordinator has not admitted {name}.pub yet, or another "
    "node with this key is online (one that was killed counts as online for a minute)",
    # Flower ends a SuperNode without a word if its signature is refused.
    "SuperNode terminated gracefully": "the coordinator does not know this key, or the clock of "
    "this machine is wrong",
}


class NodeSettings(BaseModel):
    """The settings of a node: what is in node.toml."""

    model_config = ConfigDict(extra="forbid")

    server: str = Field(description="host and port of the federation, as in fl.example.org:8443")
    ca: str = Field(description="the federation's certificate, ca.crt")
    data: str = Field(description="the file with this node's data")
    disclose: str | None = Field(
        None, description="what may be sent, by commas; without it, all that a method declares"
    )
    config: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="further values for the app's data function"
    )

    @field_validator("config", mode="before")
    @classmethod
    def _check_config(cls, config: Any) -> Any:
        """Name the value that is none; pydantic has a sentence for each type it could have."""
        for name, value in config.items() if isinstance(config, dict) else ():
            if not isinstance(value, str | int | float):
                shown = show_short(value)
                raise ValueError(f"{name} must be a text, a number, true or false, got {shown}")
        return config


class Node:
    """A node's folder and what runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.keys, self.state = self.folder / "keys", self.folder / "state"

    @property
    def sent(self) -> Path:
        return self.folder / "sent.jsonl"

    def make_key(self, name: str) -> Path:
        """Make the key pair; return the path of the public key."""
        check_name(name)
        if other := self._names():
            raise DeploymentError(
                f"{self.keys} has the key of {other[0]} already; a node has one. For a new key, "
                "move the old one away"
            )
        keys.make_node_key(self.keys, name)
        return self.keys / f"{name}.pub"

    @property
    def name(self) -> str:
        """The name of the only key."""
        names = self._names()
        if len(names) != 1:
            found = f"has the keys of {', '.join(names)}" if names else "has no key"
            command = f"udjfl flower keys {as_argument(self.folder)} --node NAME"
            raise DeploymentError(f"{self.keys} {found}; make one with `{command}`")
        return names[0]

    def _names(self) -> list[str]:
        return sorted(
            path.stem for path in self.keys.glob("*.pub") if path.with_suffix("").exists()
        )

    def read_settings(self) -> dict[str, Any]:
        """Return what is in node.toml; nothing if there is none."""
        path = self.folder / "node.toml"
        try:
            return parse_toml(path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise DeploymentError(f"{path}: {error}") from None

    def configure(self, changes: Mapping[str, Any]) -> NodeSettings:
        """Return the settings in node.toml with these changes, checked and written back."""
        check_name(self.name)  # without a key nothing is written
        before = self.read_settings()
        values = {**before, **{name: value for name, value in changes.items() if value is not None}}
        try:
            settings = NodeSettings.model_validate(values)
        except ValidationError as error:
            mistakes = describe_mistakes(error, NodeSettings.model_fields)
            text = f"{self.folder / 'node.toml'}: {'; '.join(mistakes)}"
            if not {"server", "ca", "data"} <= values.keys():
                text += ". Give --server, --ca and --data the first time"
            raise DeploymentError(text) from None
        for field in ("ca", "data"):
            path = (self.folder / Path(getattr(settings, field)).expanduser()).resolve()
            if not path.exists():
                raise DeploymentError(f"{field}: there is no {path}")
            setattr(settings, field, str(path))
        parse_address(settings.server, "server")
        path = self.folder / "node.toml"
        if settings.model_dump(exclude_none=True) != before:
            write_atomic(path, _format_settings(settings).encode(), PRIVATE)
        path.chmod(PRIVATE)  # it may have been written by hand
        return settings

    # Running.

    def run_services(self, settings: NodeSettings, stock: bool = False) -> None:
        """Run the SuperNode and its executor until SIGTERM or SIGINT."""
        name, port = self.name, free_port()
        secret = keys.make_secret(self.state, "executor")
        config = {
            "client-id": name,
            "data": settings.data,
            "disclose-log": str(self.sent),
            **({} if settings.disclose is None else {"disclose": settings.disclose}),
            **settings.config,
        }
        config_file = self.state / "node-config.toml"
        write_atomic(config_file, to_toml(config).encode(), PRIVATE)
        if self.sent.exists():
            self.sent.chmod(PRIVATE)
        ca, key = Path(settings.ca), self.keys / name
        command = supernode_command(
            settings.server, port, ca, key, config_file, secret, stock=stock
        )
        home = self.state / "supernode"
        if stock:
            executor = superexec_command(port, secret, None)
        else:
            executor = warm_command(port, secret, self.state / "messages")
        services = [
            Service("executor", executor, home, {**_outside(), **NO_ARROW_THREAD}),
            Service("supernode", command, home, _outside()),
        ]
        description = {"kind": "node", "name": name, "server": settings.server}
        Supervisor(self.state, services, description).run()

    def start(self, stock: bool) -> str | None:
        """Start the services in the background and wait for the connection.

        Return None if the node is online, or why it is not yet; it goes on trying.
        """
        log = self.state / LOGS / "supernode.log"
        begin = log.stat().st_size if log.exists() else 0
        arguments = ["flower", "node", str(self.folder), "--foreground"]
        process = start_in_background([*arguments, *(["--stock"] if stock else [])], self.state)
        started = time.monotonic()
        while True:
            text = _read_new(log, begin)
            waited = time.monotonic() - started
            if CONNECTED in text:
                return None
            if process.poll() is not None:
                raise DeploymentError(f"it did not start:\n{read_log(self.state, 'supervisor')}")
            if reason := self.find_reason(text):
                return reason
            if waited > NO_ANSWER and _is_lost(text):
                return self._describe_unreached()
            if waited > START:
                return f"no answer yet; its log is {log}"
            time.sleep(PAUSE)

    def find_reason(self, log: str) -> str | None:
        """Return why a SuperNode with this log cannot connect, if the log says so."""
        settings = self.read_settings()
        values = {"ca": settings.get("ca"), "server": settings.get("server"), "name": self.name}
        found = [reason for mark, reason in REASONS.items() if mark in log]
        return found[0].format(**values) if found else None

    def read_connection(self) -> tuple[bool, str | None]:
        """Return whether the running SuperNode is connected, and why it is not, if its log says so.

        The last start counts, and the one before it while the last has not come to an end.
        """
        starts = read_log(self.state, "supernode", lines=None).split(STARTING)[1:]
        if not starts:
            return False, None
        is_lost = _is_lost(starts[-1])
        if CONNECTED in starts[-1]:
            return not is_lost, self._describe_unreached() if is_lost else None
        before = [log for log in starts[-2:-1] if CONNECTED not in log]
        reasons = [self.find_reason(log) for log in (starts[-1], *before)]
        if is_lost and not any(reasons):
            return False, self._describe_unreached()
        return False, next((reason for reason in reasons if reason), None)

    def _describe_unreached(self) -> str:
        return UNREACHED.format(server=self.read_settings().get("server"))

    def check_not_running(self) -> None:
        """Raise an error if the node is running."""
        if self.running() is not None:
            raise DeploymentError(already_running(self.state))

    def running(self) -> dict[str, Any] | None:
        """Return what the services were started with; None if they are not running."""
        return read_running(self.state)


def _is_lost(log: str) -> bool:
    """Tell if the last request of a SuperNode with this log got no answer."""
    return log.rfind(LOST) > max(map(log.rfind, FOUND))


def _outside() -> dict[str, str]:
    """Return the settings of HTTP proxies, which a hospital may need to reach the outside."""
    own = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    exceptions = [own.get("no_proxy"), own.get("NO_PROXY"), HOST]
    # Programs differ in which of the two they read.
    direct = ",".join(dict.fromkeys(text for text in exceptions if text))
    return {**own, "no_proxy": direct, "NO_PROXY": direct}


def _read_new(log: Path, begin: int) -> str:
    """Return what was added to a log after its first `begin` bytes, or all if it is a new file."""
    try:
        with log.open("rb") as file:
            file.seek(begin if os.fstat(file.fileno()).st_size >= begin else 0)
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _format_settings(settings: NodeSettings) -> str:
    """Return node.toml, with the description of each setting."""
    lines = ["# Settings of this node; `udjfl flower node` reads them, its flags change them."]
    values = settings.model_dump()
    for name, field in NodeSettings.model_fields.items():
        if name != "config":
            value = values[name]
            line = f'# {name} = "..."' if value is None else to_toml({name: value}).rstrip("\n")
            lines += ["", f"# {field.description}", line]
    lines += ["", f"# {NodeSettings.model_fields['config'].description}", "[config]"]
    return "\n".join(lines) + "\n" + to_toml(settings.config)
