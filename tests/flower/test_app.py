"""The app in apps/flower, its data files, the demo and the runbook."""

from __future__ import annotations

import re
import stat
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

import demo
from deploy import APP
from deploy.data_files import server_file, write_data_files
from flwr.app import Context, RecordDict
from udjfl_app import task

import udjfl
from udjfl.flower.settings import SIMULATOR_ONLY, FlowerSettings
from udjfl.methods import METHODS

ROOT = APP.parents[1]
PROJECT = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))
CONFIG = PROJECT["tool"]["flwr"]["app"]["config"]
RUN = {"dataset": "dirty-digits", "seed": 0, "clients": 5, "server-data": ""}


@pytest.fixture(scope="module")
def federation() -> udjfl.Federation:
    return udjfl.load("dirty-digits", seed=0)


def make_context(node: dict[str, Any], run: dict[str, Any]) -> Context:
    return Context(run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config=run)


def test_every_node_has_only_the_data_of_its_own_client(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    files = write_data_files(federation, tmp_path / "data")
    assert list(files) == list(federation.ids)
    assert len({path.parent for path in files.values()}) == len(files)
    for client in federation.clients:
        with np.load(files[client.id]) as file:
            assert sorted(file) == ["n_classes", "x_test", "x_train", "y_test", "y_train"]
            assert np.array_equal(file["x_train"], client.train.x.numpy())
        assert stat.S_IMODE(files[client.id].stat().st_mode) == 0o600
        assert stat.S_IMODE(files[client.id].parent.stat().st_mode) == 0o700


def test_clients_have_the_same_data_from_files_and_in_a_simulation(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    files = write_data_files(federation, tmp_path / "data")
    for index, (name, path) in enumerate(files.items()):
        deployed = task.client_data(make_context({"client-id": name, "data": str(path)}, RUN))
        simulated = task.client_data(
            make_context({"partition-id": index, "num-partitions": 5}, RUN)
        )
        assert deployed.id == simulated.id == name
        assert deployed.federation.fingerprint == simulated.federation.fingerprint


def test_the_server_has_the_same_data_from_its_file_and_in_a_simulation(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    write_data_files(federation, tmp_path / "data")
    path = str(server_file(tmp_path / "data"))
    deployed = task.server_data(make_context({}, {**RUN, "server-data": path}))
    simulated = task.server_data(make_context({}, RUN))
    for part in ("test", "validation"):
        assert np.array_equal(getattr(deployed, part).x, getattr(simulated, part).x)
        assert np.array_equal(getattr(deployed, part).y, getattr(simulated, part).y)
    for data in (deployed, simulated):
        assert (data.input_shape, data.n_classes) == ((1, 8, 8), 10)


def test_the_servers_file_may_contain_the_shape_only(tmp_path: Path) -> None:
    np.savez(tmp_path / "shape.npz", input_shape=[13], n_classes=2)
    run = {**RUN, "server-data": str(tmp_path / "shape.npz")}
    data = task.server_data(make_context({}, run))
    assert (data.test, data.validation, data.input_shape) == (None, None, (13,))


def test_a_simulated_client_refuses_another_number_of_clients_than_of_nodes() -> None:
    node = {"partition-id": 0, "num-partitions": 2}
    problem = r"has 2 SuperNodes, the run 3 clients; .*'num-supernodes=3'.*'clients=2'"
    with pytest.raises(udjfl.DataError, match=problem):
        task.client_data(make_context(node, {**RUN, "clients": 3}))


def test_the_demo_trains_existing_methods_and_the_reference_first() -> None:
    assert demo.METHODS[0] == "fedavg"
    assert {udjfl.method(name).name for name in demo.METHODS} <= set(METHODS)


def test_the_demo_refuses_an_existing_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--keep", str(tmp_path)])
    assert "name a new folder" in capsys.readouterr().err


def test_the_apps_modules_are_small() -> None:
    """An app of one's own is a model, two functions and two lines."""
    for path in (APP / "udjfl_app").glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 60, path.name


def test_the_app_declares_every_setting_with_its_default() -> None:
    """Flower lets a run change only the settings that the app's pyproject.toml declares."""
    known = {
        name.replace("_", "-"): field.default
        for name, field in FlowerSettings.flat_fields().items()
        if name not in SIMULATOR_ONLY
    }
    known["model"] = ""  # the app's own
    assert set(CONFIG) == {*known, "dataset", "server-data"}
    assert {key: value for key, value in CONFIG.items() if known.get(key, value) != value} == {}


def test_the_app_bundles_code_only() -> None:
    assert PROJECT["tool"]["flwr"]["app"]["fab-include"] == ["udjfl_app/*.py"]


def test_flower_installs_no_dependency_of_the_app() -> None:
    requirements = PROJECT["project"]["dependencies"]
    names = {re.split(r"[^a-z-]", requirement)[0] for requirement in requirements}
    assert names == {"udjfl"}  # which names Flower, and its versions
    assert {"flwr", "udjfl"} == set(PROJECT["tool"]["uv"]["exclude-dependencies"])


def test_the_runbook_names_existing_settings_and_files() -> None:
    """tests/deployment/test_runbook.py types its commands."""
    page = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    names = set(re.findall(r"-c '?([a-z-]+)=", page))
    assert names
    assert names <= set(CONFIG)
    for target in re.findall(r"\]\(([^)#:]+)\)", page):
        assert (ROOT / "docs" / target).exists(), target
