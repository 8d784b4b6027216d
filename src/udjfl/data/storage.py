"""Federations on disk: tensors in a safetensors file, everything else in JSON. No pickle.

A folder has `federation.json` and `data.safetensors`. Loaded tensors are views of the file: the
system reads what is used and may forget it again, so that a federation can be larger than memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from udjfl._files import (
    explain_os_errors,
    open_file,
    parse_json,
    read_file,
    sync_folder,
    write_atomic,
)
from udjfl.data.examples import Client, Examples
from udjfl.data.tables.preprocessing import Preprocessing
from udjfl.data.validation import FEATURE_TYPES
from udjfl.errors import DataError, quote_values

if TYPE_CHECKING:
    from udjfl.data.federation import Federation

FORMAT = 1
MOST_BYTES = 1 << 28  # of the description
DESCRIPTION, TENSORS = "federation.json", "data.safetensors"
COLUMNS = tuple(field.name for field in fields(Examples))
COLUMN_TYPES: dict[str, tuple[torch.dtype, ...]] = {
    "x": FEATURE_TYPES,
    "y": (torch.int64, torch.float32),
    "group": (torch.int64,),
    "label_probabilities": (torch.float32,),
    "together": (torch.int64,),
}


def save_federation(federation: Federation, folder: Path) -> None:
    """Write a federation into a folder, which is created; the description last."""
    from safetensors.torch import save_file

    if any(client.held_out is not None for client in federation.clients):
        raise DataError("a federation with held-out examples cannot be saved: save it before")
    sides = {
        "train": [client.train for client in federation.clients],
        "test": [*(client.test for client in federation.clients), federation.test],
        "validation": [] if federation.validation is None else [federation.validation],
    }
    tensors = {
        name: tensor for side, parts in sides.items() for name, tensor in _pack(side, parts).items()
    }
    description = {
        "format": FORMAT,
        "name": federation.name,
        "class_names": list(federation.class_names),
        "ids": list(federation.ids),
        "ambiguous_shares": [client.ambiguous_share for client in federation.clients],
        "sizes": {side: [len(part) for part in parts] for side, parts in sides.items()},
        "allow_duplicates": federation.allow_duplicates,
        "preprocessing": federation.preprocessing and federation.preprocessing.as_dict(),
        "fingerprint": federation.fingerprint,
    }
    with explain_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f"{TENSORS}.part"
        save_file(tensors, beside)
        (folder / DESCRIPTION).unlink(missing_ok=True)  # never beside tensors of another one
        beside.replace(folder / TENSORS)
        sync_folder(folder)
    write_atomic(folder / DESCRIPTION, json.dumps(description, indent=2).encode())


def load_federation(folder: str | os.PathLike[str], verify: bool) -> Federation:
    """Return the federation of a folder; its tensors are views of the file."""
    from udjfl.data.federation import Federation

    path = Path(folder)
    description = _read_description(path)
    tensors = _open_tensors(path / TENSORS)
    try:
        _check_types(tensors)
        sizes = description["sizes"]
        train = _unpack("train", sizes["train"], tensors)
        *tests, test = _unpack("test", sizes["test"], tensors)
        validation = _unpack("validation", sizes["validation"], tensors)
        kept = str(description["fingerprint"])
        preprocessing = description["preprocessing"]
        shares = description["ambiguous_shares"]
        parts = zip(description["ids"], train, tests, shares, strict=True)
        federation = Federation(
            description["name"],
            tuple(Client(*part, folder=path) for part in parts),
            test,
            tuple(description["class_names"]),
            description["allow_duplicates"],
            validation=validation[0] if validation else None,
            preprocessing=preprocessing and Preprocessing.from_dict(preprocessing),
            is_checked=True,
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        why = quote_values(str(error))
        raise DataError(f"{path}: {DESCRIPTION} and {TENSORS} do not fit: {why}") from None
    if not verify:
        federation.__dict__["fingerprint"] = kept  # not computed again
    elif kept not in (federation.fingerprint, federation.older_fingerprint):
        raise DataError(f"{path / TENSORS} is damaged: its values are not those that were saved")
    return federation


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description: dict[str, Any] = parse_json(read_file(path / DESCRIPTION, MOST_BYTES))
    except OSError as error:
        raise DataError(f"{path / DESCRIPTION} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path / DESCRIPTION} is damaged: {error}") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise DataError(f"{path / DESCRIPTION} is not of format {FORMAT}: save it again")
    return description


def _open_tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with open_file(path, os.O_RDONLY):
            pass  # it is a plain file: a pipe would have no end
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _pack(side: str, parts: Sequence[Examples]) -> dict[str, torch.Tensor]:
    """Return a column of all parts as one tensor; of some parts only, one tensor for each."""
    tensors: dict[str, torch.Tensor] = {}
    if not parts:
        return tensors
    everything = Examples.concatenate(parts)
    for column in COLUMNS:
        joined = getattr(everything, column)
        if joined is not None:
            tensors[f"{side}.{column}"] = joined.contiguous()
            continue
        for index, part in enumerate(parts):
            own = getattr(part, column)
            if own is not None:
                tensors[f"{side}.{column}.{index}"] = own.clone()  # not a view of another's memory
    return tensors


def _check_types(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise an error unless all columns have types that training reads."""
    for name, tensor in tensors.items():
        _, _, rest = name.partition(".")
        if tensor.dtype not in COLUMN_TYPES.get(rest.partition(".")[0], ()):
            raise ValueError(f"no column {name!r} of {tensor.dtype} is saved")


def _unpack(side: str, sizes: Sequence[int], tensors: Mapping[str, torch.Tensor]) -> list[Examples]:
    if not sizes:
        return []
    columns: list[list[torch.Tensor | None]] = []
    for column in COLUMNS:
        joined = tensors.get(f"{side}.{column}")
        if joined is not None:
            columns.append(list(torch.split(joined, list(sizes))))
        else:
            columns.append([tensors.get(f"{side}.{column}.{i}") for i in range(len(sizes))])
    return [
        Examples(x, y, *others)
        for x, y, *others in zip(*columns, strict=True)
        if x is not None and y is not None
    ]
