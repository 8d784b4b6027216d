"""The runbook of docs/deploying.md on one machine: a coordinator, two hospitals, real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from udjfl.deployment.coordinator import Coordinator
from udjfl.deployment.network import free_port
from udjfl.deployment.node import Node

ROOT = Path(__file__).parents[1]
NAMES = ("north", "south")
TIMEOUT = 600.0


@dataclass(frozen=True)
class Step:
    """A command of the runbook, and who types it."""

    section: str
    command: str

    @property
    def is_hospitals(self) -> bool:
        return bool(re.search(r" north( |$)", self.command))


def read_steps() -> list[Step]:
    """Return the commands of the numbered sections of the runbook, in order."""
    page = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    steps = []
    for section in re.findall(r"^## \d\. .*?(?=^## )", page, flags=re.M | re.S):
        title = section.splitlines()[0].removeprefix("## ")
        for block in re.findall(r"```bash\n(.*?)```", section, flags=re.S):
            commands = [re.sub(r"\s+#\s.*", "", line) for line in block.splitlines()]
            steps += [Step(title, command) for command in commands]
    return steps


def write_table(path: Path, rows: int, seed: int) -> None:
    """Write a table with numbers, a category, missing values and a label."""
    rng = np.random.default_rng(seed)
    age, pressure = rng.normal(55, 10, rows), rng.normal(130, 15, rows)
    sex = rng.choice(["f", "m"], rows)
    score = 0.1 * (age - 55) + 0.05 * (pressure - 130) + rng.normal(0, 0.5 + seed, rows)
    lines = ["age,pressure,sex,ill"]
    for i in range(rows):
        shown = "" if i % 13 == 0 else f"{pressure[i]:.0f}"
        lines.append(f"{age[i]:.1f},{shown},{sex[i]},{'yes' if score[i] > 0 else 'no'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


class Study:
    """A folder in which the commands of the runbook are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.outputs: dict[str, str] = {}  # by command, as it was typed
        write_table(folder / "example.csv", 40, 9)
        for seed, name in enumerate(NAMES):
            write_table(folder / f"{name}.csv", 60 + 20 * seed, seed)

    @property
    def coordinator(self) -> Coordinator:
        return Coordinator(self.folder / "study")

    @property
    def nodes(self) -> dict[str, Node]:
        return {name: Node(self.folder / name) for name in NAMES}

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def type(self, step: Step) -> None:
        """Type a command of the runbook; those of a hospital at each of them."""
        names = NAMES if step.is_hospitals else ("north",)
        for name in names:
            command = (
                re.sub(r"\bnorth\b", name, step.command) if step.is_hospitals else step.command
            )
            command = command.replace("fl.example.org:8443", self.address)
            command = command.replace("fl.example.org", "localhost").replace("=100", "=2")
            if command.startswith("udjfl flower up"):
                command += f" --listen 0.0.0.0:{self.port}"
            done = self.run(*command.split()[1:])
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            self.outputs[command] = done.stdout
        if " keys " in step.command:  # what the machines send each other
            self._send()

    def _send(self) -> None:
        for name in NAMES:
            public = self.folder / name / "keys" / f"{name}.pub"
            if public.exists():
                (self.folder / public.name).write_bytes(public.read_bytes())
        (self.folder / "ca.crt").write_bytes(self.coordinator.ca.read_bytes())

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `udjfl` with these arguments."""
        return subprocess.run(
            [sys.executable, "-m", "udjfl", *arguments],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `udjfl` with these arguments, in a group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "udjfl", *arguments],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def processes(self) -> dict[int, str]:
        return processes_below(self.folder)

    def stop(self) -> None:
        """Stop everything, whatever state it is in."""
        for name in (*NAMES, "study"):
            if (self.folder / name / "state").exists():
                self.run("flower", "down", name)


def processes_below(folder: Path) -> dict[int, str]:
    """Return the processes that have a folder in their command line or environment."""
    mark, found = os.fsencode(folder), {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            environment = (path / "environ").read_bytes()
        except OSError:
            continue
        is_own = int(path.name) == os.getpid()
        if not is_own and command and (mark in command or b"FLWR_HOME=" + mark in environment):
            found[int(path.name)] = command.replace(b"\0", b" ").decode()
    return found


def open_study(folder: Path) -> Iterator[Study]:
    """Follow the runbook until the hospitals have joined; stop everything in the end."""
    study = Study(folder)
    try:
        for step in read_steps():
            if step.section[0] in "2345":
                study.type(step)
        yield study
    finally:
        study.stop()
