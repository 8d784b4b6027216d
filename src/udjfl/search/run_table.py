"""The runs of a search: the numbers of each method and seed, on disk as soon as they are known."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from udjfl.errors import StorageError
from udjfl.metrics import Outcome
from udjfl.tasks import ACCURACY, ScoreKind
from udjfl.training.file_names import TRAIN_AGAIN
from udjfl.training.result import FinishedRun
from udjfl.training.run_folder import RunFolder

RUNS = "runs.csv"
Key = tuple[str, int]  # the name of a point, and a seed


@dataclass(frozen=True)
class PointRun:
    """The numbers of one method on one seed, in client order.

    accuracies        of each client's test part, in percent, or the score that is judged; empty if
                      the method failed
    uncertainties     NaN where one is unknown
    global_accuracy   the same on the shared test set; None without a single model
    test_sizes        examples in each client's test part
    failed            why the method did not finish, if it did not
    """

    accuracies: tuple[float, ...] = ()
    uncertainties: tuple[float, ...] = ()
    global_accuracy: float | None = None
    test_sizes: tuple[int, ...] = ()
    failed: str | None = None

    @classmethod
    def of(cls, run: FinishedRun | str) -> PointRun:
        """Take the numbers of a finished run, or the reason why there are none."""
        if isinstance(run, str):
            return cls(failed=run)
        sizes = run.test_sizes or {}
        return cls(
            tuple(run.client_scores.values()),
            tuple(run.uncertainty[client] for client in run.client_scores),
            run.metrics["global_accuracy"],
            tuple(sizes[client] for client in run.client_scores) if sizes else (),
        )

    def outcome(self, reference: PointRun, score: ScoreKind = ACCURACY) -> Outcome:
        """Return the numbers that metrics are computed from, with those of the reference."""
        return Outcome(
            self.accuracies,
            self.uncertainties,
            reference.accuracies,
            self.global_accuracy,
            self.test_sizes or None,
            better=score.better,
            is_share=score.is_share,
        )


class RunTable:
    """Runs by point and seed. With a folder, each addition is on disk before `add` returns.

    The file is replaced whole, and listed in the folder's manifest. A folder that is not locked is
    only read. `score` is what the runs have of each client; the file does not say it.
    """

    def __init__(
        self,
        clients: Sequence[str],
        folder: RunFolder | None = None,
        name: str = RUNS,
        score: ScoreKind = ACCURACY,
    ) -> None:
        self.clients, self.folder, self.name = tuple(clients), folder, name
        self.score = score
        self.runs: dict[Key, PointRun] = {}
        content = None if folder is None else folder.read(name)
        if content is not None:
            self._parse(content)

    def add(self, runs: Mapping[Key, PointRun]) -> None:
        """Keep runs that are not there yet."""
        new = {key: run for key, run in runs.items() if key not in self.runs}
        if new:
            self._write({**self.runs, **new})

    def _write(self, runs: dict[Key, PointRun]) -> None:
        if self.folder is not None:
            self.folder.write_files({self.name: self._encode(runs)})
        self.runs = runs

    def sort(self, names: Sequence[str], seeds: Sequence[int]) -> None:
        """Order the runs by point and seed: processes may have finished them in any order."""
        keys = [(name, seed) for name in names for seed in seeds if (name, seed) in self.runs]
        rest = [key for key in self.runs if key not in set(keys)]
        self._write({key: self.runs[key] for key in (*keys, *rest)})

    def to_csv(self) -> bytes:
        """Return the table as the file has it."""
        return self._encode(self.runs)

    def _encode(self, runs: Mapping[Key, PointRun]) -> bytes:
        lines = (self._line_of(key, run) for key, run in runs.items())
        return _line(self._header()) + b"".join(lines)

    def _header(self) -> list[str]:
        columns = [
            f"{kind}:{client}"
            for kind in ("accuracy", "uncertainty", "tested")
            for client in self.clients
        ]
        return ["point", "seed", "failed", "global_accuracy", *columns]

    def _line_of(self, key: Key, run: PointRun) -> bytes:
        columns = (run.accuracies, run.uncertainties, run.test_sizes)
        cells = [_cells(values, len(self.clients)) for values in columns]
        failed = (run.failed or "").replace("\n", " ")
        shared = "" if run.global_accuracy is None else repr(run.global_accuracy)
        return _line([key[0], str(key[1]), failed, shared, *(c for part in cells for c in part)])

    def _parse(self, content: bytes) -> None:
        path = "" if self.folder is None else self.folder.path / self.name
        try:
            rows = list(csv.reader(io.StringIO(content.decode())))
        except (ValueError, csv.Error) as error:
            raise StorageError(f"{path} is damaged ({error}); {TRAIN_AGAIN}") from None
        if not rows or rows[0] != self._header():
            raise StorageError(
                f"{path} has other columns than this search writes; restore it, or choose another "
                "folder"
            )
        for number, row in enumerate(rows[1:], start=2):
            try:
                key, run = _parse_row(row, len(self.clients))
            except (ValueError, IndexError) as error:
                raise StorageError(
                    f"{path} is damaged in line {number} ({error}); {TRAIN_AGAIN}"
                ) from None
            self.runs[key] = run


def _cells(values: Sequence[float], n: int) -> Iterable[str]:
    if not values:
        return [""] * n
    return ["" if math.isnan(value) else repr(value) for value in values]


def _line(cells: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _parse_row(row: Sequence[str], n: int) -> tuple[Key, PointRun]:
    name, seed, failed, shared = row[:4]
    if len(row) != 4 + 3 * n:
        raise ValueError(f"{len(row)} columns")
    key = (name, int(seed))
    if failed:
        return key, PointRun(failed=failed)
    accuracies, uncertainties, tested = (row[4 + k * n : 4 + (k + 1) * n] for k in range(3))
    return key, PointRun(
        tuple(map(float, accuracies)),
        tuple(float(cell) if cell else math.nan for cell in uncertainties),
        float(shared) if shared else None,
        tuple(map(int, tested)) if all(tested) else (),
    )
