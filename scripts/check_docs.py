"""Run the code blocks of README.md and the pages of docs/: make docs-check [PAGES=docs/tour.md]

Each page runs in a process and an empty folder of its own, its blocks in their order:

    python          executed, all blocks of a page in one namespace
    pycon           executed, and what it prints compared (doctest)
    bash            executed line by line; training is cut to 2 rounds and 2 seeds, and of make
                    targets only `make --dry-run` is called
    toml            parsed
    a named file    written; commands that follow can use it
    output          compared with what the commands above it print; these run in full length

On every page but the tour, which writes them, the folder has the tour's CSV files, `hospitals/`.
A block that cannot run here names the test that runs it in a comment before it, or else why nothing
runs it (`docs_pages`); these are counted and listed at the end. Other blocks of language text are
formulas and pictures, not code.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import doctest
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docs_pages import CHECKED_PATTERNS, ROOT, Block, find_blocks, find_pages, read_page
from docs_samples import find_stale_part

# What is added to a command to make it quick; the last of two equal options counts.
SHORTER = {
    "compare": "--rounds 2 --seeds 2",
    "demo": "--rounds 2 --seeds 2",
    "frontier": "--rounds 2 --seeds 2 --exponents 1 --gammas 1 --budgets 2 --methods qffl",
    "run": "--rounds 2",
    "tune": "--rounds 9 --seeds 2 --cost 12 --budget 50 --floor client-1=1",
    "reproduce": "--quick --rounds 2 --epochs 1 --data dirty-digits",
}
TOUR = "docs/tour.md"
FOLDERS = ("apps", "benchmarks", "examples", "experiments")  # commands name files in them


class BlockError(Exception):
    """A code block failed."""


def without_comment(command: str) -> str:
    return re.sub(r"\s+#\s.*$", "", command)


def shorten_command(command: str) -> str:
    """Return a command that does the same in little time."""
    command = without_comment(command)
    words = command.split()
    if words[0] == "make":
        return (
            f"make --dry-run --directory {shlex.quote(str(ROOT))} {' '.join(words[1:])} > /dev/null"
        )
    if words[0] == "udjfl" and len(words) > 1:
        return f"{command} {SHORTER.get(words[1], '')}".strip()
    return command


def shorten_python(code: str) -> str:
    """Return Python that trains for few rounds and on few seeds."""
    return re.sub(r"\b(rounds|seeds)=\d+", r"\1=2", code)


def run_python(block: Block, namespace: dict[str, Any]) -> None:
    for code in (block.before, shorten_python(block.code)):
        exec(compile("\n" * (block.line - 1) + code, block.page, "exec"), namespace)


def run_session(block: Block, namespace: dict[str, Any]) -> None:
    """Run a block of `>>>` lines, and compare what it prints."""
    test = doctest.DocTestParser().get_doctest(
        block.code, {}, block.place, block.page, block.line - 1
    )
    test.globs = namespace  # not a copy: the next block goes on where this one ends
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    if runner.run(test, out=report.append, clear_globs=False).failed:
        raise BlockError("".join(report))


def run_commands(block: Block, in_full: bool) -> tuple[str | None, list[str]]:
    """Run the commands of a block in one shell; return what they print, and why some were left out.

    What is printed is None unless all commands ran in full.
    """
    commands = [(command, missing_data(command)) for command in block.commands]
    reasons = [f"{block.place}: {reason}: {command}" for command, reason in commands if reason]
    change = without_comment if in_full else shorten_command
    script = "\n".join(change(command) for command, reason in commands if not reason)
    for folder in re.findall(r"--out[ =](\S+)", script):  # written by an earlier block of the page
        shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BlockError(f"{script}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
    return (done.stdout if in_full and not reasons else None), reasons


def missing_data(command: str) -> str | None:
    """Name a data source that the command trains on and whose files are not on this machine."""
    from udjfl.report.data import list_sources

    named = set(re.findall(r"--data[ =]([\w-]+)", shorten_command(command))[-1:])
    absent = {source["data"] for source in list_sources() if source["found"] is False}
    return "its data are not on this machine" if named & absent else None


@dataclass
class PageCheck:
    """The blocks of one page, run one after the other in the current folder.

    printed   what the last commands printed, None if they were cut short
    """

    page: str
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__docs__"})
    printed: str | None = None
    ran: int = 0
    tested: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        """Run all blocks; return counts, reasons and failures."""
        blocks = list(find_blocks(self.page, read_page(self.page)))
        for number, block in enumerate(blocks):
            if block.run_by:
                self.tested.append(f"{block.place}: {block.run_by}")
            elif block.not_run:
                self.skipped.append(f"{block.place}: {block.not_run}")
            elif block.language != "text" or block.is_output:
                self.run_timed(block, in_full=has_output(blocks[number + 1 :]))
        lists = {"tested": self.tested, "skipped": self.skipped, "failures": self.failures}
        return {"page": self.page, "ran": self.ran, **lists}

    def run_timed(self, block: Block, in_full: bool) -> None:
        """Run one block, and note a failure."""
        began = time.monotonic()
        try:
            self.run_block(block, in_full)
            self.ran += 1
        except BaseException as error:
            self.failures.append(f"{block.place}: {type(error).__name__}: {error}")
        print(f"  {block.place} {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    def run_block(self, block: Block, in_full: bool) -> None:
        """Run one block in the way of its language."""
        if block.file:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(shorten_python(block.code), encoding="utf-8")
        elif block.is_output:
            self.compare_output(block)
        elif block.language == "bash":
            self.printed = None
            self.printed, reasons = run_commands(block, in_full)
            self.skipped += reasons
        elif block.language == "python":
            run_python(block, self.namespace)
        elif block.language == "pycon":
            run_session(block, self.namespace)
        elif block.language == "toml":
            tomllib.loads(block.code)
        else:
            raise BlockError(f"a block of {block.language!r} needs a reason: <!-- not run: ... -->")

    def compare_output(self, block: Block) -> None:
        """Compare a sample with what the commands above it printed."""
        if self.printed is None:
            raise BlockError("the commands above this output failed, or did not run in full")
        stale = find_stale_part(block.code, self.printed)
        if stale is not None:
            raise BlockError(f"not printed:\n{stale}\nwhat is printed:\n{self.printed}")


def has_output(blocks: list[Block]) -> bool:
    """Tell whether an output comes before the next commands."""
    for block in blocks:
        if block.is_output or block.language == "bash":
            return block.is_output
    return False


def write_hospitals(folder: Path) -> None:
    """Write the CSV files of the tour, by the tour's own program."""
    blocks = find_blocks(TOUR, read_page(TOUR))
    (program,) = [block.code for block in blocks if block.file == "make_hospitals.py"]
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)


