"""The life of a run around its rounds: its folder, its records, its uncertainties, its result."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from udjfl._files import to_json
from udjfl.errors import CheckpointError, DataError, SettingsError, StorageError
from udjfl.settings import TrainingSettings
from udjfl.settings.training import OLDER_NAMES
from udjfl.training.folder_check import refuse_damage
from udjfl.training.record_file import CHECKPOINT, START_AGAIN
from udjfl.training.records import History, Record
from udjfl.training.run_folder import Checkpoint, RunFolder
from udjfl.training.server_state import ServerState
from udjfl.training.state import Run
from udjfl.uncertainty import Uncertainty

logger = logging.getLogger("udjfl")
LIBRARIES = ("udjfl", "torch", "numpy", "scipy", "scikit-learn")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that make the numbers."""
    return {"python": platform.python_version(), **_library_versions()}


@functools.cache  # each version is read from a file
def _library_versions() -> dict[str, str]:
    return {name: version(name) for name in LIBRARIES}


def describe_run(
    run: Run,
    module: nn.Module,
    federation: Mapping[str, Any],
    origin: Mapping[str, Any] | None = None,
    flower: Mapping[str, Any] | None = None,
    reference: Tensor | None = None,
) -> dict[str, Any]:
    """Return everything that decides a run's numbers, as plain values.

    `federation` describes the data; it has a `fingerprint`. `origin` says how to load them again,
    where that is known. `flower` has the settings that only runs across machines have. `reference`
    has FedAvg's scores by round, if a user gave them.
    """
    scores = reference if run.method.needs_reference else None
    description = {
        "method": run.method.spec_name,
        "params": run.method.params,
        "seed": run.seed,
        "training": run.settings.model_dump(),
        "model": {name: list(value.shape) for name, value in module.named_parameters()},
        "federation": dict(federation),
        **({} if flower is None else {"flower": dict(flower)}),
        **({} if scores is None else {"reference": _digest(scores)}),
        "origin": dict(origin) if origin else None,
    }
    plain: dict[str, Any] = json.loads(json.dumps(description))  # tuples become lists
    return plain


def _digest(scores: Tensor) -> str:
    """Return a fingerprint of a table of scores; equal for equal scores, unknown ones included."""
    return hashlib.sha256(repr(scores.tolist()).encode()).hexdigest()


def open_run_folder(
    out: str | os.PathLike[str], description: Mapping[str, Any], resume: bool
) -> RunFolder:
    """Create a run folder or, resuming, open the one that holds this very run; it is locked."""
    folder = RunFolder(Path(out))
    if not (resume and folder.holds_a_run):
        return RunFolder.create(out, description, versions())
    folder.lock()
    try:
        refuse_damage(folder, resuming=True)
        _check_same_run(folder, description)
        same_versions = folder.read_json("versions.json") == versions()
    except BaseException:
        folder.unlock()
        raise
    if not same_versions:
        logger.warning(
            "%s was started with other versions of the libraries; its numbers may differ in the "
            "last digits.",
            out,
        )
    return folder


def _check_same_run(folder: RunFolder, new: Mapping[str, Any]) -> None:
    old = folder.read_settings("method", "params", "seed", "training", "federation")
    if old["federation"].get("fingerprint") != new["federation"]["fingerprint"]:
        raise DataError(
            f"{folder.path} was made with other data; resume it with the federation it was "
            "started on"
        )
    if old["method"] == new["method"] and (added := new["params"].keys() - old["params"].keys()):
        raise StorageError(
            f"{folder.path} was started by another version of udjfl, whose {new['method']} had no "
            f"{', '.join(sorted(added))} and may follow other rules; start the run again in "
            "another folder"
        )
    changed = [key for key in ("method", "params", "seed", "model") if old.get(key) != new[key]]
    # A setting that did not exist when the run was started had its default.
    before = {**TrainingSettings().model_dump(), **old["training"]}
    before["uncertainty"] = OLDER_NAMES.get(str(before["uncertainty"]), before["uncertainty"])
    training = {key: value for key, value in new["training"].items() if key != "workers"}
    changed += [key for key, value in training.items() if before[key] != value]
    # A checkpoint has the reference's scores in it: then it need not be given again.
    is_given = "reference" in new or not folder.has_checkpoint
    if "reference" in old and is_given and new.get("reference") != old["reference"]:
        changed.append("reference")
    flower = old.get("flower", {})
    changed += [key for key, value in new.get("flower", {}).items() if flower.get(key) != value]
    if changed:
        raise StorageError(
            f"{folder.path} was started with another {', '.join(changed)}; resume it with the same"
        )


