"""Our numbers beside the published ones: four kinds of tables, one shape.

A table has rows and columns; a cell has our mean over seeds, the published mean, and their
difference. Values that were not measured, or failed, are summaries without a mean, never stand-in
numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from udjfl.errors import DataError
from udjfl.metrics import METRICS
from udjfl.paper.published import (
    TITLE,
    Published,
    published_distributions,
    published_results,
    published_solo,
)
from udjfl.statistics import THEORY_METRIC, Summary, summarise

Theory = Literal["none", "utilitarian", "egalitarian", "rawls", "desert"]
Mark = Literal["best", "second"]
# Numbers that are printed alike count as equal: a reader cannot tell two 93.44 apart.
PRINTED_DIGITS = 2


@dataclass(frozen=True)
class Column:
    """A column. `better` as in `udjfl.metrics`; `heading` is the title on a terminal."""

    key: str
    title: str
    better: Literal[-1, 0, 1]
    digits: int = PRINTED_DIGITS
    heading: str = ""


@dataclass(frozen=True)
class Cell:
    """One value.

    `difference` is our mean minus the published one. `relevant`: the row's theory is about it.
    """

    ours: Summary
    published: Published | None
    difference: float | None
    mark: Mark | None
    relevant: bool

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, with the value of every seed."""
        values = asdict(self)
        return {**values.pop("ours"), **values}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row.

    name      unique in its table; claims refer to it
    values    our values by metric
    theory    of results: the section; "none" for FedAvg
    subtitle  text in smaller letters below the name
    details   what else identifies the row, for JSON
    failed    the reasons of the seeds that did not finish; their values are None
    """

    name: str
    values: Mapping[str, Summary]
    theory: Theory | None = None
    subtitle: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class Table(ABC):
    """The common part of all tables.

    row_title      what a row is, above the first column
    data           title of the data
    published_for  the data set of the paper that the published numbers are for; None: none shown
    same_data      True if that data set was measured here, too
    setting        printed below the table
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    row_title: ClassVar[str]
    columns: ClassVar[tuple[Column, ...]]
    rounds_label: ClassVar[str] = "rounds"

    data: str
    profile: str
    seeds: tuple[int, ...]
    rounds: int
    rows: tuple[Row, ...]
    published_for: str | None
    same_data: bool
    setting: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        known = [column.key for column in self.columns]
        checks = [
            (
                self.published_for in (None, *TITLE),
                f"published_for is {self.published_for!r}; "
                f"the paper has {', '.join(TITLE)}, or use None.",
            ),
            (
                self.published_for is not None or not self.same_data,
                "same_data is true, but published_for is None; name the data set of the paper.",
            ),
            (
                len(set(names)) == len(names),
                f"rows: two have the same name; each of {', '.join(names)} may be there once.",
            ),
        ]
        for row in self.rows:
            for key, value in row.values.items():
                checks += [
                    (
                        key in known,
                        f"{row.name}: values has {key!r}; "
                        f"a {self.kind} table has {', '.join(known)}.",
                    ),
                    (
                        len(value.values) == len(self.seeds),
                        f"{row.name}: {key} has {len(value.values)} values; "
                        "give one for each seed, or None.",
                    ),
                ]
        mistakes = [mistake for is_right, mistake in checks if not is_right]
        if mistakes:
            raise DataError("\n".join(mistakes))

    @abstractmethod
    def published_rows(self) -> Mapping[str, Mapping[str, Published]]:
        """Return the published numbers by row name, then metric; empty if there are none."""

    def find(self, name: str) -> Row | None:
        """Return the row of this name."""
        return next((row for row in self.rows if row.name == name), None)

    def value(self, row: Row, metric: str) -> Summary:
        """Return our value; without a mean if it was not measured."""
        return row.values.get(metric) or summarise([None] * len(self.seeds))

    def cell(self, row: Row, metric: str) -> Cell:
        """Return our value beside the published one."""
        ours = self.value(row, metric)
        published = self.published_rows().get(row.name, {}).get(metric)
        difference = None if published is None or ours.mean is None else ours.mean - published.mean
        return Cell(ours, published, difference, self.mark(row, metric), self.relevant(row, metric))

    def mark(self, row: Row, metric: str) -> Mark | None:
        """Mark best and second best of a section by its theory's metric only, as the paper does.

        Means printed alike share the mark, and two best leave no second. There is no mark for
        FedAvg, which is in no section; for a row without a value on every seed, whose mean may be
        over easier seeds than the others'; and for the only row of a section.
        """
        if THEORY_METRIC.get(row.theory or "none") != metric:
            return None
        scores = {
            other.name: METRICS[metric].better * round(value.mean, PRINTED_DIGITS)
            for other in self.rows
            if other.theory == row.theory
            and (value := self.value(other, metric)).mean is not None
            and value.n == len(self.seeds)
        }
        if row.name not in scores or len(scores) < 2:
            return None
        above = sum(score > scores[row.name] for score in scores.values())
        return "best" if above == 0 else "second" if above == 1 else None

    def relevant(self, row: Row, metric: str) -> bool:
        """Return False for metrics of other theories than the row's; accuracies are relevant."""
        theory = row.theory or "none"
        return theory == "none" or "accuracy" in metric or THEORY_METRIC[theory] == metric

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, with the value of every seed."""
        return {
            "table": self.kind,
            "data": self.data,
            "profile": self.profile,
            "seeds": list(self.seeds),
            self.rounds_label: self.rounds,
            "published_for": self.published_for,
            "same_data": self.same_data,
            "setting": dict(self.setting),
            "rows": [self._row_as_dict(row) for row in self.rows],
        }

    def _row_as_dict(self, row: Row) -> dict[str, Any]:
        return {
            **({} if row.theory is None else {"theory": row.theory}),
            "label": row.name,
            **row.details,
            "note": row.note,
            "failed": {str(seed): reason for seed, reason in row.failed.items()},
            "metrics": {
                column.key: self.cell(row, column.key).as_dict() for column in self.columns
            },
        }


def _metric_columns(*keys: str) -> tuple[Column, ...]:
    metrics = [METRICS[key] for key in keys]
    return tuple(Column(m.key, m.title, m.better, heading=m.heading) for m in metrics)


@dataclass(frozen=True, kw_only=True)
class ResultsTable(Table):
    """The main table: methods by metrics, in sections by theory."""

    kind: ClassVar[str] = "results"
    row_title: ClassVar[str] = "Method"
    title: ClassVar[str] = "Results"
    columns: ClassVar[tuple[Column, ...]] = _metric_columns(
        *("global_accuracy", "accuracy_most_uncertain", "accuracy_least_uncertain"),
        *("std", "psi", "pearson_r"),
    )

    def published_rows(self) -> Mapping[str, Mapping[str, Published]]:
        # No label is in two sections.
        return {label: row for (_, label), row in published_results(self.published_for).items()}


@dataclass(frozen=True, kw_only=True)
class SoloTable(Table):
    """Clients that train alone. `rounds` are epochs."""

    kind: ClassVar[str] = "solo"
    row_title: ClassVar[str] = "Client"
    title: ClassVar[str] = "Clients training alone"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("local_accuracy", "Accuracy on own test data", 1, heading="Own test data"),
        Column("clean_accuracy", "Accuracy on clean test data", 1, heading="Clean test data"),
        Column("train_loss", "Loss on own train data", 0, digits=3, heading="Train loss"),
        Column("uncertainty", "Uncertainty (nats)", 0, digits=3, heading="Uncertainty"),
    )
    rounds_label: ClassVar[str] = "epochs"

    def published_rows(self) -> Mapping[str, Mapping[str, Published]]:
        return {
            f"client {number}": row for number, row in published_solo(self.published_for).items()
        }


@dataclass(frozen=True, kw_only=True)
class DistributionsTable(Table):
    """FedAvg under three distributions of clean and dirty data (Appendix A).

    The columns are the accuracy of every client, the global accuracy, and the clients' STD.
    """

    kind: ClassVar[str] = "distributions"
    row_title: ClassVar[str] = "Distribution"
    title: ClassVar[str] = "FedAvg under three distributions"
    columns: ClassVar[tuple[Column, ...]] = (
        *(Column(f"client_{number}", f"Client {number}", 1) for number in range(1, 6)),
        Column("global_accuracy", "Global accuracy", 1, heading="Global"),
        Column("std", "Client STD (N-1)", -1),
    )

    def published_rows(self) -> Mapping[str, Mapping[str, Published]]:
        return published_distributions(self.published_for)


@dataclass(frozen=True, kw_only=True)
class SearchTable(Table):
    """Candidates of a search on held-out data, and the chosen ones on test data.

    Psi of all candidates is measured from one FedAvg.
    """

    kind: ClassVar[str] = "search"
    row_title: ClassVar[str] = "Setting"
    title: ClassVar[str] = "Everything tried, and tests of what was chosen,"
    columns: ClassVar[tuple[Column, ...]] = _metric_columns(
        *("global_accuracy", "mean_accuracy", "std", "psi", "pearson_r")
    )

    def published_rows(self) -> Mapping[str, Mapping[str, Published]]:
        return {}
