"""Several observers of one training get the same events, in order."""

from __future__ import annotations

from udjfl.training.observers import observe
from udjfl.training.records import Progress


def test_without_observers_there_is_no_callback() -> None:
    with observe() as on_progress:
        assert on_progress is None


def test_every_observer_gets_every_event(capsys: object) -> None:
    seen: list[int] = []
    with observe(lambda event: seen.append(event.done), progress=True, rounds=2) as on_progress:
        assert on_progress is not None
        for done in (1, 2):
            on_progress(Progress("FedAvg", 0, "training", done, 2))
    assert seen == [1, 2]
