"""The catalogue of methods: as plain values, on a terminal, and in Markdown.

The built-in methods are read from a file that `make docs` writes, because importing them takes
seconds. Methods of other packages are imported when they are named.
"""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from pydantic.fields import FieldInfo
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl.report.output import NARROW, FitWidth, facts_table, markdown_table

if TYPE_CHECKING:
    from udjfl.methods import Method

CATALOGUE = Path(__file__).parents[1] / "methods" / "catalogue.json"
ENTRY_POINTS = "udjfl.methods"
ONCE = {"sizes": "number of examples", "uncertainties": "uncertainty"}
SENT_AS = {
    **{name: f"{text} (once)" for name, text in ONCE.items()},
    "losses": "loss",
    "steps": "number of steps",
    "accuracies": "training accuracy",
    "scores": "accuracy on held-out or training data",
    "score_sizes": "number of examples behind it",
    "squared_losses": "mean squared loss",
    "gradients": "gradient",
    "gradient_norms": "length of the gradient",
    "first_deltas": "update after one step",
    "personal_deltas": "update of the personal model",
    "losses_of_each": "loss of each model",
    "group_gaps": "gap between groups",
    "group_gap_gradients": "gradient of that gap",
}


def catalogue() -> list[dict[str, Any]]:
    """Return an entry for each method: theories, paper, grade, what clients send, parameters."""
    entries = _read_catalogue()
    built_in = {entry["method"] for entry in entries}
    installed = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return [*entries, *(_import_entry(p.name) for p in installed if p.name not in built_in)]


def method_names() -> list[str]:
    """Return the names and short names of the built-in methods."""
    return [
        name for entry in _read_catalogue() for name in (*entry["short_names"], entry["method"])
    ]


def find_entry(name: str) -> dict[str, Any]:
    """Return the entry of one method, by its name, short name or `package.module:Class`."""
    for entry in _read_catalogue():
        if name == entry["method"] or name in entry["short_names"]:
            return entry
    return _import_entry(name)


def write_catalogue() -> None:
    """Write the file of the built-in methods from their classes."""
    CATALOGUE.write_text(json.dumps(describe_methods(), indent=1, ensure_ascii=False) + "\n")


def describe_methods() -> list[dict[str, Any]]:
    """Describe every built-in method from its class."""
    from udjfl.methods import METHODS

    return [_describe(cls) for cls in METHODS.values()]


def _read_catalogue() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return entries


def _import_entry(name: str) -> dict[str, Any]:
    from udjfl.methods import find

    return _describe(find(name)[0])


def _describe(cls: type[Method]) -> dict[str, Any]:
    from udjfl.methods import ALIASES, declared_needs

    presets = {alias: preset for alias, (name, preset) in ALIASES.items() if name == cls.name}
    named = [preset["theory"] for preset in presets.values() if "theory" in preset]
    conditions = declared_needs(cls)
    return {
        "method": cls.name,
        "title": cls.title,
        "theory": named or list(cls.theories),
        "paper": cls.paper,
        "grade": cls.grade,
        "idea": cls.idea,
        "cost": cls.cost,
        "needs": sorted(conditions),
        "needs_if": {name: conditions[name] for name in sorted(conditions) if conditions[name]},
        "needs_groups": sorted(cls.needs_groups),
        "probes": sorted(cls.probes),
        "global_model": cls.global_model,
        "baseline": cls.baseline,
        "short_names": list(presets),
        "params": _parameters(cls),
    }


def _parameters(cls: type[Method]) -> list[dict[str, Any]]:
    hints = get_type_hints(cls, include_extras=True)
    return [
        {"name": field.name, "default": field.default, "help": _help(hints[field.name])}
        for field in fields(cls)  # type: ignore[arg-type]  # every method is a dataclass
    ]


def _help(hint: Any) -> str | None:
    return next((note.description for note in get_args(hint) if isinstance(note, FieldInfo)), "")


def catalogue_view(entries: list[dict[str, Any]]) -> RenderableType:
    """Show all methods, a line or two each."""
    return FitWidth(lambda width: _catalogue_table(entries, width < NARROW))


