"""Imports go one way: a module may import modules of later groups only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import udjfl

ROOT = Path(udjfl.__file__).parent
# All but the package's own __init__, which may import everything.
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
# Left may import right. Within a group, only modules of the same package may import each other.
LAYERS = (
    {"__main__"},
    {"cli"},
    {"paper"},
    {"report"},
    {"search"},
    {"simulation", "flower", "deployment"},
    {"training"},
    {"uncertainty", "verdicts"},
    {"methods", "engine", "statistics"},
    {"models", "data", "metrics", "tasks"},
    {"settings"},
    {
        *("seeds", "_ids", "_files", "_spec", "_threads", "_measures"),
        *("_html", "_pandas_frame", "_plots", "_processes"),
    },
    {"errors"},
)
DEPTH = {name: depth for depth, names in enumerate(LAYERS) for name in names}


def list_imports(tree: ast.AST) -> list[str]:
    """List what a file imports, at any level, with the names in `from package import name`."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where a name comes from"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def find_part(dotted: str) -> str | None:
    """Return the part of `udjfl` that a name belongs to, None for other packages.

    It is 'methods' for 'udjfl.methods.base.Reports'.
    """
    top, _, below = dotted.partition(".")
    return below.partition(".")[0] if top == "udjfl" else None


def find_wrong_imports(here: str, source: str) -> list[str]:
    """List the imports of a part that go the wrong way."""
    targets = [(dotted, find_part(dotted)) for dotted in list_imports(ast.parse(source))]
    return [
        dotted
        for dotted, there in targets
        if there is not None and here != there and DEPTH[there] <= DEPTH[here]
    ]


def list_eager_imports(source: str) -> list[str]:
    """List what is imported with the module: everything outside functions."""
    tree = ast.parse(source)
    for function in [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]:
        function.body = [ast.Pass()]
    return list_imports(tree)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    here = path.relative_to(ROOT).with_suffix("").parts[0]
    assert here in DEPTH, f"{here} is not in LAYERS; add it"
    source = path.read_text(encoding="utf-8")
    assert find_wrong_imports(here, source) == []
    if here != "data":  # scikit-learn takes a second to import, and only the embedded data needs it
        assert not [
            name for name in list_eager_imports(source) if name.partition(".")[0] == "sklearn"
        ]


def test_every_layer_exists() -> None:
    parts = {path.relative_to(ROOT).with_suffix("").parts[0] for path in MODULES}
    assert set().union(*LAYERS) <= parts


@pytest.mark.parametrize(
    ("here", "source", "wrong"),
    [
        ("errors", "from udjfl.settings import Settings", ["udjfl.settings.Settings"]),
        ("models", "from udjfl import metrics", ["udjfl.metrics"]),  # same group, another package
        ("methods", "from udjfl.methods.base import Reports", []),
        ("simulation", "def late():\n    import udjfl.flower.app", ["udjfl.flower.app"]),
        ("flower", "from udjfl.simulation.simulate import run", ["udjfl.simulation.simulate.run"]),
        ("cli", "from udjfl.errors import UdjflError", []),
    ],
)
def test_a_wrong_import_is_detected(here: str, source: str, wrong: list[str]) -> None:
    assert find_wrong_imports(here, source) == wrong


def test_only_imports_outside_functions_are_eager() -> None:
    source = "import torch\ndef late():\n    from sklearn import datasets\n"
    assert list_eager_imports(source) == ["torch"]
