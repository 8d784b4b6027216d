"""Our numbers beside the published ones: three kinds of tables, one shape.

A table has rows and columns; a cell has our mean over seeds, the published mean, and their difference. Values that were not
measured, or failed, are Summaries without a mean, never stand-in numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
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
# Numbers that are printed alike are alike: a reader cannot tell which of two 93.44 deserves the mark.
PRINTED_DIGITS = 2


@dataclass(frozen=True)
class Column:
    """What one column shows. `better` is 1 or -1 as in `udjfl.metrics`, 0 where neither direction is."""

    key: str
    title: str
    better: Literal[-1, 0, 1]
    digits: int = PRINTED_DIGITS


@dataclass(frozen=True)
class Cell:
    """One value. `difference` is our mean minus the published one. `relevant`: the row's theory is about it."""

    ours: Summary
    published: Published | None
    difference: float | None
    mark: Mark | None
    relevant: bool


@dataclass(frozen=True, kw_only=True)
class Row(ABC):
    """`failed` has the seeds that did not finish and why; their values are None."""

    values: Mapping[str, Summary]
    failed: Mapping[int, str] = field(default_factory=dict)
    note: str | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """What the row is called, and how claims find it."""

    @property
    def below(self) -> str:
        """What stands in smaller letters under the name."""
        return ""

    def heading(self) -> dict[str, Any]:
        """What is known of the row besides its values."""
        return {"label": self.name}


@dataclass(frozen=True, kw_only=True)
class ResultsRow(Row):
    """A method with its parameters: `label` as the paper calls it, `method_label` as we do."""

    theory: Theory
    label: str
    method_label: str

    @property
    def name(self) -> str:
        return self.label

    @property
    def below(self) -> str:
        return self.method_label

    def heading(self) -> dict[str, Any]:
        return {"theory": self.theory, "label": self.label, "method": self.method_label}


@dataclass(frozen=True, kw_only=True)
class SoloRow(Row):
    """A client that trained alone, counted from 1 as in the paper."""

    client: int
    clean_shards: int
    ambiguous_shards: int

    @property
    def name(self) -> str:
        return f"client {self.client}"

    @property
    def below(self) -> str:
        return f"{self.clean_shards} clean, {self.ambiguous_shards} ambiguous"

    def heading(self) -> dict[str, Any]:
        shards = {"clean_shards": self.clean_shards, "ambiguous_shards": self.ambiguous_shards}
        return {"label": self.name, "client": self.client} | shards


@dataclass(frozen=True, kw_only=True)
class DistributionsRow(Row):
    """FedAvg under one of the settings of Appendix A."""

    setting: Literal["even", "clean", "dirty"]

    @property
    def name(self) -> str:
        return self.setting


@dataclass(frozen=True, kw_only=True)
class Table(ABC):
    """What all three have in common.

    `data` is the title of the data. `published_for` is the data set of the paper the published numbers are of, None if none
    are shown; `same_data` says whether it is what was measured here. `setting` is printed under the table.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    columns: ClassVar[tuple[Column, ...]]
    rounds_are: ClassVar[str] = "rounds"

    data: str
    profile: str
    seeds: tuple[int, ...]
    rounds: int
    rows: tuple[Row, ...]
    published_for: str | None
    same_data: bool
    setting: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.published_for is not None and self.published_for not in TITLE:
            raise DataError(
                f"published_for is {self.published_for!r}; the paper has {', '.join(TITLE)}, or use None."
            )
        if self.same_data and self.published_for is None:
            raise DataError(
                "same_data is true, but published_for is None; name the data set of the paper."
            )
        names = [row.name for row in self.rows]
        if len(set(names)) < len(names):
            raise DataError(
                f"rows: two have the same name; each of {', '.join(names)} may be there once."
            )
        known = [column.key for column in self.columns]
        for row in self.rows:
            for key, value in row.values.items():
                if key not in known:
                    raise DataError(
                        f"{row.name}: values has {key!r}; a {self.kind} table has {', '.join(known)}."
                    )
                if len(value.values) != len(self.seeds):
                    raise DataError(
                        f"{row.name}: {key} has {len(value.values)} values; give one for each seed, or None."
                    )

    @abstractmethod
    def published_rows(self) -> Mapping[str, Mapping[str, Published]]:
        """The published numbers by the row's name, then metric; empty if there are none."""

    def find(self, name: str) -> Row | None:
        """The row of this name."""
        return next((row for row in self.rows if row.name == name), None)

    def value(self, row: Row, metric: str) -> Summary:
        """Our value; without a mean if it was not measured."""
        found = row.values.get(metric)
        return summarise([None] * len(self.seeds)) if found is None else found

    def cell(self, row: Row, metric: str) -> Cell:
        """One value with what the paper has for it."""
        ours = self.value(row, metric)
        published = self.published_rows().get(row.name, {}).get(metric)
        difference = None if published is None or ours.mean is None else ours.mean - published.mean
        return Cell(ours, published, difference, self.mark(row, metric), self.relevant(row, metric))

    def mark(self, row: Row, metric: str) -> Mark | None:
        """Only results are marked."""
        return None

    def relevant(self, row: Row, metric: str) -> bool:
        """Only in results is anything beside the point."""
        return True

    def as_dict(self) -> dict[str, Any]:
        """Plain values, the value of every seed included."""
        return {
            "table": self.kind,
            "data": self.data,
            "profile": self.profile,
            "seeds": list(self.seeds),
            self.rounds_are: self.rounds,
            "published_for": self.published_for,
            "same_data": self.same_data,
            "setting": dict(self.setting),
            "rows": [self._row_as_dict(row) for row in self.rows],
        }

    def _row_as_dict(self, row: Row) -> dict[str, Any]:
        failed = {str(seed): why for seed, why in row.failed.items()}
        cells = {column.key: _cell_as_dict(self.cell(row, column.key)) for column in self.columns}
        return {**row.heading(), "note": row.note, "failed": failed, "metrics": cells}


