"""Mutation testing: change one thing in a module at a time, and see that some test fails.

    python scripts/mutants.py src/udjfl/statistics.py -- tests/test_statistics.py

Tests are collected once. Each mutant is a process forked from there, in which the code of one
function is replaced; it runs the tests that call this function, the fastest first, until one fails.
A mutant that no test notices survives. One in a function that no test calls, such as one that runs
only when its module is imported, is counted as not called. Survivors that cannot be noticed are in
scripts/equivalent_mutants.txt with the reason; others are printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import gc
import importlib
import os
import pickle
import signal
import sys
import time
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mutations import Mutation, find_mutations

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
KILLED, SURVIVED, TIMED_OUT, BROKEN = 1, 0, 124, 125
SECONDS = 5.0  # of a processor, beside ten times what the tests take unchanged


class Mutants:
    """A plugin of pytest that runs the collected tests once for each mutant."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.survivors: list[str] = []
        self.counts: Counter[str] = Counter()

    def pytest_configure(self) -> None:
        """Stop at a failing example: it need not be made smaller."""
        from hypothesis import HealthCheck, Phase, settings  # after pytest has begun

        settings.register_profile(
            "mutants",
            phases=(Phase.explicit, Phase.generate),
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the mutants of each module in turn."""
        for path in self.paths:
            self._run_module(session, path.resolve())
        return True

    def _run_module(self, session: pytest.Session, path: Path) -> None:
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        importlib.import_module(name.removesuffix(".__init__"))
        calls = _fork(lambda: _trace(session.items, path))
        if calls is None:
            raise pytest.UsageError(f"the tests of {path} fail without a mutation")
        source, known, counts = path.read_text(encoding="utf-8"), _equivalent(), Counter[str]()
        for function, seconds in calls.items():
            if "<" in function:  # a lambda of the module, which is not changed
                continue
            same = Mutation(function, 0, "", "", ast.parse(source))
            if _try(same, path, _choose(session.items, seconds), 60.0) != "survived":
                raise pytest.UsageError(f"{function} of {path} fails without a mutation")
        for mutation in find_mutations(source):
            line = f"{name} {mutation.function}: {mutation.before} -> {mutation.after}"
            items = _choose(session.items, calls.get(mutation.function, {}))
            seconds = sum(calls.get(mutation.function, {}).values())
            outcome = _try(mutation, path, items, seconds) if items else "not called"
            if outcome == "survived" and line in known:
                outcome = "equivalent"
            counts[outcome] += 1
            if outcome == "survived":
                self.survivors.append(f"{path.name}:{mutation.line} {line}")
                print(f"survived {self.survivors[-1]}", flush=True)
        self.counts += counts
        print(f"{path.relative_to(ROOT)}: {sum(counts.values())} mutants: {dict(counts)}")


def _equivalent() -> set[str]:
    """Read the mutants that nothing can notice: lines that do not begin with #."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines() if EQUIVALENT.exists() else []
    return {line for line in lines if line and not line.startswith("#")}


def _fork(work: Any) -> Any:
    """Return what a function returns in a forked process; None if it raised."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_quiet()
        with contextlib.suppress(BaseException):
            os.write(writing, pickle.dumps(work()))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(content) if content else None


def _be_quiet() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def _trace(items: list[pytest.Item], path: Path) -> dict[str, dict[int, float]]:
    """Return for each function of a module the tests that call it, with their seconds."""
    called: set[str] = set()
    calls: dict[str, dict[int, float]] = {}
    filename = str(path)

    def profile(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == filename:
            called.add(frame.f_code.co_qualname)

    for number, item in enumerate(items):
        called.clear()
        start = time.process_time()
        sys.setprofile(profile)
        passed = _passes(item)
        sys.setprofile(None)
        if not passed:
            raise AssertionError(item.nodeid)
        for function in called:
            calls.setdefault(function, {})[number] = time.process_time() - start
    return calls


def _passes(item: pytest.Item) -> bool:
    from _pytest.runner import runtestprotocol

    return all(not report.failed for report in runtestprotocol(item, log=False))


def _choose(items: list[pytest.Item], seconds: dict[int, float]) -> list[pytest.Item]:
    """Return the tests of a function, the fastest first."""
    return [items[number] for number in sorted(seconds, key=seconds.__getitem__)]


def _try(mutation: Mutation, path: Path, items: list[pytest.Item], seconds: float) -> str:
    """Run tests with a mutation in a forked process."""
    pid = os.fork()
    if pid == 0:
        _be_quiet()
        signal.signal(signal.SIGPROF, lambda *_: os._exit(TIMED_OUT))
        signal.setitimer(signal.ITIMER_PROF, SECONDS + 10 * seconds)
        code = BROKEN
        with contextlib.suppress(BaseException):
            _install(mutation, path)
            code = KILLED
            code = SURVIVED if all(map(_passes, items)) else KILLED
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == BROKEN:
        raise pytest.UsageError(f"{mutation.function}: {mutation.after} cannot be installed")
    return {SURVIVED: "survived", TIMED_OUT: "timed out"}.get(code, "killed")


def _install(mutation: Mutation, path: Path) -> None:
    """Give every live function of this name its new code."""
    module = compile(mutation.tree, str(path), "exec")
    codes = {code.co_qualname: code for code in _codes(module)}
    for value in gc.get_objects():
        if type(value) is functools._lru_cache_wrapper:
            code = getattr(value.__wrapped__, "__code__", None)
            if code is not None and code.co_filename == str(path):
                value.cache_clear()
        elif type(value) is types.FunctionType:
            old = value.__code__
            if old.co_filename == str(path) and old.co_qualname == mutation.function:
                value.__code__ = codes[mutation.function]


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return inner + [each for one in inner for each in _codes(one)]


def main() -> int:
    """Run the mutants of the named modules."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="+", type=Path)
    parser.add_argument("--tests", nargs="+", required=True)
    arguments = parser.parse_args()
    plugin = Mutants(arguments.modules)
    options = ["-p", "no:cacheprovider", "-m", "not soak and not processes"]
    code = pytest.main([*options, *arguments.tests], plugins=[plugin])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return int(code)
    total, survived = sum(plugin.counts.values()), len(plugin.survivors)
    print(f"{total} mutants, {survived} survived ({100 * survived / max(1, total):.1f}%)")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
