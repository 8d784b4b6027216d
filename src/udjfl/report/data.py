"""Data sources, and a federation made from one: as plain values and as tables."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from udjfl.data import SOURCES, Federation, Source, find_source
from udjfl.data.problems import find_small_test_parts, find_tiny_clients
from udjfl.errors import DataError
from udjfl.report.output import FitWidth, facts_table, make_blocks

MAX_COLUMNS = 10
HINT = (
    "Options go after the name, as in signs:level=3. A source of your own is named "
    "package.module:NAME. `udjfl data describe NAME` loads a source and shows its clients."
)


def list_sources(root: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Return, for every source, its summary, defaults, options, and where its files are."""
    SOURCES.load_entry_points()
    return [_describe_source(find_source(name)[0], root) for name in SOURCES]


def _describe_source(source: Source, root: str | os.PathLike[str] | None) -> dict[str, Any]:
    return {
        "data": source.name,
        "summary": source.summary,
        "clients": source.clients,
        "partition": source.partition,
        "images": source.to_pixels is not None,
        "options": [
            {"name": name, "default": field.default, "help": field.description}
            for name, field in source.options.model_fields.items()
        ],
        **_describe_files(source, root),
        "how_to_get": source.how_to_get,
        "can_prepare": source.prepare is not None,
        "can_regenerate": source.can_regenerate,
    }


