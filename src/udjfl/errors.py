"""The errors that udjfl raises on purpose.

    UdjflError
    ├── SettingsError       a setting, method or parameter is wrong; lists every mistake
    │   └── NotDefinedError a method is not defined for this federation, or for so few clients
    ├── DataError           data that cannot be used, or cannot be partitioned as asked
    ├── ReportError         a client's report is unusable; has the client, the round and the field
    ├── DivergedError       training left the finite numbers
    ├── QuorumError         fewer clients than the quorum have a usable report
    ├── DeploymentError     a part of a deployment on Flower failed, or is missing
    └── StorageError        the run folder cannot be written or read
        └── CheckpointError a checkpoint or final model is damaged

Messages say what is wrong and what to do about it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

LONGEST_SHOWN = 128  # characters of a value, or bits of a whole number, that an error repeats
# Begin and end of a quotation, as control characters: `DataError` removes them from its message.
_QUOTE, _UNQUOTE = "\x02", "\x03"


class UdjflError(Exception):
    """Base of every error raised by udjfl on purpose."""


class SettingsError(UdjflError, ValueError):
    """One or more settings are wrong. `mistakes` has one sentence for each."""

    def __init__(self, mistakes: str | Sequence[str]) -> None:
        self.mistakes = (mistakes,) if isinstance(mistakes, str) else tuple(mistakes)
        super().__init__("\n".join(self.mistakes))

    def __reduce__(
        self,
    ) -> tuple[Any, ...]:  # so that it can come back from another process as it was
        return type(self), (self.mistakes,)


class NotDefinedError(SettingsError):
    """The method is not defined for this federation, or for this way of asking its clients.

    Or the score that is judged has no value for what a model predicts.
    """


class DataError(UdjflError, ValueError):
    """The data cannot be used, or cannot be cut as asked.

    `without_values` is the message without the parts that `quote_values` marked: what may leave the
    machine that has the data.
    """

    def __init__(self, message: str = "") -> None:
        self._marked = message
        super().__init__(message.replace(_QUOTE, "").replace(_UNQUOTE, ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._marked,)

    @property
    def without_values(self) -> str:
        return re.sub(f"{_QUOTE}[^{_UNQUOTE}]*{_UNQUOTE}", "…", self._marked)


def quote_values(values: str | Iterable[object]) -> str:
    """Return values of rows for the message of a `DataError`, marked as such; or a text with some.

    Every such value goes through here: a patient's must not leave a hospital with an error.
    """
    text = values if isinstance(values, str) else ", ".join(map(repr, values))
    return _QUOTE + text.replace(_QUOTE, "").replace(_UNQUOTE, "") + _UNQUOTE


class ReportError(UdjflError, ValueError):
    """A client's report is unusable: `client`, `round` and `field` say which part of which."""

    def __init__(self, client: str, field: str, problem: str, round: int | None = None) -> None:
        self.client, self.field, self.problem, self.round = client, field, problem, round
        where = "" if round is None else f" in round {round}"
        super().__init__(f"client {client!r}{where}: {field} {problem}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.client, self.field, self.problem, self.round)


class DivergedError(UdjflError):
    """The server's step is not finite."""


class QuorumError(UdjflError):
    """Fewer clients than the quorum have a usable report. Earlier rounds are kept."""


class DeploymentError(UdjflError, RuntimeError):
    """A part of a deployment failed or is missing. After a failure, it has the end of the log."""


class StorageError(UdjflError):
    """The run folder cannot be written or read."""


class CheckpointError(StorageError):
    """A checkpoint or a final model is damaged."""


def show_short(value: object) -> str:
    """Return a value for the message of an error, as Python writes it, without what is too long."""
    if isinstance(value, int) and value.bit_length() > LONGEST_SHOWN:
        return "a number of very many digits"
    try:
        text = repr(value)
    except ValueError:  # of a list with a number that Python does not write
        return "numbers of very many digits"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the nearest known one, then all."""
    options = sorted(known)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{hint} Known: {', '.join(options)}."
