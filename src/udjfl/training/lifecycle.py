"""The life of a run around its rounds: its folder, its records, its uncertainties, its result."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from udjfl.errors import CheckpointError, DataError, SettingsError, StorageError
from udjfl.metrics import GroupAccuracy, compute_metrics
from udjfl.models import buffers_from_vector, from_vector
from udjfl.settings import OLDER_NAMES, TrainingSettings
from udjfl.tasks import ACCURACY, ScoreKind, wilson_interval
from udjfl.training.evaluation import Evaluation, Judged
from udjfl.training.folder_check import refuse_damage
from udjfl.training.learned import warn_if_unlearned
from udjfl.training.record_file import CHECKPOINT, START_AGAIN
from udjfl.training.records import History, Record
from udjfl.training.result import Result, make_outcome, summary
from udjfl.training.run_folder import MODEL, RESULT, SERVED, Checkpoint, RunFolder, to_json
from udjfl.training.state import Run, ServerState
from udjfl.training.tensor_file import pack
from udjfl.uncertainty import Uncertainty

logger = logging.getLogger("udjfl")
LIBRARIES = ("udjfl", "torch", "numpy", "scipy", "scikit-learn")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that make the numbers."""
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


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
    changed = [key for key in ("method", "params", "seed", "model") if old.get(key) != new[key]]
    # A setting that did not exist when the run was started had its default.
    before = {**TrainingSettings().model_dump(), **old["training"]}
    before["uncertainty"] = OLDER_NAMES.get(before["uncertainty"], before["uncertainty"])
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


def reference_accuracies(
    reference: Result | str | os.PathLike[str] | None,
    ids: Sequence[str],
    seed: int,
    fingerprint: str | None = None,
    score: ScoreKind | None = None,
) -> dict[str, float] | None:
    """Return the client accuracies of the reference run, from which psi is measured.

    The reference is FedAvg on the same federation and seed: a result, or the folder of a finished
    run. Its data are compared by their fingerprint where both are known.
    """
    if reference is None:
        return None
    if isinstance(reference, Result):
        label, data = "reference:", reference.fingerprint
        result = summary(reference)
    else:
        folder = RunFolder.open(reference)
        label = f"reference: {folder.path}"
        result = folder.read_json("result.json")
        if result is None:
            raise SettingsError(f"{label} is not finished; resume it first")
        data = folder.read_settings("federation")["federation"].get("fingerprint")
    if set(result["client_accuracy"]) != set(ids):
        raise SettingsError(f"{label} has other clients; use FedAvg on the same federation")
    if result["method"] != "fedavg":
        raise SettingsError(f"{label} is a run of {result['label']}; psi is measured from FedAvg")
    judged = result.get("score", ACCURACY.as_dict())["name"]
    if score is not None and judged != score.name:
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
    return {name: float(value) for name, value in result["client_accuracy"].items()}


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


