"""Cutting a pool of examples into clients.

Pure functions from labels and a random generator to index arrays. Nobody is left empty: every client gets at least two
examples, one to train on and one to test on. What cannot be cut as asked raises a DataError that gives the numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from udjfl.errors import DataError, SettingsError, did_you_mean

IndexArray: TypeAlias = npt.NDArray[np.int64]
Labels: TypeAlias = npt.NDArray[np.integer]
Mask: TypeAlias = npt.NDArray[np.bool_]

Number = TypeVar("Number", int, float)

SHARDS_PER_CLIENT = 20
FEWEST = 2  # examples a client needs: one to train on, one to test on
DIRICHLET_ATTEMPTS = 10
# Above this, shares are equal to within one example, and numpy's sampler overflows near the largest float.
HIGHEST_ALPHA = 1e12

ALIASES = {"paper": "shards", "quantity-skew": "quantity"}
# What may follow the name, as in "dirichlet:0.3" or "shards:size=60,per-client=10"; a bare number is the first one.
OPTIONS: dict[str, dict[str, str]] = {
    "shards": {"size": "shard_size", "per-client": "shards_per_client", "mix": "mix"},
    "dirichlet": {"alpha": "alpha"},
    "quantity": {"alpha": "alpha"},
    "iid": {},
    "natural": {},
}


@dataclass(frozen=True)
class Partition:
    """How to cut the data, and its numbers. Numbers left as None take the default of the kind, if it uses them.

    shards      the paper's federation: `shards_per_client` (20) label-sorted shards of `shard_size` examples (None: as
                many as fit), from the cleanest client to the most ambiguous one; or, with `mix`, as many clean and ambiguous
                shards for each client as it says: ((19, 1), (15, 5), ...)
    dirichlet   every class spread over the clients in proportions ~ Dirichlet(`alpha`), 0.5 unless given
    quantity    client sizes ~ Dirichlet(`alpha`), 1.0 unless given; labels as in the pool
    iid         equal sizes, labels as in the pool
    natural     whoever has the data has them: for sources whose examples come from different places
    """

    kind: str
    alpha: float | None = None
    shard_size: int | None = None
    shards_per_client: int | None = None
    mix: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in OPTIONS:
            raise SettingsError(
                f"partition {self.kind!r} is unknown.{did_you_mean(self.kind, [*OPTIONS, *ALIASES])}"
            )
        used = set(OPTIONS[self.kind].values())
        defaults: dict[str, float] = {"alpha": 1.0 if self.kind == "quantity" else 0.5}
        if self.mix is None:
            defaults["shards_per_client"] = SHARDS_PER_CLIENT
        for field, default in defaults.items():
            if field in used and getattr(self, field) is None:
                object.__setattr__(self, field, default)
        if self.alpha is not None:
            object.__setattr__(self, "alpha", float(self.alpha))
        given = [field.name for field in fields(self)[1:] if getattr(self, field.name) is not None]
        mistakes = [
            f"partition {self.kind!r} does not use {name}: leave it out"
            for name in given
            if name not in used
        ]
        if self.alpha is not None and not (math.isfinite(self.alpha) and self.alpha > 0):
            mistakes.append(f"partition alpha is {self.alpha}: give a finite number above 0")
        for name, least in (("shard_size", 1), ("shards_per_client", FEWEST)):
            number = getattr(self, name)
            if number is not None and not (isinstance(number, int) and number >= least):
                mistakes.append(
                    f"partition {name} is {number}: give a whole number of at least {least}"
                )
        if self.mix is not None and self.shards_per_client is not None:
            mistakes.append(
                "partition per-client and mix both say how many shards a client has: leave one out"
            )
        if self.mix is not None and not (
            self.mix and all(min(pair) >= 0 and sum(pair) >= 1 for pair in self.mix)
        ):
            mistakes.append(
                f"partition mix is {self.mix}: give each client clean and ambiguous shards, at least one in all"
            )
        if mistakes:
            raise SettingsError(mistakes)

    @classmethod
    def parse(cls, text: str) -> Partition:
        """A partition from text: "shards", "iid", "dirichlet:0.3", "quantity(0.5)", "shards:size=60,per-client=10".

        "shards:mix=3/1+3/1" has two clients, each with three clean shards and an ambiguous one.
        """
        found = re.fullmatch(r"([^:(]*)(?::(.*)|\((.*)\))?", text.strip().lower())
        if found is None:
            raise SettingsError(
                f"partition {text!r} cannot be read: write it like 'dirichlet:0.3' or 'dirichlet(0.3)'"
            )
        kind = found[1].strip().replace("_", "-")
        kind = ALIASES.get(kind, kind)
        options = found[2] if found[2] is not None else found[3]
        if kind not in OPTIONS or options is None:
            return cls(kind)
        given = _options(text, kind, options)
        return cls(
            kind,
            alpha=_read(text, float, given.get("alpha")),
            shard_size=_read(text, int, given.get("shard_size")),
            shards_per_client=_read(text, int, given.get("shards_per_client")),
            mix=_read_mix(text, given.get("mix")),
        )

    def __str__(self) -> str:
        if self.alpha is not None:
            return f"{self.kind}:{self.alpha!r}"
        per_client = None if self.shards_per_client == SHARDS_PER_CLIENT else self.shards_per_client
        mix = (
            None if self.mix is None else "+".join(f"{clean}/{vague}" for clean, vague in self.mix)
        )
        numbers = {"size": self.shard_size, "per-client": per_client, "mix": mix}
        options = ",".join(
            f"{name}={number}" for name, number in numbers.items() if number is not None
        )
        return f"{self.kind}:{options}" if options else self.kind


def _options(text: str, kind: str, options: str) -> dict[str, str]:
    """The options as {field: number}, with the numbers still as text."""
    known = OPTIONS[kind]
    if not known:
        raise SettingsError(f"partition {text!r}: {kind} takes no number, write just {kind!r}")
    given: dict[str, str] = {}
    for item in options.split(","):
        name, equals, number = item.rpartition("=")
        name = name.strip().replace("_", "-") if equals else next(iter(known))
        if name not in known:
            raise SettingsError(
                f"partition {text!r}: option {name!r} is unknown.{did_you_mean(name, known)}"
            )
        if known[name] in given:
            raise SettingsError(f"partition {text!r}: {name} is given twice, keep one")
        given[known[name]] = number.strip()
    return given


def _read(text: str, number: Callable[[str], Number], value: str | None) -> Number | None:
    try:
        return None if value is None else number(value)
    except ValueError:
        kind = "a whole number" if number is int else "a number"
        raise SettingsError(
            f"partition {text!r}: {value!r} is not {kind}; write for example 'dirichlet:0.3'"
        ) from None


def _read_mix(text: str, value: str | None) -> tuple[tuple[int, int], ...] | None:
    if value is None:
        return None
    found = [re.fullmatch(r"\s*(\d+)/(\d+)\s*", pair) for pair in value.split("+")]
    if any(pair is None for pair in found):
        raise SettingsError(
            f"partition {text!r}: write mix as clean/ambiguous shards of each client, as in 'shards:mix=19/1+1/19'"
        )
    return tuple((int(pair[1]), int(pair[2])) for pair in found if pair)


def cut(
    partition: Partition,
    labels: Labels,
    ambiguous: Mask,
    clients: int,
    generator: np.random.Generator,
    groups: IndexArray | None = None,
) -> list[IndexArray]:
    """The positions that each client gets. `ambiguous` marks the ambiguous examples; only shards tell them apart.

    `groups` numbers examples that are to stay together, such as the frames of a track, as far as shards can.
    """
    if partition.kind == "shards":
        mix = partition.mix
        if mix is None:
            per_client = partition.shards_per_client or SHARDS_PER_CLIENT
            mix = tuple((clean, per_client - clean) for clean in clean_shards(clients, per_client))
        elif len(mix) != clients:
            raise DataError(
                f"partition {partition} is for {len(mix)} clients, and clients is {clients}: make them agree"
            )
        return shards(labels, ambiguous, mix, generator, partition.shard_size, groups)
    if partition.alpha is None:
        return iid(labels, clients, generator)
    by_alpha = dirichlet if partition.kind == "dirichlet" else quantity
    return by_alpha(labels, clients, partition.alpha, generator)


def clean_shards(clients: int, shards_per_client: int = SHARDS_PER_CLIENT) -> list[int]:
    """How many of each client's shards are clean: 19, 15, 10, 5, 1 for the paper's five clients.

    For another number of clients: the straight line from 19 to 1, rounded to whole numbers, halves away from the middle
    (14.5 to 15 and 5.5 to 5, as in the paper). One client has half of each.
    """
    if clients == 1:
        return [shards_per_client // 2]
    counts = []
    for client in range(clients):
        exact = shards_per_client - 1 - Fraction((shards_per_client - 2) * client, clients - 1)
        above = exact > Fraction(shards_per_client, 2)
        counts.append(
            math.floor(exact + Fraction(1, 2)) if above else math.ceil(exact - Fraction(1, 2))
        )
    return counts


def shards(
    labels: Labels,
    ambiguous: Mask,
    mix: Sequence[tuple[int, int]],
    generator: np.random.Generator,
    shard_size: int | None = None,
    groups: IndexArray | None = None,
) -> list[IndexArray]:
    """The paper's federation: clean and ambiguous data apart, sorted by label, cut into shards, dealt at random.

    `mix` has the number of clean and of ambiguous shards of each client (`clean_shards` has the paper's). Data beyond what
    the shards need are left out at random, before the sorting, so that the shards still cover all labels; of one label, those
    of a group stay together. `shard_size=None` takes the largest that fits.
    """
    counts = [[clean for clean, _ in mix], [vague for _, vague in mix]]
    pools = [np.flatnonzero(~ambiguous), np.flatnonzero(ambiguous)]
    fits = min(
        len(pool) // sum(count) for pool, count in zip(pools, counts, strict=True) if sum(count)
    )
    size = max(fits, 1) if shard_size is None else shard_size
    if size > fits:
        needed = [size * sum(count) for count in counts]
        smaller = f"a shard size of at most {fits}, " if fits else ""
        raise DataError(
            f"{len(mix)} clients with {_how_many(mix)} shards of {size} need {needed[0]} clean and {needed[1]} "
            f"ambiguous examples; there are {len(pools[0])} and {len(pools[1])}. "
            f"Use {smaller}fewer clients, or another partition (iid, dirichlet, quantity)"
        )
    hands = []
    for pool, count in zip(pools, counts, strict=True):
        shuffled = generator.permutation(pool)
        chosen = (shuffled if groups is None else _gathered(shuffled, groups))[: size * sum(count)]
        in_label_order = chosen[np.argsort(labels[chosen], kind="stable")]
        dealt = generator.permutation(in_label_order.reshape(sum(count), size))
        hands.append(np.split(dealt, np.cumsum(count)[:-1]))
    return [
        np.concatenate([clean.ravel(), vague.ravel()]) for clean, vague in zip(*hands, strict=True)
    ]


def _how_many(mix: Sequence[tuple[int, int]]) -> str:
    numbers = sorted({sum(pair) for pair in mix})
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _gathered(rows: IndexArray, groups: IndexArray) -> IndexArray:
    """The same rows, each group's together. Groups of the usual size come first: shards of whole ones are then alike."""
    _, first, group_of, sizes = np.unique(
        groups[rows], return_index=True, return_inverse=True, return_counts=True
    )
    unusual = sizes != np.bincount(sizes).argmax() if len(sizes) else sizes
    return rows[np.lexsort((first[group_of], unusual[group_of]))]


def iid(labels: Labels, clients: int, generator: np.random.Generator) -> list[IndexArray]:
    """Equal sizes (they differ by at most one), labels as in the pool."""
    _require_enough(len(labels), clients)
    return np.array_split(generator.permutation(len(labels)), clients)


def quantity(
    labels: Labels, clients: int, alpha: float, generator: np.random.Generator
) -> list[IndexArray]:
    """Sizes in proportions ~ Dirichlet(alpha), labels as in the pool. Small alpha: very unequal sizes."""
    _require_enough(len(labels), clients)
    owners = np.empty(len(labels), dtype=np.int64)
    _deal(owners, np.arange(len(labels)), clients, alpha, generator)
    return _holdings(owners, clients, generator)


def dirichlet(
    labels: Labels, clients: int, alpha: float, generator: np.random.Generator
) -> list[IndexArray]:
    """Each class in proportions ~ Dirichlet(alpha) over the clients. Small alpha: each client has few classes.

    Drawn again, at most ten times, while some client has too few examples; then the largest clients give some away.
    """
    _require_enough(len(labels), clients)
    owners = np.empty(len(labels), dtype=np.int64)
    for _ in range(DIRICHLET_ATTEMPTS):
        for label in np.unique(labels):
            _deal(owners, np.flatnonzero(labels == label), clients, alpha, generator)
        if np.bincount(owners, minlength=clients).min() >= FEWEST:
            break
    return _holdings(owners, clients, generator)


def _require_enough(examples: int, clients: int) -> None:
    if examples < FEWEST * clients:
        raise DataError(
            f"{clients} clients need {FEWEST * clients} examples, {FEWEST} for each; there are {examples}. "
            f"Use at most {examples // FEWEST} clients, or more data"
        )


def _deal(
    owners: IndexArray, rows: IndexArray, clients: int, alpha: float, generator: np.random.Generator
) -> None:
    """Give these rows to clients in proportions ~ Dirichlet(alpha); writes into `owners`."""
    shares = generator.dirichlet(np.full(clients, min(alpha, HIGHEST_ALPHA)))
    edges = np.rint(np.cumsum(shares) * len(rows)).astype(np.int64).clip(max=len(rows))
    edges[-1] = len(rows)  # the shares' sum may miss 1 by rounding
    owners[generator.permutation(rows)] = np.repeat(np.arange(clients), np.diff(edges, prepend=0))


def _holdings(owners: IndexArray, clients: int, generator: np.random.Generator) -> list[IndexArray]:
    """The rows of each client, after the largest clients gave to those with too few. Changes `owners`."""
    sizes = np.bincount(owners, minlength=clients)
    while sizes.min() < FEWEST:
        giver, taker = int(sizes.argmax()), int(sizes.argmin())
        owners[generator.choice(np.flatnonzero(owners == giver))] = taker
        sizes[giver], sizes[taker] = sizes[giver] - 1, sizes[taker] + 1
    return [np.flatnonzero(owners == client) for client in range(clients)]
