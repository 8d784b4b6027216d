"""Distributive justice for federated learning.

Begin with `udjfl.load` and `udjfl.simulate`, or with the command `udjfl --help`. The public names
are listed in `__init__.pyi`. Each is imported when first used: `import udjfl` is quick, and the
command line can handle Ctrl-C from its first moment.
"""

from __future__ import annotations

import functools


@functools.cache
def _modules() -> dict[str, str]:
    """Return the module of each public name."""
    import re
    from pathlib import Path

    table = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    return {name: module for module, name in re.findall(r"^from (\S+) import (\S+)", table, re.M)}


def __getattr__(name: str) -> object:
    import importlib

    if name == "__all__":
        return sorted(_modules())
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("udjfl")
    if name not in _modules():
        raise AttributeError(f"module 'udjfl' has no attribute {name!r}")
    return getattr(importlib.import_module(_modules()[name]), name)


def __dir__() -> list[str]:
    return ["__version__", *sorted(_modules())]
