"""Commands of README.md and docs/ that `make docs-check` cannot run as they stand."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import venv
import warnings
from pathlib import Path

import pytest
from command import Command
from docs_pages import CHECKED_PATTERNS, ROOT, Block, find_blocks, find_pages, read_page
from packaging.requirements import Requirement
from programs import run_program
from small_runs import make_federation
from typer.main import get_group

BLOCKS = [
    block for page in find_pages(CHECKED_PATTERNS) for block in find_blocks(page, read_page(page))
]
INSTALLS = sorted(
    {
        re.sub(r"\s+#\s.*", "", command)
        for block in BLOCKS
        if block.language == "bash"
        for command in block.commands
        if command.startswith("pip install")
    }
)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def find_block(text: str) -> Block:
    """Return the only block with this text that names this file."""
    (block,) = [
        b for b in BLOCKS if text in b.code and (b.run_by or "").startswith("tests/test_page_")
    ]
    return block


# Installing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", INSTALLS)
def test_installs_name_extras_and_files_that_exist(command: str) -> None:
    words = shlex.split(command)[2:]
    if "--constraint" in words:
        where = words.index("--constraint")
        assert (ROOT / words[where + 1]).is_file()
        del words[where : where + 2]
    assert words[0].startswith(".[")
    for word in words:
        wanted = Requirement(f"udjfl{word[1:]}" if word.startswith(".") else word)
        if wanted.name == "udjfl":
            assert wanted.extras <= set(EXTRAS)
        else:
            metadata = importlib.metadata.metadata(wanted.name)
            assert wanted.extras <= set(metadata.get_all("Provides-Extra") or [])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the checkout as a package into an environment of its own, without a network.

    Dependencies are those of the environment that the tests run in.
    """
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / ".venv", with_pip=False)
    (packages,) = (folder / ".venv").glob("lib/python*/site-packages")
    lines = [str(Path(path).resolve()) for path in sys.path if "site-packages" in path]
    (packages / "dependencies.pth").write_text("\n".join(lines), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / ".venv/bin/python"), "install"]
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, *options, "--no-build-isolation", str(ROOT)], check=True)
    return folder


def test_the_installed_package_works(installed: Path) -> None:
    (activate,) = [c for c in find_block("activate").commands if "bin/activate" in c]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    commands = f"{activate}\ncommand -v udjfl\nudjfl --version"
    program, version = run_program(["bash", "-euc", commands], installed, environment).splitlines()
    assert (program, version.split()[-1]) == (
        str(installed / ".venv/bin/udjfl"),
        PROJECT["version"],
    )


def test_the_package_has_every_file(installed: Path) -> None:
    """Templates, style sheets and data are no Python, and are needed as well."""

    def list_files(folder: Path) -> set[str]:
        files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
        return {str(path.relative_to(folder)) for path in files}

    (package,) = (installed / ".venv").glob("lib/python*/site-packages/udjfl")
    assert list_files(package) == list_files(ROOT / "src" / "udjfl")


def test_the_demo_installs_into_the_environment_that_is_activated() -> None:
    dry = ["make", "--dry-run", "--always-make", "demo"]
    printed = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (activate,) = re.findall(r"^\. (\S+)/bin/activate", find_block("activate").code, re.M)
    assert f"{activate}/bin/python -m pip install" in printed
    assert f"{activate}/bin/udjfl demo" in printed


# Deploying --------------------------------------------------------------------------------------


def test_what_a_hospital_discloses_is_kept_and_enforced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr")
    from udjfl.deployment.node import Node
    from udjfl.errors import SettingsError
    from udjfl.flower.disclosure import Disclosure, needed_disclosures
    from udjfl.methods import method
    from udjfl.settings import TrainingSettings
    from udjfl.training.federation_info import FederationInfo
    from udjfl.training.state import Run, RunSpec

    monkeypatch.chdir(tmp_path)
    node = Node(Path("north"))
    node.make_key("north")
    for name in ("ca.crt", "north.csv"):
        (tmp_path / name).touch()
    node.configure({"server": "h:1", "ca": "../ca.crt", "data": "../north.csv"})
    monkeypatch.setattr(Node, "start", lambda self, stock: None)  # there is no server
    (command,) = find_block("--disclose").commands
    assert Command(monkeypatch, capsys)(command.removeprefix("udjfl ")).code == 0
    allowed = Disclosure.of({"disclose": node.read_settings()["disclose"]})

    def check(name: str, *options: bool) -> None:
        spec = RunSpec(method(name), TrainingSettings(), 0, None, *options)
        allowed.check(needed_disclosures(Run(spec, FederationInfo.of(make_federation())), False))

    check("fedavg", True)  # the two runs on that page
    check("rawls")
    with pytest.raises(SettingsError, match="does not send score_sizes, scores"):
        check("rawls:budget=0.1")


def test_flower_takes_the_commands_of_a_simulation() -> None:
    """The options are Flower's, the settings the app's; where Ray is installed, a test runs it."""
    pytest.importorskip("flwr")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Flower's own
        from flwr.cli.app import app
    from flwr.common.config import parse_config_args

    declared = tomllib.loads((ROOT / "apps/flower/pyproject.toml").read_text(encoding="utf-8"))
    known = declared["tool"]["flwr"]["app"]["config"]
    commands = find_block("flwr[simulation]").commands
    runs = [shlex.split(re.sub(r"\s+#\s.*", "", c)) for c in commands if c.startswith("flwr ")]
    assert len(runs) == 2
    for _, name, *words in runs:
        given = get_group(app).commands[name].make_context(name, words).params
        assert str(given["app"]) == "apps/flower"
        settings = parse_config_args(given["run_config_overrides"])
        assert {name: type(known[name]) for name in settings} == {
            name: type(value) for name, value in settings.items()
        }
        parse_config_args(given["federation_config_overrides"])


def test_the_superlink_that_stays_is_found_and_ended() -> None:
    pytest.importorskip("flwr")
    from flwr.cli import constant

    search, kill = find_block("pgrep").commands
    assert f"--port {constant.LOCAL_SUPERLINK_HTTP_API_PORT}" in search
    code = "import signal; print('here', flush=True); signal.pause()"
    like_it = ["flower-superlink", "--insecure", "--port", "39091", "--log-file", "x"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *like_it], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = subprocess.run(
            ["bash", "-c", search], capture_output=True, text=True, check=True
        ).stdout
        assert str(process.pid) in [line.split()[0] for line in found.splitlines()]
        command = kill.replace("12345", str(process.pid))
        subprocess.run(["bash", "-c", command], check=True)
        assert process.wait(timeout=60) == -signal.SIGTERM
