"""Four theories of justice across six processes on this machine, as on six machines.

    python apps/flower/demo.py [--rounds 10] [--seed 0] [--keep FOLDER]

One SuperLink (the server) and five SuperNodes (the clients), with TLS and SuperNode authentication.
Each SuperNode has a data file of its own and knows no other. Everything is made in a temporary
folder, and stopped and removed at the end. --keep keeps the run folders, which `udjfl` reads like
those of the simulator.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy import APP
from deploy.data_files import server_file, write_data_files
from deploy.local import Deployment
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import udjfl
from udjfl.errors import DeploymentError
from udjfl.metrics import table_metrics
from udjfl.report.cells import ARROW

METHODS = ("fedavg", "rawls", "egalitarian", "utilitarian", "desert")


def train(
    deployment: Deployment, method: str, settings: dict[str, Any], console: Console
) -> dict[str, Any]:
    """Train one method with `flwr run` and return the metrics in its run folder."""
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
            watch=lambda: progress.update(task, completed=last_round(folder)),
        )
    if not finished.completed:
        raise DeploymentError(f"{method} ended as {finished.status}:\n{finished.output[-3000:]}")
    result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return result


def last_round(folder: Path) -> int:
    """Return the last recorded round of a run, 0 before the first; a line may be incomplete."""
    records = folder / "records.jsonl"
    lines = records.read_text(encoding="utf-8").splitlines() if records.exists() else []
    rounds = [json.loads(line)["round"] for line in lines[-3:] if line.endswith("}")]
    return max(rounds, default=0)


def result_tables(results: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Return two tables: methods by metric, and methods by client."""
    by_metric = _table("What each choice does (percent; STD and Psi in points)")
    for metric in table_metrics():
        by_metric.add_column(f"{metric.heading} {ARROW[metric.better]}", justify="right")
    for name, result in results.items():
        by_metric.add_row(name, *(_format(result.get(metric.key)) for metric in table_metrics()))
    by_client = _table("Accuracy of each client on its own test data (u: uncertainty)")
    *_, last = results.values()
    for client in last["client_accuracy"]:
        by_client.add_column(
            f"{client}\nu = {_format(last['uncertainty'].get(client), 3)}", justify="right"
        )
    for name, result in results.items():
        by_client.add_row(name, *(_format(value) for value in result["client_accuracy"].values()))
    return [by_metric, by_client]


def _table(title: str) -> Table:
    table = Table(box=None, title=f"\n{title}", title_justify="left", padding=(0, 1))
    table.add_column("Method", no_wrap=True)
    return table


def _format(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def run_demo(rounds: int, seed: int, keep: Path | None, console: Console) -> None:
    """Deploy, train every method of METHODS, print the tables and stop everything."""

    def report(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    with Deployment() as deployment:
        report(f"Everything is in {deployment.folder}, readable by this user only.")
        data = deployment.folder / "data"
        files = write_data_files(udjfl.load("dirty-digits", seed=seed), data)
        deployment.start(files, report)
        runs = (keep or deployment.folder / "runs").resolve()
        report(
            f"Each method trains {rounds} rounds. A client starts a process for every message, "
            "so a round takes seconds."
        )
        results: dict[str, dict[str, Any]] = {}
        for method in METHODS:
            settings: dict[str, Any] = {
                "rounds": rounds,
                "seed": seed,
                "clients": len(files),
                "eval-every": rounds,
                "out": str(runs / method),
                "server-data": str(server_file(data)),
                "report-uncertainties": True,  # not needed by FedAvg, but shown in the table
            }
            if results:
                settings["reference"] = str(runs / METHODS[0])
            results[method] = train(deployment, method, settings, console)
        console.print(*result_tables(results), sep="\n")
        report(
            "One seed and few rounds: a demonstration. `make demo` measures, over several seeds."
        )
    report("The SuperNodes and the SuperLink are stopped, and their folder is removed.")
    if keep:
        report(f"The runs are in {runs}.")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each method (default 10)")
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
        run_demo(options.rounds, options.seed, options.keep, Console())
    except KeyboardInterrupt:
        sys.exit("Stopped, with all processes.")
    except DeploymentError as error:
        sys.exit(f"The demo failed: {error}")


if __name__ == "__main__":
    main()
