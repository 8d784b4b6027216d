"""Photograph the demo's report for docs/report.md: python scripts/make_report_pictures.py REPORT

REPORT is the page that `make demo` writes, demo-report.html. Needs Chromium and the extra
`udjfl[browser]`. Writes docs/images/report-1440.png, report-768.png and report-375.png.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import NamedTuple

from PIL import Image

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"
COLOURS = 64  # enough for text on flat colours, and a small file


TO_TOP = "element => element.scrollIntoView({ behavior: 'instant', block: 'start' })"


class Shot(NamedTuple):
    """A window, its colour scheme, and the element at its top."""

    width: int
    height: int
    scheme: str
    section: str


SHOTS = (
    Shot(1440, 900, "light", "header"),
    Shot(768, 1000, "light", "#words"),
    Shot(375, 760, "dark", "#glance"),
)


def main(report: Path) -> None:
    """Write the pictures."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for shot in SHOTS:
            page = browser.new_page(
                viewport={"width": shot.width, "height": shot.height},
                color_scheme="dark" if shot.scheme == "dark" else "light",
            )
            page.goto(report.resolve().as_uri())
            page.locator(shot.section).first.evaluate(TO_TOP)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            small = picture.quantize(COLOURS, dither=Image.Dither.NONE)
            small.save(IMAGES / f"report-{shot.width}.png", optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
