"""Sample outputs of the documentation, compared with what the commands print now."""

from __future__ import annotations

import math
import re

# Another processor, or another version of torch, may change the last digits of a trained model.
RELATIVE, ABSOLUTE = 0.02, 0.2
ELISION = re.compile(r"\.\.\.\s*$", re.M)
DECIMAL = re.compile(r"\d+\.\d+")
BAR = re.compile(r"█+")


def find_stale_part(sample: str, printed: str) -> str | None:
    """Return the first part of a sample that a command did not print, None if it printed all.

    Parts are separated by "..." at the end of a line or on a line of its own. Each must be in the
    output, in their order; how lines are wrapped does not matter.
    """
    words, place = printed.split(), 0
    for part in ELISION.split(sample):
        wanted = part.split()
        end = find_words(wanted, words, place)
        if end is None:
            return part.strip()
        place = end
    return None


def find_words(wanted: list[str], words: list[str], start: int) -> int | None:
    """Return where the wanted words end, at their first place from `start` on, None without one."""
    for place in range(start, len(words) - len(wanted) + 1):
        if all(map(agree, wanted, words[place : place + len(wanted)])):
            return place + len(wanted)
    return None


def agree(wanted: str, word: str) -> bool:
    """Compare two words: their text, and decimal numbers in it up to the tolerance."""
    if blank_numbers(wanted) != blank_numbers(word):
        return False
    pairs = zip(DECIMAL.findall(wanted), DECIMAL.findall(word), strict=True)
    return all(
        math.isclose(float(a), float(b), rel_tol=RELATIVE, abs_tol=ABSOLUTE) for a, b in pairs
    )


def blank_numbers(word: str) -> str:
    """Return a word with the same mark for all decimal numbers and for bars of any length."""
    return BAR.sub("█", DECIMAL.sub("#", word))
