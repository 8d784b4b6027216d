"""`Comparison`: methods side by side over seeds, with paired tests and verdicts against FedAvg."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from udjfl._html import html_table
from udjfl._pandas_frame import make_frame
from udjfl.methods import Method
from udjfl.metrics import METRICS, Metric, table_metrics
from udjfl.settings import CompareSettings, DataSettings
from udjfl.statistics import (
    THEORY_METRIC,
    PairedTest,
    Summary,
    correct_tests,
    metric_of,
    paired_test,
    rank_methods,
    summarise,
)
from udjfl.tasks import ACCURACY, ScoreKind
from udjfl.training.learned import common_warning
from udjfl.training.lifecycle import versions
from udjfl.training.result import FinishedRun, metric_value, outcome_of
from udjfl.training.service import service_theories
from udjfl.verdicts import (
    MARGIN,
    Joining,
    LeastAdvantaged,
    PairedRuns,
    Promise,
    Verdict,
    collect_evidence,
    compare_with_alone,
    judge,
    left_out_reason,
)


@dataclass(frozen=True)
class MethodSummary:
    """One method over all seeds.

    against_fedavg     a paired test for every metric; empty for the reference itself
    undefined          why a metric has no value on some seed
    failed             why the method did not finish its training, by seed
    notes              what a reader has to know about the method on this federation
    runs               its outcomes beside the reference's, on the seeds where both finished
    test_sizes         the smallest test part of each client over seeds; None if unknown
    n_classes          the number of classes; None if unknown
    expected_accuracy  as `client_accuracy`, with ambiguous test examples scored by all their
                       labels; None where that was not measured
    accuracy_alone     of each client's own model, on train examples that it did not see; None where
                       that was not measured
    service            what clients are served of the common model, as in the settings
    common_accuracy    as `client_accuracy`, of the common model; None without a service
    served_theories    theories that the service serves, if the reference is without it
    warning            says that nobody learned under the reference, and why
    score              what is judged: accuracies and metrics are of it
    """

    method: Method
    metrics: dict[str, Summary]
    against_fedavg: dict[str, PairedTest]
    client_accuracy: dict[str, Summary]
    uncertainty: dict[str, Summary]
    undefined: dict[str, list[str]]
    failed: dict[int, str]
    notes: list[str]
    runs: PairedRuns = field(default_factory=PairedRuns)
    test_sizes: dict[str, int] | None = None
    n_classes: int | None = None
    expected_accuracy: dict[str, Summary] | None = None
    accuracy_alone: dict[str, Summary] | None = None
    service: str = "none"
    common_accuracy: dict[str, Summary] | None = None
    served_theories: tuple[str, ...] = ()
    warning: str | None = None
    score: ScoreKind = ACCURACY

    @property
    def theories(self) -> tuple[str, ...]:
        """The theories that the method serves, and those of a service that the reference lacks."""
        own = self.method.theories
        return (*own, *(theory for theory in self.served_theories if theory not in own))

    @property
    def label(self) -> str:
        """The label of the method, and the service."""
        label = self.method.label
        return label if self.service == "none" else f"{label}, served {self.service}"

    @property
    def budget(self) -> float | None:
        """Points of mean accuracy that the method may cost, if it says so.

        None for a method that keeps to a score given as a number, not to FedAvg's.
        """
        budget: float | None = getattr(self.method, "budget", None)
        return budget if getattr(self.method, "limit", None) is None else None

    @property
    def promise(self) -> Promise | None:
        """The promise of the method to each client, if it makes one."""
        client_budget: float | None = getattr(self.method, "client_budget", None)
        alone = getattr(self.method, "floor", None) == "alone"
        return Promise(client_budget, alone) if client_budget is not None or alone else None

    def least_advantaged(self, default: LeastAdvantaged) -> LeastAdvantaged:
        """Return how the method chooses the least advantaged, if it says so."""
        advantage = getattr(self.method, "advantage", None)
        if advantage == "alone" and self.accuracy_alone is not None:
            sign = self.score.better
            return {client: -sign * (s.mean or 0.0) for client, s in self.accuracy_alone.items()}
        return advantage if advantage in ("uncertainty", "fedavg") else default

    def to_dict(self, seeds: Sequence[int]) -> dict[str, Any]:
        """Return plain values, for JSON."""
        expected, alone = self.expected_accuracy, self.accuracy_alone
        common = self.common_accuracy
        service = {} if self.service == "none" else {"service": self.service}
        return {
            "method": self.method.name,
            "theory": list(self.theories),
            "label": self.label,
            "grade": self.method.grade,
            "params": self.method.params,
            **service,
            "seeds": list(seeds),
            **_plain(self.metrics),
            "client_accuracy": _plain(self.client_accuracy),
            **({} if common is None else {"common_accuracy": _plain(common)}),
            **({} if expected is None else {"expected_accuracy": _plain(expected)}),
            **({} if alone is None else {"accuracy_alone": _plain(alone)}),
            "uncertainty": _plain(self.uncertainty),
            "against_fedavg": {key: asdict(test) for key, test in self.against_fedavg.items()},
            "undefined": self.undefined,
            "failed": {str(seed): reason for seed, reason in self.failed.items()},
            "notes": self.notes,
        }


RECORD_COLUMNS = (
    *("method", "client", "metric", "mean", "ci95_low", "ci95_high", "seeds"),
    *("difference", "p", "p_holm"),
)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Methods side by side; the reference, FedAvg, is the first row.

    own_data          the data are not those that the settings name
    margin            points of mean accuracy below FedAvg's that a method without a budget of its
                      own may cost
    margin_for_all    hold methods with a budget of their own to the margin, too
    least_advantaged  how the clients that Rawls' theory should benefit are chosen
    columns           keys of the metrics that the table shows; None: the usual ones
    """

    data: str
    seeds: tuple[int, ...]
    settings: CompareSettings
    rows: tuple[MethodSummary, ...]
    own_data: bool = False
    margin: float = MARGIN
    least_advantaged: LeastAdvantaged = "uncertainty"
    columns: tuple[str, ...] | None = None
    margin_for_all: bool = False

    @property
    def shown_metrics(self) -> list[Metric]:
        """The metrics that are columns of the table; the tests of these are corrected together."""
        return table_metrics() if self.columns is None else [METRICS[key] for key in self.columns]

    @property
    def score(self) -> ScoreKind:
        """The score that is judged."""
        return self.rows[0].score

    @property
    def warning(self) -> str | None:
        """A sentence that nobody learned, and why, if so: then there are no verdicts."""
        return self.rows[0].warning

    def __repr__(self) -> str:
        labels = ", ".join(row.label for row in self.rows)
        return f"Comparison({self.data!r}, {len(self.seeds)} seeds: {labels})"

    def _repr_html_(self) -> str:
        metrics = self.shown_metrics
        rows = [
            [row.label, *(_cell(row.metrics[metric.key]) for metric in metrics)]
            for row in self.rows
        ]
        caption = f"{self.data}: mean over {len(self.seeds)} seeds, with 95% interval"
        titles = [" ".join(metric.heading.split()) for metric in metrics]
        return html_table(caption, ["Method", *titles], rows)

    def to_records(self) -> list[dict[str, Any]]:
        """Return each mean over seeds as plain values, with the keys `RECORD_COLUMNS`.

        Every metric of every method, and of every client its accuracy and its uncertainty. Tests
        are paired with FedAvg; `p_holm` is corrected for all tests of the table.
        """
        records = []
        for index, row in enumerate(self.rows):
            for key, summary in row.metrics.items():
                test = row.against_fedavg.get(key)
                tested = {} if test is None else {"difference": test.difference, "p": test.p}
                corrected = {"p_holm": self.corrected_p.get((index, key))}
                records.append(_record(row, None, key, summary) | tested | corrected)
            clients = {"accuracy": row.client_accuracy, "uncertainty": row.uncertainty}
            for key, summaries in clients.items():
                records += [_record(row, client, key, s) for client, s in summaries.items()]
        return records

    def to_frame(self) -> Any:
        """Return `to_records` as a `pandas.DataFrame`; needs the extra `udjfl[frames]`."""
        return make_frame(self.to_records(), RECORD_COLUMNS)

    @functools.cached_property
    def verdicts(self) -> tuple[tuple[Verdict, ...], ...]:
        """A verdict for each row and each theory that it serves; none for the reference.

        None at all if nobody learned.
        """
        if self.warning is not None:
            return tuple(() for _ in self.rows)
        evidence = [
            (
                index,
                collect_evidence(
                    theory,
                    row.runs,
                    self.budget_of(row),
                    row.least_advantaged(self.least_advantaged),
                    row.promise,
                ),
            )
            for index, row in enumerate(self.rows)
            for theory in (row.theories if row.against_fedavg else ())
            if row.runs.clients
        ]
        judged = judge([one for _, one in evidence])
        of_row: list[list[Verdict]] = [[] for _ in self.rows]
        for (index, _), verdict in zip(evidence, judged, strict=True):
            of_row[index].append(verdict)
        return tuple(map(tuple, of_row))

    @functools.cached_property
    def corrected_p(self) -> dict[tuple[int, str], float | None]:
        """The p of each test that the table of metrics shows, by row and metric (Holm)."""
        keys = [
            (index, metric.key)
            for index, row in enumerate(self.rows)
            for metric in self.shown_metrics
            if metric.key in row.against_fedavg
        ]
        tests = [self.rows[index].against_fedavg[key] for index, key in keys]
        return dict(zip(keys, correct_tests(tests), strict=True))

    @functools.cached_property
    def joining(self) -> list[dict[str, Joining]]:
        """For each row what each client gains by joining, where its accuracy alone is known."""
        return compare_with_alone([row.runs for row in self.rows])

    @functools.cached_property
    def left_out(self) -> dict[int, str]:
        """The rows that are not ranked, and why: untrained, or outside their budget."""
        key, reference, score = "mean_accuracy", self.rows[0], self.score
        before = reference.metrics[key].mean if key in reference.metrics else None
        factor = score.better * (1.0 if score.percent or not before else 100 / abs(before))

        def points(row: MethodSummary) -> float | None:
            mean = row.metrics[key].mean
            return None if mean is None else factor * mean

        reasons = {
            index: left_out_reason(
                points(row),
                points(reference),
                self.budget_of(row),
                row.n_classes if score.is_share else None,
            )
            for index, row in enumerate(self.rows)
            if key in row.metrics
        }
        return {index: reason for index, reason in reasons.items() if reason is not None}

    def budget_of(self, row: MethodSummary) -> float:
        """Return how many points of mean accuracy a method may cost."""
        return self.margin if row.budget is None or self.margin_for_all else row.budget

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        left_out = set(DataSettings.model_fields) if self.own_data else set()
        settings = self.settings.to_flat()
        return {
            "data": self.data,
            "seeds": list(self.seeds),
            "settings": {key: value for key, value in settings.items() if key not in left_out},
            "versions": versions(),
            "reference": self.rows[0].label,
            **({} if self.score == ACCURACY else {"score": self.score.as_dict()}),
            **({} if self.warning is None else {"warning": self.warning}),
            "margin": self.margin,
            "least_advantaged": self.least_advantaged
            if isinstance(self.least_advantaged, str)
            else dict(self.least_advantaged),
            "methods": [self._row_to_dict(index) for index in range(len(self.rows))],
            "rankings": {theory: self._rank(theory) for theory in THEORY_METRIC},
        }

    def plot_clients(self) -> Any:
        """Draw each client's score under every method, as an Altair chart.

        This and the other plots need the extra `udjfl[report]`.
        """
        return _plots().plot_clients(self)

    def plot_changes(self) -> Any:
        """Draw each client's gain or loss against FedAvg, as an Altair chart."""
        return _plots().plot_changes(self)

    def plot_frontier(self) -> Any:
        """Draw the methods by pairs of measures that compete, as an Altair chart."""
        return _plots().plot_frontier(self)

    def _row_to_dict(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        document = row.to_dict(self.seeds)
        for key, test in row.against_fedavg.items():
            p = None if test.always_same else self.corrected_p.get((index, key))
            document["against_fedavg"][key]["p_holm"] = p
        document["verdicts"] = [verdict.as_dict() for verdict in self.verdicts[index]]
        document["left_out"] = self.left_out.get(index)
        if joined := self.joining[index]:
            document["joining"] = {client: one.as_dict() for client, one in joined.items()}
        return document

    def _rank(self, theory: str) -> dict[str, Any]:
        metric = metric_of(theory)
        order = []
        for entry in rank_methods(
            theory, [row.metrics for row in self.rows], self.left_out, self.score.better
        ):
            row = self.rows[entry.index]
            method = row.method
            order.append(
                {
                    "rank": entry.rank,
                    "label": row.label,
                    "method": method.name,
                    "grade": method.grade,
                    "serves": theory in row.theories,
                    **_interval(entry.value),
                    "seeds": entry.value.n,
                    "left_out": entry.reason,
                }
            )
        better = "higher" if metric.better_for(self.score.better) > 0 else "lower"
        return {"metric": metric.key, "better": better, "order": order}


def _record(
    row: MethodSummary, client: str | None, metric: str, summary: Summary
) -> dict[str, Any]:
    low, high = summary.ci95 or (None, None)
    values = (row.label, client, metric, summary.mean, low, high, summary.n)
    return {**dict.fromkeys(RECORD_COLUMNS), **dict(zip(RECORD_COLUMNS, values, strict=False))}


def _cell(summary: Summary) -> str:
    if summary.mean is None:
        return "–"
    half = "" if summary.ci95 is None else f" ±{(summary.ci95[1] - summary.ci95[0]) / 2:.2f}"
    return f"{summary.mean:.2f}{half}"


def _plots() -> Any:
    # By its name: figures are made of comparisons, so their package is above this one.
    return importlib.import_module("udjfl.report.html.plots")


def _interval(summary: Summary) -> dict[str, Any]:
    return {"mean": summary.mean, "ci95": list(summary.ci95) if summary.ci95 else None}


def _plain(summaries: Mapping[str, Summary]) -> dict[str, Any]:
    return {k: {**_interval(s), "values": list(s.values)} for k, s in summaries.items()}


def summarise_method(
    method: Method, by_seed: Mapping[int, FinishedRun | str], references: Mapping[int, FinishedRun]
) -> MethodSummary:
    """Summarise one method over seeds, beside the reference on the same seeds.

    A text in place of an outcome is the reason why there is none.
    """
    results = {seed: result for seed, result in by_seed.items() if not isinstance(result, str)}
    ids = list(next(iter(references.values())).client_accuracy)

    def values(outcomes: Mapping[int, FinishedRun], key: str) -> list[float | None]:
        return [metric_value(outcomes[s], key) if s in outcomes else None for s in by_seed]

    def accuracies(client: str) -> list[float | None]:
        return [results[s].client_accuracy[client] if s in results else None for s in by_seed]

    def uncertainties(client: str) -> list[float | None]:
        known = [outcome.uncertainty[client] for outcome in references.values()]
        return [value if math.isfinite(value) else None for value in known]

    runs = list(by_seed.values())
    is_reference = all(results.get(seed) is outcome for seed, outcome in references.items())
    undefined = sorted({key for outcome in results.values() for key in outcome.undefined})
    before = next(iter(references.values())).service
    service = next((outcome.service for outcome in results.values()), before)
    return MethodSummary(
        method=method,
        metrics={key: summarise(values(results, key)) for key in METRICS},
        against_fedavg={}
        if is_reference
        else {
            key: paired_test(values(results, key), values(references, key), metric.test_scale)
            for key, metric in METRICS.items()
        },
        client_accuracy={client: summarise(accuracies(client)) for client in ids},
        uncertainty={client: summarise(uncertainties(client)) for client in ids},
        undefined={
            key: sorted({r.undefined[key] for r in results.values() if key in r.undefined})
            for key in undefined
        },
        failed={seed: reason for seed, reason in by_seed.items() if isinstance(reason, str)},
        notes=sorted({note for outcome in results.values() for note in outcome.notes}),
        runs=_pair(ids, results, references),
        test_sizes=_smallest_test_parts(ids, references.values()),
        n_classes=next(iter(references.values())).n_classes,
        expected_accuracy=_by_client(ids, [_or_none(r, "expected_accuracy") for r in runs]),
        accuracy_alone=_by_client(ids, [_or_none(r, "accuracy_alone") for r in runs]),
        service=service,
        common_accuracy=_by_client(ids, [_or_none(r, "common_accuracy") for r in runs]),
        served_theories=() if service == before else service_theories(service),
        score=next(iter(references.values())).score,
        warning=common_warning({seed: run.warning for seed, run in references.items()}),
    )


def _pair(
    ids: Sequence[str], results: Mapping[int, FinishedRun], references: Mapping[int, FinishedRun]
) -> PairedRuns:
    seeds = [seed for seed in results if seed in references]
    factor = points_factor(references.values())
    outcomes = [outcome_of(results[seed], references[seed]) for seed in seeds]
    before = [outcome_of(references[seed], references[seed]) for seed in seeds]
    score = next(iter(references.values())).score
    alone = [_in_order(ids, results[seed].accuracy_alone) for seed in seeds]
    scale = factor * score.better
    return PairedRuns(
        tuple(ids),
        tuple(outcome.as_benefits(factor) for outcome in outcomes),
        tuple(outcome.as_benefits(factor) for outcome in before),
        tuple(None if own is None else [scale * value for value in own] for own in alone),
        score.title,
    )


def points_factor(references: Iterable[FinishedRun]) -> float:
    """Return what turns a score into points: 1 for percentages.

    Else a point is a hundredth of the mean score of all clients and seeds under the reference.
    """
    runs = list(references)
    if runs[0].score.percent:
        return 1.0
    values = [value for run in runs for value in run.client_accuracy.values()]
    level = abs(math.fsum(values) / len(values))
    return 100 / level if level > 0 else 1.0


def _in_order(ids: Sequence[str], values: Mapping[str, float] | None) -> list[float] | None:
    return None if values is None or set(ids) - set(values) else [values[name] for name in ids]


def _smallest_test_parts(ids: Sequence[str], runs: Iterable[FinishedRun]) -> dict[str, int] | None:
    sizes = [run.test_sizes for run in runs]
    known = [size for size in sizes if size is not None]
    if not known:
        return None
    return {client: min(size[client] for size in known) for client in ids}


def _or_none(run: FinishedRun | str, name: str) -> dict[str, float] | None:
    """Return numbers of a run by client; None if it failed, or has none."""
    values: dict[str, float] | None = None if isinstance(run, str) else getattr(run, name)
    return values


def _by_client(
    ids: Sequence[str], measured: Sequence[dict[str, float] | None]
) -> dict[str, Summary] | None:
    """Summarise numbers that some seeds have, client by client."""
    if not any(measured):
        return None
    return {
        client: summarise([scores.get(client) if scores else None for scores in measured])
        for client in ids
    }
