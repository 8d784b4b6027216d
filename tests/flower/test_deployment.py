"""The app on a real deployment, the demo's pieces, and that nothing is left behind."""

from __future__ import annotations

import json
import re
import shutil
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr")

from deploying import (
    APP,
    ROOT,
    SCRIPTS,
    Deployment,
    DeploymentError,
    Part,
    flower_demo,
    process_table,
    reached,
    secrets_in,
    stop,
)
from flwr.app import Context, RecordDict
from rehearsing import Act, Stage

import udjfl
from udjfl.methods import ALIASES, METHODS
from udjfl.training.rounds import Steps

pytestmark = pytest.mark.processes

PATIENCE = 600.0
SMALL = {"rounds": 2, "hidden": 5, "uncertainty_epochs": 2, "eval_every": 2, "lr": 0.4}
PARITY = ("fedavg", *ALIASES, "qffl", "afl", "fedmgda", "fedfv")


@pytest.fixture(scope="module")
def federation() -> udjfl.Federation:
    return udjfl.load("dirty-digits", seed=0)


@pytest.fixture(scope="module")
def stage(federation: udjfl.Federation) -> Iterator[Stage]:
    with Deployment() as deployment:
        yield Stage(deployment, federation)


@pytest.fixture(scope="module")
def deployment(stage: Stage) -> Deployment:
    return stage.deployment


class Runs(dict[str, dict]):
    """Results by method, of runs on the deployment; each method is trained when somebody first asks for it."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage, self.acts = stage, dict[str, Act]()

    def folder(self, method: str) -> Path:
        return self.acts[method].out

    def __missing__(self, method: str) -> dict:
        reference = (
            {"reference": str(self.folder("fedavg"))}
            if method == "rawls" and self["fedavg"]
            else {}
        )
        self.acts[method] = act = self.stage.act(method=method, **SMALL, **reference)
        finished = act.run()
        assert finished.completed, finished.output
        self[method] = json.loads((act.out / "result.json").read_text(encoding="utf-8"))
        return self[method]


@pytest.fixture(scope="module")
def runs(stage: Stage) -> Runs:
    return Runs(stage)


@pytest.mark.parametrize("method", PARITY)
def test_the_numbers_are_the_simulators(
    method: str, federation: udjfl.Federation, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same federation, seed and settings give the same model after every round, up to float rounding."""
    models: list[torch.Tensor] = []
    step = Steps.stepped

    def watched(*given: Any) -> Any:
        stepped = step(*given)
        models.append(stepped[0].vector)
        return stepped

    there = runs[method]
    monkeypatch.setattr(Steps, "stepped", watched)
    here = udjfl.simulate(federation, method, **SMALL)
    assert len(models) == SMALL["rounds"]
    for t, model in enumerate(models, start=1):
        shown = np.load(runs.acts[method].models / f"{t}.npy")
        torch.testing.assert_close(torch.from_numpy(shown), model, rtol=1e-4, atol=1e-5)
    final = load_file(runs.folder(method) / "model.safetensors")
    for name, values in here.model.state_dict().items():
        torch.testing.assert_close(final[name], values, rtol=1e-4, atol=1e-5)
    assert there["client_accuracy"] == pytest.approx(here.client_accuracy)
    assert there["global_accuracy"] == pytest.approx(here.global_accuracy)
    if method in ALIASES:
        assert there["uncertainty"] == pytest.approx(here.uncertainty, rel=1e-4)


def test_five_nodes_train_a_method_and_its_run_folder_is_whole(
    federation: udjfl.Federation, runs: Runs
) -> None:
    result, folder = runs["fedavg"], runs.folder("fedavg")
    assert result["method"] == "fedavg"
    assert list(result["client_accuracy"]) == list(federation.ids)
    assert 0 <= result["global_accuracy"] <= 100
    assert {"settings.json", "versions.json", "records.jsonl", "model.safetensors"} <= {
        path.name for path in folder.iterdir()
    }
    assert flower_demo.rounds_done(folder) == SMALL["rounds"]


def test_psi_is_measured_from_the_run_that_is_named(
    federation: udjfl.Federation, runs: Runs
) -> None:
    before, after = runs["fedavg"]["client_accuracy"], runs["rawls"]["client_accuracy"]
    doubts = runs["rawls"]["uncertainty"]
    expected = udjfl.metrics.psi(
        *([numbers[name] for name in federation.ids] for numbers in (after, before, doubts))
    )
    assert runs["rawls"]["psi"] == pytest.approx(expected)
    assert "psi" not in runs["fedavg"]
    for table in flower_demo.tables(runs):
        assert table.row_count == len(runs)


