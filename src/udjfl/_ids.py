"""Client ids: their order, and how they are shown.

Floating-point sums depend on the order of clients, so every sum over clients uses the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

# Control characters, invisible ones that change the direction or order of text, and halves of
# characters.
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def id_sort_key(client_id: str) -> tuple[list[str | int], str]:
    """Return a sort key that compares numbers by value: 'client-2' comes before 'client-10'."""
    parts: list[str | int] = list(re.split(r"([0-9]+)", client_id))
    # Python reads numbers of at most 4,300 digits; the id itself decides between longer ones.
    parts[1::2] = [int(str(digits)[:4000]) for digits in parts[1::2]]
    return parts, client_id


def sort_ids(client_ids: Iterable[str]) -> list[str]:
    """Sort client ids."""
    return sorted(client_ids, key=id_sort_key)


def printable(text: str) -> str:
    """Return text from outside with its invisible characters written as escapes.

    A terminal or a page then shows them instead of obeying them. Spaces are escaped where there is
    nothing else to see.

    >>> printable("ward\\x1b[2J")
    'ward\\\\x1b[2J'
    """
    hidden = text.isspace()
    return "".join(
        _escape(c) if hidden or unicodedata.category(c) in _UNPRINTABLE else c for c in text
    )


def _escape(character: str) -> str:
    return "\\x20" if character == " " else character.encode("unicode_escape").decode()
