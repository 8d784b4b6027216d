"""Imports go one way: a module may import what stands in a later group, never the other way round."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import udjfl

ROOT = Path(udjfl.__file__).parent
MODULES = sorted(
    path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"
)  # the front door may import all
# Left may import right. Within a group, only modules of the same package may import each other.
LAYERS = (
    {"__main__"},
    {"cli"},
    {"paper"},
    {"report"},
    {"simulation", "flower"},
    {"training"},
    {"uncertainty"},
    {"methods", "engine", "statistics"},
    {"models", "data", "metrics"},
    {"settings", "seeds", "_ids", "_files", "_spec", "_threads"},
    {"errors"},
)
DEPTH = {name: depth for depth, names in enumerate(LAYERS) for name in names}


def imported(tree: ast.AST) -> list[str]:
    """Every module a file imports, at any level, with the names it takes from packages (`from udjfl import metrics`)."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where a name comes from"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def part(dotted: str) -> str | None:
    """The first part below `udjfl` ('methods' for 'udjfl.methods.base.Reports'), None for other packages."""
    top, _, below = dotted.partition(".")
    return below.partition(".")[0] if top == "udjfl" else None


def wrong_imports(here: str, source: str) -> list[str]:
    targets = [(dotted, part(dotted)) for dotted in imported(ast.parse(source))]
    return [
        dotted
        for dotted, there in targets
        if there is not None and here != there and DEPTH[there] <= DEPTH[here]
    ]


def eager_imports(source: str) -> list[str]:
    """What is imported as soon as the module is: not inside a function."""
    tree = ast.parse(source)
    for function in [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]:
        function.body = [ast.Pass()]
    return imported(tree)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    here = path.relative_to(ROOT).with_suffix("").parts[0]
    assert here in DEPTH, f"{here} has no place in LAYERS; give it one"
    source = path.read_text(encoding="utf-8")
    assert wrong_imports(here, source) == []
    if here != "data":  # scikit-learn takes a second to import, and only the embedded data needs it
        assert not [name for name in eager_imports(source) if name.partition(".")[0] == "sklearn"]


def test_every_layer_is_there() -> None:
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
def test_a_wrong_import_is_found(here: str, source: str, wrong: list[str]) -> None:
    assert wrong_imports(here, source) == wrong


def test_only_imports_outside_functions_are_eager() -> None:
    source = "import torch\ndef late():\n    from sklearn import datasets\n"
    assert eager_imports(source) == ["torch"]
