"""Suites: contenders take turns, so that all are disturbed alike by other processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from benchmarks.child import Child, ContenderError
from benchmarks.environments import PEERS, InstallError, python_of
from benchmarks.machine import OtherProcesses
from benchmarks.suites import Entry, Suite

LOOP_FOREVER = "while True: pass"


def run_suite(suite: Suite, repetitions: int) -> dict[str, Any]:
    """Measure one suite and return all measurements as plain values."""
    print(
        f"{suite.title}: {len(suite.entries)} contenders, "
        f"{repetitions} repetitions of {suite.rounds} rounds",
        flush=True,
    )
    records: dict[str, dict[str, Any]] = {entry.title: {} for entry in suite.entries}
    children: dict[str, Child] = {}
    others = OtherProcesses()
    try:
        for entry in suite.entries:  # one after the other: start-up is measured too
            _start(entry, suite, records[entry.title], children)
        for repetition in range(repetitions):
            _take_turns(repetition, suite, records, children, "seconds")
            if suite.beside_busy:
                with busy_process():
                    _take_turns(repetition, suite, records, children, "busy_seconds")
    finally:
        for child in children.values():
            child.close()
    return {
        "title": suite.title,
        "work": asdict(suite.work),
        "rounds": suite.rounds,
        "checked_rounds": suite.checked_rounds,
        "ours": suite.ours,
        "contenders": records,
        "others": others.busy_cores(),
    }


def _start(entry: Entry, suite: Suite, record: dict[str, Any], children: dict[str, Child]) -> None:
    """Start one contender and check its work, which also warms it up and shows its memory."""
    try:
        python = sys.executable if entry.peer is None else str(python_of(PEERS[entry.peer]))
        child = Child(python, entry.module, entry.variant, suite.work, entry.source)
        children[entry.title] = child
        record |= {"startup": child.startup, "setup": child.setup, "torch": child.torch}
        record["check"] = child.ask("check", suite.checked_rounds)
        record["memory"] = child.memory.stop()
        print(f"  {entry.title}: started in {child.startup:.1f} s", flush=True)
    except InstallError as error:
        record["failed"] = f"not installed: {error}"
    except ContenderError as error:
        record["failed"] = str(error)
    if "failed" in record:
        print(f"  {entry.title}: {record['failed']}", flush=True)
        if entry.title in children:
            children.pop(entry.title).close()


def _take_turns(
    repetition: int,
    suite: Suite,
    records: dict[str, dict[str, Any]],
    children: dict[str, Child],
    key: str,
) -> None:
    """Run one repetition of every contender, beginning with another one each time."""
    names = list(children)
    first = repetition % max(len(names), 1)
    for name in names[first:] + names[:first]:
        try:
            answer = children[name].ask("run", suite.rounds)
        except ContenderError as error:
            records[name]["failed"] = f"in repetition {repetition + 1}: {error}"
            children.pop(name).close()
            continue
        records[name].setdefault(key, []).append(answer["seconds"] / suite.rounds)
        if "rate" in answer:
            records[name].setdefault("rates", []).append(answer["rate"])


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Keep one core busy with another process."""
    process = subprocess.Popen([sys.executable, "-c", LOOP_FOREVER])
    try:
        yield
    finally:
        process.kill()
        process.wait()
