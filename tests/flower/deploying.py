"""What the tests of deployments share. They start real processes on the loopback interface, and stop them by their ids."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "apps" / "flower"
SCRIPTS = ROOT / "scripts"

for folder in (SCRIPTS, APP):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import flower_demo  # noqa: E402 - they are scripts, not a package
import flower_keys  # noqa: E402
from flower_deployment import HOST, Deployment, DeploymentError, Finished, free_port  # noqa: E402
from flower_processes import Part, process_table, stop  # noqa: E402

__all__ = [
    "APP",
    "HOST",
    "ROOT",
    "SCRIPTS",
    "Deployment",
    "DeploymentError",
    "Finished",
    "Part",
    "flower_demo",
    "flower_keys",
    "free_port",
    "process_table",
    "reached",
    "secrets_in",
    "stop",
]

SECRET = (b"PRIVATE KEY", b"BEGIN CERTIFICATE", b"ecdsa-sha2", b"openssh-key")


def secrets_in(folder: Path) -> list[str]:
    """The files below a folder that hold a key or a certificate, or are called like one."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    named = [path for path in files if path.suffix in (".key", ".crt", ".pem", ".pub")]
    holding = [path for path in files if any(mark in path.read_bytes() for mark in SECRET)]
    return sorted({str(path.relative_to(folder)) for path in [*named, *holding]})


def reached(done: Callable[[], bool], patience: float = 600.0) -> bool:
    """Whether something comes true within so many seconds."""
    deadline = time.monotonic() + patience
    while not done() and time.monotonic() < deadline:
        time.sleep(0.2)
    return done()
