"""The result of a finished run."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from udjfl._html import html_table
from udjfl._pandas_frame import make_frame
from udjfl._plots import draw
from udjfl.errors import SettingsError, did_you_mean
from udjfl.methods import Method, ServedModels
from udjfl.metrics import METRICS, OLDER_KEYS, GroupAccuracy, Outcome, table_metrics
from udjfl.models import Mixture, ShiftedLogits, from_vector, to_inputs
from udjfl.tasks import ACCURACY, ScoreKind, prediction, wilson_interval
from udjfl.training.file_names import RESULT, SERVED
from udjfl.training.inputs import Inputs
from udjfl.training.records import History
from udjfl.training.run_folder import RunFolder
from udjfl.training.small_test_parts import RULE, is_too_small
from udjfl.training.tensor_file import unpack_content
from udjfl.uncertainty import without_nan


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """The part of a finished run that tables show.

    metrics            the keys of `udjfl.metrics.METRICS` -> percent (Pearson's r: -1 to 1); None
                       where undefined, with the reason in `undefined`; `psi` only with a reference
    client_scores      percent, on each client's own test data
    uncertainty        each client's uncertainty, as the method saw it; NaN where it is unknown
    epistemic          each client's epistemic uncertainty, if an ensemble measured it
    notes              remarks on the method on this federation, for readers of the results
    expected_accuracy  percent, the mean of `client_scores` over draws of the test labels, of the
                       clients for which their distribution is known; None without such clients
    test_sizes         the number of test examples of each client; None if the server does not know
    n_classes          the number of classes; None if it is not known
    service            what clients are served of the common model, as in the settings
    common_scores      percent, of the common model on each client's own test data, where a service
                       gives clients something else; None without a service
    accuracy_alone     percent, of each client's own model, trained alone, on train examples that it
                       did not see; None where the measure of uncertainty does not tell
    score_alone        percent, of each client's own model on its held-out examples, as the method
                       was given it: what `floor=alone` holds it to; None if it was not. Accuracy,
                       in a regression R2, whatever is judged
    group_accuracy     of the groups of a sensitive attribute, where test examples have one
    warning            says that nobody learned, and why; None if somebody did
    score              what is judged: `client_scores`, `accuracy_alone` and the metrics are of it
    client_interval    95% interval of each client's score, from its test examples: Wilson's for
                       accuracies, else bootstrap; None where sizes are not known
    """

    method: Method
    seed: int
    metrics: dict[str, float | None]
    undefined: dict[str, str]
    client_scores: dict[str, float]
    uncertainty: dict[str, float]
    epistemic: dict[str, float] | None = None
    notes: list[str] = field(default_factory=list)
    expected_accuracy: dict[str, float] | None = None
    test_sizes: dict[str, int] | None = None
    n_classes: int | None = None
    service: str = "none"
    common_scores: dict[str, float] | None = None
    accuracy_alone: dict[str, float] | None = None
    group_accuracy: GroupAccuracy | None = None
    warning: str | None = None
    score: ScoreKind = ACCURACY
    client_interval: dict[str, tuple[float, float]] | None = None
    score_alone: dict[str, float] | None = None

    @property
    def too_small(self) -> list[str]:
        """The clients whose test parts are too small, as `small_test_parts` has the rule."""
        sizes, widths = self.test_sizes or {}, self.interval_widths
        return [c for c in self.client_scores if is_too_small(sizes.get(c), widths.get(c))]

    @property
    def interval_widths(self) -> dict[str, float]:
        """The width of each client's 95% interval in points, where a percentage has one."""
        intervals = self.client_interval
        if intervals is None and self.score.is_share and self.test_sizes:  # of an older version
            sizes = {client: size for client, size in self.test_sizes.items() if size > 0}
            scores = self.client_scores
            intervals = {c: wilson_interval(scores[c], n) for c, n in sizes.items() if c in scores}
        if intervals is None or not self.score.percent:
            return {}
        return {client: high - low for client, (low, high) in intervals.items()}

    def __repr__(self) -> str:
        shown = [m.key for m in table_metrics() if m.key in self.metrics]
        rounded = {key: self.metrics[key] for key in shown}
        metrics = {k: value if value is None else round(value, 2) for k, value in rounded.items()}
        warning = "" if self.warning is None else f", warning={self.warning!r}"
        return (
            f"{type(self).__name__}(method={self.method.label!r}, seed={self.seed}, "
            f"clients={len(self.client_scores)}, metrics={metrics}{warning})"
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Result(FinishedRun):
    """A finished run with its models and its history.

    model      the server's final model; without meaning for a method that trains several models
               side by side: use `model_for`
    history    every record of every round
    folder     the run folder, if there is one
    served     the models that clients use in the end, if they differ between clients
    inputs     the shape of an example, and the names of the classes, where they are known
    fingerprint  of the data that it was trained on; None if it is not known
    """

    model: nn.Module
    history: History
    folder: RunFolder | None = None
    served: ServedModels | None = None
    inputs: Inputs | None = None
    fingerprint: str | None = None

    def _repr_html_(self) -> str:
        small = self.too_small
        rows = [
            [
                client,
                f"{self.uncertainty[client]:.4f}",
                f"{score:.{self.score.digits}f}{' !' if client in small else ''}",
            ]
            for client, score in self.client_scores.items()
        ]
        caption = f"{self.method.label}, seed {self.seed}."
        caption += f" ! Test part too small: {RULE}." if small else ""
        caption += f" Warning: {self.warning}" if self.warning is not None else ""
        return html_table(caption, ["Client", "Uncertainty", self.score.heading], rows)

    def history_frame(self) -> Any:
        """Return every record of every round as a `pandas.DataFrame`.

        Its columns are round, client (None: of all), metric and value. Needs `udjfl[frames]`.
        """
        rows = [record._asdict() for record in self.history.records]
        return make_frame(rows, ("round", "client", "metric", "value"))

    def outcome(self) -> FinishedRun:
        """Return the part that tables show, without models and history."""
        return FinishedRun(**{f.name: getattr(self, f.name) for f in fields(FinishedRun)})

    def plot(self) -> Any:
        """Draw the clients' scores and the run over its rounds, as an Altair chart.

        Needs the extra `udjfl[report]`.
        """
        return draw("plot_result", self)

    @property
    def global_accuracy(self) -> float | None:
        """Percent, on the held-out test set; None if there is no single model."""
        return self.metrics["global_accuracy"]

    def model_for(self, client: str) -> nn.Module:
        """Return the model that a client is served; without a service mostly `model`."""
        if client not in self.uncertainty:
            raise SettingsError(
                f"client: there is no {client!r}.{did_you_mean(str(client), self.uncertainty)}"
            )
        if self.served is None:
            return self.model
        return build_served(self.model, self.served, list(self.uncertainty).index(client))

    def served_model(self, client: str | None) -> nn.Module:
        """Return the model that a client is served, or without a client the common one."""
        if client is not None:
            return self.model_for(client)
        if not self.method.global_model:
            raise SettingsError(
                f"client: {self.method.title} has no one model for all clients; name one of them"
            )
        return self.model

    def predict_proba(self, x: Any, client: str | None = None) -> Tensor:
        """Return the probability of each class [n, C], in float64, for examples [n, ...].

        By the model that a client is served, or without a client by the common one. Of a model that
        was trained on tables, `x` may also be a frame of raw rows: columns are found by name, then
        filled, scaled and encoded as those of the client or, without one, of all clients together.
        """
        if self.n_classes == 0:
            raise SettingsError("predict_proba: a regression has no classes; use `predict`")
        return self._outputs(x, client).softmax(dim=1)

    def predict(self, x: Any, client: str | None = None) -> list[Any]:
        """Return the most probable class of each example, by name where the names are known.

        In a regression the predicted numbers, in the units of the table. For `x` and `client` see
        `predict_proba`.
        """
        if self.n_classes == 0:
            values = prediction(self._outputs(x, client))
            done = None if self.inputs is None else self.inputs.preprocessing
            in_units = values if done is None or done.labels is None else done.labels.undo(values)
            return list(in_units.tolist())
        best = self.predict_proba(x, client).argmax(dim=1).tolist()
        return [str(i) if self.inputs is None else self.inputs.label(i) for i in best]

    def _outputs(self, x: Any, client: str | None) -> Tensor:
        """Return the outputs of a model in float64."""
        model = self.served_model(client).eval()
        examples = x if self.inputs is None else self.inputs.to_tensor(x, client)
        parameter = next(model.parameters(), None)
        device = "cpu" if parameter is None else parameter.device
        with torch.no_grad():
            outputs = [
                model(to_inputs(part, model).to(device)).cpu()
                for part in torch.split(examples, 1024)
            ]
        return torch.cat(outputs).to(torch.float64)


def build_served(model: nn.Module, served: ServedModels, client_index: int) -> nn.Module:
    """Return the model that one client is served; `model` provides the architecture and buffers."""
    shares, offset = served.shares[client_index], served.offset(client_index)
    members = []
    for vector, share in zip(served.models, shares.tolist(), strict=True):
        if share > 0:
            members.append(copy.deepcopy(model))
            from_vector(members[-1], vector)
    own = members[0] if len(members) == 1 else Mixture(members, shares[shares > 0])
    return ShiftedLogits(own, offset) if offset is not None and offset.any() else own


def read_served(folder: RunFolder) -> ServedModels | None:
    """Read the models that clients are served from a run folder; None if all have one model."""
    content = folder.read(SERVED)
    if content is None:
        return None
    tensors, _ = unpack_content(content, folder.path / SERVED)
    return ServedModels(tensors["models"], tensors["shares"], tensors.get("offsets"))


def outcome_of(run: FinishedRun, reference: FinishedRun | None = None) -> Outcome:
    """Return the numbers of a run, and of its reference, that metrics are computed from."""
    return make_outcome(
        run.client_scores,
        run.uncertainty,
        reference.client_scores if reference else None,
        run.metrics.get("global_accuracy"),
        run.test_sizes,
        run.accuracy_alone,
        run.group_accuracy,
        run.score,
    )


def make_outcome(
    accuracies: Mapping[str, float],
    uncertainties: Mapping[str, float],
    reference: Mapping[str, float] | None = None,
    global_accuracy: float | None = None,
    test_sizes: Mapping[str, float] | None = None,
    alone: Mapping[str, float] | None = None,
    groups: GroupAccuracy | None = None,
    score: ScoreKind = ACCURACY,
) -> Outcome:
    """Return an outcome from numbers by client; those of the clients with an accuracy are used."""
    ids = list(accuracies)
    return Outcome(
        list(accuracies.values()),
        [uncertainties[client] for client in ids],
        [reference[client] for client in ids] if reference else None,
        global_accuracy,
        [test_sizes[client] for client in ids] if test_sizes else None,
        [alone.get(client, math.nan) for client in ids] if alone else None,
        groups.gaps(ids) if groups else None,
        groups.gap if groups else None,
        score.better,
        score.is_share,
    )


def metric_value(run: FinishedRun, key: str) -> float | None:
    """Return one metric of a run.

    A run without reference is compared with itself, so that the reference has a psi of 0.
    """
    if key in run.metrics:
        return run.metrics[key]
    return METRICS[key].evaluate(outcome_of(run, reference=run))[0]


def read_result(folder: RunFolder) -> Any:
    """Read the result of a run as plain values, under the present names; None if unfinished."""
    result = folder.read_json(RESULT)
    if not isinstance(result, dict):
        return result
    return {OLDER_KEYS.get(name, name): value for name, value in result.items()}


def summary(result: FinishedRun) -> dict[str, Any]:
    """Return a result as plain values, for files and for `--json`."""
    service = {"service": result.service, "common_scores": result.common_scores}
    expected, alone = result.expected_accuracy, result.accuracy_alone
    groups = result.group_accuracy
    return {
        "method": result.method.name,
        "theory": list(result.method.theories),
        "label": result.method.label,
        "params": result.method.params,
        "grade": result.method.grade,
        "seed": result.seed,
        **result.metrics,
        **({} if result.warning is None else {"warning": result.warning}),
        "undefined": result.undefined,
        "notes": result.notes,
        **({} if result.service == "none" else service),
        "client_scores": result.client_scores,
        **({} if expected is None else {"expected_accuracy": expected}),
        "uncertainty": without_nan(result.uncertainty),
        "epistemic": without_nan(result.epistemic),
        "test_sizes": result.test_sizes,
        "n_classes": result.n_classes,
        **({} if alone is None else {"accuracy_alone": alone}),
        **({} if result.score_alone is None else {"score_alone": result.score_alone}),
        **({} if groups is None else {"group_accuracy": groups.as_dict()}),
        **({} if result.score == ACCURACY else {"score": result.score.as_dict()}),
        "client_interval": result.client_interval,
        "too_small": result.too_small,
    }
