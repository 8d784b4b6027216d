"""The order of clients. Floating-point sums depend on it, so every sum over clients uses it."""

from __future__ import annotations

import re
from collections.abc import Iterable


def id_sort_key(client_id: str) -> tuple[list[str | int], str]:
    """Return a sort key that compares numbers by value: 'client-2' comes before 'client-10'."""
    parts: list[str | int] = list(re.split(r"([0-9]+)", client_id))
    parts[1::2] = [int(digits) for digits in parts[1::2]]
    return parts, client_id


def sort_ids(client_ids: Iterable[str]) -> list[str]:
    """Sort client ids."""
    return sorted(client_ids, key=id_sort_key)
