"""The contact sheet, checked by the positions of its colours."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from udjfl.data import Client, Examples, Pools
from udjfl.report.contact_sheet import (
    PER_CLASS,
    PER_CLASS_OF_OWNER,
    SIDE,
    describe_share,
    draw_contact_sheet,
)

RED, GREEN, BLUE, PINK = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 1.0)
Colour = tuple[float, float, float]


def make_pictures(colours: list[Colour], labels: list[int], side: int = 4) -> Examples:
    """Make pictures of one colour each.

    Text is grey, so every coloured pixel on a sheet belongs to one of them.
    """
    x = torch.tensor(colours)[:, :, None, None].expand(-1, -1, side, side)
    return Examples(x.clone(), torch.tensor(labels))


def make_pools(
    clean: Examples,
    ambiguous: Examples | None = None,
    groups: list[int] | None = None,
    names: str = "ab",
) -> Pools:
    clean_groups = np.arange(len(clean)) if groups is None else np.array(groups)
    return Pools(
        clean,
        ambiguous,
        None,
        tuple(names),
        clean_groups,
        np.arange(0 if ambiguous is None else len(ambiguous)),
    )


def draw_sheet(
    pools: Pools,
    seed: int = 0,
    to_pixels: Callable[[Any], Any] = lambda x: x,
    clients: tuple[Client, ...] = (),
) -> npt.NDArray[np.uint8]:
    with Image.open(
        io.BytesIO(draw_contact_sheet("shapes", pools, to_pixels, seed, clients))
    ) as opened:
        assert opened.format == "PNG"
        return np.asarray(opened.convert("RGB"))


def find_pixels(sheet: npt.NDArray[np.uint8], colour: Colour) -> npt.NDArray[np.int64]:
    """Return the rows and columns of this colour's pixels, [n, 2]."""
    return np.argwhere((sheet == np.array(colour) * 255).all(axis=2))


def test_halves_are_side_by_side_with_a_row_for_each_label() -> None:
    clean = make_pictures([RED] * 3 + [GREEN] * 2, [0, 0, 0, 1, 1])
    ambiguous = make_pictures([PINK, BLUE, BLUE], [1, 0, 0])
    sheet = draw_sheet(make_pools(clean, ambiguous))
    pixels = {colour: find_pixels(sheet, colour) for colour in (RED, GREEN, BLUE, PINK)}
    for colour, count in ((RED, 3), (GREEN, 2), (BLUE, 2), (PINK, 1)):
        assert len(pixels[colour]) == count * SIDE * SIDE  # 4 pixels each way, enlarged sixteenfold
    top_left = {colour: pixels[colour].min(axis=0).tolist() for colour in pixels}
    assert top_left[RED][0] == top_left[BLUE][0] < top_left[GREEN][0] == top_left[PINK][0]
    assert top_left[RED][1] == top_left[GREEN][1] < top_left[BLUE][1] == top_left[PINK][1]
    assert pixels[RED][:, 1].max() < top_left[BLUE][1]


@pytest.mark.parametrize(("side", "enlarged"), [(8, 64), (28, 56), (100, 100)])
def test_pictures_are_enlarged_by_a_whole_number(side: int, enlarged: int) -> None:
    sheet = draw_sheet(make_pools(make_pictures([RED, GREEN], [0, 1], side)))
    assert len(find_pixels(sheet, RED)) == enlarged**2


def test_pixels_stay_squares() -> None:
    """A chequered picture has only its two colours, none in between."""
    x = torch.zeros(1, 3, 2, 2)
    x[0, 0] = torch.eye(2)
    x[0, 2] = 1 - torch.eye(2)
    sheet = draw_sheet(make_pools(Examples(x, torch.tensor([0])), names="a"))
    half = SIDE * SIDE // 2
    assert (len(find_pixels(sheet, RED)), len(find_pixels(sheet, BLUE))) == (half, half)
    coloured = (sheet != sheet[:, :, :1]).any(axis=2).sum()
    assert coloured == 2 * half


def test_one_channel_is_grey_and_values_are_clipped() -> None:
    x = torch.tensor([0.5, -1.0])[:, None, None, None].expand(2, 1, 4, 4).clone()
    sheet = draw_sheet(make_pools(Examples(x, torch.tensor([0, 0])), names="a"))
    counts = [int((sheet == value).all(axis=2).sum()) for value in (128, 0)]
    assert all(count >= SIDE * SIDE for count in counts)


