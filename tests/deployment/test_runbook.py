"""Every step of docs/deploying.md, typed on one machine, and what comes out of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("pandas")

from deployed_study import NAMES, Study, read_steps

pytestmark = pytest.mark.processes

ROUNDS = 2


@pytest.fixture(scope="module")
def trained(study: Study) -> Study:
    for step in read_steps():
        if step.section.startswith("6."):
            study.type(step)
    return study


def test_every_node_is_shown_by_name(trained: Study) -> None:
    lines = trained.outputs["udjfl flower status study"].splitlines()
    states = {line.split()[0]: line.split()[1] for line in lines if line.split()[0] in NAMES}
    assert states == dict.fromkeys(NAMES, "online")
    assert lines[0] == f"open for nodes on 0.0.0.0:{trained.port}"


def test_the_report_shows_both_methods(trained: Study) -> None:
    report = trained.outputs["udjfl report study/runs"]
    assert all(text in report for text in ("FedAvg", "Rawls", *NAMES)), report


def test_model_and_accuracies_equal_the_simulators(trained: Study) -> None:
    """The tables that the app reads at the hospitals, in one process."""
    import torch
    from safetensors.torch import load_file

    import udjfl
    from udjfl.flower.tables import TableSchema

    schema = TableSchema.load(trained.folder / "study" / "federated_app" / "schema.json")
    clients = {}
    for name in NAMES:
        (own,) = schema.read_client(name, trained.folder / f"{name}.csv").federation.clients
        clients[name] = (own.train.x, own.train.y, own.test.x, own.test.y)
    federation = udjfl.Federation.from_arrays(
        clients, test=clients["north"][2:], class_names=schema.class_names, allow_duplicates=True
    )
    for method in ("fedavg", "rawls"):
        simulated = udjfl.simulate(federation, method, rounds=ROUNDS)
        out = trained.coordinator.runs / method
        result = json.loads((out / "result.json").read_text())
        assert result["client_scores"] == pytest.approx(simulated.client_scores)
        model = load_file(out / "model.safetensors")
        for key, values in simulated.model.state_dict().items():
            torch.testing.assert_close(model[key], values, rtol=1e-4, atol=1e-5)


def test_a_run_can_be_watched_and_stopped_and_resumed(trained: Study) -> None:
    """Status, watch and report read the run while it goes on; the resumed run ends."""
    settings = ["-c", "rounds=500", "-c", "checkpoint-every=1"]
    submitted = trained.run("flower", "run", "study", *settings, "--name", "long", "--detach")
    assert submitted.returncode == 0, submitted.stderr
    deadline = time.monotonic() + 300
    status = read_status(trained)
    while status["run"]["round"] < 1 and time.monotonic() < deadline:
        time.sleep(1)
        status = read_status(trained)
    run = status["run"]
    assert (run["name"], run["state"], run["rounds"]) == ("long", "running", 500)
    assert status["others"] == []
    assert run["seconds_left"] > 0
    watch = ["watch", "study/runs/long", "--html", "watch.html", "--every", "1"]
    watching = subprocess.Popen(
        [sys.executable, "-m", "udjfl", *watch],
        cwd=trained.folder,
        stdout=subprocess.DEVNULL,
    )
    page = trained.folder / "watch.html"
    # The scores of a round come with the next one.
    while not names_all(page) and time.monotonic() < deadline:
        time.sleep(0.5)
    watching.terminate()
    watching.wait()
    assert names_all(page)
    report = trained.run("report", "study/runs")  # of the finished runs
    assert report.returncode == 0, report.stderr
    unfinished = trained.run("report", "study/runs/long")
    assert unfinished.returncode == 2
    assert "it goes on; `udjfl watch" in unfinished.stderr
    check_a_second_run(trained)
    assert trained.run("flower", "stop", "study").returncode == 0
    assert read_status(trained)["run"]["state"] == "stopped"
    reached = read_status(trained)["run"]["round"]
    resumed = trained.run(
        "flower", "run", "study", "--resume", "long", "-c", "rounds=500", "--detach"
    )
    assert resumed.returncode == 0, resumed.stderr
    while read_status(trained)["run"]["round"] <= reached and time.monotonic() < deadline:
        time.sleep(1)
    assert read_status(trained)["run"]["round"] > reached
    assert trained.run("flower", "stop", "study").returncode == 0


def check_a_second_run(study: Study) -> None:
    """While `long` goes on it cannot be resumed; a second run is told of it, and both are shown."""
    resumed = study.run("flower", "run", "study", "--resume", "long")
    assert resumed.returncode == 2
    assert "long goes on: `udjfl flower status study` shows it" in resumed.stderr
    command = ["flower", "run", "study", "--name", "second", "-c", "rounds=500"]
    following = study.start(*command)
    while len(read_status(study)["others"]) < 1 and following.poll() is None:
        time.sleep(1)
    both = read_status(study)
    assert [(run["name"], run["state"]) for run in both["others"]] == [("long", "running")]
    assert both["run"]["name"] == "second"
    following.send_signal(signal.SIGINT)
    text = following.communicate(timeout=60)[1]
    assert following.returncode == 130
    assert "long: not finished" in text
    last = "second goes on: `udjfl flower status study` shows it, `udjfl flower stop study second`"
    assert text.splitlines()[-1] == f"udjfl: {last} stops it"
    unnamed = study.run("flower", "stop", "study")
    assert unnamed.returncode == 2
    assert "several runs go on, name one: long, second" in unnamed.stderr
    assert study.run("flower", "stop", "study", "second").returncode == 0


def names_all(page: Path) -> bool:
    """Tell whether a page names every client."""
    return page.exists() and all(name in page.read_text(encoding="utf-8") for name in NAMES)


def read_status(study: Study) -> dict:
    done = study.run("flower", "status", "study", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_failed_run_exits_with_2_and_the_clients_own_words(trained: Study) -> None:
    table = trained.folder / "south.csv"
    content = table.read_text()
    table.write_text(content.replace("yes", "perhaps"))
    try:
        done = trained.run("flower", "run", "study", "-c", "rounds=1", "--name", "failing")
    finally:
        table.write_text(content)
    assert done.returncode == 2
    print(done.stderr)
    assert "label … is no class of this federation" in done.stderr
    assert "perhaps" not in done.stderr  # a value of the data stays at the hospital
    assert "south" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Once that is mended: `udjfl flower run study --resume failing`" in done.stderr
    shown = trained.run("flower", "status", "study").stdout
    assert "run failing: failed, round 0 of" in shown
    assert "label … is no class" in " ".join(shown.split())
    assert "the last one was an error: DataError" in trained.run("flower", "status", "south").stdout


def test_a_node_says_what_it_has_sent(trained: Study) -> None:
    done = trained.run("flower", "status", "north", "--json")
    status = json.loads(done.stdout)
    assert (status["name"], status["connected"], status["problem"]) == ("north", True, None)
    lines = (trained.folder / "north" / "sent.jsonl").read_text().splitlines()
    assert status["replies"] == len(lines) > 0
    assert all("pressure" not in line for line in lines)  # no column, let alone a value


def test_a_node_is_replaced_by_a_new_key_and_an_old_key_stays_out(trained: Study) -> None:
    """Flower admits no key twice: the error says so at once, and the others are not disturbed."""
    old = trained.folder / "south.pub"
    key = trained.nodes["south"].keys
    assert trained.run("flower", "down", "south").returncode == 0
    (key / "south").rename(key / "old")
    (key / "south.pub").unlink()
    content = old.read_bytes()
    assert trained.run("flower", "keys", "south", "--node", "south").returncode == 0
    admitted = trained.run("flower", "up", "study", "south/keys/south.pub")
    assert admitted.returncode == 0, admitted.stderr
    joined = trained.run("flower", "node", "south")
    assert joined.returncode == 0, joined.stderr
    assert known(trained) == set(NAMES)
    old.write_bytes(content)
    refused = trained.run("flower", "up", "study", "south.pub")
    assert refused.returncode == 2
    assert "south.pub was admitted before and taken back" in refused.stderr
    assert read_status(trained)["nodes"][1]["state"] == "online"


def known(study: Study) -> set[str]:
    with study.coordinator.control() as control:
        return {node.name for node in control.nodes()}


def test_nothing_is_left_behind(trained: Study) -> None:
    """The last step; the tests above and those in test_closed.py need the processes."""
    assert len(trained.processes()) >= 3 + 2 * len(NAMES)
    for step in read_steps():
        if step.section.startswith("7."):
            trained.type(step)
    assert trained.processes() == {}
    status = trained.run("flower", "status", "study")
    assert status.stdout.startswith("not running: udjfl flower up"), status.stdout


def test_the_runbook_is_short() -> None:
    """At most 8 commands on the coordinator's machine and 4 at each hospital, with installing."""
    steps = read_steps()
    install = [step for step in steps if step.command.startswith("pip install")]
    hospital = [step for step in steps if step.is_hospitals]
    coordinator = [step for step in steps if step not in hospital + install]
    kinds = {tuple(step.command.split()[:3]) for step in coordinator}  # a method is a run more
    print(f"coordinator {len(kinds) + 1} commands, each hospital {len(hospital) + 1}")
    assert len(install) == 1
    assert len(kinds) + 1 <= 8
    assert len(hospital) + 1 <= 4
