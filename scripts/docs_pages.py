"""The Markdown pages of the project as data: their headings, links and code blocks.

Code blocks are checked by tests/test_docs.py and by `make docs-check`. An HTML comment just before
a block says what cannot be seen from the block:

    <!-- run by: tests/test_x.py::test_y -->  that test runs the block, not `make docs-check`
    <!-- not run: needs five machines -->    nothing runs the block, for this reason
    <!-- before:                             Python that runs before the block, unseen by readers
    x = [1, 2]
    -->
    <!-- output -->                          the block is what the commands above it print, or parts
                                             of that; "..." at the end of a line stands for the
                                             rest

A block that follows a line such as "`my_method.py`:" is the content of that file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = ("*.md", "docs/*.md", "experiments/*.md", "benchmarks/*.md", "apps/**/*.md")
# Pages whose code blocks `make docs-check` runs. tests/test_contributing.py runs CONTRIBUTING.md;
# the others are records of experiments.
CHECKED_PATTERNS = ("README.md", "docs/*.md")
# A value that the reader has to put in: `x_train=...`, `(...)`. Such Python is compiled, not run.
PLACEHOLDER = re.compile(r"[=(]\s*\.\.\.\s*[,)]")

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<language>[\w+-]*)[^\n`]*$")
COMMENT = re.compile(r"<!-- (?P<key>not run|run by|before):\s(?P<text>(?:(?!-->).)*)-->\s*\Z", re.S)
OUTPUT = re.compile(r"<!-- output -->\s*\Z")
FILE = re.compile(r"^`(?P<name>[\w./-]+)`:\s*\Z", re.M)
LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\((?P<target>[^)\s]+)\)")
IMAGE = re.compile(r"!\[[^\]]*\]\((?P<target>[^)\s]+)\)")
# First words of a command line; a block without a language that begins with one is commands.
PROGRAMS = {"flwr", "for", "git", "make", "pip", "python", "udjfl"}


@dataclass(frozen=True)
class Block:
    """A fenced code block.

    page      the page, relative to the root
    line      the line of its first line of code
    language  what follows the fence; "bash" for commands in a block without a language
    not_run   why nothing runs it, None if something does
    run_by    the test that runs it in place of `make docs-check`
    before    Python to run before it
    file      the file that it is the content of
    is_output whether it shows what the commands above it print
    """

    page: str
    line: int
    language: str
    code: str
    not_run: str | None = None
    before: str = ""
    file: str | None = None
    is_output: bool = False
    run_by: str | None = None

    @property
    def place(self) -> str:
        """The page and line, as editors show them."""
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a block of commands, without comments; continued lines are joined."""
        lines = (line.strip() for line in self.code.replace("\\\n", " ").splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def find_pages(patterns: tuple[str, ...] = PATTERNS) -> list[str]:
    """List the pages, relative to the root."""
    return sorted(str(page.relative_to(ROOT)) for glob in patterns for page in ROOT.glob(glob))


def read_page(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def find_blocks(page: str, text: str) -> Iterator[Block]:
    """Yield the fenced code blocks of a page in their order."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if opening is None:
            number += 1
            continue
        indent, fence = opening["indent"], opening["fence"]
        end = next(
            (i for i in range(number + 1, len(lines)) if lines[i].strip() == fence), len(lines)
        )
        code = "".join(f"{line.removeprefix(indent)}\n" for line in lines[number + 1 : end])
        above = "\n".join(lines[:number])
        comment, file = COMMENT.search(above), FILE.search(above)
        words = {comment["key"]: comment["text"].strip()} if comment else {}
        language = opening["language"] or guess_language(code)
        not_run = words.get("not run")
        if not_run is None and language == "python" and PLACEHOLDER.search(code):
            not_run = "has ... in place of the reader's own values"
        before, name = words.get("before", ""), file["name"] if file else None
        is_output = OUTPUT.search(above) is not None
        yield Block(
            page,
            number + 2,
            language,
            code,
            not_run,
            before,
            name,
            is_output,
            words.get("run by"),
        )
        number = end + 1


def find_test(named: str) -> bool:
    """Tell whether a test, named as pytest names it, exists."""
    path, _, name = named.partition("::")
    file = ROOT / path
    return file.is_file() and f"\ndef {name}(" in file.read_text(encoding="utf-8")


def guess_language(code: str) -> str:
    """Return "bash" if the code begins with a known program, else "text"."""
    return "bash" if code.split(maxsplit=1)[:1] and code.split()[0] in PROGRAMS else "text"


def without_blocks(text: str) -> str:
    """Return the text without fenced code blocks."""
    return re.sub(r"^ *(```+).*?^ *\1", "", text, flags=re.M | re.S)


def find_links(text: str) -> list[str]:
    """List the targets of links and images outside code blocks."""
    text = without_blocks(text)
    return [match["target"] for pattern in (LINK, IMAGE) for match in pattern.finditer(text)]


def is_outside(target: str) -> bool:
    """Tell whether a link leads to another site."""
    return bool(re.match(r"[a-z]+:", target))


def find_anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as code hosts and the site make them."""
    anchors: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"^#+ (.+?)(?: #+)?$", without_blocks(text), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("\\", "")
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        count = anchors.get(slug, 0)
        anchors[slug] = count + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


def resolve(page: str, target: str) -> str:
    """Return the path, relative to the root, that a relative link of a page leads to."""
    path = target.partition("#")[0]
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page


def broken_links(page: str, text: str) -> list[str]:
    """List the relative links whose file or heading does not exist."""
    return [target for target in find_links(text) if not _leads_somewhere(page, target)]


def _leads_somewhere(page: str, target: str) -> bool:
    if is_outside(target):
        return True
    path, anchor = resolve(page, target), target.partition("#")[2]
    if not (ROOT / path).exists():
        return False
    return not anchor or not path.endswith(".md") or anchor in find_anchors(read_page(path))
