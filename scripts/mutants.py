"""Mutation testing: change one thing in a module at a time, and see that some test fails.

    python scripts/mutants.py src/udjfl/statistics.py --tests tests/test_statistics.py

Tests are collected and run once, to learn which lines of the modules each of them reaches. Each
mutant is a process forked from there, in which the code of one function is replaced. It runs the
tests that reach the changed statement until one fails: those of the module first, then the fastest,
a few seconds of them. A mutant that no test notices survives, and so does one in a statement that
no test reaches. Survivors that cannot be noticed are in scripts/equivalent_mutants.txt with the
reason; others are printed, and the exit code is 1. `--only FILE` tries only the mutants that an
earlier output lists.

Not with mutmut: a mutant needs torch imported already, since importing it takes longer than the
tests of most mutants.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import gc
import importlib
import importlib.machinery
import itertools
import os
import pickle
import signal
import sys
import time
import types
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from mutations import Mutation, find_mutations

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
ALIVE = ("survived", "not reached", "not called")
KILLED, SURVIVED, TIMED_OUT, BROKEN = 1, 0, 124, 125
# The numbers of the tests that reach a line of a file, or call a function of it.
Reached = dict[tuple[str, int | str], list[int]]
MOST_SECONDS = 4.0  # of tests for one mutant: what more tests reach, the first notice, or none
SECONDS = 5.0  # of a processor for a test, beside ten times what it takes unchanged


class Mutants:
    """A plugin of pytest that runs the collected tests once for each mutant."""

    def __init__(self, paths: list[Path], only: str = "") -> None:
        self.paths, self.only = [path.resolve() for path in paths], only
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
            importlib.import_module(_module(path).removesuffix(".__init__"))
        functions = Functions(self.paths)
        seconds = _fork(lambda: _trace(session.items, self.paths, functions))
        if isinstance(seconds, str):
            raise pytest.UsageError(f"fails without a mutation: {seconds}")
        tests = Tests(session.items, *seconds)
        gc.collect()
        gc.freeze()  # so that forked processes do not copy all objects when they collect
        for path in self.paths:
            self._run_module(path, tests, functions)
        return True

    def _run_module(self, path: Path, tests: Tests, functions: Functions) -> None:
        known, counts = _equivalent(), Counter[str]()
        for mutation in find_mutations(path.read_text(encoding="utf-8")):
            line = f"{_module(path)} {mutation.function}: {mutation.before} -> {mutation.after}"
            if self.only and line not in self.only:
                continue
            numbers = tests.reaching(path, mutation.lines)
            if not tests.calling(path, mutation.function):
                outcome = _try_import(mutation, path, tests.reaching_module(path))
            elif numbers:
                outcome = _try(mutation, path, tests, numbers, functions)
            else:
                outcome = "not reached"
            if outcome in ALIVE and line in known:
                outcome = "equivalent"
            counts[outcome] += 1
            if outcome in ALIVE:
                self.survivors.append(f"{path.name}:{mutation.line} {line}")
                print(f"{outcome} {self.survivors[-1]}", flush=True)
        self.counts += counts
        outcomes = dict(sorted(counts.items()))
        print(f"{path.relative_to(ROOT)}: {sum(counts.values())} mutants: {outcomes}", flush=True)


class Functions:
    """The live functions of some modules, by file, qualified name and line, and their caches."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.live: dict[tuple[str, str, int], list[types.FunctionType]] = {}
        self.caches: list[Any] = []
        files = {str(path) for path in paths}
        for value in gc.get_objects():
            if type(value) is functools._lru_cache_wrapper:
                code = getattr(value.__wrapped__, "__code__", None)
                if code is not None and code.co_filename in files:
                    self.caches.append(value)
            elif type(value) is types.FunctionType and value.__code__.co_filename in files:
                self.live.setdefault(_key(value.__code__), []).append(value)

    def install(self, tree: ast.Module, path: Path, name: str = "") -> None:
        """Give every live function, or that of one name and those in it, their new code."""
        for code in _codes(compile(tree, str(path), "exec")):
            is_named = code.co_qualname == name or code.co_qualname.startswith(f"{name}.<locals>.")
            if name and not is_named:
                continue
            for function in self.live.get(_key(code), ()):
                free = function.__code__.co_freevars
                # Names around it have to be as many: `super()` is one, also where it is gone.
                new = code if code.co_freevars else code.replace(co_freevars=free)
                # One that was made before and no longer uses some of them stays as it is.
                if len(free) == len(new.co_freevars):
                    function.__code__ = new
        for cache in self.caches:
            cache.cache_clear()


def _key(code: types.CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


class Tests:
    """The collected tests, their seconds, and which reach a line."""

    def __init__(
        self,
        items: list[pytest.Item],
        seconds: list[float],
        lines: Reached,
    ) -> None:
        self.items, self.seconds, self.lines = items, seconds, lines

    def reaching(self, path: Path, lines: Iterable[int]) -> list[int]:
        """Return the tests to run for any of the lines: those of the module, then others.

        Of both the fastest come first, and a few seconds of them.
        """
        found = {number for line in lines for number in self.lines.get((str(path), line), ())}
        mirror = f"test_{path.stem.lstrip('_')}"
        own = {number for number in found if self.items[number].path.stem == mirror}
        return self._fastest(own) + self._fastest(found - own)

    def _fastest(self, numbers: set[int]) -> list[int]:
        ordered = sorted(numbers, key=self.seconds.__getitem__)
        sums = itertools.accumulate(self.seconds[number] for number in ordered)
        return [n for n, total in zip(ordered, sums, strict=True) if total <= MOST_SECONDS]

    def calling(self, path: Path, function: str) -> bool:
        """Return whether a test calls the function; others run at most when it is imported."""
        return (str(path), function) in self.lines

    def reaching_module(self, path: Path) -> list[str]:
        """Return the names of the tests that reach any line of a module."""
        found = {
            n for (name, _), numbers in self.lines.items() if name == str(path) for n in numbers
        }
        return [self.items[number].nodeid for number in sorted(found)]


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)