def _catalogue_table(entries: list[dict[str, Any]], narrow: bool) -> RenderableType:
    """On a narrow terminal the paper stands below the parameters."""
    last = ["Parameters and paper"] if narrow else ["Parameters", "Paper"]
    table = Table(
        "Method", "Theory", "Grade", *last, box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in table.columns:
        column.overflow = "fold"
    for entry in entries:
        theories = "\n".join(entry["theory"]) or "–"
        params = Text(", ".join(_parameter(p) for p in entry["params"]))
        paper = Text(entry["paper"], style="dim")
        cells = [Text("\n").join(part for part in (params, paper) if part)]
        table.add_row(
            entry["method"], theories, entry["grade"], *(cells if narrow else [params, paper])
        )
    hint = (
        "Grade: how far the method was checked against the authors' code or paper. "
        "`udjfl methods NAME` describes one with its parameters."
    )
    return Group(table, Text(f"\n{hint}", style="dim"))


def entry_view(entry: dict[str, Any]) -> RenderableType:
    """Show one method in full."""
    facts = {
        "idea": entry["idea"],
        "theory": ", ".join(entry["theory"]) or "–",
        "paper": entry["paper"],
        "grade": entry["grade"],
        "clients send": _sent(entry),
        "cost": entry["cost"],
        "global model": ""
        if entry["global_model"]
        else "none: clients are served models of their own",
        "short names": ", ".join(entry["short_names"]),
    }
    params = Table("Parameter", "Default", "", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for p in entry["params"]:
        params.add_row(p["name"], _value(p["default"]), p["help"])
    parts: list[RenderableType] = [
        Text(f"{entry['title']} ({entry['method']})", style="bold"),
        facts_table(facts.items()),
    ]
    return Group(*parts, Text(""), params) if entry["params"] else Group(*parts)


def catalogue_markdown() -> str:
    """Return the built-in methods as Markdown tables, by theory, and what clients send."""
    from udjfl.methods import THEORIES

    entries = _read_catalogue()
    parts = []
    for theory in THEORIES:
        serving = [e for e in entries if theory in e["theory"] and not e["baseline"]]
        parts += [f"## {theory.capitalize()}", "", *_markdown_table(serving), ""]
    baselines = [entry for entry in entries if entry["baseline"]]
    parts += ["## Baselines", "", *_markdown_table(baselines), ""]
    return "\n".join([*parts, "## What the server learns", "", *_disclosures(entries), ""])


def _disclosures(entries: list[dict[str, Any]]) -> list[str]:
    """Return a Markdown table of what leaves a client, and when."""
    titles = ["Method", "Once, before round 1", "In a round, before training"]
    rows = []
    for entry in entries:
        sent = [name for name in SENT_AS if name in entry["needs"]]
        once = [_with_condition(entry, name, ONCE[name]) for name in ONCE if name in sent]
        before = [SENT_AS[name] for name in SENT_AS if name in entry["probes"]]
        with_update = [
            _with_condition(entry, name, SENT_AS[name]) for name in sent if name not in ONCE
        ]
        with_update += [
            f"{SENT_AS[name]} (with a sensitive attribute)"
            for name in SENT_AS
            if name in entry["needs_groups"]
        ]
        cells = (", ".join(part) or "–" for part in (once, before, with_update))
        rows.append([f"{entry['title']} (`{entry['method']}`)", *cells])
    return markdown_table([*titles, "In a round, with the update"], rows)


def _markdown_table(entries: list[dict[str, Any]]) -> list[str]:
    titles = ["Method", "Idea", "Clients send", "Cost beyond FedAvg", "Parameters", "Grade"]
    rows = [
        [
            f"**{entry['title']}** (`{entry['method']}`) {entry['paper']}",
            entry["idea"],
            _sent(entry),
            entry["cost"],
            ", ".join(f"`{_parameter(p)}`" for p in entry["params"]),
            entry["grade"],
        ]
        for entry in entries
    ]
    return markdown_table(titles, rows)


def _sent(entry: dict[str, Any]) -> str:
    """Return what clients send, in words. What the server computes itself has none."""
    words = {"deltas": "update", **SENT_AS}
    names = {"deltas", *entry["needs"], *entry["probes"]}
    sent = [_with_condition(entry, name, words[name]) for name in words if name in names]
    groups = [words[name] for name in words if name in entry["needs_groups"]]
    optional = f"; with a sensitive attribute also {', '.join(groups)}" if groups else ""
    return ", ".join(sent) + optional


def _with_condition(entry: dict[str, Any], name: str, text: str) -> str:
    condition = entry["needs_if"].get(name)
    return f"{text} (if `{condition}`)" if condition else text


def _parameter(param: dict[str, Any]) -> str:
    """Return a parameter with its default, if it has one."""
    default = param["default"]
    return param["name"] if default is None else f"{param['name']}={_value(default)}"


def _value(default: Any) -> str:
    """Return a default value in few characters."""
    if default is None:
        return "–"
    return f"{default:.4g}" if isinstance(default, float) else str(default)