def _describe_files(source: Source, root: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return `found` (None: unknown), the paths of the files, and what is missing."""
    if source.find_files is None:
        return {"found": None if source.prepare else True, "files": [], "missing": None}
    try:
        files = [str(path) for path in source.find_files(source.request(0, root, {}))]
    except DataError as error:  # `how_to_get` is a value of its own
        missing = str(error).removesuffix(source.how_to_get).strip()
        return {"found": False, "files": [], "missing": missing}
    return {"found": True, "files": files, "missing": None}


def view_sources(sources: list[dict[str, Any]]) -> RenderableType:
    """Lay out all sources, a paragraph each."""
    parts: list[RenderableType] = []
    for source in sources:
        options = [
            f"{option['name']}{_default_text(option['default'])}: {option['help']}"
            for option in source["options"]
        ]
        clients = source["clients"]
        number = "as many clients as the data name" if clients is None else f"{clients} clients"
        facts: list[tuple[str, str | Text]] = [
            ("default", f"{number}, partition {source['partition']}"),
            *zip(["options", *[""] * len(options)], options, strict=False),
            ("files", _view_files(source)),
            ("to get", "" if source["found"] else source["how_to_get"]),
        ]
        heading = Text.assemble((source["data"], "bold"), f"  {source['summary']}")
        parts += [heading, facts_table(facts), Text("")]
    return Group(*parts, Text(HINT, style="dim"))


def _default_text(default: Any) -> str:
    """Return the default of an option as it is typed; nothing for one that is not set."""
    return "" if default in (None, "", []) else f"={default}"


def _view_files(source: dict[str, Any]) -> Text:
    if source["found"] is None:
        return Text("unknown; `udjfl data prepare` gets them")
    if not source["found"]:
        return Text(source["missing"], style="yellow")
    if not source["files"]:
        return Text("none needed")
    return Text.assemble(("found: ", "green"), " and ".join(source["files"]))


def describe_federation(federation: Federation, data: str, seed: int) -> dict[str, Any]:
    """Return a federation in plain values: its clients, shared data and fingerprint.

    `copies` counts a client's test examples that are in its own train part, with the same label.
    """
    copies = federation.count_copies()
    clients = [{**client, "copies": copies[client["id"]]} for client in federation.describe()]
    return {
        "data": data,
        "title": federation.name,
        "seed": seed,
        "partition": (federation.origin or {}).get("partition"),
        "feature_shape": list(federation.input_shape),
        "class_names": list(federation.class_names),
        "clients": clients,
        "global_test": len(federation.test),
        "validation": None if federation.validation is None else len(federation.validation),
        "fingerprint": federation.fingerprint,
        "preprocessing": None
        if federation.preprocessing is None
        else federation.preprocessing.as_dict(),
        "problems": [
            *find_tiny_clients(federation),
            *find_small_test_parts(federation),
            *federation.problems,
        ],
    }


def view_federation(description: dict[str, Any]) -> RenderableType:
    """Lay out what `describe_federation` returned."""
    clients, validation = description["clients"], description["validation"]
    total = sum(client["train"] for client in clients)
    is_regression = not description["class_names"]
    knows_ambiguity = any(client["ambiguous_share"] is not None for client in clients)
    kind = "clean examples" if knows_ambiguity else "examples"
    facts = [
        ("clients", f"{len(clients)}, {total:,} train examples"),
        ("partition", description["partition"] or ""),
        ("example", f"{'x'.join(map(str, description['feature_shape']))} numbers"),
        ("classes", str(len(description["class_names"])) if not is_regression else "none: numbers"),
        ("shared test set", f"{description['global_test']:,} {kind}"),
        (
            "server's data",
            "none" if validation is None else f"{validation:,} examples for validation",
        ),
        ("fingerprint", description["fingerprint"]),
    ]
    return Group(
        Text(f"{description['title']}, seed {description['seed']}", style="bold"),
        facts_table(facts),
        Text(""),
        _view_clients(clients),
        Text(""),
        Text("Train labels" if is_regression else "Train examples of each class", style="bold"),
        _view_counts(description),
        *(_view_columns(description["preprocessing"]) if description["preprocessing"] else ()),
        Text(""),
        *_view_problems(description["problems"]),
    )


def _view_columns(preprocessing: dict[str, Any]) -> list[RenderableType]:
    """Lay out the columns of a table: what was done, and the missing values of each client."""
    done = [(entry["column"], entry["done"]) for entry in preprocessing["columns"]]
    done += [(name, f"left out: {why}") for name, why in preprocessing["left_out"].items()]
    parts: list[RenderableType] = [
        Text(""),
        Text(f"Columns, beside the target {preprocessing['target']}", style="bold"),
        facts_table(done),
    ]
    missing = [entry for entry in preprocessing["columns"] if any(entry["missing"].values())]
    ids = list(preprocessing["numbers"])
    if missing and len(ids) <= MAX_COLUMNS:
        rows = [[f"{entry['missing'][name]:,}" for name in ids] for entry in missing]
        names = [entry["column"] for entry in missing]
        title = Text("Missing values in train parts", style="bold")
        parts += [Text(""), title, _grid("Column", ids, names, rows)]
    return parts


def _view_problems(problems: Sequence[str]) -> list[Text]:
    if not problems:
        return [Text("No problems found.", style="green")]
    return [
        Text("Problems", style="bold"),
        *(Text(f"- {problem}", style="yellow") for problem in problems),
    ]


def _view_clients(clients: list[dict[str, Any]]) -> RenderableType:
    columns = {
        "Train": [f"{client['train']:,}" for client in clients],
        "Test": [f"{client['test']:,}" for client in clients],
    }
    if any(client["ambiguous_share"] is not None for client in clients):
        columns["Ambiguous"] = [_percent(client["ambiguous_share"]) for client in clients]
    if any(client["copies"] for client in clients):
        columns["Test in train"] = [_percent(c["copies"] / c["test"]) for c in clients]
    ids = [client["id"] for client in clients]
    return _grid("Client", list(columns), ids, zip(*columns.values(), strict=True))


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}%"


def _view_counts(description: dict[str, Any]) -> RenderableType:
    """Lay out classes by clients, or clients by classes if there are many clients."""
    ids = [client["id"] for client in description["clients"]]
    classes = description["class_names"]
    if not classes:  # a regression
        numbers = [
            [f"{client['label_mean']:.3g}", f"{client['label_std']:.3g}"]
            for client in description["clients"]
        ]
        return _grid("Client", ["Mean label", "STD of labels"], ids, numbers)
    rows = [[f"{n:,}" for n in client["class_counts"]] for client in description["clients"]]
    if min(len(ids), len(classes)) > MAX_COLUMNS:
        return Text(
            "Too many clients and classes to show here; `--json` has them all.", style="dim"
        )
    if len(ids) > MAX_COLUMNS:
        return _grid("Client", classes, ids, rows)
    return _grid("Class", ids, classes, zip(*rows, strict=True))


def _grid(
    corner: str, headings: list[str], names: list[str], rows: Iterable[Sequence[str]]
) -> RenderableType:
    cells = [[Text(cell) for cell in row] for row in rows]
    titles, labels = (
        [Text(title) for title in headings],
        [Text(n.ljust(len(corner))) for n in names],
    )
    return FitWidth(lambda width: make_blocks(width, corner, titles, labels, cells))