class RunLog:
    """Writes whole rounds down: into the run folder or, without one, in memory.

    With a folder that holds a checkpoint, `server` is the server at that checkpoint.
    """

    def __init__(
        self, settings: TrainingSettings, server: ServerState, folder: RunFolder | None
    ) -> None:
        self.settings, self.server, self.folder = settings, server, folder
        self._memory = History()
        self._saved_round = 0
        checkpoint = None if folder is None else folder.rewind()[0]
        if checkpoint is not None:
            self.server = _restore(checkpoint, server, settings.rounds)
            self._saved_round = checkpoint.round

    def write(self, server: ServerState, records: Sequence[Record]) -> None:
        """Write down a finished round."""
        if self.folder is None:
            self.server = server
            self._memory.records.extend(records)
            return
        self.folder.append(records)
        self.server = server  # only now: a checkpoint must not be ahead of the records
        is_last = server.round == self.settings.rounds
        if server.round % self.settings.checkpoint_every == 0 or is_last:
            self.save_checkpoint()

    def save_checkpoint(self) -> None:
        """Save the server after the last written round, unless it is saved already."""
        if self.folder is not None and self.server.round > self._saved_round:
            self.folder.save_checkpoint(self.server.round, self.server.to_tensors())
            self._saved_round = self.server.round

    def history(self) -> History:
        """Return all records of the run, of earlier processes too."""
        return self._memory if self.folder is None else History(list(self.folder.read_records()))


def _restore(checkpoint: Checkpoint, initial: ServerState, rounds: int) -> ServerState:
    """Return the server at a checkpoint, which must be of a run like this one."""
    tensors = checkpoint.tensors
    wrong = [
        name
        for name, value in initial.to_tensors().items()
        if name not in tensors
        or tensors[name].dtype != value.dtype
        or (name in ("vector", "buffers") and tensors[name].shape != value.shape)
    ]
    if wrong or not 1 <= checkpoint.round <= rounds:
        what = f"its {wrong[0]}" if wrong else f"its round, {checkpoint.round} of {rounds},"
        raise CheckpointError(
            f"{CHECKPOINT} does not belong to this run: {what} does not fit; {START_AGAIN}"
        )
    return ServerState.from_tensors(checkpoint.round, tensors)


def check_complete(uncertainty: Uncertainty, ids: Sequence[str]) -> None:
    """Raise an error unless every client has an uncertainty."""
    missing = [name for name in ids if name not in uncertainty.values]
    if missing:
        raise SettingsError(
            f"uncertainty: no value for client {missing[0]!r}; give one number for each client"
        )


def load_uncertainty(folder: RunFolder, ids: Sequence[str]) -> Uncertainty | None:
    """Read the uncertainties that a run folder holds."""
    content = folder.read_json("uncertainty.json")
    if content is None:
        return None
    try:
        uncertainty = Uncertainty.from_dict(content)
        check_complete(uncertainty, ids)
    except (TypeError, ValueError, KeyError, AttributeError):
        raise StorageError(
            f"{folder.path / 'uncertainty.json'} is damaged; delete it and resume: "
            "the uncertainties are measured again"
        ) from None
    return uncertainty


def save_uncertainty(folder: RunFolder, uncertainty: Uncertainty) -> None:
    """Write the uncertainties of a run; where they were lost, they must be what they were."""
    content = to_json(uncertainty.as_dict())
    if not folder.expects("uncertainty.json", content):
        raise StorageError(
            f"{folder.path / 'uncertainty.json'} is missing, and these uncertainties are others "
            "than the run was started with (given ones, or those of other versions of the "
            "libraries); restore it, or start the run again elsewhere"
        )
    folder.write_files({"uncertainty.json": content})
