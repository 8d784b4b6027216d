"""The end of a run: its result, from the last evaluation, written into the run folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from udjfl._files import to_json
from udjfl.errors import NotDefinedError
from udjfl.methods import ServedModels
from udjfl.metrics import GroupAccuracy, compute_metrics
from udjfl.models import buffers_from_vector, from_vector
from udjfl.tasks import ScoreKind, wilson_interval
from udjfl.training.evaluation import Evaluation, JudgedScores
from udjfl.training.file_names import MODEL, RESULT, SERVED
from udjfl.training.learned import warn_if_unlearned
from udjfl.training.lifecycle import RunLog
from udjfl.training.result import Result, make_outcome, read_result, summary
from udjfl.training.run_folder import RunFolder
from udjfl.training.state import Run
from udjfl.training.tensor_file import pack
from udjfl.uncertainty import Uncertainty

logger = logging.getLogger("udjfl")


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
    if method.n_models == 1:
        from_vector(module, server.vector)
        buffers_from_vector(module, server.buffers)
    scores = _final_scores(run, log, evaluation)
    metrics, undefined = _compute_metrics(scores, uncertainty, reference, evaluation)
    result = Result(
        method=method,
        seed=run.seed,
        model=module,
        metrics=metrics,
        undefined=undefined,
        client_scores=scores.of_clients,
        uncertainty=_complete(uncertainty, run.ids),
        epistemic=uncertainty.epistemic,
        history=log.history(),
        folder=log.folder,
        notes=_list_notes(run, log, scores, uncertainty, notes),
        expected_accuracy=_copy(evaluation.expected_accuracies),
        accuracy_alone=uncertainty.accuracy_alone,
        score_alone=_by_client(run.ids, method.scores_alone(server.state)),
        group_accuracy=scores.groups,
        score=scores.kind,
        client_interval=_intervals(scores.of_clients, scores.test_sizes, evaluation.judged),
        warning=warn_if_unlearned(run.federation, evaluation, uncertainty),
        served=scores.served,
        test_sizes=scores.test_sizes,
        n_classes=run.federation.n_classes,
        service=run.settings.service,
        common_scores=scores.of_common_model,
        inputs=run.federation.inputs,
    )
    if log.folder is not None:
        _write_result(log.folder, result, server.round, has_reference=reference is not None)
    return result


@dataclass(frozen=True)
class _FinalScores:
    """The last evaluation of each client.

    of_common_model  scores before the service; None without a service
    shared           on the shared test set
    notes            of the service
    """

    kind: ScoreKind
    of_clients: dict[str, float]
    of_common_model: dict[str, float] | None
    shared: float | None
    served: ServedModels | None
    notes: Sequence[str]
    test_sizes: dict[str, int] | None
    groups: GroupAccuracy | None


def _final_scores(run: Run, log: RunLog, evaluation: Evaluation) -> _FinalScores:
    """Read the scores off the last evaluation; those of a served model in place of the common."""
    kind = run.spec.task(run.federation).score.kind
    served = run.method.served(log.server.state, log.server.vector)
    scores = {
        name: evaluation.accuracies[name] for name in run.ids if name in evaluation.accuracies
    }
    common: dict[str, float] | None = None
    notes: Sequence[str] = ()
    shared = evaluation.global_accuracy
    if evaluation.served is not None:
        serving, of_served = evaluation.served.serving, evaluation.served.accuracies
        served, notes = serving.models, serving.notes
        common = {name: value for name, value in scores.items() if name in of_served}
        scores = {name: of_served[name] for name in common}
    if evaluation.judged is not None:
        _check_judged(evaluation.judged, kind)
        scores, shared, common = dict(evaluation.judged.values), evaluation.judged.shared, None
    sizes = run.federation.test_sizes
    test_sizes = None if sizes is None else dict(zip(run.ids, sizes, strict=True))
    groups = None if evaluation.groups is None else GroupAccuracy.of(evaluation.groups)
    return _FinalScores(kind, scores, common, shared, served, notes, test_sizes, groups)


def _list_notes(
    run: Run,
    log: RunLog,
    scores: _FinalScores,
    uncertainty: Uncertainty,
    notes: Sequence[str],
) -> list[str]:
    """Add the notes of the service, the method and the uncertainties to those of the run."""
    of_method = run.method.final_notes(log.server.state)
    notes = [*notes, *scores.notes, *of_method, *uncertainty.notes()]
    missing = [name for name in run.ids if name not in scores.of_clients]
    if missing:
        notes += [f"Not evaluated after the last round, and in no metric: {', '.join(missing)}."]
    return notes


def _compute_metrics(
    scores: _FinalScores,
    uncertainty: Uncertainty,
    reference: Mapping[str, float] | None,
    evaluation: Evaluation,
) -> tuple[dict[str, float | None], dict[str, str]]:
    """Return every metric, and why some are not defined."""
    outcome = make_outcome(
        scores.of_clients,
        _complete(uncertainty, scores.of_clients),
        reference,
        scores.shared,
        scores.test_sizes,
        uncertainty.accuracy_alone,
        scores.groups,
        scores.kind,
    )
    metrics, undefined = compute_metrics(outcome)
    if evaluation.no_global_reason and "global_accuracy" in undefined:
        undefined = {**undefined, "global_accuracy": evaluation.no_global_reason}
    return metrics, undefined


def _complete(uncertainty: Uncertainty, ids: Iterable[str]) -> dict[str, float]:
    """Return the uncertainties of these clients; NaN where one is not known."""
    return {name: uncertainty.readings.get(name, math.nan) for name in ids}


def _check_judged(judged: JudgedScores, score: ScoreKind) -> None:
    """Raise an error if a function of the user's has no value for what a client was served."""
    values = {**judged.values, "the shared test set": judged.shared}
    without = [name for name, v in values.items() if v is not None and not math.isfinite(v)]
    if without:
        raise NotDefinedError(
            f"score: {score.name} is not a number for {', '.join(without)} after the last round; "
            "let it return one whatever is predicted, or choose another score"
        )


