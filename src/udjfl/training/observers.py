"""The observers of training: a caller's own function, a progress bar, a log; one callback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from udjfl.training.progress_bar import show_rounds
from udjfl.training.records import OnProgress, Progress
from udjfl.training.run_logs import open_log


@contextlib.contextmanager
def observe(
    on_progress: OnProgress | None = None,
    *,
    progress: bool = False,
    log: str | None = None,
    runs: int = 1,
    rounds: int = 1,
    parameters: Mapping[str, Any] | None = None,
) -> Iterator[OnProgress | None]:
    """Return one callback for all observers, None without any; they end with the block."""
    with contextlib.ExitStack() as stack:
        observers = [] if on_progress is None else [on_progress]
        if log is not None:
            observers.append(stack.enter_context(open_log(log, parameters)))
        if progress:
            observers.append(stack.enter_context(show_rounds(runs, rounds)))

        def notify(event: Progress) -> None:
            for observer in observers:
                observer(event)

        yield notify if observers else None
