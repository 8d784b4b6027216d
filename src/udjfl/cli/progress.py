"""Standard error while a command works: a status line, a progress bar, warnings."""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from udjfl._ids import printable
from udjfl.cli.wrapping import print_wrapped

if TYPE_CHECKING:
    from rich.console import Console

    from udjfl.training.records import OnProgress

Warnings = Literal["all", "data", "none"]
DATA_LOGGER = "udjfl.data"
MOST_NAMES = 5  # in a line


@contextlib.contextmanager
def show_status(text: str, quiet: bool = False) -> Iterator[None]:
    """Show `text ...` on a terminal until the block ends; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    line = f"{text} ..."
    print(line, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r" + " " * len(line) + "\r", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def show_progress(
    runs: int,
    rounds: int,
    unit: str = "rounds",
    warnings: Warnings = "all",
    log: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Iterator[OnProgress]:
    """Show a bar on a terminal, a line for each finished run elsewhere; and warnings.

    `warnings` are all, those about the data, or none.

    The bar is made for `runs` runs of `rounds` rounds each and grows if there are more. With a
    `log`, every round is also written there, with the parameters of the runs.
    """
    from rich.console import Console

    from udjfl.training.observers import observe
    from udjfl.training.progress_bar import show_rounds

    console = Console(stderr=True)
    with contextlib.ExitStack() as stack:
        hidden = warnings == "none"
        stack.enter_context(_hide_warnings() if hidden else _show_warnings(console, warnings))
        bar = stack.enter_context(show_rounds(runs, rounds, unit, console))
        on_progress = stack.enter_context(observe(bar, log=log, parameters=parameters))
        assert on_progress is not None, "there is a bar"
        yield on_progress


class _OnlyOnce(logging.Filter):
    """Lets a warning through once: several seeds of one method may log the same."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_new = message not in self.shown
        self.shown.add(message)
        return is_new


class _HeldToCap(logging.Filter):
    """Keeps the warnings of clients at the cap, which are usual, for one line at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: dict[str, dict[str, dict[str, None]]] = {}  # by share and method, in order

    def filter(self, record: logging.LogRecord) -> bool:
        from udjfl.methods.values import HeldToCap

        warning = getattr(record, "warning", None)
        if not isinstance(warning, HeldToCap):
            return True
        own = self.clients.setdefault(f"{warning.share:.0%}", {}).setdefault(warning.label, {})
        own.update(dict.fromkeys(warning.clients))
        return False

    def lines(self) -> list[str]:
        """Return a line for each cap: the methods, and the clients that were held to it."""
        return [
            f"Held to the cap in some rounds, {share} of the step (`cap`, docs/budgets.md): "
            + _join([f"{method}: {_join(names, ', ')}" for method, names in methods.items()], "; ")
            + "."
            for share, methods in self.clients.items()
        ]


def _join(names: Collection[str], separator: str) -> str:
    """Join the first few names, and say how many more there are."""
    more = [f"and {len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return separator.join([*itertools.islice(names, MOST_NAMES), *more])


class _Printable(logging.Formatter):
    """Formats a warning without characters that steer a terminal: ids may contain some."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextlib.contextmanager
def collect_warnings() -> Iterator[None]:
    """Print the warnings that the package logs in the block after it, below a status line."""
    from logging.handlers import MemoryHandler

    from rich.console import Console

    with _show_warnings(Console(stderr=True)) as handler:
        memory = MemoryHandler(capacity=1000, target=handler)
        logger = logging.getLogger("udjfl")
        logger.addHandler(memory)
        logger.removeHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(memory)
            memory.close()


@contextlib.contextmanager
def _show_warnings(console: Console, chosen: Warnings = "all") -> Iterator[logging.Handler]:
    """Print the warnings that the package logs: on the bar's console, which keeps them apart."""
    from rich.logging import RichHandler

    logger = logging.getLogger("udjfl")
    handler = RichHandler(console=console, show_time=False, show_path=False, markup=False)
    handler.setFormatter(_Printable("%(message)s"))
    if chosen == "data":
        handler.addFilter(logging.Filter(DATA_LOGGER))
    held = _HeldToCap()
    handler.addFilter(held)
    handler.addFilter(_OnlyOnce())
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        for line in held.lines():
            print_wrapped(line)


@contextlib.contextmanager
def _hide_warnings() -> Iterator[None]:
    logger, handler = logging.getLogger("udjfl"), logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
