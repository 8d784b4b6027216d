"""`udjfl flower` without processes: settings of runs, reasons of failures, errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command import Command

pytest.importorskip("flwr")

from udjfl.cli import flower_run
from udjfl.cli.flower_run import (
    choose_unfinished,
    find_unfinished,
    follow_run,
    parse_settings,
    prepare_run,
    read_declared,
)
from udjfl.cli.flower_tables import (
    describe_certificate,
    describe_run,
    format_seconds,
    format_time,
)
from udjfl.deployment.control import RunInfo, find_reason
from udjfl.deployment.coordinator import Coordinator
from udjfl.deployment.flwr_command import FlwrCommand
from udjfl.deployment.status import CoordinatorStatus, RunStatus
from udjfl.deployment.submissions import Submitted, append_submitted
from udjfl.errors import DeploymentError, SettingsError
from udjfl.settings import TrainingSettings

APP = Path(__file__).parents[2] / "apps" / "flower"
DECLARED = {"method": "rawls", "rounds": 100, "lr": 0.1, "resume": False, "local-epochs": 1}
LOG = """\x1b[92mINFO \x1b[0m:      Start `flwr-serverapp` process
\x1b[91mERROR \x1b[0m:     ServerApp raised an exception
Traceback (most recent call last):
  File "/somewhere/strategy.py", line 130, in start
    self.prepare(grid)
udjfl.errors.ReportError: client 'node 25': introduction is an error (code 2): DataError: no label
second line
\x1b[91mERROR \x1b[0m:     Exit Code: 201

An unhandled exception occurred in the ServerApp.
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "udjfl", "flower", *arguments], capture_output=True, text=True
    )


def test_settings_have_the_declared_types() -> None:
    given = ["method=udj:theory=rawls:beta=5", "lr=0.3 rounds=3", "resume=True", "local_epochs=2"]
    assert parse_settings(given, DECLARED) == {
        "method": "udj:theory=rawls:beta=5",
        "lr": 0.3,
        "rounds": 3,
        "resume": True,
        "local-epochs": 2,
    }


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings(["rouns=3", "rounds=many", "resume=perhaps", "lr"], DECLARED)
    assert len(raised.value.mistakes) == 4
    assert "Did you mean 'rounds'?" in str(raised.value)
    assert "rounds: 'many' is not a value of type int" in str(raised.value)
    with pytest.raises(SettingsError, match="method='rawls: no closing quotation"):
        parse_settings(["method='rawls"], DECLARED)


def test_the_reason_of_a_failure_is_in_the_clients_words() -> None:
    expected = "client 'node 25': introduction is an error (code 2): DataError: no label"
    assert find_reason(LOG) == f"{expected}\nsecond line"
    assert find_reason("INFO: all is well") is None


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "pyproject.toml").write_bytes((APP / "pyproject.toml").read_bytes())
    (folder / "state").mkdir()
    return Coordinator(folder)


def prepare(coordinator: Coordinator, *given: str, **more: Any) -> Any:
    options = {"name": None, "reference": None, "resume": None, **more}
    return prepare_run(coordinator, given, **options)


def test_a_run_has_a_name_of_its_own_and_keeps_its_settings(coordinator: Coordinator) -> None:
    first = prepare(coordinator, "method=fedavg", "rounds=7")
    assert (first.name, first.config["rounds"], first.config["clients"]) == ("fedavg", 7, 1)
    (coordinator.runs / "fedavg").mkdir(parents=True)
    assert prepare(coordinator, "method=fedavg").name == "fedavg-2"
    with pytest.raises(DeploymentError, match="exists already; give another --name"):
        prepare(coordinator, name="fedavg")
    resumed = prepare(coordinator, resume="fedavg")
    assert (resumed.config["rounds"], resumed.config["resume"]) == (7, True)
    with pytest.raises(DeploymentError, match="other is not a run of this folder"):
        prepare(coordinator, resume="other")
    with pytest.raises(DeploymentError, match="not a finished run; no run is finished yet"):
        prepare(coordinator, reference="fedavg")
    (coordinator.runs / "fedavg" / "result.json").touch()
    with pytest.raises(DeploymentError, match="fedavvg is not a finished run; finished: fedavg"):
        prepare(coordinator, reference="fedavvg")


def test_a_name_is_taken_once_its_run_is_submitted(coordinator: Coordinator) -> None:
    """The run folder is made later, by the server app."""
    out = coordinator.runs / "fedavg"
    with coordinator.submitting():
        append_submitted(coordinator.state / "submitted.jsonl", Submitted("fedavg", out, 1, 0.0))
    assert prepare(coordinator, "method=fedavg").name == "fedavg-2"
    with pytest.raises(DeploymentError, match="fedavg exists already"):
        prepare(coordinator, name="fedavg")


def test_runs_that_are_submitted_together_have_names_and_files_of_their_own(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `flwr` would read is read while the other command is about to submit, too."""
    (coordinator.state / "operator").mkdir()
    monkeypatch.setattr(Coordinator, "running", lambda self: {"pid": 1})
    sent = {}

    def run_json(self: FlwrCommand, *arguments: str) -> dict[str, Any]:
        time.sleep(0.05)
        config = tomllib.loads(Path(arguments[-1]).read_text(encoding="utf-8"))
        sent[Path(config["out"]).name] = config["rounds"]
        return {"run-id": str(config["rounds"])}

    monkeypatch.setattr(FlwrCommand, "run_json", run_json)

    def submit(rounds: int) -> tuple[str, int]:
        with coordinator.submitting():
            prepared = prepare(coordinator, "method=fedavg", f"rounds={rounds}")
            return coordinator.submit(prepared.name, prepared.config).name, rounds

    with ThreadPoolExecutor() as pool:
        submitted = dict(pool.map(submit, (3, 4, 5)))
    assert submitted == sent
    assert {run.name: run.run_id for run in coordinator.submitted()} == sent
    assert sorted(sent) == ["fedavg", "fedavg-2", "fedavg-3"]
    for name, rounds in sent.items():
        assert prepare(coordinator, resume=name).rounds == rounds


def test_an_app_need_not_declare_all_settings(coordinator: Coordinator) -> None:
    path = coordinator.folder / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"(?m)^(rounds|method) = .*\n", "", text), encoding="utf-8")
    prepared = prepare(coordinator)
    assert "rounds" not in prepared.config
    assert (prepared.name, prepared.rounds) == ("rawls", TrainingSettings().rounds)


class Answers:
    """A SuperLink whose answers are given; an error is raised."""

    def __init__(self, *answers: RunInfo | Exception) -> None:
        self.answers = list(answers)

    def run(self, run_id: int) -> RunInfo:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_the_run_to_stop_is_found_or_asked_for(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unfinished:
        def __init__(self) -> None:
            self.ids: set[int] = set()

        def unfinished(self) -> dict[int, RunInfo]:
            return {number: RunInfo(number, "running", "", "") for number in self.ids}

    control: Any = Unfinished()
    with pytest.raises(DeploymentError, match="no run was submitted"):
        choose_unfinished(coordinator, control, None)
    for number, name in enumerate(("first", "second", "second")):  # which was resumed
        run = Submitted(name, coordinator.runs / name, number, 0.0)
        append_submitted(coordinator.state / "submitted.jsonl", run)
    with pytest.raises(DeploymentError, match="second has finished already"):
        choose_unfinished(coordinator, control, None)
    with pytest.raises(DeploymentError, match=r"there is no run secnd.*second"):
        choose_unfinished(coordinator, control, "secnd")
    control.ids = {0}
    assert choose_unfinished(coordinator, control, None).name == "first"
    with pytest.raises(DeploymentError, match="second has finished already"):
        choose_unfinished(coordinator, control, "second")
    control.ids = {0, 2}
    assert choose_unfinished(coordinator, control, "second").run_id == 2
    with pytest.raises(DeploymentError, match="name one: first, second"):
        choose_unfinished(coordinator, control, None)
    assert find_unfinished(coordinator, "second") == []  # nothing runs: submitting says so
    monkeypatch.setattr(Coordinator, "running", lambda self: {"pid": 1})
    monkeypatch.setattr(coordinator, "control", lambda: nullcontext(control))
    assert find_unfinished(coordinator, None) == ["first", "second"]
    with pytest.raises(DeploymentError, match=r"second goes on: .* stop .* second` stops it"):
        find_unfinished(coordinator, "second")


def test_a_folder_that_may_be_mistyped_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "studdy"
    made = run("keys", str(folder), "--host", "fl.example.org")
    assert made.returncode == 0
    assert "studdy` has no app yet: `udjfl flower init` makes one" in made.stderr
    down = run("down", str(tmp_path / "studi"))
    assert down.returncode == 2
    assert "there is no folder" in down.stderr
    assert run("up", str(tmp_path / "studi")).returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["studdy"]


def test_a_superlink_may_be_away_for_a_while(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = DeploymentError("the SuperLink does not answer")
    done = RunInfo(1, "finished", "completed", "")
    monkeypatch.setattr(flower_run, "PAUSE", 0.0)

    def follow(*answers: RunInfo | Exception) -> list[RunInfo | Exception]:
        control = Answers(*answers)
        monkeypatch.setattr(coordinator, "control", lambda: nullcontext(control))
        follow_run(coordinator, Submitted("a", coordinator.runs / "a", 1, 0.0), 3)
        return control.answers

    assert follow(RunInfo(1, "running", "", ""), away, away, done) == []
    monkeypatch.setattr(flower_run, "PATIENCE", -1.0)
    with pytest.raises(DeploymentError, match="does not answer"):
        follow(away, done)


class Ended(Answers):
    """A SuperLink with a run that has ended."""

    def __init__(self, outcome: str) -> None:
        super().__init__(RunInfo(1, "finished", outcome, "Run stopped by user"))

    def describe_failure(self, run: RunInfo) -> str:
        return "client 'north': no label"


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("stopped", "a stopped after round 0; {command} continues it"),
        (
            "failed",
            "a failed after round 0: client 'north': no label\nOnce that is mended: {command}",
        ),
    ],
)
def test_a_run_that_was_stopped_is_not_taken_for_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str, words: str
) -> None:
    coordinator = Coordinator(tmp_path / "my study")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(coordinator, "control", lambda: nullcontext(Ended(outcome)))
    with pytest.raises(DeploymentError) as raised:
        follow_run(coordinator, Submitted("a", coordinator.runs / "a", 1, 0.0), 3)
    command = "`udjfl flower run 'my study' --resume a`"
    assert str(raised.value) == words.format(command=command)


def test_ctrl_c_says_once_that_the_run_goes_on(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, udjfl_command: Command
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    submitted = Submitted("second", coordinator.runs / "second", 2, 0.0)
    monkeypatch.chdir(coordinator.folder.parent)
    monkeypatch.setattr(flower_run, "find_unfinished", lambda *_: ["first", "a\x1b[2J"])
    monkeypatch.setattr(Coordinator, "submit", lambda *_: submitted)
    monkeypatch.setattr(flower_run, "follow_run", interrupt)
    output = udjfl_command("flower run study --name second")
    assert output.code == 130
    assert output.lines == [
        "first, a\\x1b[2J: not finished; the nodes work for all runs",
        "udjfl: second goes on: `udjfl flower status study` shows it, `udjfl flower stop study "
        "second` stops it",
    ]


def test_mistakes_are_found_before_anything_is_sent(coordinator: Coordinator) -> None:
    with pytest.raises(SettingsError, match="method: unknown name"):
        prepare(coordinator, "method=no-such-method")
    with pytest.raises(SettingsError, match="local-epochs"):
        prepare(coordinator, "local-epochs=-1")
    assert not (coordinator.state / "flower-settings.json").exists()


def test_a_folder_without_an_app_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="make an app with `udjfl flower init`"):
        read_declared(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool]\n")
    with pytest.raises(DeploymentError, match="is not a Flower app"):
        read_declared(tmp_path)


def test_the_state_of_a_run_is_one_line() -> None:
    status = RunStatus("rawls-2", "rawls", "running", 3, 10, 3661.0)
    assert describe_run(status) == "run rawls-2 (rawls): running, round 3 of 10, 1:01:01 left"
    assert describe_run(None) == "no run yet"
    assert (format_seconds(59.6), format_seconds(0)) == ("1:00", "0:00")
    assert (format_time(""), len(format_time("2026-11-18T10:01:11.5+00:00"))) == ("", 19)


def test_keys_are_made_for_a_coordinator_or_a_node(tmp_path: Path) -> None:
    folder = str(tmp_path / "north")
    assert run("keys", folder).returncode == 2
    done = run("keys", folder, "--node", "north")
    assert done.returncode == 0, done.stderr
    assert "north.pub is for the coordinator" in done.stdout
    again = run("keys", folder, "--node", "north")
    assert again.returncode == 2
    assert "has the key of north already" in again.stderr
    assert run("down", folder).stdout.endswith("was not running\n")


def test_a_run_of_another_folder_writes_nothing_there(tmp_path: Path) -> None:
    done = run("run", str(tmp_path / "study"))
    assert done.returncode == 2
    assert "pyproject.toml is missing: make an app" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_servers_certificate_is_replaced_if_asked_for(tmp_path: Path) -> None:
    folder = str(tmp_path / "study")
    missing = run("keys", folder, "--renew")
    assert missing.returncode == 2
    assert "ca.crt is missing: restore it" in missing.stderr
    assert run("keys", folder, "--host", "fl.example.org").returncode == 0
    again = run("keys", folder, "--host", "fl.example.org")
    assert again.returncode == 2
    assert "server.key exists already; --renew with --host" in again.stderr
    renewed = run("keys", folder, "--renew")
    assert renewed.returncode == 0, renewed.stderr
    assert "server.crt is new; udjfl flower down" in renewed.stdout
    assert run("keys", folder, "--renew", "--node", "north").returncode == 2


def test_advice_for_lost_files_leads_out(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    made = ("--host", "fl.example.org")
    assert run("keys", str(folder), *made).returncode == 0
    (folder / "keys" / "server.crt").unlink()
    assert "--renew with --host" in run("keys", str(folder), *made).stderr
    assert "new certificate with --host" in run("keys", str(folder), "--renew").stderr
    assert run("keys", str(folder), "--renew", *made).returncode == 0
    (folder / "keys" / "ca.crt").unlink()
    for arguments in (made, ("--renew",), ("--renew", *made)):
        stopped = run("keys", str(folder), *arguments)
        assert stopped.returncode == 2
        assert "restore" in stopped.stderr
        assert "ca.crt" in stopped.stderr


def test_a_damaged_certificate_is_in_the_status(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    assert run("keys", str(folder), "--host", "fl.example.org").returncode == 0
    (folder / "keys" / "server.crt").write_text("junk")
    shown = run("status", str(folder))
    assert shown.returncode == 0, shown.stderr
    assert "server.crt cannot be used" in " ".join(shown.stdout.split())
    as_json = json.loads(run("status", str(folder), "--json").stdout)
    assert "holds no certificate" in as_json["problem"]
    assert "server.crt cannot be used" in run("up", str(folder)).stderr


def test_a_certificate_that_ends_soon_is_in_the_status() -> None:
    now = datetime.now(UTC)
    ends = {days: (now + timedelta(days=days)).isoformat() for days in (31, 29, -1)}
    described = {
        days: describe_certificate(CoordinatorStatus("study", True, None, end, (), None))
        for days, end in ends.items()
    }
    assert described[31] is None
    for days, words in {29: "ends on 2", -1: "ended on 2"}.items():
        assert words in str(described[days])
        assert str(described[days]).endswith("udjfl flower keys study --renew")


def test_the_examples_for_services_name_existing_commands() -> None:
    """examples/deploy: commands and flags; nothing is started."""
    folder = Path(__file__).parents[2] / "examples" / "deploy"
    text = "".join(path.read_text(encoding="utf-8") for path in folder.iterdir())
    assert text.count("--foreground") >= 4
    for command in ("up", "node"):
        assert f"flower {command} /srv" in text
        assert "--foreground" in run(command, "--help").stdout


def test_the_folder_of_a_run_is_named_by_the_run() -> None:
    with pytest.raises(SettingsError, match="out: a run is kept in runs/NAME; choose NAME"):
        parse_settings(["out=elsewhere"], {**DECLARED, "out": ""})


def test_a_long_method_gives_a_name_that_is_allowed(coordinator: Coordinator) -> None:
    method = "udj:theory=rawls:budget=2:caution=0:client_budget=3:cap=0.6:advantage=fedavg"
    prepared = prepare(coordinator, f"method={method}")
    assert method.replace(":", "-").replace("=", "-").startswith(prepared.name)
    assert 40 < len(prepared.name) <= 50


def test_a_node_needs_a_key_and_known_names_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "north"
    for more, words in (((), "make one with"), (("--disclose", "updtes"), "unknown updtes")):
        ended = run("node", str(folder), "--server", "here:1", "--ca", "a", "--data", "b", *more)
        assert ended.returncode == 2
        assert words in ended.stderr.replace("\n", " ")
    assert not folder.exists()