def _equivalent() -> set[str]:
    """Read the mutants that nothing can notice: lines that do not begin with #."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines() if EQUIVALENT.exists() else []
    return {line for line in lines if line and not line.startswith("#")}


def _fork(work: Any) -> Any:
    """Return what a function returns in a forked process; the text of the error if it raised."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_quiet()
        try:
            result = work()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(content)


def _be_quiet() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def _trace(
    items: list[pytest.Item], paths: list[Path], functions: Functions
) -> tuple[list[float], Reached]:
    """Return the seconds of each test, and for each line of the modules the tests that reach it.

    The code of all functions is replaced by the same code, to see that this changes nothing.
    """
    for path in paths:
        functions.install(ast.parse(path.read_text(encoding="utf-8")), path)
    files = {str(path) for path in paths}
    reached: set[tuple[str, int | str]] = set()
    seconds: list[float] = []
    lines: Reached = {}

    def trace(frame: types.FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if code.co_filename not in files:
            return None
        reached.add((code.co_filename, frame.f_lineno))
        if event == "call":
            reached.add((code.co_filename, code.co_qualname))
        return trace

    for number, item in enumerate(items):
        reached.clear()
        start = time.process_time()
        sys.settrace(trace)
        passed = _passes(item)
        sys.settrace(None)
        if not passed:
            raise AssertionError(item.nodeid)
        seconds.append(time.process_time() - start)
        for line in reached:
            lines.setdefault(line, []).append(number)
    return seconds, lines


def _passes(item: pytest.Item) -> bool:
    from _pytest.runner import runtestprotocol

    return all(not report.failed for report in runtestprotocol(item, log=False))


def _try(
    mutation: Mutation, path: Path, tests: Tests, numbers: list[int], functions: Functions
) -> str:
    """Run tests with a mutation in a forked process."""
    pid = os.fork()
    if pid == 0:
        _be_quiet()
        signal.signal(signal.SIGPROF, lambda *_: os._exit(TIMED_OUT))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        code = BROKEN
        with contextlib.suppress(BaseException):
            functions.install(mutation.tree, path, mutation.function)
            code = KILLED
            for number in numbers:
                limit = SECONDS + 10 * tests.seconds[number]
                signal.setitimer(signal.ITIMER_PROF, limit)
                signal.setitimer(signal.ITIMER_REAL, 20 * limit)  # one that waits for ever
                if not _passes(tests.items[number]):
                    os._exit(KILLED)
            code = SURVIVED
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == BROKEN:
        raise pytest.UsageError(f"{mutation.function}: {mutation.after} cannot be installed")
    names = {SURVIVED: "survived", TIMED_OUT: "timed out", -signal.SIGALRM: "timed out"}
    return names.get(code, "killed")


def _try_import(mutation: Mutation, path: Path, names: list[str]) -> str:
    """Import everything anew with a mutation in a function that runs at import, then run tests.

    The mutant survives unless importing or a test fails; if nothing calls it, it is not called.
    """
    was_called = _fork(lambda: _import_anew(mutation, path, names))
    if isinstance(was_called, str):
        raise pytest.UsageError(f"{mutation.function}: {was_called}")
    code, is_called = was_called
    return "killed" if code else "survived" if is_called else "not called"


def _import_anew(mutation: Mutation, path: Path, names: list[str]) -> tuple[int, bool]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if file.startswith(str(ROOT)) and "site-packages" not in file and name != "__main__":
            del sys.modules[name]
    called = False

    def profile(frame: types.FrameType, *_: object) -> None:
        nonlocal called
        code = frame.f_code
        called |= code.co_filename == str(path) and code.co_qualname == mutation.function

    loader: Any = importlib.machinery.SourceFileLoader
    real, compiled = loader.get_code, compile(mutation.tree, str(path), "exec")
    loader.get_code = lambda self, name: compiled if self.path == str(path) else real(self, name)
    sys.setprofile(profile)
    try:
        importlib.import_module(_module(path).removesuffix(".__init__"))
    except Exception:
        return KILLED, True
    finally:
        sys.setprofile(None)
    if not called:
        return SURVIVED, False
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *names])), True


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return inner + [each for one in inner for each in _codes(one)]


def main() -> int:
    """Run the mutants of the named modules."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="+", type=Path)
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--only", type=Path, help="an output that lists the mutants to try")
    arguments = parser.parse_args()
    only = arguments.only.read_text(encoding="utf-8") if arguments.only else ""
    plugin = Mutants(arguments.modules, only)
    options = [
        "-p",
        "no:cacheprovider",
        "-p",
        "no:faulthandler",
        "-m",
        "not soak and not processes",
    ]
    code = pytest.main([*options, *arguments.tests], plugins=[plugin])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return int(code)
    total, survived = sum(plugin.counts.values()), len(plugin.survivors)
    print(f"{total} mutants, {survived} survived ({100 * survived / max(1, total):.1f}%)")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
