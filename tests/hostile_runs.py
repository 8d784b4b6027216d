"""Run folders that a report must survive: strange ids, one client, many, damaged, unfinished."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from small_runs import Stopped, make_older, stop_after

import udjfl

# Each must be shown as it is, and do nothing.
IDS = (
    "<script>alert('id')</script>",
    "<img src=x onerror=alert('id')>",
    "</script></style></svg></table>",
    "\x1b[31mred\x1b[0m\x07\x9b2J",
    "[bold red]markup[/bold red] :smile: [/]",
    "{{ 7 * 7 }}{% raw %}",
    "\"quotes' & &amp; \\u003c",
    "\u202eright to left",
    "  blanks around  ",
    "a-very-long-id-" * 12,
)


def make_federation_of_ids(ids: Sequence[str], n: int = 20, seed: int = 0) -> udjfl.Federation:
    """Make small clients with these ids and two classes; noise grows from one to the next."""
    rng = np.random.default_rng(seed)

    def draw(size: int, noise: float) -> tuple[Any, Any]:
        x = rng.normal(size=(size, 3)).astype(np.float32)
        return x, (x[:, 0] + noise * rng.normal(size=size) > 0).astype(int)

    step = 1.0 / len(ids)
    clients = {name: (*draw(n, step * i), *draw(8, step * i)) for i, name in enumerate(ids)}
    return udjfl.Federation.from_arrays(clients, test=draw(20, 0.0), class_names="<&")


def train(
    folder: Path,
    ids: Sequence[str],
    methods: Sequence[str] = ("fedavg", "rawls:budget=2"),
    **settings: Any,
) -> Path:
    """Compare methods on clients with these ids; the folder holds all runs."""
    udjfl.compare(
        lambda seed: make_federation_of_ids(ids, seed=seed),
        list(methods),
        out=folder,
        **{"seeds": 2, "rounds": 3, "hidden": 4, "uncertainty_epochs": 2, **settings},
    )
    return folder


def hostile_ids(folder: Path) -> Path:
    """Ids that contain HTML, a script, control characters, markup, and templates."""
    return train(folder, IDS)


def one_client(folder: Path) -> Path:
    """A federation of a single client."""
    udjfl.simulate(
        make_federation_of_ids(["only"]),
        "fedavg",
        rounds=3,
        hidden=4,
        uncertainty_epochs=2,
        out=folder,
    )
    return folder


def thousand_clients(folder: Path) -> Path:
    """As many clients as no page can show one by one."""
    ids = [f"client-{number}" for number in range(1, 1001)]
    return train(folder, ids, seeds=1, rounds=2, uncertainty="paper", uncertainty_epochs=1)


def unfinished(folder: Path) -> Path:
    """A finished comparison, and beside it a run that was stopped after two of three rounds."""
    train(folder / "done", ["a", "b", "c"])
    federation = make_federation_of_ids(["a", "b", "c"])
    try:
        udjfl.simulate(
            federation,
            "afl",
            rounds=3,
            hidden=4,
            uncertainty_epochs=2,
            out=folder / "stopped",
            on_progress=stop_after(2),
        )
    except Stopped:
        return folder
    raise AssertionError("the run was not stopped")


def _rewrite(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change every file of this name below a folder."""
    for path in sorted(folder.rglob(name)):
        content = json.loads(path.read_text(encoding="utf-8"))
        change(content)
        path.write_text(json.dumps(content), encoding="utf-8")


def _make_all_older(folder: Path) -> None:
    """Make the folders those of a version that had no checksums."""
    for path in folder.rglob("manifest.json"):
        make_older(path.parent)


def damaged(folder: Path) -> Path:
    """A finished comparison in which one run has records that end in the middle of a line."""
    train(folder, ["a", "b", "c"])
    path = sorted(folder.rglob("records.jsonl"))[-1]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + b'{"round": 3, "cli')
    return folder


def altered(folder: Path) -> Path:
    """A finished comparison in which somebody made one result better."""
    train(folder, ["a", "b", "c"])
    path = sorted(folder.rglob("result.json"))[-1]
    path.write_text(path.read_text(encoding="utf-8").replace('"a": ', '"a": 1'), encoding="utf-8")
    return folder


def no_records(folder: Path) -> Path:
    """A finished comparison without records.jsonl: only results are there."""
    train(folder, ["a", "b", "c"])
    for path in folder.rglob("records.jsonl"):
        path.unlink()
    return folder


def older_version(folder: Path) -> Path:
    """Runs without what was added since the first version."""
    added = ("test_sizes", "n_classes", "expected_accuracy", "accuracy_alone", "common_scores")

    def remove_added(result: dict[str, Any]) -> None:
        for key in added:
            result.pop(key, None)

    def remove_facts(settings: dict[str, Any]) -> None:
        federation = settings.get("federation", {})
        federation.pop("n_classes", None)
        for client in federation.get("clients", []):
            client.pop("test", None)
            client.pop("class_counts", None)

    train(folder, ["a", "b", "c"])
    _make_all_older(folder)
    _rewrite(folder, "settings.json", remove_facts)
    _rewrite(folder, "result.json", remove_added)
    return folder


def missing_metrics(folder: Path) -> Path:
    """Results without some metrics, and with others that have no value."""

    def remove(result: dict[str, Any]) -> None:
        result.pop("psi", None)
        result["std"] = None
        result["undefined"]["std"] = "<script>alert('why')</script>"

    train(folder, ["a", "b", "c"])
    _make_all_older(folder)
    _rewrite(folder, "result.json", remove)
    return folder


def no_fedavg(folder: Path) -> Path:
    """One run of a method that is not FedAvg."""
    train(folder, ["a", "b", "c"])
    for path in sorted(folder.rglob("result.json")):
        settings = json.loads((path.parent / "settings.json").read_text(encoding="utf-8"))
        if settings["method"] == "fedavg":
            shutil.rmtree(path.parent)
    return folder


FOLDERS = {
    function.__name__: function
    for function in (
        hostile_ids,
        one_client,
        thousand_clients,
        unfinished,
        damaged,
        altered,
        no_records,
        older_version,
        missing_metrics,
        no_fedavg,
    )
}
