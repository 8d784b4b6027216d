"""Records: one value of one metric each; and the progress event of long work."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

from torch import Tensor

from udjfl._files import parse_json

LARGEST = sys.float_info.max


class Record(NamedTuple):
    """One value of one metric; `client` is None for a value of the whole round."""

    round: int
    client: str | None
    metric: str
    value: float | str | None

    def to_line(self) -> bytes:
        """Return the record as a line of JSON."""
        return (json.dumps(self._asdict(), ensure_ascii=False, allow_nan=False) + "\n").encode()


FIELDS = frozenset(Record._fields)


def parse_record(line: bytes) -> Record:
    """Read a record from its line of JSON; whatever is wrong with it is a ValueError."""
    value = parse_json(line)
    if not isinstance(value, dict) or value.keys() != FIELDS:
        raise ValueError("it is not a record")
    record = Record(**value)
    round, client, metric, number = record
    is_named = client is None or isinstance(client, str)
    if not (isinstance(round, int) and is_named and isinstance(metric, str)):
        raise ValueError("it is not a record")
    if not (number is None or isinstance(number, (float, int, str))):
        raise ValueError("it is not a record")
    if abs(round) > LARGEST or (isinstance(number, (int, float)) and not abs(number) <= LARGEST):
        raise ValueError("it has a number that is too large")
    return record


@dataclass
class History:
    """All records of a run, in order."""

    records: list[Record] = field(default_factory=list)

    def series(self, metric: str, client: str | None = None) -> dict[int, float | str | None]:
        """Return one metric by round."""
        return {r.round: r.value for r in self.records if r.metric == metric and r.client == client}

    def by_client(self, metric: str, round: int) -> dict[str, float | str | None]:
        """Return one metric of one round by client."""
        values = (r for r in self.records if r.metric == metric and r.round == round)
        return {r.client: r.value for r in values if r.client is not None}


@dataclass(frozen=True)
class Part:
    """A part of a search, which trains many runs.

    title   what it is: a rung, the neighbours, the test
    runs    how many runs of each seed it trains
    before  rounds of all runs in the parts before it
    total   rounds of the whole search, as far as is known
    """

    title: str
    runs: Mapping[int, int]
    before: int
    total: int


@dataclass(frozen=True)
class Progress:
    """An event in long work.

    label          the method, or another name of the work
    stage          "uncertainty", "training", "resumed" or "alone"
    done, total    how much of the stage is finished
    records        everything recorded of the round that was finished, in the stage "training"
    part           of a search; None where there is none
    """

    label: str
    seed: int
    stage: str
    done: int
    total: int
    records: tuple[Record, ...] = ()
    part: Part | None = None

    @property
    def metrics(self) -> dict[str, float | str | None]:
        """The values that the round has as a whole, by metric."""
        return {r.metric: r.value for r in self.records if r.client is None}

    @property
    def client_metrics(self) -> dict[str, dict[str, float | str | None]]:
        """The values of each client, by client and metric."""
        values: dict[str, dict[str, float | str | None]] = {}
        for record in self.records:
            if record.client is not None:
                values.setdefault(record.client, {})[record.metric] = record.value
        return values


OnProgress = Callable[[Progress], None]


def finite_or_none(value: float | None) -> float | None:
    """Return a finite value, else None: JSON has neither NaN nor infinity."""
    return value if value is not None and isfinite(value) else None


def client_records(
    round: int, metric: str, ids: Iterable[str], values: Iterable[float]
) -> list[Record]:
    """Return the records of one value per client."""
    pairs = zip(ids, values, strict=True)
    return [Record(round, c, metric, v if isfinite(v) else None) for c, v in pairs]


def diagnostic_records(
    round: int, ids: Sequence[str], diagnostics: Mapping[str, Tensor]
) -> list[Record]:
    """Return the records of a method's diagnostics: one value per client, or one for the round."""
    records = []
    for name, values in diagnostics.items():
        if values.ndim == 0:
            records.append(Record(round, None, name, finite_or_none(float(values))))
        else:
            records += client_records(round, name, ids, values.tolist())
    return records
