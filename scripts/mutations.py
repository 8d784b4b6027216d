"""Mutations of Python source: small changes inside functions, each of which a test should notice.

Only bodies of functions are changed: numbers, texts, operators, comparisons, conditions, arguments
and statements. Not changed are docstrings, annotations, and what is only shown: the texts of errors
and f-strings.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {
    one: other
    for pair in (
        ("min", "max"),
        ("any", "all"),
        ("amin", "amax"),
        ("argmin", "argmax"),
        ("minimum", "maximum"),
        ("clamp_min", "clamp_max"),
        ("floor", "ceil"),
        ("zeros", "ones"),
        ("zeros_like", "ones_like"),
        ("mean", "sum"),
    )
    for one, other in (pair, pair[::-1])
}
ASSERTIONS = ("strict",)  # arguments that only say what is always true
# A change of a copy of the tree, found again by the position of the node in the walk.
Change = Callable[[Any], ast.AST | None]


@dataclass(frozen=True)
class Mutation:
    """One change: the function it is in, its line, and the source before and after."""

    function: str
    line: int
    before: str
    after: str
    tree: ast.Module
    lines: range  # of the statement that it is in, without its body


def find_mutations(source: str) -> Iterator[Mutation]:
    """Yield every mutation of a module, in the order of its lines."""
    tree = ast.parse(source)
    for name, function in _functions(tree, ""):
        for node in list(_mutable(function)):
            for change in _changes(node):
                yield _apply(tree, name, node, change)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield outermost functions and methods with their qualified names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _mutable(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function that are changed."""
    skipped: list[ast.AST] = []
    if isinstance(node, ast.FunctionDef):
        skipped = [node.args, *node.decorator_list, *([node.returns] if node.returns else [])]
        if ast.get_docstring(node) is not None:
            skipped.append(node.body[0])
    elif isinstance(node, ast.AnnAssign):
        skipped = [node.annotation]
    elif isinstance(node, ast.Lambda):
        skipped = [node.args]
    elif isinstance(node, ast.Call):
        skipped = [each for each in node.keywords if each.arg in ASSERTIONS]
    for child in ast.iter_child_nodes(node):
        if child in skipped or isinstance(child, ast.JoinedStr):
            continue
        yield child
        if not isinstance(child, ast.Raise):  # its text is only shown
            yield from _mutable(child)


def _changes(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Constant):
        yield from _constant(node.value)
    elif isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            yield _swap_at("ops", place, op)
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPS:
        yield lambda new: setattr(new, "op", SWAPS[type(new.op)]())
    elif isinstance(node, ast.UnaryOp):
        yield lambda new: new.operand
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            yield lambda new: setattr(new, "test", ast.UnaryOp(ast.Not(), new.test))
    elif isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        if name in NAMES:
            field = "id" if isinstance(node, ast.Name) else "attr"
            yield lambda new: setattr(new, field, NAMES[name])
    elif isinstance(node, ast.Return) and not _is_none(node.value):
        yield lambda new: setattr(new, "value", ast.Constant(None))
    elif isinstance(node, ast.Expr | ast.Raise):
        yield lambda _: ast.Pass()
    elif isinstance(node, ast.Continue):
        yield lambda _: ast.Break()
    elif isinstance(node, ast.Call):
        for place, keyword in enumerate(node.keywords):
            if keyword.arg not in (None, *ASSERTIONS):
                yield lambda new, place=place: new.keywords.pop(place) and None


def _is_none(node: ast.AST | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def _constant(value: object) -> Iterator[Change]:
    if isinstance(value, bool):
        yield lambda _: ast.Constant(not value)
    elif isinstance(value, int | float):
        yield lambda _: ast.Constant(value + 1)
    elif isinstance(value, str):
        yield lambda _: ast.Constant(f"XX{value}")


def _swap_at(field: str, place: int, op: ast.AST) -> Change:
    def change(new: Any) -> None:
        getattr(new, field)[place] = SWAPS[type(op)]()

    return change


def _apply(tree: ast.Module, name: str, node: ast.AST, change: Change) -> Mutation:
    """Change the node in a copy of the tree."""
    number = next(i for i, other in enumerate(ast.walk(tree)) if other is node)
    copied = copy.deepcopy(tree)
    target = next(other for i, other in enumerate(ast.walk(copied)) if i == number)
    before = _statement(copied, target)
    text = ast.unparse(before)
    replacement = change(target)
    if replacement is not None:
        _replace(copied, target, replacement)
        before = replacement if before is target else before
    ast.fix_missing_locations(copied)
    line, lines = _line(node, tree), _lines(_statement(tree, node))
    return Mutation(name, line, _first(text), _first(ast.unparse(before)), copied, lines)


def _replace(tree: ast.AST, target: ast.AST, replacement: ast.AST) -> None:
    ast.copy_location(replacement, target)
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, field, replacement)
            elif isinstance(value, list) and any(item is target for item in value):
                value[:] = [replacement if item is target else item for item in value]


def _statement(tree: ast.AST, node: ast.AST) -> ast.AST:
    """Return the innermost statement around a node, or the node."""
    parents = {id(c): p for p in ast.walk(tree) for c in ast.iter_child_nodes(p)}
    while not isinstance(node, ast.stmt) and id(node) in parents:
        node = parents[id(node)]
    return node


def _line(node: ast.AST, tree: ast.AST) -> int:
    return getattr(node, "lineno", 0) or getattr(_statement(tree, node), "lineno", 0)


def _lines(statement: Any) -> range:
    body = getattr(statement, "body", None)
    end = body[0].lineno - 1 if body else statement.end_lineno
    return range(statement.lineno, max(statement.lineno, end) + 1)


def _first(text: str) -> str:
    """Return a statement without its body."""
    return text.splitlines()[0] if text else ""
