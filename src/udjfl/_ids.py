"""The one order of clients. Floating-point sums depend on order, so every sum over clients uses this one."""

from __future__ import annotations

import re
from collections.abc import Iterable


def id_sort_key(client_id: str) -> tuple[list[str | int], str]:
    """Sort key that counts as people do: 'client-2' comes before 'client-10'."""
    parts: list[str | int] = list(re.split(r"([0-9]+)", client_id))
    parts[1::2] = [int(digits) for digits in parts[1::2]]
    return parts, client_id


def sort_ids(client_ids: Iterable[str]) -> list[str]:
    """The ids, sorted."""
    return sorted(client_ids, key=id_sort_key)