def make_environment(folder: Path) -> dict[str, str]:
    """Put `udjfl` and `python` of this environment first, and the user's own files out of reach."""
    programs = folder / "bin"
    programs.mkdir()
    for name, arguments in (("udjfl", " -m udjfl"), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        program.chmod(0o755)
    environment = dict(os.environ)
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    environment["HOME"] = str(folder)
    environment["COLUMNS"] = "120"
    environment["OMP_NUM_THREADS"] = "1"  # a page for each core
    environment["BROWSER"] = "true"  # for `--open`: a program that does nothing
    data = ROOT.parent / "shared" / "data"
    if data.is_dir():
        environment.setdefault("UDJFL_DATA", str(data))
    return environment


def check_in_process(page: str) -> dict[str, Any]:
    """Check one page in a process and a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = make_environment(folder)
        work = folder / "work"
        work.mkdir()
        for path in FOLDERS:
            (work / path).symlink_to(ROOT / path)
        if page != TOUR:
            write_hospitals(work)
        done = subprocess.run(
            [sys.executable, __file__, "--here", page],
            cwd=work,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    last = done.stdout.splitlines()[-1:] or ["{}"]
    if done.returncode:
        failures = [f"{page}: {last[0]}"]
        return {"page": page, "ran": 0, "tested": [], "skipped": [], "failures": failures}
    outcome: dict[str, Any] = json.loads(last[0])
    return outcome


def main() -> None:
    """Check the named pages, or all, and print what ran and what did not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pages", nargs="*", help="relative to the root of the repository")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(PageCheck(arguments.pages[0]).run()))
        return
    outcomes = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        pages = arguments.pages or find_pages(CHECKED_PATTERNS)
        for outcome in pool.map(check_in_process, pages):
            outcomes.append(outcome)
            print(f"{outcome['page']}: {outcome['ran']} run", flush=True)
    tested, skipped, failures = (
        [line for outcome in outcomes for line in outcome[key]]
        for key in ("tested", "skipped", "failures")
    )
    ran = sum(outcome["ran"] for outcome in outcomes)
    print("\n".join(["", *failures, "Run by tests:", *tested, "Not run:", *skipped]))
    print(
        f"{ran} blocks run here, {len(tested)} by tests, {len(skipped)} not run, "
        f"{len(failures)} failed."
    )
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
