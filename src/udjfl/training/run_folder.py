"""What happened in a run, in memory and on disk.

A run folder holds

    settings.json            everything chosen, and which data it was
    versions.json            of udjfl and the libraries that make the numbers
    uncertainty.json         one number per client, measured once
    records.jsonl            one line per (round, client, metric, value), only ever appended to
    checkpoint.safetensors   the server after some round, and how long records.jsonl was then
    model.safetensors        the final model, where there is one for everybody
    served.safetensors       the models clients use in the end, and in which shares, where those differ between clients
    result.json              the final metrics; these last are written when the run has finished

Files are replaced whole (written beside, synced, renamed) so a killed process leaves the old one or the new one. Records
written after the last checkpoint are cut off on resume and made again, so none is lost and none is there twice.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from udjfl._files import explain_os_errors, write_atomic
from udjfl.errors import CheckpointError, StorageError


class Record(NamedTuple):
    """One value of one metric; `client` is None for what concerns the whole round."""

    round: int
    client: str | None
    metric: str
    value: float | str | None

    def line(self) -> bytes:
        return (json.dumps(self._asdict(), ensure_ascii=False, allow_nan=False) + "\n").encode()


@dataclass
class History:
    """Every record of a run, in order."""

    records: list[Record] = field(default_factory=list)

    def series(self, metric: str, client: str | None = None) -> dict[int, float | str | None]:
        """One metric over the rounds."""
        return {r.round: r.value for r in self.records if r.metric == metric and r.client == client}

    def by_client(self, metric: str, round: int) -> dict[str, float | str | None]:
        """One metric of every client in one round."""
        found = (r for r in self.records if r.metric == metric and r.round == round)
        return {r.client: r.value for r in found if r.client is not None}


@dataclass(frozen=True)
class Checkpoint:
    """The server between two rounds."""

    round: int
    tensors: dict[str, Tensor]
    records_length: int


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records_path = path / "records.jsonl"
        self.checkpoint_path = path / "checkpoint.safetensors"
        self.model_path = path / "model.safetensors"
        self.served_path = path / "served.safetensors"

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], settings: Mapping[str, Any], versions: Mapping[str, str]
    ) -> RunFolder:
        """Start a run. A folder that already holds one is left alone and refused."""
        folder = cls(Path(path))
        if folder.holds_a_run:
            raise StorageError(
                f"{folder.path} already holds a run; continue it with `udjfl resume {folder.path}`, or choose another folder"
            )
        with explain_os_errors(folder.path):
            signs = (
                "records.jsonl",
                "checkpoint.safetensors",
                "uncertainty.json",
                "model.safetensors",
                "result.json",
            )
            left = [name for name in signs if (folder.path / name).exists()]
            if left:
                raise StorageError(
                    f"{folder.path} has {left[0]} of a run without settings; choose another folder, or delete it"
                )
            folder.path.mkdir(parents=True, exist_ok=True)
        folder.write_json("versions.json", versions)
        folder.write_json(
            "settings.json", settings
        )  # last: a folder with settings is a run that can be resumed
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """A run that was started before."""
        folder = cls(Path(path))
        if not folder.holds_a_run:
            raise StorageError(
                f"{folder.path} holds no run (there is no settings.json); start one with `udjfl run --out`"
            )
        return folder

    @property
    def holds_a_run(self) -> bool:
        with explain_os_errors(self.path):
            return (self.path / "settings.json").exists()

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def read_settings(self, *keys: str) -> dict[str, Any]:
        """What settings.json says; it must have these keys."""
        settings = self.read_json("settings.json")
        if not isinstance(settings, dict) or any(key not in settings for key in keys):
            raise StorageError(
                f"{self.path / 'settings.json'} is not that of a run; restore it, or start the run again elsewhere"
            )
        return settings

    def write_json(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        write_atomic(self.path / name, text.encode())

    def read_json(self, name: str) -> Any:
        path = self.path / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StorageError(
                f"{path} cannot be read ({error}); restore it, or start the run again elsewhere"
            ) from None

    def append(self, records: Iterable[Record]) -> None:
        """Add records to the end of the file; `save_checkpoint` makes them last."""
        with explain_os_errors(self.records_path), self.records_path.open("ab") as file:
            file.write(b"".join(record.line() for record in records))

    def save_checkpoint(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        """Sync the records, then replace the checkpoint. Killed in between, the older checkpoint still fits."""
        with explain_os_errors(self.records_path), self.records_path.open("ab") as file:
            os.fsync(file.fileno())
            length = file.tell()
        write_atomic(
            self.checkpoint_path, packed(tensors, {"round": round, "records_length": length})
        )

    def rewind(self) -> tuple[Checkpoint | None, History]:
        """Go back to the last checkpoint (or to the start): cut off later records, return both."""
        checkpoint = None
        if self.checkpoint_path.exists():
            tensors, about = unpacked(self.checkpoint_path)
            checkpoint = Checkpoint(int(about["round"]), tensors, int(about["records_length"]))
        keep = checkpoint.records_length if checkpoint else 0
        with explain_os_errors(self.records_path), self.records_path.open("ab") as file:
            if file.tell() < keep:
                raise CheckpointError(
                    f"{self.records_path} is shorter than when {self.checkpoint_path.name} was written; "
                    f"delete {self.checkpoint_path.name} and resume: the run starts again and gives the same result"
                )
            file.truncate(keep)
        return checkpoint, History(list(self.read_records()))

    def read_records(self) -> Iterator[Record]:
        with explain_os_errors(self.records_path), self.records_path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield Record(**json.loads(line))
                except (ValueError, TypeError) as error:
                    raise StorageError(
                        f"{self.records_path} is damaged in line {number} ({error}); delete it and {self.checkpoint_path.name} "
                        "and resume: the run starts again from the beginning, with the same result"
                    ) from None


def packed(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    """Tensors and a few facts as one safetensors file, with a checksum over the numbers."""
    # Copies: safetensors refuses tensors that share memory, as tied weights do.
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    # One entry: safetensors does not promise an order of several, and equal runs must give equal bytes.
    text = json.dumps({**about, "sha256": _checksum(plain, about)}, sort_keys=True)
    return save(plain, metadata={"udjfl": text})


def unpacked(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The opposite of `packed`; a damaged file is refused."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["udjfl"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(about, dict) or about.pop("sha256", None) != _checksum(tensors, about):
        raise _damaged(path, "its checksum does not match")
    return tensors, about


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged ({why}); delete that file and resume: the run starts again from the beginning, with the same result"
    )


def _checksum(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(
            tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        )
    return digest.hexdigest()
