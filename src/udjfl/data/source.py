"""What a data source is, and where its files are looked for.

A source is a value: a name, a function from a `Request` to `Pools`, and what a reader has to know to choose and get it.
Files are read from the data root (`--data-root`, or the variable UDJFL_DATA) and from the cache (UDJFL_CACHE, or udjfl's
folder in the user's cache). Only the cache is ever written to: what is downloaded, and what is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from udjfl.data.federation import Pools
from udjfl.errors import DataError, SettingsError
from udjfl.settings import Settings, checked

# Called with the stage, how much is done, and of how much.
Progress = Callable[[str, int, int], None]


class NoOptions(Settings):
    """For sources without a choice."""


def silent(stage: str, done: int, total: int) -> None:
    """No progress shown."""


def data_root(given: str | os.PathLike[str] | None = None) -> Path | None:
    """The user's own data: as given, else as UDJFL_DATA says, else none."""
    named = given or os.environ.get("UDJFL_DATA")
    if not named:
        return None
    root = Path(named).expanduser()
    if not root.exists():
        told = "data_root" if given else "UDJFL_DATA"
        raise SettingsError(f"{told}: {root} does not exist; name the folder that has the data")
    return root


def cache_root() -> Path:
    """Where downloads and what is made from them are kept."""
    named = os.environ.get("UDJFL_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "udjfl"


@dataclass(frozen=True)
class Request:
    """What is asked of a source: the seed, the user's data root (a folder or a file), the cache, the source's options."""

    seed: int
    root: Path | None
    cache: Path
    options: Any = None

    def find(self, names: Sequence[str], folders: Sequence[str] = ("",)) -> Path | None:
        """The first of these files there is, in the data root before the cache, and there in the order of the folders."""
        for place in (self.root, self.cache):
            if place is None:
                continue
            for folder in folders:
                for name in names:
                    if (place / folder / name).is_file():
                        return place / folder / name
        return None


@dataclass(frozen=True)
class Preparation:
    """Getting a source's files ready: as a `Request`, whether to make what cannot be had, and whom to tell how far it is."""

    request: Request
    regenerate: bool = False
    progress: Progress = silent


@dataclass(frozen=True)
class Source:
    """One kind of data. `pools` loads it; `prepare` gets its files, where that is possible, and says what it did.

    `files` tells where they are without reading them, with a DataError if some are missing; a source without it needs none.
    `regenerates`: what cannot be had, `prepare` can make. `clients` and `partition` are those of its usual federation. Where
    examples are pictures, `to_pixels` turns features [n, channels, height, width] back into numbers from 0 to 1, to be
    looked at.
    """

    name: str
    line: str
    how_to_get: str
    pools: Callable[[Request], Pools]
    options: type[Settings] = NoOptions
    clients: int = 5
    partition: str = "shards"
    files: Callable[[Request], list[Path]] | None = None
    prepare: Callable[[Preparation], list[str]] | None = None
    regenerates: bool = False
    to_pixels: Callable[[Any], Any] | None = None

    def request(
        self, seed: int, root: str | os.PathLike[str] | None, options: dict[str, Any]
    ) -> Request:
        """A checked request."""
        return Request(seed, data_root(root), cache_root(), checked(self.options, options))


def parse_data(text: str) -> tuple[str, dict[str, str]]:
    """A source's name and options: "signs", "signs:level=3", "cure-tsr:challenge=Rain:level=2"."""
    name, *pairs = text.split(":")
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"data {text!r}: write options as {name}:key=value")
        field = key.strip().replace("-", "_")
        if field in options:
            raise SettingsError(f"data {text!r}: {key.strip()} is given twice, keep one")
        options[field] = value.strip()
    return name.strip(), options


def not_found(what: str, request: Request, how_to_get: str) -> DataError:
    """The error for files that are in neither place."""
    looked = " and ".join(
        str(place) for place in (request.root, request.cache) if place is not None
    )
    return DataError(f"{what} not found in {looked}. {how_to_get}")
