"""A run on disk.

A run folder holds

    settings.json            everything chosen, and which data it was
    versions.json            of udjfl and the libraries that make the numbers
    uncertainty.json         one number per client, measured once
    records.jsonl            one line per (round, client, metric, value), only ever appended to
    checkpoint.safetensors   the server after some round, and how long records.jsonl was then
    model.safetensors        the final model, where there is one for everybody
    served.safetensors       the models clients use in the end, in which shares, and what a service
                             adds to their logits, where those differ between clients
    result.json              the final metrics; these last are written when the run has finished

Files are replaced atomically (written beside, synced, renamed), so a killed process leaves the old
file or the new one. Records written after the last checkpoint are cut off on resume and made again,
so none is lost and none is there twice. One process at a time may write: it holds a lock on the
folder, which the operating system releases when the process ends, however it ends.
"""

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from udjfl._files import explain_os_errors, write_atomic
from udjfl.errors import CheckpointError, StorageError
from udjfl.training.records import History, Record

LOCK, OWNER = ".lock", ".writer.json"
# Seconds to wait for a process that was killed to be gone.
LOCK_TIMEOUT = 2.0
LEFTOVERS = (
    "records.jsonl",
    "checkpoint.safetensors",
    "uncertainty.json",
    "model.safetensors",
    "served.safetensors",
    "result.json",
)


@dataclass(frozen=True)
class Checkpoint:
    """The server between two rounds."""

    round: int
    tensors: dict[str, Tensor]
    records_length: int


class RunFolder:
    """One run on disk. A process that writes holds the lock: see `lock`, `unlock`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: FileLock | None = None
        self.records_path = path / "records.jsonl"
        self.checkpoint_path = path / "checkpoint.safetensors"
        self.model_path = path / "model.safetensors"
        self.served_path = path / "served.safetensors"

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], settings: Mapping[str, Any], versions: Mapping[str, str]
    ) -> "RunFolder":
        """Start a run, in a folder that does not hold one; the folder is locked."""
        folder = cls(Path(path))
        folder.lock()
        try:
            folder._check_is_free()
            folder.write_json("versions.json", versions)
            # Last: a folder with settings is a run that can be resumed.
            folder.write_json("settings.json", settings)
        except BaseException:
            folder.unlock()
            raise
        return folder

    def _check_is_free(self) -> None:
        if self.holds_a_run:
            raise StorageError(
                f"{self.path} already holds a run; continue it with `udjfl resume {self.path}`, "
                "or choose another folder"
            )
        left = [name for name in LEFTOVERS if (self.path / name).exists()]
        if left:
            raise StorageError(
                f"{self.path} has {left[0]} of a run without settings; choose another folder, "
                "or delete it"
            )

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunFolder":
        """Open a run that was started before, to read it; `lock` it before writing."""
        folder = cls(Path(path))
        if not folder.holds_a_run:
            raise StorageError(
                f"{folder.path} holds no run (there is no settings.json); "
                "start one with `udjfl run --out`"
            )
        return folder

    def lock(self) -> None:
        """Acquire the write lock, or raise an error that names the process that has it."""
        with explain_os_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / LOCK, timeout=LOCK_TIMEOUT)
            try:
                lock.acquire()
            except Timeout:
                owner = self.read_json(OWNER) or {}
                raise StorageError(
                    f"{self.path} is being written by process {owner.get('pid', '?')} on "
                    f"{owner.get('host', '?')}; wait until it ends, or stop it"
                ) from None
        self._lock = lock
        try:
            self.write_json(OWNER, {"pid": os.getpid(), "host": socket.gethostname()})
        except BaseException:
            self.unlock()
            raise

    def unlock(self) -> None:
        """Let other processes write here."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        try:
            with contextlib.suppress(OSError):  # a disk that became read-only, say
                (self.path / OWNER).unlink(missing_ok=True)
        finally:
            lock.release()

    @property
    def holds_a_run(self) -> bool:
        with explain_os_errors(self.path):
            return (self.path / "settings.json").exists()

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def read_settings(self, *keys: str) -> dict[str, Any]:
        """Read settings.json, which must have these keys."""
        settings = self.read_json("settings.json")
        if not isinstance(settings, dict) or any(key not in settings for key in keys):
            raise StorageError(
                f"{self.path / 'settings.json'} is not that of a run; restore it, "
                "or start the run again elsewhere"
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
            file.write(b"".join(record.to_line() for record in records))

    def save_checkpoint(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        """Sync the records, then replace the checkpoint.

        Killed in between, the older checkpoint still fits.
        """
        with explain_os_errors(self.records_path), self.records_path.open("ab") as file:
            os.fsync(file.fileno())
            length = file.tell()
        write_atomic(
            self.checkpoint_path, pack(tensors, {"round": round, "records_length": length})
        )

    def rewind(self) -> tuple[Checkpoint | None, History]:
        """Go back to the last checkpoint (or to the start): cut off later records, return both."""
        checkpoint = None
        if self.checkpoint_path.exists():
            tensors, metadata = unpack(self.checkpoint_path)
            checkpoint = Checkpoint(
                int(metadata["round"]), tensors, int(metadata["records_length"])
            )
        keep = checkpoint.records_length if checkpoint else 0
        with explain_os_errors(self.records_path), self.records_path.open("ab") as file:
            if file.tell() < keep:
                raise CheckpointError(
                    f"{self.records_path} is shorter than when {self.checkpoint_path.name} was "
                    f"written; delete {self.checkpoint_path.name} and resume: the run starts again "
                    "and gives the same result"
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
                        f"{self.records_path} is damaged in line {number} ({error}); delete it and "
                        f"{self.checkpoint_path.name} and resume: the run starts again from the "
                        "beginning, with the same result"
                    ) from None


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> bytes:
    """Pack tensors and metadata into one safetensors file, with a checksum over the numbers."""
    # Copies: safetensors refuses tensors that share memory, as tied weights do.
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    # One entry: safetensors does not promise an order of several, and equal runs must give equal
    # bytes.
    text = json.dumps({**metadata, "sha256": _checksum(plain, metadata)}, sort_keys=True)
    return save(plain, metadata={"udjfl": text})


def unpack(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file that `pack` made; a damaged file is rejected."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {})["udjfl"])
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise _damaged(path, str(error)) from None
    is_dict = isinstance(metadata, dict)
    if not is_dict or metadata.pop("sha256", None) != _checksum(tensors, metadata):
        raise _damaged(path, "its checksum does not match")
    return tensors, metadata


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged ({why}); delete that file and resume: the run starts again from the "
        "beginning, with the same result"
    )


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(
            tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        )
    return digest.hexdigest()
