"""The peers' virtual environments: made once, each with its peer and the same torch."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = Path(__file__).parent / ".envs"
STUB = Path(__file__).parent / "torchvision_stub"
# An open range would install a build for GPUs, of several gigabytes.
TORCH = "torch==2.13.0"
# Some packages send usage data unless told not to.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_MODE": "disabled",
}


NOT_INHERITED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_")


@dataclass(frozen=True)
class Peer:
    """A package from PyPI. Its version is fixed: raise it together with the contender."""

    name: str
    package: str
    version: str
    extra: str = ""

    @property
    def requirement(self) -> str:
        return f"{self.package}{self.extra}=={self.version}"


PEERS = {
    peer.name: peer
    for peer in (
        Peer("fluke", "fluke-fl", "0.8.1"),
        Peer("pfl", "pfl", "0.6.0", "[pytorch]"),
        Peer("flgo", "flgo", "0.4.4"),
        Peer("fedlab", "fedlab", "1.3.0"),
        Peer("flower", "flwr", "1.41.0", "[simulation]"),
    )
}


class InstallError(Exception):
    """The reason why a peer could not be installed, in one line."""


def python_of(peer: Peer) -> Path:
    """Return the interpreter of a peer's environment; make it if there is none for this version."""
    folder = HOME / peer.name
    python, stamp = folder / "bin" / "python", folder / "made-for"
    wanted = f"{TORCH} {peer.requirement}"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"Installing {peer.requirement} (once; a few minutes)", flush=True)
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    # The stand-in for torchvision first: pip then has no need to install it.
    for packages in ([TORCH, str(STUB)], [TORCH, peer.requirement]):
        _run(
            [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                *packages,
            ]
        )
    stamp.write_text(wanted)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [
            line for line in done.stderr.splitlines() if line.startswith("ERROR")
        ] or done.stderr.splitlines()[-1:]
        raise InstallError(errors[-1][:200] if errors else f"exit code {done.returncode}")


def child_environment(source: str | None = None) -> dict[str, str]:
    """Return the environment variables of a contender; udjfl is imported from `source`.

    Without one that is `src` of this checkout. Settings of threads and of malloc are left out.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)
    }
    folders = [source or str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH")]
    return {**inherited, **QUIET, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
