"""Every reader of something from outside, what it takes, and how that is damaged.

`fuzz(name, folder, numbers, seed)` reads one damaged input for each number. An input is made from
the seed and its number alone: `make_input(get_reader(name), seed, number)` makes it again.
"""

from __future__ import annotations

import copy
import functools
import gzip
import hashlib
import io
import json
import math
import random
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from udjfl._spec import parse_spec
from udjfl.data.image_folders import ImageFile, _read_images
from udjfl.data.partition import Partition
from udjfl.data.sources._ambiguous_mnist import _read_tensor
from udjfl.data.sources._idx import read_idx
from udjfl.data.sources._images import open_npz, read_pictures
from udjfl.data.sources.heart import read_patients
from udjfl.data.tables.files import read_table
from udjfl.errors import UdjflError
from udjfl.methods import Reports, Setup, method
from udjfl.settings import RunSettings, read_toml, validate_settings
from udjfl.training.federation_info import FederationInfo
from udjfl.training.inputs import Inputs
from udjfl.training.lifecycle import _restore
from udjfl.training.manifest import Entry, Manifest
from udjfl.training.records import Record, parse_record
from udjfl.training.run_folder import Checkpoint
from udjfl.training.server_state import ServerState
from udjfl.training.service import parse_service
from udjfl.training.tensor_file import ZEROS, _replace_digest, pack, unpack_content

TOKENS = (
    *b"nan 1e999 -1 null true 0 [ { , : = \xff \xf0\x9f\x92\xa5 \x1b[31m".split(),
    *(b"", b"\0", b'"', b"\n", b"9" * 30, b"[" * 2000),
)


def mutate(valid: bytes, chance: random.Random) -> bytes:
    """Change a content in a few places: bits, bytes, pieces that are removed or doubled."""
    content = bytearray(valid)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(content) + 1)
        end = min(len(content), at + chance.choice((1, 1, 4, 64)))
        kind = chance.randrange(6)
        if kind == 0 and at < len(content):
            content[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            content[at:end] = chance.randbytes(end - at)
        elif kind == 2:
            del content[at:end]
        elif kind == 3:
            content[at:at] = content[at:end]
        elif kind == 4:
            content[at:end] = chance.choice(TOKENS)
        else:
            content = content[:at]
    return bytes(content) if chance.random() < 0.95 else chance.randbytes(chance.randrange(300))


def _nest(depth: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 2**53, 2**63, 2**64, -(2**70), 10**400),
    *(0.5, -0.0, 1e-320, 3.5e38, 1e308, math.nan, math.inf, -math.inf),
    *("", "a", "client-1", "\x1b[31m", "\ud800", "x" * 300, "nan", "..", "os:system", b"\xff"),
    *([], {}, [None], [math.nan], [1, "a"], {"": {}}, {"a": [1]}, _nest(50), 1 + 2j),
)
ODD_JSON = tuple(v for v in ODD_VALUES if not isinstance(v, bytes | complex))


def mutate_tree(valid: Any, chance: random.Random, odd: tuple[Any, ...] = ODD_JSON) -> Any:
    """Change a copy of nested dicts and lists in a few places."""
    tree = [copy.deepcopy(valid)]
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        parent: Any = tree
        key: Any = 0
        while isinstance(parent[key], dict | list) and parent[key] and chance.random() < 0.85:
            parent = parent[key]
            key = chance.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        kind = chance.randrange(5)
        if kind == 0 and parent is not tree:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            new = chance.choice(("", "a", "client-1", "round", "\x1b[31m"))
            parent[new] = copy.deepcopy(chance.choice(odd))
        elif kind == 2 and isinstance(parent[key], float):
            parent[key] *= chance.choice((-1, 0.1, 2, 1e30))
        else:
            parent[key] = copy.deepcopy(chance.choice(odd))
        if not isinstance(tree[0], dict | list) or not tree[0]:
            break
    return tree[0]


def change_dict(valid: Any, chance: random.Random) -> Any:
    changed = mutate_tree(valid, chance)
    return changed if isinstance(changed, dict) else {}


@dataclass(frozen=True)
class Reader:
    """A reader, an input that it takes, the errors it may raise, and how inputs are changed."""

    valid: Any
    read: Callable[[Any, Path], object]
    errors: tuple[type[Exception], ...] = (UdjflError,)
    change: Callable[[Any, random.Random], Any] = mutate


