"""Rules of style that a formatter does not check."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "udjfl").rglob("*.py"))
SUFFIXES = {".cff", ".md", ".py", ".toml", ".txt", ".yaml"}
SKIPPED = {".git", ".venv", ".venv-minimum", ".envs", "runs", "build", "dist"}
# Home folders and temporary folders of one machine. Paths such as /opt/udjfl are examples.
MACHINE_PATH = re.compile(r"(?<![\w.~}/])/(?:home|root|Users|work)/\w|(?<![\w.~}/])/tmp/\w")
HEADLESS = re.compile(r"(?:What|Whether|Who|Whom|Whose|How)\b")


def text_files() -> list[Path]:
    """List the text files of the repository, without environments, caches and results."""
    return sorted(
        path
        for path in ROOT.rglob("*")
        if path.suffix in SUFFIXES
        and not SKIPPED & set(path.relative_to(ROOT).parts)
        and path.is_file()
    )


def matching_lines(pattern: str, suffixes: set[str]) -> list[str]:
    """Return `file:line` of every line that matches, but for this file."""
    compiled = re.compile(pattern)
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path in text_files()
        if path.suffix in suffixes and path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if compiled.search(line)
    ]


def docstrings(source: str) -> list[tuple[int, str]]:
    """Return the line and the text of every docstring, and of the strings below fields."""
    strings = []
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                value = statement.value.value
                if isinstance(value, str):
                    strings.append((statement.lineno, value))
    return strings


def headless(source: str) -> list[tuple[int, str]]:
    """Return the docstrings that begin with a question word instead of a verb or a noun."""
    return [(line, text) for line, text in docstrings(source) if HEADLESS.match(text.strip())]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in SOURCES
        for line, text in headless(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_headless_docstrings_are_detected() -> None:
    source = '"""What it is."""\ndef f():\n    """Whether so."""\ndef g():\n    """Howl."""\n'
    assert headless(source) == [(1, "What it is."), (3, "Whether so.")]


def test_the_formatter_is_never_overruled() -> None:
    assert matching_lines(r"# fmt: ?(?:skip|off)", {".py"}) == []


def test_no_path_of_one_machine() -> None:
    assert matching_lines(MACHINE_PATH.pattern, SUFFIXES) == []


def test_no_trailing_space_and_one_newline_at_the_end() -> None:
    for path in text_files():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"[ \t]+$", text, re.M), path
        assert text == "" or (text.endswith("\n") and not text.endswith("\n\n")), path
