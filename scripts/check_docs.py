"""Run the code blocks of README.md and the pages of docs/: make docs-check [PAGES=docs/tour.md]

Each page runs in a process and an empty folder of its own, its blocks in their order:

    python          executed, all blocks of a page in one namespace
    pycon           executed, and what it prints compared (doctest)
    bash            executed line by line; training is cut to 2 rounds and 2 seeds, and of make
                    targets only `make --dry-run` is called
    toml            parsed
    a named file    written; commands that follow can use it

A block that cannot run here says so in a comment before it (`docs_pages`); these are counted and
listed at the end. Blocks of language text are output and formulas, not code.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path
from typing import Any

from docs_pages import CHECKED_PATTERNS, ROOT, Block, find_blocks, find_pages, read_page

# What is added to a command to make it quick; the last of two equal options counts.
SHORTER = {
    "compare": "--rounds 2 --seeds 2",
    "demo": "--rounds 2 --seeds 2",
    "frontier": "--rounds 2 --seeds 2 --exponents 1 --gammas 1 --budgets 2 --methods qffl",
    "run": "--rounds 2",
    "reproduce": "--quick --rounds 2 --epochs 1 --data dirty-digits",
}
FOLDERS = ("apps", "benchmarks", "examples", "experiments")  # commands name files in them


class BlockError(Exception):
    """A code block failed."""


def shorten_command(command: str) -> str:
    """Return a command that does the same in little time."""
    command = re.sub(r"\s+#\s.*$", "", command)
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


def run_commands(block: Block) -> list[str]:
    """Run the commands of a block in one shell; return why some were left out."""
    commands = [(command, missing_data(command)) for command in block.commands]
    script = "\n".join(shorten_command(command) for command, reason in commands if not reason)
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
    return [f"{block.place}: {reason}: {command}" for command, reason in commands if reason]


def missing_data(command: str) -> str | None:
    """Name a data source that the command trains on and whose files are not on this machine."""
    from udjfl.report.data import list_sources

    named = set(re.findall(r"--data[ =]([\w-]+)", shorten_command(command))[-1:])
    absent = {source["data"] for source in list_sources() if source["found"] is False}
    return "its data are not on this machine" if named & absent else None


def run_block(block: Block, namespace: dict[str, Any]) -> list[str]:
    """Run one block in the way of its language; return why parts of it were left out."""
    if block.file:
        Path(block.file).parent.mkdir(parents=True, exist_ok=True)
        Path(block.file).write_text(shorten_python(block.code), encoding="utf-8")
        return []
    if block.language == "bash":
        return run_commands(block)
    if block.language == "python":
        run_python(block, namespace)
    elif block.language == "pycon":
        run_session(block, namespace)
    elif block.language == "toml":
        tomllib.loads(block.code)
    else:
        raise BlockError(f"a block of {block.language!r} needs a reason: <!-- not run: ... -->")
    return []


def check_page(page: str) -> dict[str, Any]:
    """Run the blocks of one page in the current folder; return counts, reasons and failures."""
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    ran, skipped, failures = 0, [], []
    for block in find_blocks(page, read_page(page)):
        if block.language == "text":
            continue
        if block.not_run:
            skipped.append(f"{block.place}: {block.not_run}")
            continue
        began = time.monotonic()
        try:
            skipped += run_block(block, namespace)
            ran += 1
        except BaseException as error:
            failures.append(f"{block.place}: {type(error).__name__}: {error}")
        print(f"  {block.place} {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return {"page": page, "ran": ran, "skipped": skipped, "failures": failures}


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
        return {"page": page, "ran": 0, "skipped": [], "failures": [f"{page}: {last[0]}"]}
    outcome: dict[str, Any] = json.loads(last[0])
    return outcome


def main() -> None:
    """Check the named pages, or all, and print what ran and what did not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pages", nargs="*", help="relative to the root of the repository")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(check_page(arguments.pages[0])))
        return
    outcomes = []
    for page in arguments.pages or find_pages(CHECKED_PATTERNS):
        outcomes.append(check_in_process(page))
        print(f"{page}: {outcomes[-1]['ran']} blocks run", flush=True)
    skipped = [line for outcome in outcomes for line in outcome["skipped"]]
    failures = [line for outcome in outcomes for line in outcome["failures"]]
    ran = sum(outcome["ran"] for outcome in outcomes)
    print("\n".join(["", *failures, "Not run:", *skipped]))
    print(f"{ran} blocks run, {len(skipped)} not run, {len(failures)} failed.")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
