"""Real SuperNodes, against the udjfl of another checkout, in turns.

    git worktree add ../before COMMIT
    python -m benchmarks flower --against ../before [--repetitions 3] [--out some.json]

Three and five SuperNodes on this machine, over TLS, train a small model with each of the two. A
turn is a deployment and a run of its own, in a process of its own. Its first round warms up, and
the last one is left out, as clients are asked to evaluate its model apart; every other round is
one measurement of seconds. CPU seconds, which hardly depend on what else the machine does, are
those of the whole run: of the processes that handle messages, and of a node's other processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.flower_overhead import DATA, METHOD, RoundEnds, same_accuracies
from benchmarks.markdown import describe_machine, table

BEFORE, AFTER = "before", "after"
NODES = (3, 5)
ROUNDS = 4
REPETITIONS = 3
TARGETS = {"cpu": 20.0, "seconds": 6.0}  # how many times less of each
ROOT = Path(__file__).resolve().parents[1]
CLOCK = os.sysconf("SC_CLK_TCK")
Results = Mapping[str, Any]


def measure(checkout: Path, repetitions: int) -> dict[str, Any]:
    """Measure this udjfl and that of another checkout, in turns."""
    sides = {BEFORE: checkout.resolve(), AFTER: ROOT}
    about = machine.describe() | {"flwr": version("flwr")}
    turns: list[dict[str, Any]] = []
    for repetition in range(repetitions):
        for nodes in NODES:
            names = list(sides) if repetition % 2 == 0 else list(reversed(sides))
            for name in names:
                turn = {"side": name, "nodes": nodes, **_run_turn(sides[name], nodes)}
                turns.append(turn)
                print(
                    f"  turn {repetition + 1}, {nodes} SuperNodes, {name}: "
                    f"{median(turn['seconds']):.1f} s per round, "
                    f"{turn['message_cpu'] / turn['messages']:.2f} CPU s per message",
                    flush=True,
                )
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {"kind": "flower rounds", "machine": about, "against": commit, "turns": turns}


def _run_turn(checkout: Path, nodes: int) -> dict[str, Any]:
    """Run one turn with the udjfl of a checkout, in a new process."""
    paths = [checkout / "src", checkout / "apps" / "flower", ROOT]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "turn.json"
        subprocess.run(
            [sys.executable, "-m", "benchmarks.flower_rounds", str(checkout), str(nodes), str(out)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            cwd=folder,
            check=True,
        )
        turn: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return turn


def run_nodes(checkout: Path, nodes: int) -> dict[str, Any]:
    """Deploy SuperNodes, train, and return what was measured."""
    from deploy.data_files import server_file, write_data_files  # of the checkout
    from deploy.local import Deployment

    import udjfl

    with Deployment() as deployment:
        federation = udjfl.load(DATA, clients=nodes, seed=0)
        files = write_data_files(federation, deployment.folder / "data")
        deployment.start(files)
        out = deployment.folder / "run"
        settings = {
            "method": METHOD,
            "rounds": ROUNDS,
            "clients": nodes,
            "out": str(out),
            "server-data": str(server_file(deployment.folder / "data")),
        }
        trees = [*deployment.nodes.values(), *getattr(deployment, "executors", {}).values()]
        roots = [tree.process.pid for tree in trees]
        before = read_processes(roots)
        with RoundEnds(out / "records.jsonl") as ends:
            finished = deployment.run(checkout / "apps" / "flower", settings)
        if not finished.completed:
            raise RuntimeError(f"the run ended as {finished.status}:\n{finished.output[-2000:]}")
        after = read_processes(roots)
        logs = [tree.output for tree in deployment.nodes.values()]
        result = json.loads((out / "result.json").read_text(encoding="utf-8"))
        return {
            "seconds": [end - start for start, end in pairwise(ends.times[:-1])],
            "messages": sum(log.count("Receiving: ") for log in logs),
            **split_cpu(before, after),
            # Versions before 0.2 have the scores under another name.
            "accuracies": result.get("client_scores") or result["client_accuracy"],
        }


def read_processes(roots: Iterable[int]) -> dict[int, tuple[float, float]]:
    """Return the CPU seconds of processes and their descendants, and of children that ended.

    Zombies are among them: what they used is not yet that of their parents.
    """
    found: dict[int, tuple[int, float, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended since the listing
            continue
        own, ended = (sum(map(int, fields[i : i + 2])) / CLOCK for i in (11, 13))
        found[int(path.parent.name)] = int(fields[1]), own, ended
    tree = set(roots) & found.keys()
    while more := {pid for pid, (parent, *_) in found.items() if parent in tree} - tree:
        tree |= more
    return {pid: found[pid][1:] for pid in tree}


def split_cpu(
    before: Mapping[int, tuple[float, float]], after: Mapping[int, tuple[float, float]]
) -> dict[str, float]:
    """Return the CPU seconds of processes that came and went, and of those that stayed."""
    stayed = before.keys() & after.keys()
    of_nodes = sum(after[pid][0] - before[pid][0] for pid in stayed)
    total = sum(map(sum, after.values())) - sum(map(sum, before.values()))
    return {"message_cpu": total - of_nodes, "node_cpu": of_nodes}


def report(results: Results) -> str:
    """Return the results as Markdown. Every number comes from them."""
    about, turns = results["machine"], results["turns"]
    rows = []
    for nodes in sorted({turn["nodes"] for turn in turns}):
        sides = {
            side: [turn for turn in turns if (turn["side"], turn["nodes"]) == (side, nodes)]
            for side in (BEFORE, AFTER)
        }
        for what, read, unit in (
            ("CPU s per message: its process", _cpu_of_message, "cpu"),
            ("CPU s per message: whole node", _cpu_of_node, ""),
            ("CPU s per client and round: whole node", _cpu_of_round, ""),
            ("seconds per round", _seconds, "seconds"),
        ):
            old, new = (median(map(read, sides[side])) for side in (BEFORE, AFTER))
            target = f"at least {TARGETS[unit]:g}x" if unit else "-"
            rows.append([str(nodes), what, f"{old:.2f}", f"{new:.2f}", f"{old / new:.1f}x", target])
    same = all(
        same_accuracies(t["accuracies"], u["accuracies"])
        for t in turns
        for u in turns
        if t["nodes"] == u["nodes"]
    )
    head = ["SuperNodes", "", f"before ({results['against']})", "now", "times less", "target"]
    return (
        f"{describe_machine(about)}, flwr {about['flwr']}. Medians of "
        f"{len(turns) // 2 // len(NODES)} turns each, in turns; {ROUNDS} rounds a turn. Load of "
        f"the machine before anything was started: {about['load_before']} (0: idle). "
        f"{'The same' if same else '**Other**'} accuracies before and now.\n\n"
    ) + table(head, rows)


def _cpu_of_message(turn: Mapping[str, Any]) -> float:
    return float(turn["message_cpu"] / turn["messages"])


def _cpu_of_node(turn: Mapping[str, Any]) -> float:
    return float((turn["message_cpu"] + turn["node_cpu"]) / turn["messages"])


def _cpu_of_round(turn: Mapping[str, Any]) -> float:
    return float((turn["message_cpu"] + turn["node_cpu"]) / turn["nodes"] / ROUNDS)


def _seconds(turn: Mapping[str, Any]) -> float:
    return float(median(turn["seconds"]))


def main() -> None:
    parser = argparse.ArgumentParser(description="One turn; used by `measure`.")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("nodes", type=int)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    turn = run_nodes(given.checkout, given.nodes)
    given.out.write_text(json.dumps(turn), encoding="utf-8")


if __name__ == "__main__":
    main()