def make_input(reader: Reader, seed: int, number: int) -> Any:
    """Make the damaged input of this number."""
    return reader.change(reader.valid, random.Random(seed << 32 | number))


def fuzz(name: str, folder: Path, numbers: Iterable[int], seed: int) -> Counter[str]:
    """Read damaged inputs: each is read, or refused with an error of ours."""
    reader, outcomes = get_reader(name), Counter[str]()
    reader.read(reader.valid, folder)
    for number in numbers:
        content = make_input(reader, seed, number)
        try:
            reader.read(content, folder)
            outcomes["read"] += 1
        except reader.errors:
            outcomes["refused"] += 1
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}, input {number}: {content!r}") from error
    print(f"{name}: {sum(outcomes.values())} inputs: {dict(outcomes)}")
    return outcomes


# --- files


def of_file(read: Callable[[Path], object], name: str = "input") -> Callable[[Any, Path], object]:
    """Return a reader of contents from one of files."""

    def read_content(content: bytes, folder: Path) -> object:
        (folder / name).write_bytes(content)
        return read(folder / name)

    return read_content


def of_text(read: Callable[[str], object]) -> Callable[[Any, Path], object]:
    return lambda content, folder: read(content.decode("latin-1"))


def read_archive(path: Path) -> None:
    with open_npz(path, "get it again") as archive:
        for name in archive.files:
            archive[name]


def make_idx() -> bytes:
    return gzip.compress(
        b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 3, 3)) + bytes(18)
    )


def save_to_bytes(save: Callable[[io.BytesIO], object]) -> bytes:
    stream = io.BytesIO()
    save(stream)
    return stream.getvalue()


def make_picture() -> bytes:
    from PIL import Image

    picture = Image.fromarray(np.arange(75, dtype=np.uint8).reshape(5, 5, 3))
    return save_to_bytes(lambda stream: picture.save(stream, "PNG"))


def read_own_images(path: Path) -> object:
    return _read_images([ImageFile("a", "x", path)], (4, 4), True)


TENSORS = {"vector": torch.arange(5.0), "buffers": torch.zeros(0), "state.a": torch.ones(2, 2)}
CHECKPOINT = pack(TENSORS, {"round": 3, "records_length": 17, "run": "0" * 64})


def seal(content: bytes) -> bytes:
    """Give a changed checkpoint a checksum that fits, if there is still a place for one."""
    digest = CHECKPOINT[CHECKPOINT.index(b"sha256") :].split(b'\\"')[2].decode()
    try:
        plain = _replace_digest(content, digest, ZEROS)
        return _replace_digest(plain, ZEROS, hashlib.sha256(plain).hexdigest())
    except ValueError:
        return content


def read_state(content: bytes, folder: Path) -> object:
    """Read a checkpoint of somebody who can compute a checksum."""
    tensors, metadata = unpack_content(seal(content), folder / "checkpoint")
    if type(metadata.get("round")) is not int:
        return None  # refused when the folder is opened
    initial = ServerState(0, TENSORS["vector"], TENSORS["buffers"], {"a": TENSORS["state.a"]})
    return _restore(Checkpoint(metadata["round"], tensors, 0, None), initial, 5)


# --- values


N_CLIENTS, SIZE = 3, 4
SETUP = Setup(
    ids=("client-1", "client-2", "client-3"),
    sizes=torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64),
    model=torch.zeros(SIZE),
    layers=(SIZE,),
    has_validation=False,
)
ROUND: dict[str, Any] = {
    "method": "fedavg",
    "ids": list(SETUP.ids),
    "deltas": [[0.1, 0.2, -0.3, 0.4], [0.1, -0.2, 0.3, 0.0], [0.0, 0.0, 0.1, -0.5]],
    "losses": [0.5, 1.0, 2.0],
    "sizes": [10.0, 20.0, 30.0],
    "uncertainties": [0.1, 0.2, 0.3],
    "steps": [1.0, 2.0, 3.0],
    "client_indices": [0, 1, 2],
    "lr": 0.1,
    "momentum": 0.5,
    "round": 2,
    "model": torch.arange(float(SIZE)),
}
NAMES = """
fedavg rawls egalitarian utilitarian desert qffl term afl fedmgda fedfv adafed fedeba fednova
propfair fedprox
"""
METHODS = {name: method(name) for name in NAMES.split()}
FIRST_STATES = {name: dict(rule.init(SETUP)) for name, rule in METHODS.items()}
ODD_ARRAYS = (
    torch.zeros(3, dtype=torch.complex64),
    np.array([1, None, "a"], dtype=object),
    np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0]),
    torch.ones(3, dtype=torch.bool),
    torch.full((3, SIZE), 3.5e38, dtype=torch.float64),
    torch.zeros(3, 0),
    torch.zeros(0, SIZE),
    torch.full((3, SIZE), 1e30),
    np.zeros((3, SIZE), dtype=np.float16),
)


