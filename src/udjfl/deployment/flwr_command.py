"""The `flwr` command as an operator types it, and the environment of Flower's processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from udjfl._files import make_private_folder
from udjfl.deployment.toml import ConfigValue, to_toml
from udjfl.errors import DeploymentError

CONNECTION = "here"  # name of the SuperLink in the operator's config.toml
TIMEOUT = 300.0  # seconds; a busy machine needs long to import torch in several processes


class FlwrCommand:
    """`flwr` with a home folder of its own, connected to one SuperLink."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self.home, self._environment = home, environment

    def write_connection(self, address: str, ca: Path) -> None:
        """Write the config.toml that names the SuperLink."""
        make_private_folder(self.home)
        connection = to_toml({"address": address, "root-certificates": str(ca)})
        text = f'[superlink]\ndefault = "{CONNECTION}"\n[superlink.{CONNECTION}]\n{connection}'
        (self.home / "config.toml").write_text(text, encoding="utf-8")

    def try_run(
        self, *arguments: str, home: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command and return how it ended; `stdout` includes the errors."""
        try:
            return subprocess.run(
                [executable("flwr"), *arguments],
                env=flower_environment(home or self.home, self._environment),
                timeout=TIMEOUT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self.home,
                check=False,
            )
        except subprocess.TimeoutExpired:
            command = " ".join(arguments)
            raise DeploymentError(f"flwr {command} has not ended after {TIMEOUT:g} s") from None

    def run(self, *arguments: str) -> str:
        """Run a command and return its output; raise DeploymentError if it fails."""
        done = self.try_run(*arguments)
        if done.returncode:
            command = " ".join(arguments)
            raise DeploymentError(
                f"flwr {command} ended with {done.returncode}:\n{tail(done.stdout)}"
            )
        return done.stdout

    def run_json(self, *arguments: str) -> dict[str, Any]:
        """Run a command with `--format json` and return the object that it prints."""
        text = self.run(*arguments, "--format", "json")
        start = text.find("{")  # there may be notes before it
        if start < 0:
            raise DeploymentError(f"expected JSON, got:\n{tail(text)}")
        reply: dict[str, Any]
        reply, _ = json.JSONDecoder().raw_decode(text[start:])
        if not reply.get("success", True):
            raise DeploymentError(reply.get("error-message", text))
        return reply


def flower_environment(home: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Flower process with this home folder.

    Settings of Flower and of proxies are left out: they could lead away from this machine.
    """
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("FLWR_") and not key.lower().endswith("_proxy")
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])
    return {
        **inherited,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": path,
        "OMP_NUM_THREADS": "1",  # all SuperNodes share the cores of this machine
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "200",
        **extra,
    }


def executable(name: str) -> str:
    """Return the path of a command of the running Python environment, activated or not."""
    path = Path(sys.executable).parent / name
    command = str(path) if path.exists() else shutil.which(name)
    if not command:
        raise DeploymentError(f"there is no {name}; install Flower: pip install 'udjfl[flower]'")
    return command


def write_run_config(path: Path, config: Mapping[str, ConfigValue]) -> str:
    """Write a run's configuration to a TOML file, in which values may contain any character."""
    path.write_text(to_toml(config), encoding="utf-8")
    return str(path)


def tail(text: str, lines: int = 25) -> str:
    """Return the last lines of a text."""
    return "\n".join(text.splitlines()[-lines:])
