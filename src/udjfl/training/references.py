"""The reference of a run, FedAvg on the same federation and seed: its accuracies and scores."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from udjfl.errors import SettingsError
from udjfl.tasks import ACCURACY, ScoreKind
from udjfl.training.records import History
from udjfl.training.result import Result, read_result, summary
from udjfl.training.run_folder import RunFolder


def reference_accuracies(
    reference: Result | str | os.PathLike[str] | None,
    ids: Sequence[str],
    seed: int,
    score: ScoreKind,
    fingerprint: str | None = None,
) -> dict[str, float] | None:
    """Return the scores of the clients in the reference run, from which psi is measured.

    The reference is FedAvg on the same federation and seed: a result, or the folder of a finished
    run. Its data are compared by their fingerprint where both are known.
    """
    if reference is None:
        return None
    if isinstance(reference, Result):
        label, data, members = "reference:", reference.fingerprint, list(reference.uncertainty)
        result = summary(reference)
    else:
        folder = RunFolder.open(reference)
        label = f"reference: {folder.path}"
        result = read_result(folder)
        if result is None:
            raise SettingsError(f"{label} is not finished; resume it first")
        federation = folder.read_settings("federation")["federation"]
        data = federation.get("fingerprint")
        members = [own["id"] for own in federation["clients"]]
    if set(members) != set(ids):
        raise SettingsError(f"{label} has other clients; use FedAvg on the same federation")
    if result["method"] != "fedavg":
        raise SettingsError(f"{label} is a run of {result['label']}; psi is measured from FedAvg")
    missing = [name for name in ids if name not in result["client_scores"]]
    if missing:
        raise SettingsError(
            f"{label} did not evaluate {', '.join(missing)} after its last round; resume it while "
            "they take part, with resume = true or `udjfl flower run FOLDER --resume NAME`"
        )
    judged = result.get("score", ACCURACY.as_dict())["name"]
    if judged != score.name:
        raise SettingsError(f"{label} has {judged} as score, this run {score.name}; use the same")
    if result["seed"] != seed:
        raise SettingsError(
            f"{label} has seed {result['seed']}, this run has seed {seed}; use FedAvg with the "
            "same seed"
        )
    if fingerprint and data and data != fingerprint:
        raise SettingsError(
            f"{label} was made with other data; use FedAvg on the same federation, with the same "
            "holdout"
        )
    return {name: float(value) for name, value in result["client_scores"].items()}


def reference_scores(
    reference: Result | str | os.PathLike[str] | None, ids: Sequence[str]
) -> Tensor | None:
    """Return the scores by round of a reference run; None if it has none."""
    if reference is None:
        return None
    if isinstance(reference, Result):
        return scores_by_round(reference.history, ids)
    return scores_by_round(History(list(RunFolder.open(reference).read_records())), ids)


def scores_by_round(history: History, ids: Sequence[str]) -> Tensor | None:
    """Return clients' recorded scores [rounds, N], NaN where unknown; None if there are none."""
    index = {name: number for number, name in enumerate(ids)}
    scores = [r for r in history.records if r.metric == "score" and r.client in index]
    if not scores:
        return None
    table = torch.full((max(r.round for r in scores), len(ids)), math.nan, dtype=torch.float64)
    for record in scores:
        if isinstance(record.value, float) and record.client is not None:
            table[record.round - 1, index[record.client]] = record.value
    return table
