"""Random streams: one stream per address, the same on every machine."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from udjfl.seeds import numpy_stream, stream_seed, torch_stream

BASE = (3, "batches", 2, "client-1")


@pytest.mark.parametrize(
    "other",
    [
        (4, "batches", 2, "client-1"),
        (3, "drop-out", 2, "client-1"),
        (3, "batches", 1, "client-1"),
        (3, "batches", 2, "client-2"),
        (3, "batches", "client-1", 2),
        (3, "batches", 2),
        (3, "batches", 2, "client-1", 0),
        (-3, "batches", 2, "client-1"),
    ],
)
def test_every_part_of_the_address_changes_the_stream(other: tuple[int, str]) -> None:
    assert stream_seed(*other) != stream_seed(*BASE)
    assert numpy_stream(*other).integers(2**60) != numpy_stream(*BASE).integers(2**60)
    ours, theirs = (torch.rand(4, generator=torch_stream(*address)) for address in (BASE, other))
    assert not torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("1",), (1,)),
        (("12", "3"), ("1", "23")),
        (("a", ""), ("a",)),
        (("a,b",), ("a", "b")),
        (("a\x1fb",), ("a", "b")),
        # A client id may be any text; it must not be read as two parts of an address.
        (("a\x1fstr:b",), ("a", "b")),
    ],
)
def test_similar_addresses_have_different_streams(
    one: tuple[str | int, ...], other: tuple[str | int, ...]
) -> None:
    assert stream_seed(0, *one) != stream_seed(0, *other)


def test_an_address_gives_the_same_stream_again() -> None:
    assert np.array_equal(numpy_stream(*BASE).random(5), numpy_stream(*BASE).random(5))
    first, again = (torch.randperm(20, generator=torch_stream(*BASE)) for _ in range(2))
    assert torch.equal(first, again)


def test_seeds_have_known_values() -> None:
    """Seeds are the first 63 bits of BLAKE2b (`b2sum -l 64`, halved).

    A change of these values changes every result, and breaks runs that are to be resumed.
    """
    assert stream_seed(0, "model") == 0x2CA759F89BF2AB11 // 2
    assert stream_seed(*BASE) == 0x3556AF6CF28CF30C // 2


def test_opening_a_stream_leaves_global_generators_alone() -> None:
    before, legacy = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 - the one to protect
    torch.rand(3, generator=torch_stream(0, "a"))
    numpy_stream(0, "a").random(3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], legacy)  # noqa: NPY002


def test_seeds_fit_every_generator_and_do_not_collide() -> None:
    seeds = [
        stream_seed(s, "batches", r, f"client-{c}")
        for s, r, c in itertools.product(range(5), range(20), range(20))
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
