"""The progress of a search: its parts one after the other, and the rounds of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from udjfl.training.records import OnProgress, Part, Progress


def say_rounds(rounds: int) -> str:
    """Return a number of rounds in words."""
    return "1 round" if rounds == 1 else f"{rounds} rounds"


class SearchProgress:
    """Tells in every event to which part of a search it belongs, and how much there is in all.

    name    of the search, before the titles of its parts
    ahead   rounds that are expected in parts that have not begun, by title
    """

    def __init__(self, on_progress: OnProgress | None) -> None:
        self.on_progress, self.name = on_progress, ""
        self.ahead: dict[str, int] = {}
        self._over = self._now = 0
        self._title: str | None = None

    @classmethod
    def of(cls, on_progress: OnProgress | SearchProgress | None) -> SearchProgress:
        """Return the progress of several searches in a row, or that of one."""
        return on_progress if isinstance(on_progress, SearchProgress) else cls(on_progress)

    def expect(self, rounds: Mapping[str, int]) -> None:
        """Expect parts of so many rounds, unless they were expected before."""
        for title, number in rounds.items():
            self.ahead.setdefault(f"{self.name}{title}", number)

    def begin(
        self, title: str, runs: Mapping[int, int], rounds: int, more: bool = False
    ) -> OnProgress | None:
        """Begin a part, or go on with it, of so many runs by seed; return what gets its events.

        `more` tells that the part goes on after these runs.
        """
        title = f"{self.name}{title}"
        if self._title is not None and title != self._title:
            self.ahead.pop(self._title, None)
        self._over, self._title = self._over + self._now, title
        self._now = sum(runs.values()) * rounds
        self.ahead[title] = max(0, self.ahead.get(title, 0) - self._now) if more else 0
        total = self._over + self._now + sum(self.ahead.values())
        part, notify = Part(title, dict(runs), self._over, total), self.on_progress

        def tell(event: Progress) -> None:
            if notify is not None:
                notify(replace(event, part=part))

        return None if notify is None else tell
