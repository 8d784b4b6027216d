"""The contact sheet: a picture of a data source's examples, by class.

Clean and ambiguous ones are side by side, or, where examples have owners, those of each owner.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from udjfl._ids import sort_ids
from udjfl.data import Client, Examples, Pools
from udjfl.data.partition import IndexArray
from udjfl.seeds import numpy_stream

Font: TypeAlias = ImageFont.ImageFont | ImageFont.FreeTypeFont
Pixels: TypeAlias = npt.NDArray[np.float64]

PER_CLASS = 8
PER_CLASS_OF_OWNER = 3  # where each owner has a block of its own
SIDE = 64  # approximate least width of a shown picture, so that 8x8 pixels are visible
GAP, MARGIN, LINE = 4, 20, 22
MAX_LABEL_WIDTH = 180
PAPER, INK, FAINT = "white", "black", "#666666"


@dataclass(frozen=True, eq=False)
class Block:
    """One block of the sheet: a heading, a line below it, and the pictures of each class.

    Pictures are [n, channels, height, width].
    """

    heading: str
    line: str
    pictures: Sequence[Pixels]


def draw_contact_sheet(
    title: str, pools: Pools, to_pixels: Callable[[Any], Any], seed: int, clients: Sequence[Client]
) -> bytes:
    """Draw a PNG file: clean examples left, ambiguous ones right, a row for each label.

    Where examples have owners, there is a block for each owner instead. The seed draws the
    examples. Those of other groups (other images, other tracks) come first, so that a row does not
    show one thing eight times. `clients` are those the pools were cut into: each half states its
    share of their data.
    """
    halves = _find_halves(pools)
    most = PER_CLASS if pools.owners is None else PER_CLASS_OF_OWNER
    counts, chosen = [], []
    for name, part, groups in halves:
        indices = [
            _choose_examples(part, groups, label, seed, name)[:most]
            for label in range(len(pools.class_names))
        ]
        counts += [len(of_class) for of_class in indices]
        chosen.append(part.take(np.concatenate(indices)))
    # In one call: a source may scale by all that it is given, and the halves must be comparable.
    pixels = np.asarray(to_pixels(Examples.concatenate(chosen).x), dtype=np.float64)
    pictures = iter(np.split(np.clip(pixels, 0, 1), np.cumsum(counts)[:-1]))
    blocks = [
        Block(
            name,
            describe_share(name, len(part), clients),
            [next(pictures) for _ in pools.class_names],
        )
        for name, part, _ in halves
    ]
    sheet = io.BytesIO()
    _draw(f"{title}, seed {seed}", blocks, pools.class_names, most).save(sheet, format="PNG")
    return sheet.getvalue()


def _find_halves(pools: Pools) -> list[tuple[str, Examples, IndexArray]]:
    """Return a name, the examples and their groups: of each owner, or clean and ambiguous."""
    if pools.owners is not None:
        owners = np.asarray(pools.owners)
        names = sort_ids(set(pools.owners))
        indices = [np.flatnonzero(owners == name) for name in names]
        return [
            (name, pools.clean.take(own), pools.clean_groups[own])
            for name, own in zip(names, indices, strict=True)
        ]
    halves = [("clean", pools.clean, pools.clean_groups)]
    if pools.ambiguous is not None:
        halves.append(("ambiguous", pools.ambiguous, pools.ambiguous_groups))
    return halves


def _choose_examples(
    part: Examples, groups: IndexArray, label: int, seed: int, half: str
) -> IndexArray:
    """Draw the indices of PER_CLASS examples with this label, of as many groups as possible."""
    stream = numpy_stream(seed, "contact sheet", half, label)
    shuffled = stream.permutation(np.flatnonzero(part.y.numpy() == label))
    first_of_group = np.sort(np.unique(groups[shuffled], return_index=True)[1])
    others = np.setdiff1d(np.arange(len(shuffled)), first_of_group)
    order = np.concatenate([first_of_group, others])[:PER_CLASS]
    return np.asarray(shuffled[order], dtype=np.int64)


def describe_share(half: str, count: int, clients: Sequence[Client]) -> str:
    """Return the number of examples in a half, and its share of the clients' train parts."""
    examples = f"{count:,} examples"
    shares = [
        (client.ambiguous_share if half == "ambiguous" else 1 - client.ambiguous_share, client.id)
        for client in clients
        if client.ambiguous_share is not None
    ]
    if not shares:
        return examples
    (low, lowest), (high, highest) = min(shares), max(shares)
    if f"{low:.0%}" == f"{high:.0%}":
        return f"{examples}; {low:.0%} of what each client trains on"
    return f"{examples}; {low:.0%} ({lowest}) to {high:.0%} ({highest}) of what a client trains on"


def _draw(
    title: str, blocks: Sequence[Block], class_names: Sequence[str], most: int
) -> Image.Image:
    small, large = ImageFont.load_default(14), ImageFont.load_default(20)
    sides = blocks[0].pictures[0].shape[2:]
    scale = max(1, round(SIDE / max(sides)))
    height, width = (scale * side for side in sides)
    labels = [_shorten(name, small) for name in class_names]
    label_width = max(int(small.getlength(label)) for label in labels) + 2 * GAP
    text_width = max(int(small.getlength(block.line)) for block in blocks)
    block_width = max(label_width + most * (width + GAP), text_width) + MARGIN
    top = MARGIN + 5 * LINE
    sheet_height = top + len(labels) * (height + GAP) + MARGIN
    sheet = Image.new("RGB", (MARGIN + len(blocks) * block_width, sheet_height), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, MARGIN), title, INK, large)
    caption = "each row: examples with the label beside it, as training sees them"
    pen.text((MARGIN, MARGIN + 1.3 * LINE), caption, FAINT, small)
    for number, block in enumerate(blocks):
        left = MARGIN + number * block_width
        pen.text((left, MARGIN + 2.7 * LINE), block.heading, INK, large)
        pen.text((left, MARGIN + 3.8 * LINE), block.line, FAINT, small)
        for row, (label, pictures) in enumerate(zip(labels, block.pictures, strict=True)):
            y = top + row * (height + GAP)
            _draw_row(sheet, pen, (left, y), label, small, pictures, (label_width, width, height))
    return sheet


def _draw_row(
    sheet: Image.Image,
    pen: ImageDraw.ImageDraw,
    corner: tuple[int, int],
    label: str,
    font: Font,
    pictures: Pixels,
    sizes: tuple[int, int, int],
) -> None:
    (left, y), (label_width, width, height) = corner, sizes
    pen.text((left + label_width - 2 * GAP, y + height // 2), label, INK, font, anchor="rm")
    if not len(pictures):
        pen.text((left + label_width, y + height // 2), "none", FAINT, font, anchor="lm")
    for column, pixels in enumerate(pictures):
        x = left + label_width + column * (width + GAP)
        sheet.paste(_enlarge(pixels, width, height), (x, y))


def _enlarge(pixels: Pixels, width: int, height: int) -> Image.Image:
    """Enlarge one example so that its pixels stay squares.

    With neither one nor three channels, their mean is shown.
    """
    shown = pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels.mean(axis=0)
    levels = np.ascontiguousarray(np.rint(shown * 255), dtype=np.uint8)
    return Image.fromarray(levels).resize((width, height), Image.Resampling.NEAREST)


def _shorten(name: str, font: Font) -> str:
    """Cut a class's name to MAX_LABEL_WIDTH pixels."""
    shown = name
    while font.getlength(shown) > MAX_LABEL_WIDTH:
        shown = shown.removesuffix("…")[:-1] + "…"
    return shown
