"""Readers of the messages and files of deployments. They need Flower."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fuzz_damage import ODD_VALUES, change_dict, mutate, mutate_tree
from fuzz_reader import Reader, of_file, of_json, save_to_files

ODD_MESSAGE = tuple(
    v for v in ODD_VALUES if isinstance(v, str | bytes | float | bool) or v in (0, -1, 2**63)
)
SIZE = 4


def make_message_reader() -> Reader:
    """Return a reader of what a Flower client replies."""
    from flwr.app import ConfigRecord, MetricRecord, RecordDict

    from udjfl.flower.messages import Reply
    from udjfl.flower.tensors import allowed_tensors, pack

    kinds = {"metrics": MetricRecord}
    allowed = allowed_tensors(SIZE, torch.float32, 2, {})

    def read(values: Any, folder: Path) -> object:
        try:
            records = {name: kinds.get(name, ConfigRecord)(one) for name, one in values.items()}
            content = RecordDict(records)
        except (TypeError, ValueError, AttributeError):
            return None  # Flower does not send it
        reply = Reply.read(content, "a", 2, allowed=allowed)
        return reply.to_client_reply({"sizes": 3.0}, (), torch.float32)

    tensors = pack({"delta": torch.zeros(SIZE), "buffers": torch.zeros(2).double()})
    valid = {
        "metrics": {"loss": 0.5, "steps": 3},
        "config": {"client-id": "a", "round": 2, "tensors": tensors},
    }
    return Reader(valid, read, change=change_message)


def change_message(valid: Any, chance: random.Random) -> Any:
    """Change the bytes of the tensors, or what Flower lets a message contain."""
    if chance.random() < 0.5:
        config = {**valid["config"], "tensors": mutate(valid["config"]["tensors"], chance)}
        return {**valid, "config": config}
    return mutate_tree(valid, chance, ODD_MESSAGE)


def make_key_reader() -> Reader:
    from udjfl.deployment.control import read_public_key
    from udjfl.deployment.keys import make_node_key

    files = save_to_files(lambda folder: make_node_key(folder, "north"))
    return Reader(files["north.pub"], of_file(read_public_key, "input.pub"))


def make_node_reader() -> Reader:
    from udjfl.deployment.node import Node

    content = b'server = "a:9092"\ndata = "x.csv"\n[more]\na = 2.5\n'
    return Reader(content, of_file(lambda path: Node(path.parent).read_settings(), "node.toml"))


def make_app_reader() -> Reader:
    from udjfl.cli.flower_run import read_declared

    content = b'[project]\nname = "a"\n[tool.flwr.app.config]\nrounds = 3\nlr = 0.1\n'
    return Reader(content, of_file(lambda path: read_declared(path.parent), "pyproject.toml"))


def make_schema_reader() -> Reader:
    from udjfl.flower.tables import TableSchema

    columns = [
        {"name": "age", "categories": [], "may_miss": True},
        {"name": "sex", "categories": ["m", "f"], "may_miss": False},
    ]
    schema = {"target": "ill", "classes": ["0", "1"], "columns": columns, "left_out": {"id": "a"}}
    read = of_json(lambda path: TableSchema.load(path).columns, "schema.json")
    return Reader(schema, read, change=change_dict)


READERS: dict[str, Callable[[], Reader]] = {
    "message": make_message_reader,
    "node key": make_key_reader,
    "node settings": make_node_reader,
    "app settings": make_app_reader,
    "table schema": make_schema_reader,
}
