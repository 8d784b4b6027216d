"""Tables and figures as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NOTHING = "–"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return (
        "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
        + "\n"
    )


def show(figure: float | None, unit: str) -> str:
    if figure is None:
        return NOTHING
    if unit == "%":
        return f"{100 * figure:.0f}%"
    if unit == "x":
        return f"{figure:.2f}x" if figure < 100 else f"{figure:.0f}x"
    if unit == "ms":
        return f"{1000 * figure:.1f}" if figure < 0.1 else f"{1000 * figure:,.0f}"
    return f"{figure:,.0f} {unit}" if unit else f"{figure:,.1f}"


def describe_machine(about: Mapping[str, Any]) -> str:
    return (
        f"Taken on {about['taken']}: {about['cpu']}, {about['cores']} cores, "
        f"{about['memory_gb']} GB, {about['system']}; "
        f"Python {about['python']}, torch {about['torch']}"
    )