def _cell_as_dict(cell: Cell) -> dict[str, Any]:
    ours, published = cell.ours, cell.published
    return {
        "mean": ours.mean,
        "ci95": None if ours.ci95 is None else list(ours.ci95),
        "n": ours.n,
        "values": list(ours.values),
        "published": None if published is None else {"mean": published.mean, "std": published.std},
        "difference": cell.difference,
        "mark": cell.mark,
        "relevant": cell.relevant,
    }


_RESULTS_KEYS = (
    "global_accuracy",
    "accuracy_most_uncertain",
    "accuracy_least_uncertain",
    "std",
    "psi",
    "pearson_r",
)


@dataclass(frozen=True, kw_only=True)
class ResultsTable(Table):
    """The main table: methods by metrics, in sections by theory."""

    kind: ClassVar[str] = "results"
    title: ClassVar[str] = "Results"
    columns: ClassVar[tuple[Column, ...]] = tuple(
        Column(metric.key, metric.title, metric.better)
        for metric in METRICS
        if metric.key in _RESULTS_KEYS
    )

    rows: tuple[ResultsRow, ...]

    def published_rows(self) -> Mapping[str, Mapping[str, Published]]:
        found = published_results(self.published_for or "")
        return {
            label: numbers for (_, label), numbers in found.items()
        }  # no label is in two sections

    def mark(self, row: Row, metric: str) -> Mark | None:
        """Best and second best of a section, by its theory's measure only, as the paper marks them.

        Means printed alike share the mark, and two best leave no second. FedAvg, which is in no section, has none; nor has
        a row without a value on every seed, whose mean would be over easier seeds than the others'; nor a lone row.
        """
        if not isinstance(row, ResultsRow) or THEORY_METRIC.get(row.theory) != metric:
            return None
        better = next(column.better for column in self.columns if column.key == metric)
        section = [self.value(other, metric) for other in self.rows if other.theory == row.theory]
        scores = [score for value in section if (score := self._score(value, better)) is not None]
        own = self._score(self.value(row, metric), better)
        if own is None or len(scores) < 2:
            return None
        above = sum(score > own for score in scores)
        return "best" if above == 0 else "second" if above == 1 else None

    def _score(self, value: Summary, better: int) -> float | None:
        if value.mean is None or value.n < len(self.seeds):
            return None
        return better * round(value.mean, PRINTED_DIGITS)

    def relevant(self, row: Row, metric: str) -> bool:
        """Accuracies always are; of STD, Psi and r only the one of the row's theory. Of FedAvg all are."""
        theory = row.theory if isinstance(row, ResultsRow) else "none"
        return theory == "none" or "accuracy" in metric or THEORY_METRIC[theory] == metric


@dataclass(frozen=True, kw_only=True)
class SoloTable(Table):
    """Clients training alone. `rounds` are epochs."""

    kind: ClassVar[str] = "solo"
    title: ClassVar[str] = "Clients training alone"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("local_accuracy", "Accuracy on own test data", 1),
        Column("clean_accuracy", "Accuracy on clean test data", 1),
        Column("uncertainty", "Uncertainty (nats)", 0, digits=3),
    )
    rounds_are: ClassVar[str] = "epochs"

    rows: tuple[SoloRow, ...]

    def published_rows(self) -> Mapping[str, Mapping[str, Published]]:
        found = published_solo(self.published_for or "")
        return {f"client {client}": numbers for client, numbers in found.items()}


@dataclass(frozen=True, kw_only=True)
class DistributionsTable(Table):
    """FedAvg under three ways to spread clean and dirty data (Appendix A): accuracy of every client, global, and STD."""

    kind: ClassVar[str] = "distributions"
    title: ClassVar[str] = "FedAvg under three distributions"
    columns: ClassVar[tuple[Column, ...]] = (
        *(Column(f"client_{number}", f"Client {number}", 1) for number in range(1, 6)),
        Column("global_accuracy", "Global accuracy", 1),
        Column("std", "Client STD", -1),
    )

    rows: tuple[DistributionsRow, ...]

    def published_rows(self) -> Mapping[str, Mapping[str, Published]]:
        return published_distributions(self.published_for or "")
