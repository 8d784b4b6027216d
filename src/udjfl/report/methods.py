"""The catalogue of methods, as plain values and as a table."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args, get_type_hints

from pydantic.fields import FieldInfo
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl.methods import ALIASES, METHODS, THEORIES, Method, find

ONCE = {"sizes": "number of examples", "uncertainties": "uncertainty"}
SENT_AS = {
    **{name: f"{said} (once)" for name, said in ONCE.items()},
    "losses": "loss",
    "steps": "number of steps",
    "accuracies": "training accuracy",
    "squared_losses": "mean squared loss",
    "gradients": "gradient",
    "gradient_norms": "length of the gradient",
    "first_deltas": "update after one step",
    "losses_of_each": "loss of each model",
    "group_gaps": "gap between groups",
    "group_gap_gradients": "gradient of that gap",
}


def catalogue() -> list[dict[str, Any]]:
    """Every method: whom it serves, citation, grade, what clients must send, parameters with defaults."""
    return [
        {
            "method": name,
            "title": kind.title,
            "theory": _theories(name, kind),
            "paper": kind.paper,
            "grade": kind.grade,
            "idea": kind.idea,
            "cost": kind.cost,
            "needs": sorted(kind.needs),
            "needs_if": {name: "=".join(condition) for name, condition in kind.needs_if.items()},
            "needs_groups": sorted(kind.needs_groups),
            "probes": sorted(kind.probes),
            "global_model": kind.global_model,
            "short_names": [alias for alias, (target, _) in ALIASES.items() if target == name],
            "params": _parameters(kind),
        }
        for name, kind in METHODS.items()
    ]


def find_entry(name: str) -> dict[str, Any]:
    """One method of the catalogue, by its name or a short name."""
    target, _ = find(name)
    return next(entry for entry in catalogue() if entry["method"] == target)


def catalogue_view() -> RenderableType:
    """All methods, a line or two each."""
    table = Table(
        "Method",
        "Theory",
        "Grade",
        "Parameters",
        "Paper",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for column in table.columns:
        column.overflow = "fold"
    for entry in catalogue():
        params = ", ".join(
            p["name"] if p["default"] is None else f"{p['name']}={_shown(p['default'])}"
            for p in entry["params"]
        )
        table.add_row(
            entry["method"],
            "\n".join(entry["theory"]) or "–",
            entry["grade"],
            params,
            entry["paper"],
        )
    hint = "Grade: how sure we are that this is the authors' method. `udjfl methods NAME` shows one with its parameters."
    return Group(table, Text(f"\n{hint}", style="dim"))


def entry_view(entry: dict[str, Any]) -> RenderableType:
    """One method in full."""
    facts = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    facts.add_row("idea", entry["idea"])
    facts.add_row("theory", ", ".join(entry["theory"]) or "–")
    facts.add_row("paper", entry["paper"])
    facts.add_row("grade", entry["grade"])
    facts.add_row("clients send", _sent(entry))
    facts.add_row("cost", entry["cost"])
    if not entry["global_model"]:
        facts.add_row("global model", "none: clients are served models of their own")
    if entry["short_names"]:
        facts.add_row("short names", ", ".join(entry["short_names"]))
    params = Table("Parameter", "Default", "", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for p in entry["params"]:
        params.add_row(p["name"], _shown(p["default"]), p["help"])
    heading = Text(f"{entry['title']} ({entry['method']})", style="bold")
    return Group(heading, facts, Text(""), params) if entry["params"] else Group(heading, facts)


def catalogue_markdown() -> str:
    """The catalogue as tables in Markdown, one for each theory; a method that serves two is in both."""
    entries = catalogue()
    by_theory = [
        line
        for theory in THEORIES
        for line in (
            f"## {theory.capitalize()}",
            "",
            *_markdown_table([e for e in entries if theory in e["theory"]]),
            "",
        )
    ]
    return "\n".join([*by_theory, "## What the server learns", "", *_disclosures(entries), ""])


def _disclosures(entries: list[dict[str, Any]]) -> list[str]:
    """What leaves a client, and when: a table in Markdown."""
    rows = [
        [
            "Method",
            "Once, before round 1",
            "In a round, before training",
            "In a round, with the update",
        ],
        ["---"] * 4,
    ]
    for entry in entries:
        asked = [name for name in SENT_AS if name in entry["needs"]]
        once = [_if(entry, name, said) for name, said in ONCE.items() if name in asked]
        later = [_if(entry, name, SENT_AS[name]) for name in asked if name not in ONCE]
        later += [
            f"{SENT_AS[name]} (with a sensitive attribute)"
            for name in SENT_AS
            if name in entry["needs_groups"]
        ]
        before = [SENT_AS[name] for name in SENT_AS if name in entry["probes"]]
        rows.append(
            [
                f"{entry['title']} (`{entry['method']}`)",
                *(", ".join(part) or "–" for part in (once, before, later)),
            ]
        )
    return _lines(rows)


def _if(entry: dict[str, Any], name: str, said: str) -> str:
    condition = entry["needs_if"].get(name)
    return f"{said} (if `{condition}`)" if condition else said


def _markdown_table(entries: list[dict[str, Any]]) -> list[str]:
    rows = [
        ["Method", "Idea", "Clients send", "Cost beyond FedAvg", "Parameters", "Grade"],
        ["---"] * 6,
    ]
    for entry in entries:
        params = ", ".join(
            f"`{p['name']}={_shown(p['default'])}`" for p in entry["params"]
        ).replace("=–`", "`")
        name = f"**{entry['title']}** (`{entry['method']}`) {entry['paper']}"
        rows.append([name, entry["idea"], _sent(entry), entry["cost"], params, entry["grade"]])
    return _lines(rows)


def _lines(rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def _sent(entry: dict[str, Any]) -> str:
    """What clients send: the fields of `Reports`, in words. The server scores models itself."""
    words = {"deltas": "update", "validation_accuracies": "", **SENT_AS}
    asked = [*entry["needs"], *(name for name in entry["probes"] if name not in entry["needs"])]
    names = [
        words[name] and _if(entry, name, words[name])
        for name in ["deltas", *sorted(asked, key=list(words).index)]
    ]
    groups = [
        words.get(name, name) for name in sorted(entry["needs_groups"], key=list(words).index)
    ]
    optional = f"; with a sensitive attribute also {', '.join(groups)}" if groups else ""
    return ", ".join(name for name in names if name) + optional


def _shown(default: Any) -> str:
    """A default value in few characters."""
    return (
        "–" if default is None else f"{default:.4g}" if isinstance(default, float) else str(default)
    )


def _theories(name: str, kind: type[Method]) -> list[str]:
    named = [
        preset["theory"]
        for target, preset in ALIASES.values()
        if target == name and "theory" in preset
    ]
    return named or list(kind.theories)


def _parameters(kind: type[Method]) -> list[dict[str, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    rows = []
    for field in fields(kind):  # type: ignore[arg-type]  # every method is a dataclass
        notes = [note for note in get_args(hints[field.name]) if isinstance(note, FieldInfo)]
        rows.append(
            {
                "name": field.name,
                "default": field.default,
                "help": notes[0].description if notes else "",
            }
        )
    return rows
