"""A new Flower app for tables: `udjfl flower init`."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from udjfl.errors import DeploymentError
from udjfl.flower.settings import SIMULATOR_ONLY, FlowerSettings
from udjfl.flower.tables import TableSchema
from udjfl.models import check_model

PACKAGE = "federated_app"
# Settings of the app itself, with their defaults and what they mean.
OWN_SETTINGS: dict[str, tuple[Any, str]] = {
    "test-share": (0.2, "share of each client's rows that it is tested on"),
    "split-seed": (0, "seed of that split; keep it, so that runs can be compared"),
}

PROJECT = """[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "Federated training on tables with udjfl."
license = "Apache-2.0"
requires-python = ">=3.11"
dependencies = ["udjfl[flower,frames]>=0.1.0"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

# The app uses what is installed: nothing is fetched from a package index.
[tool.uv]
exclude-dependencies = ["flwr", "udjfl"]

[tool.flwr.app]
publisher = "own"
# Only code and schema are sent; keys, data and all other files stay here.
fab-include = ["{package}/*.py", "{package}/schema.json"]

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# Every setting, with its default: `udjfl flower run FOLDER -c name=value` changes it for one run.
[tool.flwr.app.config]
{settings}"""

TASK = '''"""The model and the data: the part to change by hand."""

from pathlib import Path

from flwr.app import Context

from udjfl.flower import ClientData, ServerData
from udjfl.flower.tables import TableSchema

MODEL = {model}  # or any function (input_shape, n_classes) -> torch.nn.Module
SCHEMA = TableSchema.load(Path(__file__).with_name("schema.json"))


def client_data(context: Context) -> ClientData:
    """Load the table of the client that this node serves."""
    node, run = context.node_config, context.run_config
    return SCHEMA.read_client(
        str(node["client-id"]),
        str(node["data"]),
        test_share=float(run["test-share"]),
        seed=int(run["split-seed"]),
    )


def server_data(context: Context) -> ServerData:
    """Describe the examples; the server has none."""
    return SCHEMA.server_data()
'''

APP = '''"""The app of {whose}."""

from {package}.task import MODEL, {data}
from udjfl.flower import {function}

app = {function}(MODEL, {data})
'''


def write_app(
    folder: Path,
    like: Path,
    target: str,
    model: str = "mlp",
    *,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
) -> TableSchema:
    """Write an app for tables like this one to a folder that has none; return its schema."""
    check_model(model)
    schema = TableSchema.infer(like, target, drop=drop, categories=categories)
    if (folder / "pyproject.toml").exists() or (folder / PACKAGE).exists():
        raise DeploymentError(f"{folder} has an app already; choose another folder")
    package = folder / PACKAGE
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    package.mkdir()
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "federation"
    files = {
        "__init__.py": '"""A Flower app of udjfl for tables."""\n',
        "task.py": TASK.format(model=json.dumps(model)),
        "client_app.py": _app("every client", "client_data", "client_app"),
        "server_app.py": _app("the server", "server_data", "server_app"),
    }
    for file, content in files.items():
        (package / file).write_text(content, encoding="utf-8")
    schema.save(package / "schema.json")
    # Last: with it, the folder is an app.
    project = PROJECT.format(name=f"app-{name}", package=PACKAGE, settings=declare_settings())
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    return schema


def declare_settings() -> str:
    """Return every setting of a run in TOML, with its default and what it means."""
    fields = FlowerSettings.flat_fields()
    known = {
        name.replace("_", "-"): ("" if name == "model" else field.default, _describe(field))
        for name, field in fields.items()
        if name not in SIMULATOR_ONLY
    }
    known["model"] = ("", "another model than that of task.py: mlp, cnn, logistic")
    lines = [
        f"# {description}\n{name} = {json.dumps(default)}\n"
        for name, (default, description) in {**known, **OWN_SETTINGS}.items()
    ]
    return "".join(lines)


def _describe(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _app(whose: str, data: str, function: str) -> str:
    return APP.format(whose=whose, package=PACKAGE, data=data, function=function)
