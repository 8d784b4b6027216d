"""The loopback interface: free ports, and the health of a SuperLink."""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

HOST = "127.0.0.1"


def free_port() -> int:
    """Return a free port on the loopback interface, below those of outgoing connections."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port


def is_healthy(address: str, ca: Path) -> bool:
    """Ask a SuperLink for its health over TLS, trusting the authority `ca` only."""
    context = ssl.create_default_context(cafile=ca)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(f"https://{address}/health", timeout=10) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def is_listening(host: str, port: int) -> bool:
    """Tell if a connection to this port is accepted."""
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except OSError:
        return False
