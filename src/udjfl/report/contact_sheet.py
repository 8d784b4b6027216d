"""The contact sheet: a picture of what a data source calls clean and what it calls ambiguous, class by class."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from udjfl.data import Client, Examples, Pools
from udjfl.data.partition import IndexArray
from udjfl.seeds import numpy_stream

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

    Font: TypeAlias = ImageFont.ImageFont | ImageFont.FreeTypeFont

Pixels: TypeAlias = npt.NDArray[np.float64]

PER_CLASS = 8
SIDE = 64  # what a picture is to measure at least, roughly, so that 8x8 pixels can be seen
GAP, MARGIN, LINE = 4, 20, 22
WIDEST_LABEL = 180
PAPER, INK, FAINT = "white", "black", "#666666"


@dataclass(frozen=True, eq=False)
class Block:
    """One half of the sheet: heading, what is below it, and for each class the pictures [n, channels, height, width]."""

    heading: str
    line: str
    rows: Sequence[Pixels]


def contact_sheet(
    title: str, pools: Pools, to_pixels: Callable[[Any], Any], seed: int, clients: Sequence[Client]
) -> bytes:
    """A PNG file: clean examples on the left, ambiguous ones on the right, a row for each label.

    The seed draws the examples; those of other groups (other images, other tracks) come first, so that a row does not show
    one thing eight times. `clients` are those the pools were cut into: each half says how much of them it is.
    """
    halves = [("clean", pools.clean, pools.clean_groups)]
    if pools.ambiguous is not None:
        halves.append(("ambiguous", pools.ambiguous, pools.ambiguous_groups))
    classes = range(len(pools.class_names))
    drawn = [
        [_drawn(part, groups, label, seed, name) for label in classes]
        for name, part, groups in halves
    ]
    picked = [
        part.take(np.concatenate(rows)) for (_, part, _), rows in zip(halves, drawn, strict=True)
    ]
    # In one call: a source may scale what it is given, and the two halves are to be compared.
    pixels = np.clip(np.asarray(to_pixels(Examples.joined(picked).x), dtype=np.float64), 0, 1)
    ends = np.cumsum([len(rows) for half in drawn for rows in half])
    pictures = np.split(pixels, ends[:-1])
    blocks = [
        Block(
            name,
            share_line(name, len(part), clients),
            pictures[place * len(classes) : (place + 1) * len(classes)],
        )
        for place, (name, part, _) in enumerate(halves)
    ]
    sheet = io.BytesIO()
    _draw(f"{title}, seed {seed}", blocks, pools.class_names).save(sheet, format="PNG")
    return sheet.getvalue()


def _drawn(part: Examples, groups: IndexArray, label: int, seed: int, half: str) -> IndexArray:
    """Positions of a handful of the examples with this label, of as many groups as there are."""
    stream = numpy_stream(seed, "contact sheet", half, label)
    mixed = stream.permutation(np.flatnonzero(part.y.numpy() == label))
    first_of_group = np.sort(np.unique(groups[mixed], return_index=True)[1])
    others = np.setdiff1d(np.arange(len(mixed)), first_of_group)
    return np.asarray(mixed[np.concatenate([first_of_group, others])[:PER_CLASS]], dtype=np.int64)


def share_line(half: str, count: int, clients: Sequence[Client]) -> str:
    """How many there are, and how much of the clients' train parts they are."""
    shares = [
        (client.ambiguous_share, client.id)
        for client in clients
        if client.ambiguous_share is not None
    ]
    examples = f"{count:,} examples"
    if not shares:
        return examples
    told = [(share if half == "ambiguous" else 1 - share, client) for share, client in shares]
    least, most = min(told), max(told)
    if f"{least[0]:.0%}" == f"{most[0]:.0%}":
        return f"{examples}; {least[0]:.0%} of what each client trains on"
    return f"{examples}; {least[0]:.0%} ({least[1]}) to {most[0]:.0%} ({most[1]}) of what a client trains on"


def _draw(title: str, blocks: Sequence[Block], class_names: Sequence[str]) -> Image.Image:
    from PIL import Image, ImageDraw, ImageFont

    small, large = ImageFont.load_default(14), ImageFont.load_default(20)
    channels_height_width = blocks[0].rows[0].shape[1:]
    scale = max(1, round(SIDE / max(channels_height_width[1:])))
    height, width = (scale * side for side in channels_height_width[1:])
    labels = [_shortened(name, small) for name in class_names]
    label_width = max(int(small.getlength(label)) for label in labels) + 2 * GAP
    pictures_width = PER_CLASS * (width + GAP)
    text_width = max(int(small.getlength(block.line)) for block in blocks)
    block_width = max(label_width + pictures_width, text_width) + MARGIN
    top = MARGIN + 5 * LINE
    sheet = Image.new(
        "RGB",
        (MARGIN + len(blocks) * block_width, top + len(labels) * (height + GAP) + MARGIN),
        PAPER,
    )
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, MARGIN), title, INK, large)
    pen.text(
        (MARGIN, MARGIN + 1.3 * LINE),
        "each row: examples with the label beside it, as training sees them",
        FAINT,
        small,
    )
    for place, block in enumerate(blocks):
        left = MARGIN + place * block_width
        pen.text((left, MARGIN + 2.7 * LINE), block.heading, INK, large)
        pen.text((left, MARGIN + 3.8 * LINE), block.line, FAINT, small)
        for row, (label, pictures) in enumerate(zip(labels, block.rows, strict=True)):
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
        sheet.paste(
            _picture(pixels, width, height), (left + label_width + column * (width + GAP), y)
        )


def _picture(pixels: Pixels, width: int, height: int) -> Image.Image:
    """One example, enlarged so that its pixels stay squares. What is neither grey nor in colour is shown by its mean."""
    from PIL import Image

    shown = pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels.mean(axis=0)
    whole = np.ascontiguousarray(np.rint(shown * 255), dtype=np.uint8)
    return Image.fromarray(whole).resize((width, height), Image.Resampling.NEAREST)


def _shortened(name: str, font: Font) -> str:
    """A class's name, cut where it would push the pictures aside."""
    shown = name
    while font.getlength(shown) > WIDEST_LABEL:
        shown = shown.removesuffix("…")[:-1] + "…"
    return shown