def _copy(values: Mapping[str, float] | None) -> dict[str, float] | None:
    return None if values is None else dict(values)


def _by_client(ids: Sequence[str], scores: Tensor | None) -> dict[str, float] | None:
    """Return scores in percent by client."""
    return None if scores is None else dict(zip(ids, (100 * scores).tolist(), strict=True))


def _intervals(
    accuracies: Mapping[str, float],
    test_sizes: Mapping[str, int] | None,
    judged: JudgedScores | None,
) -> dict[str, tuple[float, float]] | None:
    if judged is not None:
        return dict(judged.intervals)
    if test_sizes is None:
        return None
    return {name: wilson_interval(value, test_sizes[name]) for name, value in accuracies.items()}


def _write_result(folder: RunFolder, result: Result, round: int, has_reference: bool) -> None:
    """Write what is missing or damaged of the files that a finished run has.

    A result of a run that is resumed replaces one in which fewer clients were evaluated.
    """
    contents = {RESULT: to_json(summary(result))}
    if result.method.global_model:
        contents[MODEL] = pack(result.model.state_dict(), {"round": round})
    if result.served is not None:
        tensors = {"models": result.served.models, "shares": result.served.shares}
        if result.served.offsets is not None:
            tensors["offsets"] = result.served.offsets
        contents[SERVED] = pack(tensors, {"round": round})
    kept = {name for name in contents if folder.is_whole(name)}
    before = read_result(folder) if RESULT in kept else {}
    if not (isinstance(before, dict) and isinstance(before.get("client_scores", {}), dict)):
        before, kept = {}, kept - {RESULT}  # whole, and not the result of a run
    now = set(result.client_scores)
    earlier = set(before.get("client_scores", now))
    # A whole result may hold a psi that cannot be computed again.
    has_new_clients = earlier < now and (has_reference or before.get("psi") is None)
    if has_new_clients:
        kept -= {RESULT, SERVED}
        names = ", ".join(name for name in result.client_scores if name not in earlier)
        logger.info("%s: evaluated now, and in the result: %s.", folder.path, names)
    elif has_reference and not now < earlier:
        kept = set()
    contents = {name: content for name, content in contents.items() if name not in kept}
    lost = [name for name in contents if not folder.expects(name, contents[name])]
    if lost and not has_reference and not has_new_clients:
        logger.warning(
            "%s: %s was made again, and is not what it was: the run had a reference, or other "
            "versions of the libraries.",
            folder.path,
            " and ".join(lost),
        )
    # The result comes last: a folder that has one is finished.
    folder.finish({name: contents[name] for name in (MODEL, SERVED, RESULT) if name in contents})