def change_round(valid: Any, chance: random.Random) -> Any:
    changed = mutate_tree(valid, chance, (*ODD_VALUES, *ODD_ARRAYS))
    if isinstance(changed, dict):
        changed["method"] = chance.choice(sorted(METHODS))
    return changed


def read_reports(values: Any, folder: Path) -> object:
    """Make `Reports` of values and give them to a method."""
    if not isinstance(values, dict) or not isinstance(values.get("method"), str):
        return None
    fields = {key: value for key, value in values.items() if key in ROUND and key != "method"}
    if not {"ids", "deltas"} <= set(fields):
        return None
    rule = METHODS[values["method"]]
    return rule.aggregate(FIRST_STATES[values["method"]], Reports(**fields))


# --- run folders and messages of others, whose readers need something to be made first


def make_folder_reader() -> Reader:
    """Return a reader of a run folder in which anything may be written."""
    import tempfile

    from small_runs import make_federation, make_older

    import udjfl

    with tempfile.TemporaryDirectory() as root:
        out = Path(root) / "run"
        how: dict[str, Any] = {"model": "logistic", "rounds": 1, "uncertainty_epochs": 1}
        udjfl.simulate(make_federation(), "fedavg", out=out, **how)
        make_older(out)
        files = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    documents = {name: json.loads(text) for name, text in files.items() if name.endswith(".json")}
    return Reader(
        documents,
        lambda values, folder: read_folder(values, files, folder),
        change=change_dict,
    )


def read_folder(values: Any, files: dict[str, bytes], folder: Path) -> object:
    """Write a run folder and read it as `udjfl report` does, unless it names code."""
    from udjfl.report.saved_runs import compare_runs, read_run

    run = folder / "run"
    run.mkdir(exist_ok=True)
    for name, content in files.items():
        text = json.dumps(values.get(name)).encode() if name.endswith(".json") else content
        if not (run / name).exists() or (run / name).read_bytes() != text:
            (run / name).write_bytes(text)
    return compare_runs([read_run(run)]).as_dict()


def make_message_reader() -> Reader:
    """Return a reader of what a Flower client replies."""
    from udjfl.flower.tensors import allowed_tensors
    from udjfl.flower.tensors import pack as pack_tensors

    tensors = pack_tensors({"delta": torch.zeros(SIZE), "buffers": torch.zeros(2).double()})
    allowed = allowed_tensors(SIZE, torch.float32, 2, {})
    valid = {
        "metrics": {"loss": 0.5, "steps": 3},
        "config": {"client-id": "a", "round": 2, "tensors": tensors},
    }
    return Reader(valid, lambda values, folder: read_reply(values, allowed), change=change_message)


def change_message(valid: Any, chance: random.Random) -> Any:
    """Change the bytes of the tensors, or what Flower lets a message contain."""
    if chance.random() < 0.5:
        config = {**valid["config"], "tensors": mutate(valid["config"]["tensors"], chance)}
        return {**valid, "config": config}
    return mutate_tree(valid, chance, ODD_MESSAGE)


def read_reply(values: Any, allowed: Any) -> object:
    from flwr.app import ConfigRecord, MetricRecord, RecordDict

    from udjfl.flower.messages import Reply

    kinds = {"metrics": MetricRecord}
    try:
        records = {name: kinds.get(name, ConfigRecord)(one) for name, one in values.items()}
        content = RecordDict(records)
    except (TypeError, ValueError, AttributeError):
        return None  # Flower does not send it
    reply = Reply.read(content, "a", 2, allowed=allowed)
    return reply.to_client_reply({"sizes": 3.0}, (), torch.float32)


# --- tables, saved federations, searches


