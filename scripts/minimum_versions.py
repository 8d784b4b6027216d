"""Print pip constraints with the lower bound of every dependency in pyproject.toml.

Usage: python scripts/minimum_versions.py [EXTRA]

With `flower`, only the bound of Flower: the versions it needs itself are newer than the oldest
ones that the rest of udjfl supports.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def minimum_versions(extra: str | None = None) -> dict[str, str]:
    """Return the lower bounds of the dependencies, and of those of an extra."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [] if extra == "flower" else list(project["dependencies"])
    wanted = [] if extra is None else list(extras[extra])
    while wanted:
        requirement = wanted.pop(0)
        own = re.fullmatch(r"udjfl\[(\w+)\]", requirement)  # an extra that contains another
        if own is None:
            requirements.append(requirement)
        else:
            wanted += extras[own[1]]
    return dict(lower_bound(requirement) for requirement in requirements)


def lower_bound(requirement: str) -> tuple[str, str]:
    """Split `name>=version,<limit` into the name and the version."""
    match = re.fullmatch(r"([\w-]+)>=([\d.]+),<[\d.]+", requirement)
    if match is None:
        raise SystemExit(f"{requirement!r} is not of the form name>=version,<limit")
    return match[1], match[2]


if __name__ == "__main__":
    for name, version in minimum_versions(*sys.argv[1:2]).items():
        print(f"{name}=={version}")