def test_no_key_is_in_a_run_folder_or_in_what_nodes_were_sent(
    deployment: Deployment, runs: Runs
) -> None:
    assert runs["rawls"]
    assert secrets_in(deployment.folder / "runs") == []
    assert secrets_in(deployment.folder / "superlink") == []
    assert secrets_in(deployment.folder / "nodes") == []
    assert secrets_in(deployment.folder) != []  # they are in keys/
    written = b"".join(
        path.read_bytes() for path in (deployment.folder / "runs").rglob("*") if path.is_file()
    )
    assert str(deployment.keys).encode() not in written


def test_a_failed_run_says_so(deployment: Deployment) -> None:
    finished = deployment.run(APP, {"method": "no-such-method"})
    assert not finished.completed
    assert "no-such-method" in finished.output


def test_a_setting_the_app_does_not_have_is_refused(deployment: Deployment) -> None:
    with pytest.raises(DeploymentError, match="Invalid run configuration"):
        deployment.run(APP, {"speed": 3})


def test_a_killed_server_goes_on_from_its_checkpoint_to_the_same_model() -> None:
    """The SuperLink and its server app are killed between two rounds; the SuperNodes wait, and are there again."""
    federation = udjfl.load("dirty-digits", clients=2, seed=0)
    settings = {**SMALL, "rounds": 4, "eval_every": 4}
    with Deployment(keep_state=True) as deployment:
        files = flower_demo.write_data(federation, deployment.folder / "data")
        flower_demo.start(deployment, files, lambda line: None)
        out = deployment.folder / "runs" / "rawls"
        chosen = {
            **{name.replace("_", "-"): value for name, value in settings.items()},
            "method": "rawls",
            "clients": 2,
            "checkpoint-every": 1,
            "out": str(out),
            "server-data": str(deployment.folder / "data" / "server" / "data.npz"),
        }
        deployment.begin(APP, chosen)
        assert reached(lambda: flower_demo.rounds_done(out) >= 2)
        deployment.superlink.kill()
        assert not (out / "result.json").exists()
        deployment.start_superlink()
        deployment.wait_online(files)
        finished = deployment.run(APP, {**chosen, "resume": True})
        assert finished.completed, finished.output
        model = load_file(out / "model.safetensors")
    for name, values in udjfl.simulate(federation, "rawls", **settings).model.state_dict().items():
        torch.testing.assert_close(model[name], values, rtol=1e-4, atol=1e-5)


def test_a_block_that_fails_leaves_nothing_behind() -> None:
    deployment = Deployment()
    family: list[int] = []

    def fail() -> None:
        with deployment:
            family.extend(deployment.start_superlink().family())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(family) > 1  # the SuperLink has started a helper, in a session of its own
    assert not deployment.folder.exists()
    assert not set(family) & set(process_table())


HOLD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from flower_deployment import Deployment
with Deployment() as deployment:
    print(deployment.folder, *deployment.start_superlink().family(), flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_program_leaves_no_process_behind(number: int) -> None:
    """Ctrl-C stops everything in order; when there is no chance to do that, the kernel ends the parts (on Linux)."""
    if number == signal.SIGKILL and not sys.platform.startswith("linux"):
        pytest.skip("only Linux ends a process with its parent")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(SCRIPTS)], stdout=subprocess.PIPE, text=True
    ) as holding:
        assert holding.stdout is not None
        folder, *family = holding.stdout.readline().split()
        holding.send_signal(number)
        assert holding.wait(PATIENCE) != 0
    assert reached(lambda: not {int(pid) for pid in family} & set(process_table()))
    if number == signal.SIGINT:
        assert not Path(folder).exists()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere nothing tells whose an orphan was"
)
def test_a_family_is_stopped_with_its_orphans_and_the_stubborn(tmp_path: Path) -> None:
    """A grandchild in a session of its own whose parent has ended, and a child that does not listen to SIGTERM."""
    sleep = "[sys.executable, '-c', 'import time; time.sleep(1000)']"
    leave = f"import subprocess, sys; subprocess.Popen({sleep}, start_new_session=True)"
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(1000)"
    program = (
        f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {leave!r}]); {deaf}"
    )
    part = Part("stubborn", [sys.executable, "-c", program], {}, tmp_path / "log")
    try:
        assert reached(lambda: "deaf" in part.output)
        family = part.family()
        assert len(family) == 2  # the one that is deaf, and the orphan
        stop([part], grace=1.0)
        assert not set(family) & set(process_table())
    finally:
        part.kill()


