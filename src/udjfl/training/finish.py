"""The end of a run: its result, from the last evaluation, written into the run folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from udjfl._files import to_json
from udjfl.errors import NotDefinedError
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
        _check_judged(judged, score)
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
    notes = [*notes, *method.final_notes(server.state), *uncertainty.notes()]
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
        client_scores=accuracies,
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
        common_scores=common,
        inputs=run.federation.inputs,
    )
    if log.folder is not None:
        _write_result(log.folder, result, server.round, has_reference=reference is not None)
    return result


def _check_judged(judged: JudgedScores, score: ScoreKind) -> None:
    """Raise an error if a function of the user's has no value for what a client was served."""
    values = {**judged.values, "the shared test set": judged.shared}
    without = [name for name, v in values.items() if v is not None and not math.isfinite(v)]
    if without:
        raise NotDefinedError(
            f"score: {score.name} is not a number for {', '.join(without)} after the last round; "
            "let it return one whatever is predicted, or choose another score"
        )


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
