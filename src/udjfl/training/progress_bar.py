"""Progress of training: a bar on a terminal or in a notebook, lines elsewhere."""

from __future__ import annotations

import contextlib
import html
import importlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from udjfl.training.records import OnProgress, Part, Progress

if TYPE_CHECKING:
    from rich.console import Console

SECONDS_BETWEEN = 0.1  # updates of a notebook's bar


@dataclass
class RoundCounter:
    """Counts the rounds of several runs, which may train at the same time.

    It is made for `runs` runs of `rounds` rounds each, and grows if there are more. Where events
    tell the part of a search, that has the numbers.
    """

    runs: int
    rounds: int
    text: str = "starting"
    finished: dict[tuple[str, int], int] = field(default_factory=dict)
    part: Part | None = None

    @property
    def done(self) -> int:
        """The number of rounds that are over."""
        return sum(self.finished.values()) + (self.part.before if self.part else 0)

    @property
    def total(self) -> int:
        """The number of rounds that there are."""
        if self.part is not None:
            return max(self.part.total, self.done)
        return max(self.runs, len(self.finished)) * self.rounds

    def count(self, event: Progress) -> None:
        """Take an event into account."""
        if event.part != self.part:
            self.part = event.part
            self.finished.clear()
        before = f"{event.part.title}: " if event.part else ""
        if event.stage == "uncertainty":
            self.text = f"{before}seed {event.seed}: uncertainty {event.done}/{event.total}"
            return
        # FedAvg is trained again beside every batch of points.
        done = self.finished.get((event.label, event.seed), 0)
        self.finished[event.label, event.seed] = max(done, event.done)
        self.text = f"{before}seed {event.seed}: {event.label}"


@contextlib.contextmanager
def show_rounds(
    runs: int, rounds: int, unit: str = "rounds", console: Console | None = None
) -> Iterator[OnProgress]:
    """Show how many rounds are over, until the block ends.

    A bar in a notebook and on a terminal, elsewhere a line for each finished run; of a search, for
    each part and seed.
    """
    from rich.console import Console as RichConsole

    console = console or RichConsole(stderr=True)
    counter = RoundCounter(runs, rounds)
    if console.is_jupyter:
        with _show_in_notebook(counter, unit) as on_progress:
            yield on_progress
    elif console.is_terminal:
        with _show_on_terminal(counter, unit, console) as on_progress:
            yield on_progress
    else:
        yield _FinishedLines()


@dataclass
class _FinishedLines:
    """Prints a line for each finished run, or for each part of a search and seed."""

    part: Part | None = None
    finished: dict[int, set[str]] = field(default_factory=dict)

    def __call__(self, event: Progress) -> None:
        if event.part != self.part:
            self.part, self.finished = event.part, {}
        if event.done != event.total or event.stage not in ("training", "alone", "resumed"):
            return
        if event.part is not None:
            self._count(event.part, event)
        elif event.stage != "resumed":
            amount = f", {event.total} rounds" if event.stage == "training" else ""
            _print_line(f"seed {event.seed}: {event.label} done{amount}")

    def _count(self, part: Part, event: Progress) -> None:
        labels, expected = self.finished.setdefault(event.seed, set()), part.runs.get(event.seed)
        if event.label not in labels:
            labels.add(event.label)
            if len(labels) == expected:
                runs = "1 run" if expected == 1 else f"{expected} runs"
                _print_line(f"{part.title}: seed {event.seed}: {runs} done")


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _show_on_terminal(counter: RoundCounter, unit: str, console: Console) -> Iterator[OnProgress]:
    from rich import progress
    from rich.table import Column

    # Numbers and times are shown whole; label and bar share the rest of the line.
    narrow = console.width < 80
    label = Column(ratio=3, no_wrap=True, overflow="ellipsis")
    columns = (
        progress.TextColumn("{task.description}", markup=False, table_column=label),
        progress.BarColumn(bar_width=None, table_column=Column(ratio=1)),
        progress.MofNCompleteColumn(table_column=Column(no_wrap=True)),
        *(() if narrow else (progress.TextColumn(unit),)),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(compact=narrow),
    )
    with progress.Progress(*columns, console=console, transient=True, expand=True) as bar:
        task = bar.add_task(counter.text, total=counter.total)

        def on_progress(event: Progress) -> None:
            counter.count(event)
            bar.update(task, completed=counter.done, total=counter.total, description=counter.text)

        yield on_progress


@contextlib.contextmanager
def _show_in_notebook(counter: RoundCounter, unit: str) -> Iterator[OnProgress]:
    """Show a bar in the output of a cell; it needs no widgets, and stays in a saved notebook."""
    ipython: Any = importlib.import_module("IPython.display")  # there is one in every notebook
    began = time.monotonic()
    shown = began

    def draw(text: str) -> Any:
        seconds = time.monotonic() - began
        return ipython.HTML(notebook_bar(text, counter.done, counter.total, unit, seconds))

    handle = ipython.display(draw(counter.text), display_id=True)

    def on_progress(event: Progress) -> None:
        nonlocal shown
        counter.count(event)
        if time.monotonic() - shown >= SECONDS_BETWEEN:
            shown = time.monotonic()
            handle.update(draw(counter.text))

    try:
        yield on_progress
    finally:
        handle.update(draw("done" if counter.done == counter.total else "stopped"))


def notebook_bar(text: str, done: int, total: int, unit: str, seconds: float) -> str:
    """Return a bar as HTML."""
    return (
        f'<progress value="{done}" max="{total}" style="width: 20em"></progress> '
        f"{done}/{total} {unit}, {seconds:.0f} s: {html.escape(text)}"
    )
