"""What a run across machines keeps: the simulator's run folder, but for what only clients know about their data."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from udjfl.errors import SettingsError, StorageError
from udjfl.flower.messages import Facts
from udjfl.flower.registration import Introduction, Meeting
from udjfl.settings import TrainingSettings
from udjfl.training.asking import Roster
from udjfl.training.rounds import Server
from udjfl.training.run_folder import History, Record, RunFolder
from udjfl.uncertainty import Uncertainty

NAME = "flower"


def description(
    facts: Facts, roster: Roster, module: nn.Module, max_update_norm: float | None
) -> dict[str, Any]:
    """Everything that decides a run's numbers and that the server knows, as `udjfl.training.keeping.run_description` has it."""
    told = [None if size != size else int(size) for size in roster.sizes]
    shared = {
        "input_shape": list(roster.input_shape),
        "n_classes": roster.n_classes,
        "has_groups": roster.has_groups,
    }
    digest = hashlib.sha256(json.dumps([roster.ids, shared], sort_keys=True).encode())
    return {
        "method": facts.method.name,
        "params": facts.method.params,
        "seed": facts.seed,
        "training": facts.settings.model_dump(),
        "model": {name: list(value.shape) for name, value in module.named_parameters()},
        "federation": {
            "name": NAME,
            "fingerprint": digest.hexdigest(),
            "clients": [
                {"id": name, "train": size} for name, size in zip(roster.ids, told, strict=True)
            ],
            **shared,
        },
        "flower": {
            "report_uncertainties": facts.report_uncertainties,
            "max_update_norm": max_update_norm,
        },
        "origin": None,
    }


def check_free(out: str | os.PathLike[str]) -> None:
    """Refuse a folder that holds a run, before clients are waited for."""
    if RunFolder(Path(out)).holds_a_run:
        raise StorageError(
            f"{out} already holds a run; go on with it by resume = true, or choose another folder"
        )


def members(out: str | os.PathLike[str]) -> tuple[Introduction, dict[str, float | None]] | None:
    """Of a run that is there already: what its clients agreed on (but for the model), and how many examples each told."""
    folder = RunFolder(Path(out))
    if not folder.holds_a_run:
        return None
    about = folder.read_settings("federation")["federation"]
    try:
        sizes = {str(client["id"]): client["train"] for client in about["clients"]}
        shape = tuple(int(size) for size in about["input_shape"])
        return Introduction(
            "", shape, int(about["n_classes"]), bool(about["has_groups"]), "", None
        ), sizes
    except (KeyError, TypeError, ValueError):
        raise StorageError(
            f"{folder.path} holds a run that was not made across machines; choose another folder"
        ) from None


def kept_uncertainties(folder: RunFolder, meeting: Meeting) -> None:
    """What clients told this run before."""
    content = folder.read_json("uncertainty.json")
    if content is None:
        return
    try:
        values, epistemic = content["values"], content["epistemic"] or {}
        kept = Uncertainty.from_dict(
            {**content, "values": {k: v for k, v in values.items() if k in content["told"]}}
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StorageError(
            f"{folder.path / 'uncertainty.json'} is damaged; delete it and resume: clients are asked for them again"
        ) from None
    meeting.uncertainties = dict(kept.values)
    meeting.epistemic = {name: value for name, value in epistemic.items() if value is not None}


def uncertainty(facts: Facts, roster: Roster, meeting: Meeting) -> Uncertainty:
    """What is known by now; NaN where it is not."""
    values = {name: meeting.uncertainties.get(name, float("nan")) for name in roster.ids}
    epistemic = (
        {name: meeting.epistemic.get(name, float("nan")) for name in roster.ids}
        if meeting.epistemic
        else None
    )
    return Uncertainty(facts.settings.uncertainty, values, epistemic)


def keep_uncertainties(folder: RunFolder, facts: Facts, roster: Roster, meeting: Meeting) -> None:
    known = uncertainty(facts, roster, meeting).as_dict()
    folder.write_json(
        "uncertainty.json",
        {**known, "told": [name for name in roster.ids if name in meeting.uncertainties]},
    )


class Keeper:
    """Writes down whole rounds only. With a folder nothing of them stays in memory."""

    def __init__(self, settings: TrainingSettings, first: Server, folder: RunFolder | None) -> None:
        self.settings, self.folder = settings, folder
        self.server, self.saved = (
            first,
            0,
        )  # after the last whole round; the round of the last checkpoint
        self.history = History()
        checkpoint = None if folder is None else folder.rewind()[0]
        if checkpoint is not None:
            self.server, self.saved = (
                Server.from_tensors(checkpoint.round, checkpoint.tensors),
                checkpoint.round,
            )

    def keep(self, server: Server, records: Sequence[Record]) -> None:
        """Write down a round that was played."""
        self.server = server
        if self.folder is None:
            self.history.records.extend(records)
            return
        self.folder.append(records)
        if (
            server.round % self.settings.checkpoint_every == 0
            or server.round == self.settings.rounds
        ):
            self.checkpoint()

    def checkpoint(self) -> None:
        """The last whole round, if that is not there already."""
        if self.folder is not None and self.server.round > self.saved:
            self.folder.save_checkpoint(self.server.round, self.server.tensors())
            self.saved = self.server.round

    def everything(self) -> History:
        return self.history if self.folder is None else History(list(self.folder.read_records()))


def reference_accuracies(
    path: str | os.PathLike[str], roster: Roster, seed: int
) -> Mapping[str, float]:
    """The accuracies of a finished FedAvg run with the same clients and seed, from which psi is measured."""
    folder = RunFolder.open(path)
    found = folder.read_json("result.json")
    if found is None:
        raise SettingsError(f"reference: {folder.path} is not finished; resume it first")
    if found["method"] != "fedavg":
        raise SettingsError(
            f"reference: {folder.path} holds a run of {found['label']}; psi is measured from FedAvg"
        )
    if found["seed"] != seed:
        raise SettingsError(
            f"reference: {folder.path} has seed {found['seed']}, this run has seed {seed}; use the same"
        )
    if set(found["client_accuracy"]) != set(roster.ids):
        raise SettingsError(
            f"reference: {folder.path} has other clients; use FedAvg on the same federation"
        )
    return {name: float(value) for name, value in found["client_accuracy"].items()}
