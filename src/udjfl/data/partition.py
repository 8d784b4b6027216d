"""Cutting a pool of examples into clients.

Pure functions from labels and a random generator to index arrays. Every client gets at least two
examples, one to train on and one to test on. A cut that is not possible raises a DataError that
gives the numbers.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from udjfl._spec import parse_spec
from udjfl.errors import DataError, SettingsError, did_you_mean

IndexArray: TypeAlias = npt.NDArray[np.int64]
Labels: TypeAlias = npt.NDArray[np.integer]
Mask: TypeAlias = npt.NDArray[np.bool_]

Number = TypeVar("Number", int, float)

SHARDS_PER_CLIENT = 20
MIN_EXAMPLES = 2  # of a client: one to train on, one to test on
DIRICHLET_ATTEMPTS = 10
# Above this, shares are equal to within one example, and numpy's sampler overflows near the
# largest float.
HIGHEST_ALPHA = 1e12

ALIASES = {"paper": "shards", "quantity-skew": "quantity"}
# The options that may follow the name, as in "dirichlet:0.3" or "shards:size=60,per-client=10",
# and their fields. A value without a key is that of the first option.
OPTIONS: dict[str, dict[str, str]] = {
    "shards": {
        "size": "shard_size",
        "per_client": "shards_per_client",
        "mix": "mix",
        "order": "order",
    },
    "dirichlet": {"alpha": "alpha"},
    "quantity": {"alpha": "alpha"},
    "iid": {},
    "natural": {},
}
DEFAULTS: dict[str, dict[str, float]] = {
    "shards": {"shards_per_client": SHARDS_PER_CLIENT},
    "dirichlet": {"alpha": 0.5},
    "quantity": {"alpha": 1.0},
}


@dataclass(frozen=True)
class Partition:
    """The way examples are cut into clients. Fields that are None take the default of the kind.

    shards      the paper's federation: `shards_per_client` (20) label-sorted shards of
                `shard_size` examples (None: as many as fit), from the cleanest client to the most
                ambiguous one. `mix` instead gives the number of clean and ambiguous shards of each
                client: ((19, 1), (15, 5), ...). `order="kept"` cuts the examples of a label in the
                order they have, as the paper's code does, instead of in random order: copies that
                are neighbours then fall into one shard
    dirichlet   every class spread over the clients in proportions ~ Dirichlet(`alpha`), default 0.5
    quantity    client sizes ~ Dirichlet(`alpha`), default 1.0; labels as in the pool
    iid         equal sizes, labels as in the pool
    natural     one client per owner, for sources whose examples come from different places
    """

    kind: str
    alpha: float | None = None
    shard_size: int | None = None
    shards_per_client: int | None = None
    mix: tuple[tuple[int, int], ...] | None = None
    order: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in OPTIONS:
            hint = did_you_mean(self.kind, [*OPTIONS, *ALIASES])
            raise SettingsError(f"partition {self.kind!r} is unknown.{hint}")
        for field, default in DEFAULTS.get(self.kind, {}).items():
            if getattr(self, field) is None and self.mix is None:
                object.__setattr__(self, field, default)
        if self.alpha is not None:
            object.__setattr__(self, "alpha", float(self.alpha))
        mistakes = list(self._find_mistakes())
        if mistakes:
            raise SettingsError(mistakes)

    def _find_mistakes(self) -> Iterator[str]:
        for field in fields(self)[1:]:
            unused = field.name not in OPTIONS[self.kind].values()
            if unused and getattr(self, field.name) is not None:
                yield f"partition {self.kind!r} does not use {field.name}: leave it out"
        if self.alpha is not None and not (math.isfinite(self.alpha) and self.alpha > 0):
            yield f"partition alpha is {self.alpha}: give a finite number above 0"
        for name, least in (("shard_size", 1), ("shards_per_client", MIN_EXAMPLES)):
            number = getattr(self, name)
            if number is not None and not (isinstance(number, int) and number >= least):
                yield f"partition {name} is {number}: give a whole number of at least {least}"
        if self.order not in (None, "kept"):
            yield f"partition order is {self.order!r}: write order=kept, or leave it out"
        if self.mix is None:
            return
        if self.shards_per_client is not None:
            yield "partition per-client and mix both set the shards of a client: leave one out"
        if not self.mix or any(min(pair) < 0 or sum(pair) < 1 for pair in self.mix):
            yield (
                f"partition mix is {self.mix}: give each client clean and ambiguous shards, "
                "at least one in all"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "iid", "dirichlet:0.3", "quantity(0.5)", "shards:size=60,per-client=10", ...

        "shards:mix=3/1+3/1" has two clients, each with three clean shards and an ambiguous one.
        """
        match = re.fullmatch(r"([^:(]*)(?::(.*)|\((.*)\))?", text.strip().lower())
        if match is None:
            raise SettingsError(
                f"partition {text!r} cannot be read: write it like 'dirichlet:0.3' or "
                "'dirichlet(0.3)'"
            )
        name = match[1].strip().replace("_", "-")
        kind, options = ALIASES.get(name, name), match[2] if match[3] is None else match[3]
        if kind not in OPTIONS or options is None:
            return cls(kind)
        known = OPTIONS[kind]
        if not known:
            raise SettingsError(f"partition {text!r}: {kind} takes no number, write just {kind!r}")
        given = parse_spec(f"{kind}:{options}", "partition", next(iter(known)), ":,").options
        for name in given:
            if name not in known:
                hint = did_you_mean(name, known)
                raise SettingsError(f"partition {text!r}: option {name!r} is unknown.{hint}")
        return cls(
            kind,
            alpha=_parse_number(text, float, given.get("alpha")),
            shard_size=_parse_number(text, int, given.get("size")),
            shards_per_client=_parse_number(text, int, given.get("per_client")),
            mix=_parse_mix(text, given.get("mix")),
            order=given.get("order"),
        )

    def __str__(self) -> str:
        if self.alpha is not None:
            return f"{self.kind}:{self.alpha!r}"
        per_client = None if self.shards_per_client == SHARDS_PER_CLIENT else self.shards_per_client
        mix = None if self.mix is None else "+".join(f"{clean}/{rest}" for clean, rest in self.mix)
        values = {"size": self.shard_size, "per-client": per_client, "mix": mix}
        values["order"] = self.order
        options = ",".join(f"{name}={value}" for name, value in values.items() if value is not None)
        return f"{self.kind}:{options}" if options else self.kind


