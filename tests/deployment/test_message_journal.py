"""Journals of messages, as processes that are killed at any point leave them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from udjfl.deployment.message_journal import LAUNCHED, PULLED, REPLIED, REPLYING, Journal, Launch

LAUNCH = Launch(7, "127.0.0.1:9094", "token", None, False)


def test_a_journal_has_the_launch_the_last_stage_and_the_message(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, LAUNCH)
    assert (journal.launch, journal.stage, journal.message) == (LAUNCH, LAUNCHED, None)
    journal.note(PULLED, message="abc")
    journal.note(REPLYING)
    journal.note(REPLIED)
    assert (journal.launch, journal.stage, journal.message) == (LAUNCH, REPLIED, "abc")


def test_a_journal_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    assert Journal.create(tmp_path, LAUNCH).path.stat().st_mode & 0o777 == 0o600


def test_journals_of_killed_executors_are_found_wherever_they_end(tmp_path: Path) -> None:
    """Cut the file after every byte: the stage is that of the last whole line."""
    journal = Journal.create(tmp_path, LAUNCH)
    first = journal.path.read_bytes().rstrip(b"\0")
    journal.note(PULLED, message="abc")
    whole = journal.path.read_bytes().rstrip(b"\0")
    for length in range(len(whole) + 1):
        journal.path.write_bytes(whole[:length])
        found = [(each.launch, each.stage) for each in Journal.find(tmp_path)]
        stage = PULLED if length == len(whole) else LAUNCHED
        assert found == ([(LAUNCH, stage)] if length >= len(first) else [])
    journal.remove()
    assert Journal.find(tmp_path) == []
    journal.remove()  # again does no harm


def test_a_full_disk_loses_no_later_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The space is reserved when the journal is started, or that fails, and nothing is left."""
    journal = Journal.create(tmp_path, LAUNCH)
    reserved = journal.path.stat().st_blocks
    journal.note(PULLED, message="abc" * 1000)
    journal.note(REPLIED)
    assert journal.path.stat().st_blocks == reserved
    assert (journal.stage, journal.message) == (REPLIED, "abc" * 1000)
    journal.remove()

    def fail(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(OSError, match="No space left"):
        Journal.create(tmp_path, LAUNCH)
    assert list(tmp_path.iterdir()) == []
