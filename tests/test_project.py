"""The files that describe the project agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from script_modules import load_script

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = [
    Requirement(text)
    for texts in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for text in texts
    if not text.startswith("udjfl[")
]
PINS = dict(
    line.lower().split("==")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda requirement: requirement.name)
def test_each_dependency_has_bounds_and_a_pinned_version_within(requirement: Requirement) -> None:
    assert sorted(bound.operator for bound in requirement.specifier) == ["<", ">="]
    assert requirement.specifier.contains(PINS[requirement.name])


def test_the_minimum_versions_are_the_lower_bounds() -> None:
    script = load_script(ROOT / "scripts" / "minimum_versions.py")
    assert script.lower_bound("scipy>=1.15,<2") == ("scipy", "1.15")
    assert set(script.minimum_versions("test")) >= {"torch", "numpy", "pytest"}
    assert set(script.minimum_versions("flower")) == {"flwr"}
    with pytest.raises(SystemExit, match="name>=version,<limit"):
        script.lower_bound("scipy")


def test_the_citation_and_the_changelog_have_the_version() -> None:
    citation = read("CITATION.cff").splitlines()
    assert f"version: {PROJECT['version']}" in citation
    assert f"license: {PROJECT['license']}" in citation
    released = re.findall(r"^## \[(\d[\d.]*)\]", read("CHANGELOG.md"), re.M)
    assert released[0] == PROJECT["version"]


def test_the_hooks_run_the_checks_of_the_makefile() -> None:
    hooks = re.findall(r"entry: \.venv/bin/([a-z]+(?: [a-z]+)?)", read(".pre-commit-config.yaml"))
    assert hooks == ["ruff check", "ruff format", "mypy"]
    checks = re.findall(r"\$\(BIN\)/([a-z]+(?: [a-z]+)?)", read("Makefile"))
    assert set(hooks) <= set(checks)