def test_at_most_eight_examples_of_a_class_are_shown() -> None:
    sheet = draw_sheet(make_pools(make_pictures([RED] * 30, [0] * 30)))
    assert len(find_pixels(sheet, RED)) == PER_CLASS * SIDE * SIDE
    assert len(find_pixels(sheet, GREEN)) == 0  # the row of the second label is empty


def test_groups_are_shown_once_before_any_is_repeated() -> None:
    """Of one track with a hundred frames and seven with one each, all eight are shown."""
    clean = make_pictures([RED] * 100 + [BLUE] * 7, [0] * 107)
    for seed in range(3):
        sheet = draw_sheet(make_pools(clean, groups=[0] * 100 + list(range(1, 8))), seed)
        assert len(find_pixels(sheet, BLUE)) == 7 * SIDE * SIDE
        assert len(find_pixels(sheet, RED)) == SIDE * SIDE


def test_groups_are_repeated_if_there_are_too_few() -> None:
    sheet = draw_sheet(make_pools(make_pictures([RED] * 20, [0] * 20), groups=[0, 1] * 10))
    assert len(find_pixels(sheet, RED)) == PER_CLASS * SIDE * SIDE


def test_seed_draws_the_examples() -> None:
    shades = [(1.0, 0.0, step / 255) for step in range(200)]
    pools = make_pools(make_pictures(shades, [0] * 200))
    first = draw_contact_sheet("shapes", pools, lambda x: x, 0, ())
    assert draw_contact_sheet("shapes", pools, lambda x: x, 0, ()) == first
    assert not np.array_equal(draw_sheet(pools, 0), draw_sheet(pools, 1))


def test_both_halves_have_one_scale() -> None:
    """`to_pixels`, which may scale by its input, is called once for everything."""
    seen = []

    def scaled(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return (x - x.min()) / (x.max() - x.min())

    dim = Examples(
        torch.tensor([0.0, 0.5, 0.5])[None, :, None, None].expand(1, 3, 4, 4).clone(),
        torch.tensor([0]),
    )
    bright = Examples(
        torch.tensor([2.0, 0.0, 0.0])[None, :, None, None].expand(1, 3, 4, 4).clone(),
        torch.tensor([0]),
    )
    sheet = draw_sheet(make_pools(dim, bright, names="a"), to_pixels=scaled)
    assert seen == [2]
    assert len(find_pixels(sheet, (0.0, 64 / 255, 64 / 255))) == SIDE * SIDE  # 0.5 of 2
    assert len(find_pixels(sheet, RED)) == SIDE * SIDE


def test_long_class_names_are_cut() -> None:
    short, long = (
        draw_sheet(
            Pools(make_pictures([RED], [0]), None, None, (name,), np.arange(1), np.arange(0))
        )
        for name in ("a", "sign " * 100)
    )
    assert 0 < long.shape[1] - short.shape[1] < 200
    assert len(find_pixels(long, RED)) == SIDE * SIDE


def test_each_owner_has_a_block_in_the_order_of_clients() -> None:
    # Four owners with five pictures each; three of a class are shown. Client 10 comes last.
    owners = ["client-10", "client-2", "client-1", "client-3"] * 5
    pools = replace(
        make_pools(make_pictures([RED, GREEN, BLUE, PINK] * 5, [0] * 20)), owners=owners
    )
    sheet = draw_sheet(pools)
    lefts = []
    for colour in (BLUE, GREEN, PINK, RED):
        pixels = find_pixels(sheet, colour)
        assert len(pixels) == PER_CLASS_OF_OWNER * SIDE * SIDE
        lefts.append(int(pixels[:, 1].min()))
    assert lefts == sorted(lefts)


def make_client(name: str, share: float | None) -> Client:
    part = make_pictures([RED], [0])
    return Client(name, part, part, share)


def test_share_of_the_clients_data_is_described() -> None:
    clients = [make_client("north", 0.05), make_client("south", 0.952), make_client("west", 0.5)]
    ends = "of what a client trains on"
    assert (
        describe_share("ambiguous", 3000, clients)
        == f"3,000 examples; 5% (north) to 95% (south) {ends}"
    )
    assert (
        describe_share("clean", 1000, clients)
        == f"1,000 examples; 5% (south) to 95% (north) {ends}"
    )
    equal = [make_client("a", 0.501), make_client("b", 0.499)]
    assert describe_share("clean", 10, equal) == "10 examples; 50% of what each client trains on"
    assert describe_share("clean", 10, [make_client("a", None)]) == "10 examples"