def test_every_node_has_its_own_clients_data_and_nothing_else(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    files = flower_demo.write_data(federation, tmp_path / "data")
    assert list(files) == list(federation.ids)
    assert len({path.parent for path in files.values()}) == len(files)
    for client in federation.clients:
        with np.load(files[client.id]) as file:
            assert sorted(file) == ["n_classes", "x_test", "x_train", "y_test", "y_train"]
            assert np.array_equal(file["x_train"], client.train.x.numpy())
        assert stat.S_IMODE(files[client.id].stat().st_mode) == 0o600
        assert stat.S_IMODE(files[client.id].parent.stat().st_mode) == 0o700


def context(node: dict, run: dict) -> Context:
    return Context(run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config=run)


def test_the_app_has_the_same_data_from_files_and_in_a_simulation(
    federation: udjfl.Federation, tmp_path: Path
) -> None:
    from udjfl_app import task

    run = {"dataset": "dirty-digits", "seed": 0, "clients": 5, "server-data": ""}
    files = flower_demo.write_data(federation, tmp_path / "data")
    for number, (name, path) in enumerate(files.items()):
        deployed = task.client_data(context({"client-id": name, "data": str(path)}, run))
        simulated = task.client_data(context({"partition-id": number, "num-partitions": 5}, run))
        assert deployed.id == simulated.id == name
        assert deployed.federation.fingerprint == simulated.federation.fingerprint
    from_file = task.server_data(
        context({}, {**run, "server-data": str(tmp_path / "data" / "server" / "data.npz")})
    )
    cut = task.server_data(context({}, run))
    for side in ("test", "validation"):
        assert np.array_equal(getattr(from_file, side).x, getattr(cut, side).x)
        assert np.array_equal(getattr(from_file, side).y, getattr(cut, side).y)
    assert (
        (from_file.input_shape, from_file.n_classes)
        == (cut.input_shape, cut.n_classes)
        == ((1, 8, 8), 10)
    )
    np.savez(tmp_path / "shape.npz", input_shape=[13], n_classes=2)
    shape_alone = task.server_data(context({}, {**run, "server-data": str(tmp_path / "shape.npz")}))
    assert (shape_alone.test, shape_alone.validation, shape_alone.input_shape) == (
        None,
        None,
        (13,),
    )


def test_the_demo_trains_methods_that_exist() -> None:
    assert flower_demo.METHODS[0] == "fedavg"  # the reference comes first
    assert {udjfl.method(name).name for name in flower_demo.METHODS} <= set(METHODS)


def test_the_demo_refuses_a_folder_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        flower_demo.main(["--keep", str(tmp_path)])
    assert "name a new folder" in capsys.readouterr().err


def test_the_apps_modules_are_small() -> None:
    """An app of one's own is a model, two functions and two lines."""
    for path in (APP / "udjfl_app").glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 60, path.name


def test_the_app_can_set_what_udjfl_reads_with_the_same_defaults() -> None:
    """Flower lets a run change only what the app's pyproject.toml names."""
    from udjfl.flower.settings import NOT_HERE, FlowerSettings

    config = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"][
        "app"
    ]["config"]
    known = {
        name.replace("_", "-"): field.default
        for name, field in FlowerSettings.model_fields.items()
        if name not in NOT_HERE
    }
    assert set(config) == {*known, "dataset", "server-data"}
    assert {key: value for key, value in config.items() if known.get(key, value) != value} == {}


def blocks(page: str, command: str) -> list[str]:
    """The commands in a page's code blocks that begin so, each with its continued lines."""
    code = "\n".join(re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL)).replace("\\\n", " ")
    return [line for line in code.splitlines() if line.startswith(command)]


def test_the_runbook_names_settings_and_flags_that_exist() -> None:
    page = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    config = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"][
        "app"
    ]["config"]
    settings = " ".join(re.findall(r"-c '([^']*)'", page))
    assert set(re.findall(r"([a-z-]+)=", settings)) <= set(config)
    for command in ("flower-superlink", "flower-supernode"):
        (line,) = blocks(page, command)
        help_page = subprocess.run(
            [str(Path(sys.executable).parent / command), "--help"], capture_output=True, text=True
        )
        assert [
            flag
            for flag in re.findall(r"--[a-z-]+", line)
            if f"{flag} " not in help_page.stdout.replace("\n", " ")
        ] == []
    for target in re.findall(r"\]\(([^)#:]+)\)", page):
        assert (ROOT / "docs" / target).exists(), target


def test_the_app_names_only_code_for_its_bundle() -> None:
    about = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))
    assert about["tool"]["flwr"]["app"]["fab-include"] == ["udjfl_app/*.py"]
