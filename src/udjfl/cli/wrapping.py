"""Lines on standard error, wrapped by words: paths and commands stay whole, to be copied."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap

_COMMAND = re.compile("`[^`]*`")
_JOINER = "\0"  # stands for a space within a command


def print_wrapped(text: str) -> None:
    """Print a line on standard error; on a terminal it is wrapped to its width."""
    lines = [text]
    if sys.stderr.isatty():
        lines = wrap(text, shutil.get_terminal_size().columns)
    print("\n".join(lines), file=sys.stderr)


def wrap(text: str, width: int) -> list[str]:
    """Return the lines of a text; words and commands in backticks are never cut.

    >>> wrap("continue with `udjfl resume runs/a` in the folder", 24)
    ['continue with', '`udjfl resume runs/a` in', 'the folder']
    """
    joined = _COMMAND.sub(lambda found: found[0].replace(" ", _JOINER), text)
    lines = textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_JOINER, " ") for line in lines] or [""]