def make_table() -> Any:
    import pandas as pd

    ages = [float(20 + 7 * i % 50) for i in range(24)]
    sexes = ["m", "f", None, "f"] * 6
    ill = [0, 1, 1, 0, 1, 0] * 4
    sites = ["north", "south"] * 12
    return pd.DataFrame({"site": sites, "age": ages, "sex": sexes, "ill": ill})


def make_table_federation() -> Any:
    import udjfl

    return udjfl.Federation.from_frames(make_table(), target="ill", client="site")


def make_parquet_reader() -> Reader:
    content = save_to_bytes(lambda stream: make_table().to_parquet(stream))
    return Reader(content, of_file(read_table, "input.parquet"))


@functools.cache
def make_saved_readers() -> tuple[Reader, Reader]:
    """Return readers of the description and of the tensors of a saved federation."""
    import tempfile

    import udjfl

    with tempfile.TemporaryDirectory() as root:
        make_table_federation().save(root)
        files = {path.name: path.read_bytes() for path in Path(root).iterdir()}

    def read(changed: dict[str, bytes], folder: Path) -> object:
        for name, content in {**files, **changed}.items():
            (folder / name).write_bytes(content)
        return udjfl.Federation.load(folder)

    description, tensors = sorted(files, key=lambda name: not name.endswith(".json"))

    return (
        Reader(
            json.loads(files[description]),
            lambda values, folder: read({description: json.dumps(values).encode()}, folder),
            change=change_dict,
        ),
        Reader(files[tensors], lambda content, folder: read({tensors: content}, folder)),
    )


def make_preprocessing_reader() -> Reader:
    """Return a reader of the description of inputs, which then prepares rows."""
    inputs, table = FederationInfo.of(make_table_federation()).inputs, make_table()

    def read(values: Any, folder: Path) -> object:
        found = Inputs.from_description(values)
        return None if found is None else found.to_tensor(table)

    return Reader(json.loads(json.dumps(inputs.describe())), read, change=change_dict)


def make_rows_reader() -> Reader:
    inputs = FederationInfo.of(make_table_federation()).inputs
    return Reader(
        make_table().to_csv(index=False).encode(), of_file(lambda path: inputs.read_csv(path))
    )


@functools.cache
def make_frontier_readers() -> tuple[Reader, Reader]:
    """Return readers of the description and of the runs of a frontier."""
    import tempfile

    from frontier_cases import make_frontier

    from udjfl.report.frontier_table import frontier_view
    from udjfl.search.frontier import Frontier

    with tempfile.TemporaryDirectory() as root:
        make_frontier().save(root)
        files = {path.name: path.read_bytes() for path in Path(root).iterdir()}

    def read(changed: dict[str, bytes], folder: Path) -> object:
        for name, content in {**files, **changed}.items():
            (folder / name).write_bytes(content)
        return frontier_view(Frontier.load(folder))

    return (
        Reader(
            json.loads(files["frontier.json"]),
            lambda values, folder: read({"frontier.json": json.dumps(values).encode()}, folder),
            change=change_dict,
        ),
        Reader(files["runs.csv"], lambda content, folder: read({"runs.csv": content}, folder)),
    )


def make_choice_reader() -> Reader:
    """Return a reader of the choice of a search, which then shows it."""
    from udjfl.report.tune_table import choice_view
    from udjfl.search.tune import HeldOutChoice

    score = {
        **{"label": "UDJ-FL", "method": "udj", "params": {"theory": "rawls"}, "measure": 1.0},
        **{"measure_by_seed": [1.0, 2.0], "mean_accuracy": -0.5, "beneficiaries": 0.5},
        **{"shared": None, "clients": {"a": 50.0, "b": 75.0}, "broken": {}, "failed": None},
        "near_budget": False,
    }
    choice = {
        **{"method": "UDJ-FL", "theory": "rawls", "budget": 2.0, "floor": {"a": 40.0}},
        **{"chosen": score, "default": score, "neighbours": [score]},
        **{"rungs": [{"rounds": 2, "scores": [score, score]}], "defaults": ["udj"]},
        **{"cost": 4.0, "grid_cost": 9.0},
    }

    def read(values: Any, folder: Path) -> object:
        (folder / "choice.json").write_text(json.dumps(values))
        return choice_view(HeldOutChoice.load(folder), folder)

    return Reader(choice, read, change=change_dict)


# --- files of deployments


