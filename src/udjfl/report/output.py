"""Printing on standard output: tables for people that fit the terminal, or one JSON document."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from udjfl._ids import printable

WIDTH_OF_FILES = 120  # columns, where the output is not a terminal
NARROW = 100  # tables with long cells are laid out differently below this width
GAP = 1
HANG = 2  # columns by which the second line of a long name is indented


def show(view: RenderableType, document: Any, as_json: bool) -> None:
    """Print the document as JSON, or the view in the width of the terminal."""
    if as_json:
        print(escape_json(to_json(document)), end="")
        return
    # Brackets in ids and other texts are no markup.
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH_OF_FILES
    console.print(Printable(view))


def to_json(document: Any) -> str:
    """Return a document as indented JSON, with a newline at the end."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


# JSON itself escapes only the first 32 characters of those that steer a terminal or turn text.
_STEERING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_json(text: str) -> str:
    """Write characters that steer a terminal as escapes of JSON: it means the same."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable_lines(text: str) -> str:
    """Write invisible characters as escapes, but for the ends of lines and the space between."""
    lines = text.split("\n")
    return "\n".join(printable(line) if line.strip(" ") else line for line in lines)


@dataclass(frozen=True)
class Printable:
    """A view without characters that steer a terminal, whatever its texts contain."""

    view: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Render the view and clean its text; rich's own styles are not text."""
        for segment in console.render(self.view, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)


@dataclass(frozen=True)
class FitWidth:
    """A view that is laid out for the width it is printed in."""

    layout: Callable[[int], RenderableType]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Sequence[RenderableType]:
        """Lay out the view."""
        return [self.layout(options.max_width)]


def make_blocks(
    width: int,
    corner: str,
    headings: Sequence[Text],
    names: Sequence[Text],
    cells: Sequence[Sequence[Text]],
) -> Group:
    """Make a table of rows with names, or several below each other if one is too wide.

    Each of them repeats the names, which are folded further where that saves a table. `cells` has a
    row for each name.
    """
    headings, names = [*map(_clean, headings)], [*map(_clean, names)]
    longest_word = max(map(_longest_word, names), default=1)
    widest = width // 2  # of one column: longer ids are folded, as headings cut off
    needed = max(len(corner), *map(text_width, names))
    first = min(needed, max(longest_word, width // 3), widest)
    widths = [
        min(max(map(text_width, of)), widest) + GAP for of in zip(headings, *cells, strict=True)
    ]
    folded = min(first, max(longest_word, width // 4))
    if len(pack_columns(widths, width - folded)) < len(pack_columns(widths, width - first)):
        first = folded
    names = [_hang(name, first) for name in names]
    blocks = []
    for block in pack_columns(widths, width - first):
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
        table.add_column(corner, width=first, overflow="fold")
        for column in block:
            table.add_column(headings[column], justify="right", no_wrap=True, max_width=widest)
        for name, row in zip(names, cells, strict=True):
            table.add_row(name, *(row[column] for column in block))
        blocks.append(table)
    return stack(blocks)


def _indent_of(line: Text) -> int:
    """Return how far the second line of a folded line is indented."""
    return len(line.plain) - len(line.plain.lstrip(" ")) or HANG


def _longest_word(name: Text) -> int:
    """Return the width that the words of a name need; with an indent where they are several."""
    needed = 1
    for line in name.split("\n"):
        words = line.plain.split()
        indent = _indent_of(line) if len(words) > 1 else 0
        needed = max(needed, *(indent + len(word) for word in words), 1)
    return needed


def _hang(name: Text, width: int) -> Text:
    """Fold the lines of a name by words; what is continued is indented below its line."""
    lines: list[Text] = []
    for line in name.split("\n", allow_blank=True):
        indent = _indent_of(line)
        if line.cell_len <= width or 2 * indent >= width:
            lines.append(line)
            continue
        own = len(line.plain) - len(line.plain.lstrip(" "))
        folded = line[own:].wrap(Console(), width - indent)
        lines += [
            Text.assemble(" " * (indent if number else own), part)
            for number, part in enumerate(folded)
        ]
    return Text("\n").join(lines)


def _clean(text: Text) -> Text:
    """Escape a name before it is laid out, so that it has the width that is shown."""
    shown = printable_lines(text.plain)
    return text if shown == text.plain else Text(shown)


def stack(tables: Sequence[Table]) -> Group:
    """Place tables below each other, a blank line between them."""
    return Group(*[part for table in tables for part in ("", table)][1:])


def pack_columns(widths: Sequence[int], available: int) -> list[list[int]]:
    """Distribute columns of these widths over as few blocks as possible, of similar width."""
    n_blocks = len(_fill_blocks(widths, available))
    limits = range(max(widths), max(*widths, available) + 1)
    candidates = (_fill_blocks(widths, limit) for limit in limits)
    return next(blocks for blocks in candidates if len(blocks) <= n_blocks)


def _fill_blocks(widths: Sequence[int], available: int) -> list[list[int]]:
    blocks: list[list[int]] = []
    left = 0
    for column, needed in enumerate(widths):
        if needed > left or not blocks:
            blocks.append([])
            left = available
        blocks[-1].append(column)
        left -= needed
    return blocks


def text_width(text: Text) -> int:
    """Return the width of the longest line."""
    return max(line.cell_len for line in text.split("\n", allow_blank=True))


def markdown_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], right: int = 0
) -> list[str]:
    """Return the lines of a Markdown table whose last `right` columns are aligned to the right."""
    rules = ["---"] * (len(titles) - right) + ["---:"] * right
    lines = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in (titles, rules, *rows))
    return [f"| {line} |" for line in lines]


def facts_table(facts: Iterable[tuple[str, str | Text]]) -> Table:
    """Make a table of names and values without a heading; empty values are left out."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value:
            table.add_row(name, Text(value) if isinstance(value, str) else value)
    return table
