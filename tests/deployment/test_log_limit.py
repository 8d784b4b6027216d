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
        record = logging.LogRecord("udjfl.proxy", level, "file", 1, text, values, None)
        if limit.filter(record):
            written.append(record.getMessage())

    log(logging.INFO, "started")
    for number in range(1000):
        log(logging.WARNING, "refused %d", number)
    log(logging.ERROR, "an error")
    log(logging.INFO, "100% of it")
    now[0] += 1.5
    log(logging.WARNING, "refused %d", 7)
    now[0] += 1.5
    log(logging.WARNING, "refused %d", 8)
    assert written == [
        *("started", "refused 0", "an error", "100% of it"),
        *("refused 7 (999 lines left out)", "refused 8"),
    ]


def test_each_kind_of_warning_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger must not keep the failures of the coordinator out of its log."""
    monkeypatch.setattr("udjfl.deployment.log_limit.time.monotonic", lambda: 100.0)
    limit = OneASecond()

    def is_written(logger: str, text: str, *values: object) -> bool:
        return limit.filter(logging.LogRecord(logger, 30, "file", 1, text, values, None))

    assert is_written("udjfl.proxy", "Refused %s", "/a")
    assert not is_written("udjfl.proxy", "Refused %s", "/b")
    assert is_written("udjfl.proxy", "The SuperLink does not answer: %s", "ReadError")
    assert is_written("uvicorn.error", "Invalid HTTP request received.")
    assert not is_written("uvicorn.error", "anything else, which a stranger may have written")
