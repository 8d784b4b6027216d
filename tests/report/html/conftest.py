"""A comparison in a folder, for the tests of pages and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import make_federation, make_older

import udjfl
from udjfl.report.html.material import Material, read_material

TINY: dict[str, Any] = {"model": "logistic", "rounds": 8, "uncertainty_epochs": 30}
METHODS = ["fedavg", "udj:theory=rawls:budget=2", "rawls", "afl"]


@pytest.fixture(scope="session")
def comparison_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four methods on five clients, five seeds."""
    folder = tmp_path_factory.mktemp("page") / "comparison"
    udjfl.compare(make_federation(n_clients=5, n=60), METHODS, seeds=5, out=folder, **TINY)
    return folder


@pytest.fixture(scope="session")
def material(comparison_folder: Path) -> Material:
    return read_material([comparison_folder])


@pytest.fixture
def run_folder(comparison_folder: Path, tmp_path: Path) -> Path:
    """A copy of one finished run of FedAvg, to change: without its manifest, as older ones are."""
    source = next((comparison_folder / "seed-0").glob("fedavg*"))
    copy = tmp_path / "run"
    copy.mkdir()
    for file in source.iterdir():
        if file.is_file() and not file.name.startswith("."):
            (copy / file.name).write_bytes(file.read_bytes())
    make_older(copy)
    return copy