def make_key_reader() -> Reader:
    import tempfile

    from udjfl.deployment.control import read_public_key
    from udjfl.deployment.keys import make_node_key

    with tempfile.TemporaryDirectory() as root:
        make_node_key(Path(root), "north")
        content = (Path(root) / "north.pub").read_bytes()
    return Reader(content, of_file(read_public_key, "input.pub"))


def make_node_reader() -> Reader:
    from udjfl.deployment.node import Node

    def read(path: Path) -> object:
        return Node(path.parent).read_settings()

    return Reader(
        b'server = "a:9092"\ndata = "x.csv"\n[more]\na = 2.5\n', of_file(read, "node.toml")
    )


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

    def read(values: Any, folder: Path) -> object:
        (folder / "schema.json").write_text(json.dumps(values))
        return TableSchema.load(folder / "schema.json").columns

    return Reader(schema, read, change=change_dict)


ODD_MESSAGE = tuple(
    v for v in ODD_VALUES if isinstance(v, str | bytes | float | bool) or v in (0, -1, 2**63)
)
PATIENT = b"63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n"
TOML = b'rounds = 3\nlr = 0.1\nmethod = "rawls"\nmodel = "mlp"\n[params]\nbeta = 2.0\n'
TABLE = "site,age,sex,ill\nnorth,63,m,0\nnorth,41.5,f,1\nsüd,,f,1\nsüd,58,m,0\n".encode()
READERS = {
    "manifest": Reader(
        Manifest.of_run(b"a", b"b").expect({"result.json": Entry.of(b"c")}).encode(),
        lambda content, folder: Manifest.decode(content),
        (ValueError,),
    ),
    "record": Reader(
        Record(3, "client-1", "loss", 0.25).to_line(),
        lambda content, folder: parse_record(content),
        (ValueError,),
    ),
    "checkpoint": Reader(
        CHECKPOINT, lambda content, folder: unpack_content(content, folder / "checkpoint")
    ),
    "sealed checkpoint": Reader(CHECKPOINT, read_state),
    "settings": Reader(
        {**tomllib.loads(TOML.decode()), "seed": 3, "class_weights": "none", "clip_norm": 1.0},
        lambda values, folder: validate_settings(RunSettings, values),
        change=change_dict,
    ),
    "reports": Reader(ROUND, read_reports, change=change_round),
    "toml": Reader(TOML, of_file(lambda path: validate_settings(RunSettings, read_toml(path)))),
    "idx": Reader(make_idx(), of_file(lambda path: read_idx(path, 3))),
    "npz": Reader(
        save_to_bytes(
            lambda stream: np.savez_compressed(stream, x=np.arange(9), y=np.zeros((2, 2)))
        ),
        of_file(read_archive),
    ),
    "pt": Reader(
        save_to_bytes(lambda stream: torch.save(torch.arange(6.0), stream)), of_file(_read_tensor)
    ),
    "csv": Reader(PATIENT * 3, of_file(read_patients)),
    "table": Reader(TABLE, of_file(read_table, "input.csv")),
    "image": Reader(make_picture(), of_file(lambda path: read_pictures([path]), "input.png")),
    "own image": Reader(make_picture(), of_file(read_own_images, "input.png")),
    "spec": Reader(b"udj:theory=rawls:beta=5", of_text(lambda text: parse_spec(text, "method"))),
    "partition": Reader(b"shards:size=20,mix=1/2+3/4", of_text(Partition.parse)),
    "service": Reader(b"prior-all:strength=0.5", of_text(parse_service)),
}
MADE_LATER = {
    "folder": make_folder_reader,
    "message": make_message_reader,
    "parquet": make_parquet_reader,
    "saved description": lambda: make_saved_readers()[0],
    "saved tensors": lambda: make_saved_readers()[1],
    "preprocessing": make_preprocessing_reader,
    "rows": make_rows_reader,
    "frontier": lambda: make_frontier_readers()[0],
    "runs": lambda: make_frontier_readers()[1],
    "choice": make_choice_reader,
    "node key": make_key_reader,
    "node settings": make_node_reader,
    "app settings": make_app_reader,
    "table schema": make_schema_reader,
}
NEED_FLOWER = {"message", "node key", "node settings", "app settings", "table schema"}


@functools.cache
def get_reader(name: str) -> Reader:
    """Return a reader by its name; some train a model first."""
    return READERS[name] if name in READERS else MADE_LATER[name]()
