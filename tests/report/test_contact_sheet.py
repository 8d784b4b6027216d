"""The contact sheet, read back: which colours are where."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from udjfl.data import Client, Examples, Pools
from udjfl.report.contact_sheet import PER_CLASS, SIDE, contact_sheet, share_line

RED, GREEN, BLUE, PINK = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 1.0)
Colour = tuple[float, float, float]


def plain(colours: list[Colour], labels: list[int], side: int = 4) -> Examples:
    """Pictures of one colour each. Writing is grey, so that every coloured pixel on a sheet is one of theirs."""
    x = torch.tensor(colours)[:, :, None, None].expand(-1, -1, side, side)
    return Examples(x.clone(), torch.tensor(labels))


def pools_of(
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


def sheet_of(
    pools: Pools,
    seed: int = 0,
    to_pixels: Callable[[Any], Any] = lambda x: x,
    clients: tuple[Client, ...] = (),
) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(contact_sheet("shapes", pools, to_pixels, seed, clients))) as opened:
        assert opened.format == "PNG"
        return np.asarray(opened.convert("RGB"))


def places(sheet: npt.NDArray[np.uint8], colour: Colour) -> npt.NDArray[np.int64]:
    """The rows and columns of this colour's pixels, [n, 2]."""
    return np.argwhere((sheet == np.array(colour) * 255).all(axis=2))


def test_halves_side_by_side_and_a_row_for_each_label() -> None:
    clean = plain([RED] * 3 + [GREEN] * 2, [0, 0, 0, 1, 1])
    ambiguous = plain([PINK, BLUE, BLUE], [1, 0, 0])
    sheet = sheet_of(pools_of(clean, ambiguous))
    found = {colour: places(sheet, colour) for colour in (RED, GREEN, BLUE, PINK)}
    for colour, count in ((RED, 3), (GREEN, 2), (BLUE, 2), (PINK, 1)):
        assert len(found[colour]) == count * SIDE * SIDE  # 4 pixels each way, enlarged sixteenfold
    top_left = {colour: found[colour].min(axis=0).tolist() for colour in found}
    assert top_left[RED][0] == top_left[BLUE][0] < top_left[GREEN][0] == top_left[PINK][0]
    assert top_left[RED][1] == top_left[GREEN][1] < top_left[BLUE][1] == top_left[PINK][1]
    assert found[RED][:, 1].max() < top_left[BLUE][1]


@pytest.mark.parametrize(("side", "enlarged"), [(8, 64), (28, 56), (100, 100)])
def test_enlarged_by_a_whole_number(side: int, enlarged: int) -> None:
    sheet = sheet_of(pools_of(plain([RED, GREEN], [0, 1], side)))
    assert len(places(sheet, RED)) == enlarged**2


def test_pixels_stay_squares() -> None:
    """A chequered picture has only its two colours, none between them."""
    x = torch.zeros(1, 3, 2, 2)
    x[0, 0] = torch.eye(2)
    x[0, 2] = 1 - torch.eye(2)
    sheet = sheet_of(pools_of(Examples(x, torch.tensor([0])), names="a"))
    half = SIDE * SIDE // 2
    assert (len(places(sheet, RED)), len(places(sheet, BLUE))) == (half, half)
    coloured = (sheet != sheet[:, :, :1]).any(axis=2).sum()
    assert coloured == 2 * half


def test_one_channel_is_grey_and_what_is_out_of_range_is_cut() -> None:
    x = torch.tensor([0.5, -1.0])[:, None, None, None].expand(2, 1, 4, 4).clone()
    sheet = sheet_of(pools_of(Examples(x, torch.tensor([0, 0])), names="a"))
    counts = [int((sheet == value).all(axis=2).sum()) for value in (128, 0)]
    assert all(count >= SIDE * SIDE for count in counts)


def test_a_handful_of_each() -> None:
    sheet = sheet_of(pools_of(plain([RED] * 30, [0] * 30)))
    assert len(places(sheet, RED)) == PER_CLASS * SIDE * SIDE
    assert (
        len(places(sheet, GREEN)) == 0
    )  # nobody has the second label; its row is there, with nothing in it


def test_one_of_each_group_before_a_second() -> None:
    """A hundred frames of one track, and seven other tracks with a frame each: all eight are shown."""
    clean = plain([RED] * 100 + [BLUE] * 7, [0] * 107)
    for seed in range(3):
        sheet = sheet_of(pools_of(clean, groups=[0] * 100 + list(range(1, 8))), seed)
        assert len(places(sheet, BLUE)) == 7 * SIDE * SIDE
        assert len(places(sheet, RED)) == SIDE * SIDE


def test_too_few_groups_are_filled_up() -> None:
    sheet = sheet_of(pools_of(plain([RED] * 20, [0] * 20), groups=[0, 1] * 10))
    assert len(places(sheet, RED)) == PER_CLASS * SIDE * SIDE


def test_the_seed_draws() -> None:
    shades = [(1.0, 0.0, step / 255) for step in range(200)]
    pools = pools_of(plain(shades, [0] * 200))
    first = contact_sheet("shapes", pools, lambda x: x, 0, ())
    assert contact_sheet("shapes", pools, lambda x: x, 0, ()) == first
    assert not np.array_equal(sheet_of(pools, 0), sheet_of(pools, 1))


def test_both_halves_on_one_scale() -> None:
    """A source that scales what it is given, from its lowest to its highest, is given everything at once."""
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
    sheet = sheet_of(pools_of(dim, bright, names="a"), to_pixels=scaled)
    assert seen == [2]
    assert len(places(sheet, (0.0, 64 / 255, 64 / 255))) == SIDE * SIDE  # 0.5 of 2
    assert len(places(sheet, RED)) == SIDE * SIDE


def test_a_long_name_does_not_push_the_pictures_away() -> None:
    short, long = (
        sheet_of(Pools(plain([RED], [0]), None, None, (name,), np.arange(1), np.arange(0)))
        for name in ("a", "sign " * 100)
    )
    assert 0 < long.shape[1] - short.shape[1] < 200
    assert len(places(long, RED)) == SIDE * SIDE


def client(name: str, share: float | None) -> Client:
    part = plain([RED], [0])
    return Client(name, part, part, share)


def test_how_much_of_the_clients_it_is() -> None:
    clients = [client("north", 0.05), client("south", 0.952), client("west", 0.5)]
    ends = "of what a client trains on"
    assert (
        share_line("ambiguous", 3000, clients)
        == f"3,000 examples; 5% (north) to 95% (south) {ends}"
    )
    assert share_line("clean", 1000, clients) == f"1,000 examples; 5% (south) to 95% (north) {ends}"
    equal = [client("a", 0.501), client("b", 0.499)]
    assert share_line("clean", 10, equal) == "10 examples; 50% of what each client trains on"
    assert share_line("clean", 10, [client("a", None)]) == "10 examples"
