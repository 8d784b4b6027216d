"""Readers of values: settings, names with parameters, and what clients report."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzz_damage import ODD_VALUES, change_dict, mutate_tree
from fuzz_reader import Reader, of_file

from udjfl._spec import parse_spec
from udjfl.data.partition import Partition
from udjfl.methods import Reports, Setup, method
from udjfl.settings import RunSettings, read_toml, validate_settings
from udjfl.training.service import parse_service

TOML = b'rounds = 3\nlr = 0.1\nmethod = "rawls"\nmodel = "mlp"\n[params]\nbeta = 2.0\n'


def make_settings_reader() -> Reader:
    more = {"seed": 3, "class_weights": "none", "clip_norm": 1.0}
    return Reader(
        {**tomllib.loads(TOML.decode()), **more},
        lambda values, folder: validate_settings(RunSettings, values),
        change=change_dict,
    )


def make_toml_reader() -> Reader:
    return Reader(TOML, of_file(lambda path: validate_settings(RunSettings, read_toml(path))))


def make_text_reader(valid: bytes, read: Callable[[str], object]) -> Reader:
    return Reader(valid, lambda content, folder: read(content.decode("latin-1")))


# --- reports of a round

SIZE = 4
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
METHODS = {name: method(name) for name in sorted(NAMES.split())}
SORTED = list(METHODS)
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
ODD = (*ODD_VALUES, *ODD_ARRAYS)


def change_round(valid: Any, chance: random.Random) -> Any:
    changed = mutate_tree(valid, chance, ODD)
    if isinstance(changed, dict):
        return {**changed, "method": chance.choice(SORTED)}
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


READERS: dict[str, Callable[[], Reader]] = {
    "settings": make_settings_reader,
    "toml": make_toml_reader,
    "reports": lambda: Reader(ROUND, read_reports, change=change_round),
    "spec": lambda: make_text_reader(
        b"udj:theory=rawls:beta=5", lambda text: parse_spec(text, "method")
    ),
    "partition": lambda: make_text_reader(b"shards:size=20,mix=1/2+3/4", Partition.parse),
    "service": lambda: make_text_reader(b"prior-all:strength=0.5", parse_service),
}