def _parse_number(text: str, number: Callable[[str], Number], value: str | None) -> Number | None:
    try:
        return None if value is None else number(value)
    except ValueError:
        expected = "a whole number" if number is int else "a number"
        raise SettingsError(
            f"partition {text!r}: {value!r} is not {expected}; write for example 'dirichlet:0.3'"
        ) from None


def _parse_mix(text: str, value: str | None) -> tuple[tuple[int, int], ...] | None:
    if value is None:
        return None
    if not re.fullmatch(r"\s*\d+/\d+\s*(\+\s*\d+/\d+\s*)*", value):
        raise SettingsError(
            f"partition {text!r}: write mix as clean/ambiguous shards of each client, "
            "as in 'shards:mix=19/1+1/19'"
        )
    return tuple((int(clean), int(rest)) for clean, rest in re.findall(r"(\d+)/(\d+)", value))


def cut(
    partition: Partition,
    labels: Labels,
    ambiguous: Mask,
    clients: int,
    generator: np.random.Generator,
    groups: IndexArray | None = None,
) -> list[IndexArray]:
    """Return the indices of each client's examples.

    `ambiguous` marks the ambiguous examples; only shards treat them differently. `groups` numbers
    examples that shards keep together as far as possible, such as the frames of a track.
    """
    if partition.kind == "shards":
        mix = partition.mix
        if mix is None:
            per_client = partition.shards_per_client or SHARDS_PER_CLIENT
            mix = tuple((clean, per_client - clean) for clean in clean_shards(clients, per_client))
        elif len(mix) != clients:
            raise DataError(
                f"partition {partition} has {len(mix)} in its mix, and clients is {clients}: "
                "make them agree"
            )
        in_order = partition.order == "kept"
        return cut_shards(labels, ambiguous, mix, generator, partition.shard_size, groups, in_order)
    if partition.alpha is None:
        return cut_iid(labels, clients, generator)
    cut_by_alpha = cut_dirichlet if partition.kind == "dirichlet" else cut_quantity
    return cut_by_alpha(labels, clients, partition.alpha, generator)


