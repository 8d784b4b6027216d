"""The data sources, and one federation made of a source: as plain values and as tables."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from udjfl.data import SOURCES, Federation, Source
from udjfl.errors import DataError

MOST_COLUMNS = 10


def source_list(root: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Every source: what it is, its usual federation, its options, whether its files are here, how to get them."""
    return [_entry(source, root) for source in SOURCES.values()]


def _entry(source: Source, root: str | os.PathLike[str] | None) -> dict[str, Any]:
    return {
        "data": source.name,
        "line": source.line,
        "clients": source.clients,
        "partition": source.partition,
        "images": source.to_pixels is not None,
        "options": [
            {"name": name, "default": about.default, "help": about.description}
            for name, about in source.options.model_fields.items()
        ],
        **_files(source, root),
        "how_to_get": source.how_to_get,
        "can_prepare": source.prepare is not None,
        "can_regenerate": source.regenerates,
    }


def _files(source: Source, root: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Whether the files are here (None: nobody looked), where, and if they are not, what is missing."""
    request = source.request(0, root, {})
    if source.files is None:
        return {"found": None if source.prepare else True, "files": [], "missing": None}
    try:
        return {
            "found": True,
            "files": [str(path) for path in source.files(request)],
            "missing": None,
        }
    except DataError as error:  # its advice stands elsewhere in the entry
        return {
            "found": False,
            "files": [],
            "missing": str(error).removesuffix(source.how_to_get).strip(),
        }


def source_list_view(entries: list[dict[str, Any]]) -> RenderableType:
    """All sources, a paragraph each."""
    parts: list[RenderableType] = []
    for entry in entries:
        facts = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        facts.add_column(no_wrap=True)
        facts.add_column(overflow="fold")
        facts.add_row("usually", f"{entry['clients']} clients, {entry['partition']}")
        for place, option in enumerate(entry["options"]):
            facts.add_row(
                "" if place else "options",
                Text(f"{option['name']}={option['default']}: {option['help']}"),
            )
        facts.add_row("files", _files_cell(entry))
        if not entry["found"]:
            facts.add_row("to get", Text(entry["how_to_get"]))
        heading = Text.assemble((entry["data"], "bold"), f"  {entry['line']}")
        parts += [heading, facts, Text("")]
    hint = "Options go after the name, as in signs:level=3. `udjfl data describe NAME` loads one and shows its clients."
    return Group(*parts, Text(hint, style="dim"))


def _files_cell(entry: dict[str, Any]) -> Text:
    if entry["found"] is None:
        return Text("not looked for")
    if entry["found"]:
        return (
            Text.assemble(("found: ", "green"), " and ".join(entry["files"]))
            if entry["files"]
            else Text("none needed")
        )
    return Text(entry["missing"], style="yellow")


def description(federation: Federation, data: str, seed: int) -> dict[str, Any]:
    """A federation in plain values: its clients, the data everyone is measured on, and its fingerprint."""
    origin = federation.origin or {}
    return {
        "data": data,
        "title": federation.name,
        "seed": seed,
        "partition": origin.get("partition"),
        "feature_shape": list(federation.input_shape),
        "class_names": list(federation.class_names),
        "clients": federation.describe(),
        "global_test": len(federation.test),
        "validation": None if federation.validation is None else len(federation.validation),
        "fingerprint": federation.fingerprint,
    }


def description_view(about: dict[str, Any]) -> RenderableType:
    """The same as tables."""
    facts = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    rows = about["clients"]
    total = sum(row["train"] for row in rows)
    facts.add_row("clients", f"{len(rows)}, {about['partition']}, {total:,} train examples")
    facts.add_row("one example", "x".join(map(str, about["feature_shape"])))
    facts.add_row("classes", str(len(about["class_names"])))
    facts.add_row("global test", f"{about['global_test']:,} clean examples")
    held = about["validation"]
    facts.add_row(
        "validation", "none" if held is None else f"{held:,} examples of the server's own"
    )
    facts.add_row("fingerprint", about["fingerprint"])
    heading = Text(f"{about['title']}, seed {about['seed']}", style="bold")
    counts_heading = Text("Train examples of each class", style="bold")
    return Group(
        heading, facts, Text(""), _client_table(rows), Text(""), counts_heading, _count_table(about)
    )


def _client_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("Client", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("Train", "Test", "Ambiguous"):
        table.add_column(heading, justify="right")
    for row in rows:
        share = "–" if row["ambiguous_share"] is None else f"{100 * row['ambiguous_share']:.1f}%"
        table.add_row(Text(row["id"]), f"{row['train']:,}", f"{row['test']:,}", share)
    return table


def _count_table(about: dict[str, Any]) -> RenderableType:
    """Classes by clients, or clients by classes if those are fewer; too wide both ways, it is left to --json."""
    clients, classes = [row["id"] for row in about["clients"]], about["class_names"]
    by_client = [row["class_counts"] for row in about["clients"]]
    if min(len(clients), len(classes)) > MOST_COLUMNS:
        return Text(
            "Too many clients and classes to show here; `--json` has them all.", style="dim"
        )
    if len(clients) > MOST_COLUMNS:
        return _grid("Client", classes, clients, by_client)
    return _grid(
        "Class", clients, classes, [list(counts) for counts in zip(*by_client, strict=True)]
    )


def _grid(corner: str, above: list[str], beside: list[str], counts: list[list[int]]) -> Table:
    table = Table(corner, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in above:
        table.add_column(Text(heading), justify="right", overflow="fold")
    for name, row in zip(beside, counts, strict=True):
        table.add_row(Text(name), *(f"{count:,}" for count in row))
    return table
