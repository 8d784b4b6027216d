"""What is written to a log that strangers can cause."""

from __future__ import annotations

import logging

import pytest

from udjfl.deployment.log_limit import OneASecond


def test_of_warnings_one_a_second_is_written_and_the_others_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("udjfl.deployment.log_limit.time.monotonic", lambda: now[0])
    limit, written = OneASecond(), []

    def log(level: int, text: str, *values: object) -> None:
        record = logging.LogRecord("any", level, "file", 1, text, values, None)
        if limit.filter(record):
            written.append(record.getMessage())

    log(logging.INFO, "started")
    for number in range(1000):
        log(logging.WARNING, "refused %d", number)
    log(logging.ERROR, "an error")
    log(logging.INFO, "100% of it")
    now[0] += 1.5
    log(logging.WARNING, "refused %s%%", 7)
    now[0] += 1.5
    log(logging.WARNING, "refused again")
    assert written == [
        *("started", "refused 0", "100% of it", "refused 7% (1000 lines left out)"),
        "refused again",
    ]