def clean_shards(clients: int, shards_per_client: int = SHARDS_PER_CLIENT) -> list[int]:
    """Return the number of clean shards of each client: 19, 15, 10, 5, 1 for the paper's five.

    Other numbers of clients follow the straight line from 19 to 1, rounded to whole numbers, halves
    away from the middle (14.5 to 15 and 5.5 to 5, as in the paper). One client has half of each.
    """
    if clients == 1:
        return [shards_per_client // 2]
    slope, half = Fraction(shards_per_client - 2, clients - 1), Fraction(1, 2)
    line = [shards_per_client - 1 - slope * client for client in range(clients)]
    return [
        math.floor(exact + half) if exact > half * shards_per_client else math.ceil(exact - half)
        for exact in line
    ]


def cut_shards(
    labels: Labels,
    ambiguous: Mask,
    mix: Sequence[tuple[int, int]],
    generator: np.random.Generator,
    shard_size: int | None = None,
    groups: IndexArray | None = None,
    in_order: bool = False,
) -> list[IndexArray]:
    """Cut clean and ambiguous examples, each sorted by label, into shards; deal them at random.

    `mix` is the number of clean and of ambiguous shards of each client (`clean_shards` returns the
    paper's). Examples beyond what the shards need are left out at random before sorting, so that
    the shards still cover all labels; within a label, groups stay together. `in_order` cuts all
    examples instead, those of a label in the order they have, and leaves whole shards out.
    `shard_size=None` is the largest size that fits.
    """
    counts = list(zip(*mix, strict=True))
    pools = [np.flatnonzero(~ambiguous), np.flatnonzero(ambiguous)]
    fits = min(
        len(pool) // sum(count) for pool, count in zip(pools, counts, strict=True) if sum(count)
    )
    size = max(fits, 1) if shard_size is None else shard_size
    if size > fits:
        needed = [size * sum(count) for count in counts]
        totals = sorted(sum(pair) for pair in mix)
        shards = " to ".join(map(str, dict.fromkeys([totals[0], totals[-1]])))
        smaller = f"a shard size of at most {fits}, " if fits else ""
        raise DataError(
            f"{len(mix)} clients with {shards} shards of {size} need {needed[0]} "
            f"clean and {needed[1]} ambiguous examples; there are {len(pools[0])} and "
            f"{len(pools[1])}. Use {smaller}fewer clients, or another partition (iid, dirichlet, "
            "quantity)"
        )
    hands = []
    for pool, count in zip(pools, counts, strict=True):
        chosen = pool
        if not in_order:
            shuffled = generator.permutation(pool)
            gathered = shuffled if groups is None else _gather_groups(shuffled, groups)
            chosen = gathered[: size * sum(count)]
        by_label = chosen[np.argsort(labels[chosen], kind="stable")]
        runs = by_label[: len(by_label) // size * size].reshape(-1, size)
        dealt = generator.permutation(runs)[: sum(count)]
        hands.append(np.split(dealt, np.cumsum(count)[:-1]))
    return [np.concatenate([part.ravel() for part in hand]) for hand in zip(*hands, strict=True)]


def _gather_groups(indices: IndexArray, groups: IndexArray) -> IndexArray:
    """Reorder indices so that groups are contiguous, those of the most common size first.

    Shards whose size is a multiple of it then consist of whole groups.
    """
    _, first, group_of, sizes = np.unique(
        groups[indices], return_index=True, return_inverse=True, return_counts=True
    )
    unusual = sizes != np.bincount(sizes).argmax() if len(sizes) else sizes
    return indices[np.lexsort((first[group_of], unusual[group_of]))]


def cut_iid(labels: Labels, clients: int, generator: np.random.Generator) -> list[IndexArray]:
    """Cut into equal sizes (they differ by at most one), labels as in the pool."""
    _require_enough(len(labels), clients)
    return np.array_split(generator.permutation(len(labels)), clients)


def cut_quantity(
    labels: Labels, clients: int, alpha: float, generator: np.random.Generator
) -> list[IndexArray]:
    """Cut into sizes ~ Dirichlet(alpha), labels as in the pool. Small alpha: very unequal sizes."""
    return _spread([np.arange(len(labels))], clients, alpha, generator, attempts=1)


def cut_dirichlet(
    labels: Labels, clients: int, alpha: float, generator: np.random.Generator
) -> list[IndexArray]:
    """Spread each class in proportions ~ Dirichlet(alpha). Small alpha: few classes per client.

    Drawn again, at most ten times, while some client has too few examples; after that, examples
    are moved from the largest clients.
    """
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    return _spread(classes, clients, alpha, generator, DIRICHLET_ATTEMPTS)


def _require_enough(examples: int, clients: int) -> None:
    if examples < MIN_EXAMPLES * clients:
        raise DataError(
            f"{clients} clients need {MIN_EXAMPLES * clients} examples, {MIN_EXAMPLES} for each; "
            f"there are {examples}. Use at most {examples // MIN_EXAMPLES} clients, or more data"
        )


def _spread(
    classes: Sequence[IndexArray],
    clients: int,
    alpha: float,
    generator: np.random.Generator,
    attempts: int,
) -> list[IndexArray]:
    """Deal the examples of each class in proportions ~ Dirichlet(alpha).

    If after all attempts clients have too few, the largest give them examples.
    """
    owners = np.empty(sum(map(len, classes)), dtype=np.int64)
    _require_enough(len(owners), clients)
    for _ in range(attempts):
        for indices in classes:
            shares = generator.dirichlet(np.full(clients, min(alpha, HIGHEST_ALPHA)))
            edges = np.rint(np.cumsum(shares) * len(indices)).astype(np.int64)
            # The sum of the shares may differ from 1 by rounding.
            sizes = np.diff(edges[:-1].clip(max=len(indices)), prepend=0, append=len(indices))
            owners[generator.permutation(indices)] = np.repeat(np.arange(clients), sizes)
        sizes = np.bincount(owners, minlength=clients)
        if sizes.min() >= MIN_EXAMPLES:
            break
    while sizes.min() < MIN_EXAMPLES:
        giver, taker = int(sizes.argmax()), int(sizes.argmin())
        owners[generator.choice(np.flatnonzero(owners == giver))] = taker
        sizes[giver], sizes[taker] = sizes[giver] - 1, sizes[taker] + 1
    return [np.flatnonzero(owners == client) for client in range(clients)]
