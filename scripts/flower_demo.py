"""Four theories of justice across six real processes on this machine, as they would run on six machines.

    python scripts/flower_demo.py [--rounds 10] [--seed 0] [--keep FOLDER]

One SuperLink (the server) and five SuperNodes (the clients), with TLS and SuperNode authentication. Each SuperNode has a data
file of its own and is told of no other. Everything is made in a temporary folder and stopped and removed in the end; --keep
keeps the run folders, which `udjfl` reads like those of the simulator.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flower_deployment import Deployment, DeploymentError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import udjfl
from udjfl.metrics import METRICS
from udjfl.report.comparison_table import ARROW, SHORT

APP = Path(__file__).resolve().parents[1] / "apps" / "flower"
METHODS = ("fedavg", "rawls", "egalitarian", "utilitarian", "desert")


def write_data(federation: udjfl.Federation, folder: Path) -> dict[str, Path]:
    """One file per client and one for the server, each in a folder of its own; the clients' files by client id."""
    server = {
        "x_test": federation.test.x.numpy(),
        "y_test": federation.test.y.numpy(),
        "n_classes": federation.n_classes,
    }
    if federation.validation is not None:
        server |= {
            "x_validation": federation.validation.x.numpy(),
            "y_validation": federation.validation.y.numpy(),
        }
    _write(folder / "server" / "data.npz", server)
    files = {}
    for client in federation.clients:
        parts = {
            "x_train": client.train.x,
            "y_train": client.train.y,
            "x_test": client.test.x,
            "y_test": client.test.y,
        }
        own = {name: values.numpy() for name, values in parts.items()}
        files[client.id] = _write(
            folder / client.id / "data.npz", {**own, "n_classes": federation.n_classes}
        )
    return files


def _write(path: Path, arrays: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, mode=0o700)
    np.savez_compressed(path, **arrays)
    path.chmod(0o600)
    return path


def start(deployment: Deployment, files: dict[str, Path], say: Callable[[str], None]) -> None:
    """The SuperLink, then a SuperNode for each client."""
    say("Certificates: an authority of our own, and the server's, signed by it.")
    deployment.start_superlink()
    say(f"SuperLink: https://{deployment.address}, takes only SuperNodes whose key is registered.")
    for name, path in files.items():
        deployment.add_node(name, {"client-id": name, "data": str(path)})
        say(f"SuperNode {name}: its key is registered, its data are {path}.")
    deployment.wait_online(files)
    say(f"All {len(files)} SuperNodes are online.")


def train(
    deployment: Deployment, method: str, settings: dict[str, Any], console: Console
) -> dict[str, Any]:
    """One method, from `flwr run` to the metrics in its run folder."""
    folder = Path(settings["out"])
    columns = (
        TextColumn("{task.description:12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(method, total=settings["rounds"])
        finished = deployment.run(
            APP,
            {**settings, "method": method},
            watch=lambda: progress.update(task, completed=rounds_done(folder)),
        )
    if not finished.completed:
        raise DeploymentError(f"{method} ended as {finished.status}:\n{finished.output[-3000:]}")
    result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return result


def rounds_done(folder: Path) -> int:
    """The last round that the records tell of; a line may be half written."""
    records = folder / "records.jsonl"
    lines = records.read_text(encoding="utf-8").splitlines() if records.exists() else []
    done = [json.loads(line)["round"] for line in lines[-3:] if line.endswith("}")]
    return max(done, default=0)


def tables(results: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Methods by metric, and methods by client."""
    by_metric = _table("What each choice does (percent; STD and Psi in points)")
    for metric in METRICS:
        by_metric.add_column(f"{SHORT[metric.key]} {ARROW[metric.better]}", justify="right")
    for name, result in results.items():
        by_metric.add_row(name, *(_shown(result.get(metric.key)) for metric in METRICS))
    by_client = _table("Accuracy of each client on its own test data (u: uncertainty)")
    *_, last = results.values()
    for client in last["client_accuracy"]:
        by_client.add_column(
            f"{client}\nu = {_shown(last['uncertainty'].get(client), 3)}", justify="right"
        )
    for name, result in results.items():
        by_client.add_row(name, *(_shown(value) for value in result["client_accuracy"].values()))
    return [by_metric, by_client]


def _table(title: str) -> Table:
    table = Table(box=None, title=f"\n{title}", title_justify="left", padding=(0, 1))
    table.add_column("Method", no_wrap=True)
    return table


def _shown(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def demo(rounds: int, seed: int, keep: Path | None, console: Console) -> None:
    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    with Deployment() as deployment:
        say(f"Everything is in {deployment.folder}, for this machine's user alone.")
        files = write_data(udjfl.load("dirty-digits", seed=seed), deployment.folder / "data")
        start(deployment, files, say)
        runs = (keep or deployment.folder / "runs").resolve()
        say(
            f"Each method trains {rounds} rounds. Every answer of a client is a process of its own, so a round takes seconds."
        )
        results: dict[str, dict[str, Any]] = {}
        for method in METHODS:
            settings: dict[str, Any] = {
                "rounds": rounds,
                "seed": seed,
                "clients": len(files),
                "eval-every": rounds,
                "out": str(runs / method),
                "server-data": str(deployment.folder / "data" / "server" / "data.npz"),
                "report-uncertainties": True,  # FedAvg does without, but the table says who is how uncertain
            }
            if results:
                settings["reference"] = str(runs / METHODS[0])
            results[method] = train(deployment, method, settings, console)
        console.print(*tables(results), sep="\n")
        say("One seed and few rounds: this shows that it works. `make demo` measures, over seeds.")
    say("The SuperNodes and the SuperLink are stopped, and their folder is removed.")
    if keep:
        say(f"The runs are in {runs}.")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each method (default 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the run folders in this new folder"
    )
    given = parser.parse_args(arguments)
    if given.rounds < 1 or given.seed < 0:
        parser.error("give at least one round, and a seed from 0")
    if given.keep and given.keep.exists():
        parser.error(f"{given.keep} exists already; name a new folder")
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit("Stopped.")
    )  # so that the deployment is stopped on the way out
    try:
        demo(given.rounds, given.seed, given.keep, Console())
    except KeyboardInterrupt:
        sys.exit("Stopped, with every process it had started.")
    except DeploymentError as error:
        sys.exit(f"It did not work: {error}")


if __name__ == "__main__":
    main()