def finish_run(
    run: Run,
    module: nn.Module,
    log: RunLog,
    evaluation: Evaluation,
    uncertainty: Uncertainty,
    notes: Sequence[str],
    reference: Mapping[str, float] | None = None,
) -> Result:
    """Make the result of a run whose last round is over, and write it into the run folder.

    `module` provides the architecture, and becomes the result's model. `reference` has the client
    accuracies of the reference. A client that could not be evaluated counts in no metric.
    """
    method, server = run.method, log.server
    served = method.served(server.state, server.vector)
    common: dict[str, float] | None = None
    if method.n_models == 1:
        from_vector(module, server.vector)
        buffers_from_vector(module, server.buffers)
    accuracies = {
        name: evaluation.accuracies[name] for name in run.ids if name in evaluation.accuracies
    }
    if evaluation.served is not None:
        serving, own = evaluation.served.serving, evaluation.served.accuracies
        served, notes = serving.models, [*notes, *serving.notes]
        common = {name: value for name, value in accuracies.items() if name in own}
        accuracies = {name: own[name] for name in common}
    score, judged = run.spec.task(run.federation).score.kind, evaluation.judged
    shared = evaluation.global_accuracy
    if judged is not None:
        accuracies, shared, common = dict(judged.values), judged.shared, None
    expected = evaluation.expected_accuracies
    readings = uncertainty.readings
    uncertainties = {name: readings.get(name, math.nan) for name in run.ids}
    sizes = run.federation.test_sizes
    test_sizes = None if sizes is None else dict(zip(run.ids, sizes, strict=True))
    groups = None if evaluation.groups is None else GroupAccuracy.of(evaluation.groups)
    metrics, undefined = compute_metrics(
        make_outcome(
            accuracies,
            uncertainties,
            reference,
            shared,
            test_sizes,
            uncertainty.accuracy_alone,
            groups,
            score,
        )
    )
    if evaluation.no_global_reason and "global_accuracy" in undefined:
        undefined = {**undefined, "global_accuracy": evaluation.no_global_reason}
    notes = [*notes, *uncertainty.notes()]
    missing = [name for name in run.ids if name not in accuracies]
    if missing:
        sentence = f"Not evaluated after the last round, and in no metric: {', '.join(missing)}."
        notes = [*notes, sentence]
    result = Result(
        method=method,
        seed=run.seed,
        model=module,
        metrics=metrics,
        undefined=undefined,
        client_accuracy=accuracies,
        uncertainty=uncertainties,
        epistemic=uncertainty.epistemic,
        history=log.history(),
        folder=log.folder,
        notes=list(notes),
        expected_accuracy=None if expected is None else dict(expected),
        accuracy_alone=uncertainty.accuracy_alone,
        score_alone=_by_client(run.ids, method.scores_alone(server.state)),
        group_accuracy=groups,
        score=score,
        client_interval=_intervals(accuracies, test_sizes, judged),
        warning=warn_if_unlearned(run.federation, evaluation, uncertainty),
        served=served,
        test_sizes=test_sizes,
        n_classes=run.federation.n_classes,
        service=run.settings.service,
        common_accuracy=common,
        inputs=run.federation.inputs,
    )
    if log.folder is not None:
        _write_result(log.folder, result, server.round, has_reference=reference is not None)
    return result


def _by_client(ids: Sequence[str], scores: Tensor | None) -> dict[str, float] | None:
    """Return scores in percent by client."""
    return None if scores is None else dict(zip(ids, (100 * scores).tolist(), strict=True))


def _intervals(
    accuracies: Mapping[str, float], test_sizes: Mapping[str, int] | None, judged: Judged | None
) -> dict[str, tuple[float, float]] | None:
    if judged is not None:
        return dict(judged.intervals)
    if test_sizes is None:
        return None
    return {name: wilson_interval(value, test_sizes[name]) for name, value in accuracies.items()}


def _write_result(folder: RunFolder, result: Result, round: int, has_reference: bool) -> None:
    """Write what is missing or damaged of the files that a finished run has."""
    contents = {RESULT: to_json(summary(result))}
    if result.method.global_model:
        contents[MODEL] = pack(result.model.state_dict(), {"round": round})
    if result.served is not None:
        tensors = {"models": result.served.models, "shares": result.served.shares}
        if result.served.offsets is not None:
            tensors["offsets"] = result.served.offsets
        contents[SERVED] = pack(tensors, {"round": round})
    if not has_reference:
        # A whole result may hold a psi that cannot be computed again.
        contents = {k: v for k, v in contents.items() if not folder.is_whole(k)}
    lost = [name for name in contents if not folder.expects(name, contents[name])]
    if lost and not has_reference:
        logger.warning(
            "%s: %s was made again, and is not what it was: the run had a reference, or other "
            "versions of the libraries.",
            folder.path,
            " and ".join(lost),
        )
    # The result comes last: a folder that has one is finished.
    folder.finish({name: contents[name] for name in (MODEL, SERVED, RESULT) if name in contents})
