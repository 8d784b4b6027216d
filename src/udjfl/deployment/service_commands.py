"""The command lines of the services of a deployment that is closed to strangers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from udjfl.deployment.flwr_command import executable
from udjfl.deployment.network import HOST
from udjfl.deployment.supernode import STOCK
from udjfl.deployment.warm import executor_command

SUPERNODE = "udjfl.deployment.supernode"
FOR_TABLES = (
    *("pandas", "udjfl.flower.tables", "scipy.sparse.csgraph"),
    *("sklearn.impute", "sklearn.preprocessing"),
)


def superlink_command(port: int, keys: Path, database: Path | None, secret: Path) -> list[str]:
    """Return the command of a SuperLink on the loopback interface.

    keys      the folder of ca.crt, server.crt and server.key
    database  the file that keeps registered keys and runs; None: memory
    secret    a file; only a SuperExec that has it is given server apps to run
    """
    command = [executable("flower-superlink"), "--host", HOST, "--port", str(port)]
    command += ["--ssl-ca-certfile", str(keys / "ca.crt")]
    command += ["--ssl-certfile", str(keys / "server.crt")]
    command += ["--ssl-keyfile", str(keys / "server.key")]
    command += ["--enable-supernode-auth"]
    # Without this flag the SuperLink installs the dependencies that an app names.
    command += ["--disable-runtime-dependency-installation"]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    return command + (["--database", str(database)] if database else [])


def superexec_command(port: int, secret: Path, ca: Path | None) -> list[str]:
    """Return the command of a SuperExec for a SuperLink, or a SuperNode if `ca` is None."""
    command = [executable("flower-superexec"), "--runtime-api-address", f"{HOST}:{port}"]
    command += ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    return [*command, "--superexec-auth-secret-file", str(secret)]


def warm_command(port: int, secret: Path, messages: Path) -> list[str]:
    """Return the command of the executor of a SuperNode that keeps its client warm.

    `messages` is a folder for its notes on messages in progress. What apps for tables need is
    imported beforehand, if it is installed.
    """
    modules = FOR_TABLES if importlib.util.find_spec("pandas") else ()
    return executor_command(f"{HOST}:{port}", secret, messages=messages, preload=modules)


def supernode_command(
    server: str, port: int, ca: Path, key: Path, config: Path, secret: Path, *, stock: bool
) -> list[str]:
    """Return the command of a SuperNode.

    server  host and port of the federation
    port    of the loopback interface, for the process that runs client apps
    config  a file, NAME.toml: unlike a command line, others on this machine cannot read it
    secret  a file; only an executor that has it is given client apps to run
    stock   with Flower's own pauses of seconds
    """
    command = [*supernode_program(stock), "--superlink", server]
    command += ["--host", HOST, "--port", str(port)]
    command += ["--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    return [*command, "--node-config", str(config)]


def supernode_program(stock: bool) -> list[str]:
    """Return what a SuperNode's command begins with; with `stock` Flower's own pauses are kept."""
    return [sys.executable, "-m", SUPERNODE, *([STOCK] if stock else [])]
