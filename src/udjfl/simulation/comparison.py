"""`Comparison`: methods side by side over seeds, with paired tests and verdicts against FedAvg."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from udjfl._html import html_table
from udjfl._pandas_frame import make_frame
from udjfl._plots import draw
from udjfl.metrics import METRICS, Metric, table_metrics
from udjfl.settings import CompareSettings, DataSettings, TrainingSettings
from udjfl.simulation.comparison_records import (
    RECORD_COLUMNS,
    SEED_COLUMNS,
    list_means,
    list_values,
)
from udjfl.simulation.method_summary import MethodSummary, interval_of
from udjfl.statistics import (
    THEORY_METRIC,
    PairedTest,
    Summary,
    correct_tests,
    metric_of,
    paired_test,
    rank_methods,
)
from udjfl.tasks import ACCURACY, ScoreKind
from udjfl.training.lifecycle import versions
from udjfl.verdicts import (
    MARGIN,
    Joining,
    LeastAdvantaged,
    Verdict,
    collect_evidence,
    compare_with_alone,
    judge,
    left_out_reason,
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
    unfinished        says which runs are missing, and how to go on, if not all are finished
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
    unfinished: str | None = None

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
        warning = "" if self.warning is None else f", warning={self.warning!r}"
        return f"Comparison({self.data!r}, {len(self.seeds)} seeds: {labels}{warning})"

    def _repr_html_(self) -> str:
        metrics = self.shown_metrics
        rows = [
            [row.label, *(_cell(row.metrics[metric.key], self.score) for metric in metrics)]
            for row in self.rows
        ]
        caption = f"{self.data}: mean over {len(self.seeds)} seeds, with 95% interval"
        if self.warning is not None:
            caption += f". Warning: {self.warning}"
        titles = [" ".join(metric.heading.split()) for metric in metrics]
        return html_table(caption, ["Method", *titles], rows)

    def to_records(self, seeds: bool = False) -> list[dict[str, Any]]:
        """Return each mean over seeds as plain values, with the keys `RECORD_COLUMNS`.

        Every metric of every method, and of every client its score and its uncertainty. Tests are
        paired with FedAvg; `p_holm` is corrected for all tests of the table, of metrics or of
        clients. With `seeds`, each value of each seed instead, with the keys `SEED_COLUMNS`.
        """
        return list_values(self) if seeds else list_means(self)

    def to_frame(self, seeds: bool = False) -> Any:
        """Return `to_records` as a `pandas.DataFrame`; needs the extra `udjfl[frames]`."""
        return make_frame(self.to_records(seeds), SEED_COLUMNS if seeds else RECORD_COLUMNS)

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
    def client_tests(self) -> tuple[dict[str, PairedTest], ...]:
        """Of each row a paired test of every client's score; none of the reference."""
        before = self.rows[0].client_scores
        return tuple(
            {
                client: paired_test(scores.values, before[client].values)
                for client, scores in (row.client_scores if index else {}).items()
            }
            for index, row in enumerate(self.rows)
        )

    @functools.cached_property
    def corrected_client_p(self) -> dict[tuple[int, str], float | None]:
        """The p of each of `client_tests`, by row and client (Holm, for all of them)."""
        tests = {(i, c): test for i, row in enumerate(self.client_tests) for c, test in row.items()}
        return dict(zip(tests, correct_tests(list(tests.values())), strict=True))

    @functools.cached_property
    def joining(self) -> list[dict[str, Joining]]:
        """For each row what each client gains by joining, where its accuracy alone is known."""
        return compare_with_alone([row.runs for row in self.rows])

    @functools.cached_property
    def left_out(self) -> dict[int, str]:
        """The rows that are not ranked, and why: untrained, or outside their budget."""
        key, reference, score = "mean_accuracy", self.rows[0], self.score
        before = reference.metrics[key].mean if key in reference.metrics else None
        factor = score.better * (1.0 if before is None else score.points_factor([before]))

        def points(row: MethodSummary) -> float | None:
            mean = row.metrics[key].mean
            return None if mean is None else factor * mean

        reasons = {
            index: left_out_reason(
                points(row),
                points(reference),
                self.budget_of(row),
                row.n_classes if score.is_share else None,
                score,
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
        training = TrainingSettings.flat_fields()  # the task is one of both
        of_data = [name for name in DataSettings.flat_fields() if name not in training]
        left_out = set(of_data) if self.own_data else set()
        settings = self.settings.to_flat()
        return {
            "data": self.data,
            "seeds": list(self.seeds),
            "settings": {key: value for key, value in settings.items() if key not in left_out},
            "versions": versions(),
            "reference": self.rows[0].label,
            **({} if self.score == ACCURACY else {"score": self.score.as_dict()}),
            **({} if self.unfinished is None else {"unfinished": self.unfinished}),
            **({} if self.warning is None else {"warning": self.warning}),
            "margin": self.margin,
            "margin_for_all": self.margin_for_all,
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
        return draw("plot_clients", self)

    def plot_changes(self) -> Any:
        """Draw each client's gain or loss against FedAvg, as an Altair chart."""
        return draw("plot_changes", self)

    def plot_frontier(self) -> Any:
        """Draw the methods by pairs of measures that compete, as an Altair chart."""
        return draw("plot_frontier", self)

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
                    **interval_of(entry.value),
                    "seeds": entry.value.n,
                    "left_out": entry.reason,
                }
            )
        better = "higher" if metric.better_for(self.score.better) > 0 else "lower"
        return {"metric": metric.key, "better": better, "order": order}


def _cell(summary: Summary, score: ScoreKind) -> str:
    if summary.mean is None:
        return "–"
    n = score.digits
    half = "" if summary.ci95 is None else f" ±{(summary.ci95[1] - summary.ci95[0]) / 2:.{n}f}"
    return f"{summary.mean:.{n}f}{half}"
