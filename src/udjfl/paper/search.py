"""A search over the parameters of the paper's appendix that does not use test data.

Every candidate trains on four fifths of each client's train part and is scored on the fifth that
was held out of it; the global accuracy is on the clean examples among those. The best candidate by
the metric of its theory, on the mean over seeds, is then trained on whole train parts and tested.
Psi of all candidates is measured from the same FedAvg, the one at the learning rate that is best
for it. The paper does not say on what data it chose.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from udjfl._files import inner_folder
from udjfl.data import Federation, load
from udjfl.methods import Method
from udjfl.metrics import METRICS, Outcome
from udjfl.paper.profiles import PROFILES, profile_data
from udjfl.paper.run import compare_methods, find_row, paper_partition, prefix_progress
from udjfl.paper.search_choice import (
    LEARNING_RATES,
    TESTED,
    SearchRange,
    fedavg_name,
    find_outcomes,
    search_ranges,
)
from udjfl.paper.settings import ReproduceSettings
from udjfl.paper.tables import Row, SearchTable
from udjfl.simulation.comparison import Comparison
from udjfl.simulation.method_summary import MethodSummary
from udjfl.statistics import Summary, summarise
from udjfl.training.records import OnProgress


def search_parameters(
    settings: ReproduceSettings, out: Path | None = None, progress: OnProgress | None = None
) -> SearchTable:
    """Choose parameters on held-out train data, then test the chosen ones."""
    ranges = search_ranges(PROFILES[settings.profile])
    methods = list(dict.fromkeys(method for each in ranges for method in each.methods))
    by_lr = {lr: _train(settings, methods, lr, out, progress, tuning=True) for lr in LEARNING_RATES}
    best_lr = _best_rate({lr: comparison.rows[0] for lr, comparison in by_lr.items()})
    reference = by_lr[best_lr].rows[0]
    rows = [
        *(_make_row(fedavg_name(lr), by_lr[lr].rows[0], reference) for lr in LEARNING_RATES),
        *_candidate_rows(ranges, by_lr, reference),
    ]
    first = by_lr[LEARNING_RATES[0]]
    table = _make_table(settings, first, best_lr, rows)
    chosen = [outcome.chosen for outcome in find_outcomes(table)]
    methods_by_name = {
        each.row_name(value, lr): rule
        for each in ranges
        for rule, value in zip(each.methods, each.values, strict=True)
        for lr in LEARNING_RATES
    }
    for lr in LEARNING_RATES:
        best = {one.name: methods_by_name[one.name] for one in chosen if one and one.lr == lr}
        if best:
            unique = list(dict.fromkeys(best.values()))
            test = _train(settings, unique, lr, out, progress, tuning=False)
            rows += [
                _make_row(name + TESTED, find_row(test, method), test.rows[0])
                for name, method in best.items()
            ]
    return _make_table(settings, first, best_lr, rows)


def _make_table(
    settings: ReproduceSettings, first: Comparison, best_lr: float, rows: Sequence[Row]
) -> SearchTable:
    return SearchTable(
        data=first.data,
        profile=settings.profile,
        seeds=tuple(settings.seeds),
        rounds=settings.rounds,
        rows=tuple(rows),
        published_for=None,
        same_data=False,
        setting={
            "model": settings.model,
            "candidates": "on a fifth of each client's train part, which was held out; Psi from "
            f"FedAvg at a learning rate of {best_lr:g}",
            "tests": "on test data; Psi from FedAvg at the same learning rate",
        },
    )


def _candidate_rows(
    ranges: Sequence[SearchRange], by_lr: Mapping[float, Comparison], reference: MethodSummary
) -> list[Row]:
    """Return a row of each candidate; one that several theories share is there once."""
    rows = {}
    for each in ranges:
        for lr, comparison in by_lr.items():
            for rule, value in zip(each.methods, each.values, strict=True):
                name = each.row_name(value, lr)
                rows[name] = _make_row(name, find_row(comparison, rule), reference)
    return list(rows.values())


def _make_row(name: str, measured: MethodSummary, reference: MethodSummary) -> Row:
    """Return the numbers of a method, with Psi measured from this FedAvg."""
    metrics = {**measured.metrics, "psi": _psi(measured, reference)}
    return Row(
        name=name,
        values={column.key: metrics[column.key] for column in SearchTable.columns},
        details={"method": measured.method.label},
        failed=measured.failed,
    )


def _psi(measured: MethodSummary, reference: MethodSummary) -> Summary:
    by_client = (measured.client_scores, measured.uncertainty, reference.client_scores)
    values: list[float | None] = []
    for number in range(len(measured.metrics["psi"].values)):
        columns = [[summary.values[number] for summary in one.values()] for one in by_client]
        accuracies, uncertainties, before = (
            [math.nan if value is None else value for value in column] for column in columns
        )
        is_known = not any(math.isnan(value) for value in (*accuracies, *before))
        outcome = Outcome(accuracies, uncertainties, before) if is_known else None
        values.append(METRICS["psi"].evaluate(outcome)[0] if outcome else None)
    return summarise(values)


def _train(
    settings: ReproduceSettings,
    methods: Sequence[Method],
    lr: float,
    out: Path | None,
    progress: OnProgress | None,
    *,
    tuning: bool,
) -> Comparison:
    return compare_methods(
        settings,
        methods,
        None if out is None else inner_folder(out, f"{'validation' if tuning else 'test'}-lr-{lr}"),
        prefix_progress(progress, f"learning rate {lr:g}" if tuning else f"test at {lr:g}"),
        changes={"lr": lr},
        load_seed=partial(
            _load_federation,
            profile_data(settings),
            paper_partition(settings),
            settings.data_root,
            tuning,
        ),
    )


def _load_federation(
    data: str, partition: str | None, root: str | None, tuning: bool, seed: int
) -> Federation:
    return load(data, None, partition, seed, root, tuning=tuning)


def _best_rate(fedavg: Mapping[float, MethodSummary]) -> float:
    """Return the learning rate at which FedAvg's clients have the highest mean accuracy."""
    return max(fedavg, key=lambda lr: fedavg[lr].metrics["mean_accuracy"].mean or 0.0)
