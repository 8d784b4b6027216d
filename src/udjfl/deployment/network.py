"""Addresses, free ports on the loopback interface, and the health of a SuperLink."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import secrets
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from udjfl.deployment import keys
from udjfl.errors import DeploymentError

HOST = "127.0.0.1"
# Where to reach a server on the same machine that listens on all of its addresses.
LOOPBACK = {"0.0.0.0": HOST, "::": "::1"}
# Names of containers can have underscores.
LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
LONGEST_HOST = 253  # characters


def parse_address(text: str, field: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT; an address of IPv6 is in brackets."""
    host, _, port = text.rpartition(":")
    inside = host.removeprefix("[").removesuffix("]")
    is_host = host == (f"[{inside}]" if ":" in inside else inside) != ""
    if not is_host or set(inside) & set("/[]@ ") or not port.isascii() or not port.isdigit():
        raise DeploymentError(
            f"{field}: {text!r} is not of the form HOST:PORT, as in fl.example.org:8443, "
            "192.0.2.1:8443 or [2001:db8::1]:8443"
        )
    if not 0 < int(port) < 2**16:
        raise DeploymentError(f"{field}: {text!r} has no port from 1 to 65535")
    return inside, int(port)


def check_host(text: str) -> None:
    """Raise an error unless this is the name or the address of a machine, and nothing around it."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(text.replace("%", "/"))  # a certificate cannot name an interface
        return
    labels = text.split(".")
    is_name = len(text) <= LONGEST_HOST and all(LABEL.fullmatch(label) for label in labels)
    if not is_name or labels[-1].isdigit():  # the latter is an address with a mistake
        raise DeploymentError(
            f"host: {text!r} is no name or address of a machine, as in fl.example.org, 192.0.2.1 "
            "or 2001:db8::1; leave out https://, the port and brackets, and write names with other "
            "than ASCII letters as xn--..."
        )


def free_port() -> int:
    """Return a free port on the loopback interface, below those of outgoing connections."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port


def is_healthy(address: str, ca: Path) -> bool:
    """Ask a SuperLink for its health over TLS, trusting the authority `ca` only."""
    keys.load_certificate(ca)  # an error that names the file
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
