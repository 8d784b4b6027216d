"""Small federations, short runs and their folders, for tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import udjfl
from udjfl.data import Examples, Pools
from udjfl.data.source import Request
from udjfl.simulation.compare import choose_methods, run_comparison, with_reference
from udjfl.training.run_folder import RunFolder


def make_federation(
    n_clients: int = 3, n: int = 24, features: int = 4, classes: int = 3, seed: int = 0
) -> udjfl.Federation:
    """Make random clients of unequal size: client i (from 0) has n + 5i train examples.

    The label is the largest of the first features, with noise that grows with i.
    """
    rng = np.random.default_rng(seed)

    def draw(size: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(size, features)).astype(np.float32)
        return x, (x[:, :classes] + noise * rng.normal(size=(size, classes))).argmax(axis=1)

    clients = {}
    for i in range(n_clients):
        clients[f"client-{i + 1}"] = (*draw(n + 5 * i, 0.5 * i), *draw(10 + i, 0.5 * i))
    return udjfl.Federation.from_arrays(
        clients, test=draw(20, 0.0), class_names=[str(c) for c in range(classes)]
    )


def tiny_pools(request: Request) -> Pools:
    """Draw data in the shape of dirty-digits: 100 clean, 100 ambiguous and 30 test examples."""
    rng = np.random.default_rng(request.seed)

    def draw(size: int, noise: float) -> Examples:
        x = rng.normal(size=(size, 4)).astype(np.float32)
        y = (x[:, :3] + noise * rng.normal(size=(size, 3))).argmax(axis=1)
        return Examples(torch.from_numpy(x), torch.from_numpy(y))

    return Pools(
        draw(100, 0.0),
        draw(100, 1.0),
        draw(30, 0.0),
        ("a", "b", "c"),
        np.arange(100),
        np.arange(100, 200),
    )


def unstackable() -> nn.Module:
    """Build a model that has to be trained one client at a time."""
    return nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0))


def train_briefly(
    federation: udjfl.Federation, method: Any = "fedavg", **changes: Any
) -> udjfl.Result:
    """Train three rounds with a small model."""
    return udjfl.simulate(
        federation, method, **{"rounds": 3, "hidden": 5, "uncertainty_epochs": 2, **changes}
    )


def make_client_arrays(
    n: int, scale: float = 1.0, labels: list[int] | None = None
) -> tuple[Any, ...]:
    """Make train and test arrays of one client, with n train examples of three classes.

    Only the train part is scaled.
    """
    rng = np.random.default_rng(n)
    y = rng.integers(0, 3, n) if labels is None else labels
    return scale * rng.normal(size=(n, 4)), y, rng.normal(size=(4, 4)), [0, 1, 2, 0]


def make_federation_of(**clients: tuple[Any, ...]) -> udjfl.Federation:
    """Make a federation of the given clients' arrays."""
    test = np.random.default_rng(99).normal(size=(6, 4))
    return udjfl.Federation.from_arrays(clients, test=(test, [0, 1, 2, 0, 1, 2]), class_names="xyz")


def rising_uncertainties(federation: udjfl.Federation) -> dict[str, float]:
    """Return uncertainties 0.1, 0.2, ... in client order."""
    return {name: 0.1 * (index + 1) for index, name in enumerate(federation.ids)}


def compare(
    settings: udjfl.CompareSettings,
    federation: Any = None,
    methods: list[udjfl.Method] | None = None,
    **others: Any,
) -> udjfl.Comparison:
    """Compare on the given federation, or on the data that the settings name."""
    rules = choose_methods(settings) if methods is None else with_reference(methods)
    return run_comparison(settings, rules, data=federation, by_name=methods is None, **others)


def change_settings(settings: udjfl.CompareSettings, **changes: Any) -> udjfl.CompareSettings:
    """Return settings with other values, by their flat names."""
    return udjfl.CompareSettings(**{**settings.to_flat(), **changes})


def create_folder(path: Path) -> RunFolder:
    """Start a run folder with nothing in it but settings and versions."""
    return RunFolder.create(path, {"a": 1}, {"python": "3"})


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file in a folder, by its path there."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def make_older(path: Path) -> None:
    """Make a run folder one of a version before the manifest: its files may be changed."""
    (path / "manifest.json").unlink()
    settings = json.loads((path / "settings.json").read_text(encoding="utf-8"))
    del settings["folder_format"]
    (path / "settings.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def model_bytes(result: udjfl.Result) -> bytes:
    """Return the bytes of every number of the final model."""
    return b"".join(value.numpy().tobytes() for value in result.model.state_dict().values())


class Stopped(Exception):
    """Ends a run from its progress callback, as a crash would."""


def stop_after(round: int) -> Callable[[udjfl.Progress], None]:
    """Return a progress callback that stops a run after a round."""

    def on_progress(event: udjfl.Progress) -> None:
        if event.stage == "training" and event.done == round:
            raise Stopped

    return on_progress
