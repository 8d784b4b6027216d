"""Lines on standard error, wrapped by words.

Commands and paths in backticks stay whole, to be copied.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap

from udjfl._ids import printable

_QUOTED = re.compile("`[^`]*`")
_JOINER = "\0"  # stands for a space in backticks
FALLBACK_WIDTH = 80  # columns of a terminal that does not say how wide it is


def print_wrapped(text: str) -> None:
    """Print a line on standard error, with everything escaped that a terminal would obey.

    On a terminal it is wrapped to its width.
    """
    lines = [printable(text)]
    if sys.stderr.isatty():
        lines = wrap(lines[0], _measure_width())
    print("\n".join(lines), file=sys.stderr)


def wrap(text: str, width: int) -> list[str]:
    """Return the lines of a text; words, and what is in backticks, are never cut.

    >>> wrap("continue with `udjfl resume runs/a` in the folder", 24)
    ['continue with', '`udjfl resume runs/a` in', 'the folder']
    """
    joined = _QUOTED.sub(lambda found: found[0].replace(" ", _JOINER), text)
    lines = textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_JOINER, " ") for line in lines] or [""]


def _measure_width() -> int:
    """Return what COLUMNS says, or else the width of the terminal behind standard error."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or FALLBACK_WIDTH
    except (OSError, ValueError):  # the latter of a stream without a descriptor
        return FALLBACK_WIDTH
