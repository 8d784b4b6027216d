"""Every reader of something from outside, by its name.

`fuzz(name, folder, numbers, seed)` reads one damaged input for each number. An input is made from
the seed and its number alone: `make_input(get_reader(name), seed, number)` makes it again.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import fuzz_deployments
import fuzz_files
import fuzz_folders
import fuzz_tables
import fuzz_values
from fuzz_reader import Reader, fuzz_reader, make_input

__all__ = ["NEED_FLOWER", "READERS", "fuzz", "get_reader", "make_input"]

NEED_FLOWER = fuzz_deployments.READERS.keys()
READERS = {
    **fuzz_files.READERS,
    **fuzz_values.READERS,
    **fuzz_folders.READERS,
    **fuzz_tables.READERS,
    **fuzz_deployments.READERS,
}


@functools.cache
def get_reader(name: str) -> Reader:
    """Return a reader by its name; some train a model first."""
    return READERS[name]()


def fuzz(name: str, folder: Path, numbers: Iterable[int], seed: int) -> Counter[str]:
    """Read damaged inputs: each is read, or refused with an error of ours."""
    return fuzz_reader(name, get_reader(name), folder, numbers, seed)
