"""The first lines of `udjfl demo`, in a module of their own that loads at once."""

import shutil
import textwrap

INTRODUCTION = (
    "Five scanners read handwritten digits. The first reads them as they are, each next one turns, "
    "blurs and disturbs them more. Each has 180 digits to train on; they train one model together "
    "without sharing any. The model cannot serve all equally well. Whom should it serve best?"
)


def introduction() -> str:
    """Return the first lines, as wide as the terminal allows."""
    return textwrap.fill(INTRODUCTION, min(100, shutil.get_terminal_size().columns)) + "\n"
