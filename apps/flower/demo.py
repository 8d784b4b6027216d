"""A federation of six machines on this one: a coordinator and five hospitals.

    python apps/flower/demo.py [--methods fedavg,rawls,desert] [--rounds 5] [--keep FOLDER]

Types the commands of docs/deploying.md, each of which is printed: keys, a coordinator with one
open port, five nodes with TLS and keys of their own, a run for each method, a report. Each node
has a data file of its own and knows no other. Everything is made in a temporary folder, and stopped
and removed at the end. --keep keeps the run folders, which `udjfl` reads like those of the
simulator.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy import APP, clean_up
from deploy.data_files import server_file, write_data_files

import udjfl
from udjfl.deployment.network import HOST, free_port
from udjfl.deployment.processes import bind, ignore_interrupts
from udjfl.errors import DeploymentError

METHODS = ("fedavg", "rawls", "desert")  # the reference first


class Demo:
    """A folder in which the commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = f"{HOST}:{free_port()}"
        self.nodes: list[str] = []

    def type(self, *arguments: str) -> None:
        """Print a command, run it and wait for its end."""
        self._wait([self._start(arguments)])

    def type_at_each(self, *arguments: str) -> None:
        """Type a command at every node at the same time; NODE stands for its name."""
        commands = [[word.replace("NODE", name) for word in arguments] for name in self.nodes]
        self._wait([self._start(command) for command in commands])

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        print(f"$ udjfl {shlex.join(arguments)}", flush=True)
        return subprocess.Popen(
            bind([sys.executable, "-m", "udjfl", *arguments], os.getpid()),
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # all nodes share the cores
        )

    def _wait(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        codes = [process.wait() for process in processes]
        if any(codes):
            raise DeploymentError("a command failed; its last words are above")

    def open(self, seed: int) -> None:
        """Make data, keys and an app; start the coordinator and the nodes."""
        files = write_data_files(udjfl.load("dirty-digits", seed=seed), self.folder / "data")
        self.nodes = list(files)
        shutil.copytree(APP / "udjfl_app", self.folder / "study" / "udjfl_app")
        shutil.copy(APP / "pyproject.toml", self.folder / "study")
        self.type("flower", "keys", "study", "--host", HOST)
        self.type_at_each("flower", "keys", "NODE", "--node", "NODE")
        public = [f"{name}/keys/{name}.pub" for name in self.nodes]
        self.type("flower", "up", "study", *public, "--listen", self.server)
        flags = ["--server", self.server, "--ca", "study/keys/ca.crt"]
        self.type_at_each("flower", "node", "NODE", *flags, "--data", "data/NODE/data.npz")
        self.type("flower", "status", "study")

    def train(self, methods: Sequence[str], rounds: int, seed: int) -> None:
        """Train every method, the first one as the reference of the others."""
        for method in methods:
            settings = {
                "method": method,
                "rounds": rounds,
                "seed": seed,
                "eval-every": rounds,
                "report-uncertainties": "true",  # FedAvg needs none, but the report shows them
                "server-data": server_file(self.folder / "data"),
            }
            words = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
            if method != methods[0]:
                words += ["--reference", methods[0]]
            self.type("flower", "run", "study", *words, "--name", method)
        self.type("report", "study/runs")

    def close(self) -> None:
        """Stop everything that was started, the nodes first."""
        started = [name for name in self.nodes if (self.folder / name / "state").exists()]
        processes = [self._start(["flower", "down", name]) for name in started]
        for process in processes:
            process.wait()
        if (self.folder / "study" / "state").exists():
            self._start(["flower", "down", "study"]).wait()


@contextlib.contextmanager
def make_demo() -> Iterator[Demo]:
    """Make a demo in a temporary folder; stop and remove it in the end, however that comes."""
    demo = Demo(Path(tempfile.mkdtemp(prefix="udjfl-flower-")))
    with subprocess.Popen(
        [sys.executable, clean_up.__file__, str(demo.folder)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    ):  # its end of the pipe is closed, and its end waited for
        try:
            yield demo
        finally:
            with ignore_interrupts():
                demo.close()


def run_demo(methods: Sequence[str], rounds: int, seed: int, keep: Path | None) -> None:
    """Deploy, train every method, print the report and stop everything."""
    start = time.monotonic()
    with make_demo() as demo:
        print(f"Everything is in {demo.folder}, readable by this user only.")
        demo.open(seed)
        demo.train(methods, rounds, seed)
        print("One seed and few rounds: a demonstration. `make demo` measures, over several seeds.")
        if keep:
            shutil.copytree(demo.folder / "study" / "runs", keep)
    print(f"Everything is stopped, and its folder removed, after {time.monotonic() - start:.0f} s.")
    if keep:
        print(f"The runs are in {keep}.")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", default=",".join(METHODS), help="FedAvg first, then others")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each method (default 5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the run folders in this new folder"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.seed < 0:
        parser.error("give at least one round, and a seed from 0")
    if options.keep and options.keep.exists():
        parser.error(f"{options.keep} exists already; name a new folder")
    # SIGTERM must leave the `with` block, which stops the deployment.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped."))
    try:
        run_demo(options.methods.split(","), options.rounds, options.seed, options.keep)
    except KeyboardInterrupt:
        sys.exit("Stopped, with all processes.")
    except DeploymentError as error:
        sys.exit(f"The demo failed: {error}")


if __name__ == "__main__":
    main()
