"""The catalogue of methods, as plain values and as a table."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args, get_type_hints

from pydantic.fields import FieldInfo
from rich.console import RenderableType
from rich.table import Table

from udjfl.methods import ALIASES, METHODS, Method


def catalogue() -> list[dict[str, Any]]:
    """Every method: whom it serves, citation, grade, what clients must send, parameters with defaults."""
    return [
        {
            "method": name,
            "title": kind.title,
            "theory": _theories(name, kind),
            "paper": kind.paper,
            "grade": kind.grade,
            "needs": sorted(kind.needs),
            "short_names": [alias for alias, (target, _) in ALIASES.items() if target == name],
            "params": _parameters(kind),
        }
        for name, kind in METHODS.items()
    ]


def catalogue_view() -> RenderableType:
    table = Table("Method", "Theory", "Grade", "Parameters (default)", "Paper", box=None, pad_edge=False, padding=(0, 2, 1, 0))
    for entry in catalogue():
        short = f"\n({', '.join(entry['short_names'])})" if entry["short_names"] else ""
        params = "\n".join(
            f"{p['name']} ({'–' if p['default'] is None else p['default']}): {p['help']}" for p in entry["params"]
        )
        table.add_row(entry["method"] + short, ", ".join(entry["theory"]) or "–", entry["grade"], params, entry["paper"])
    return table


def _theories(name: str, kind: type[Method]) -> list[str]:
    named = [preset["theory"] for target, preset in ALIASES.values() if target == name and "theory" in preset]
    own = getattr(kind, "theory", None)
    return named or ([own] if own else [])


def _parameters(kind: type[Method]) -> list[dict[str, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    rows = []
    for field in fields(kind):  # type: ignore[arg-type]  # every method is a dataclass
        notes = [note for note in get_args(hints[field.name]) if isinstance(note, FieldInfo)]
        rows.append({"name": field.name, "default": field.default, "help": notes[0].description if notes else ""})
    return rows
