"""A page in a real browser, with the network off, and the checks that our pages must pass."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WIDTHS = (375, 768, 1440)  # a phone, a tablet, a desktop
SCHEMES = ("light", "dark")
A4_POINTS = (595, 842)
A4_PIXELS = 794  # at 96 per inch
CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Elements that stick out to the right, unless something around them scrolls or clips.
FIND_OVERFLOW = """() => {
  const limit = document.documentElement.clientWidth;
  const contained = element => {
    for (let e = element; e && e !== document.body; e = e.parentElement)
      if (getComputedStyle(e).overflowX !== 'visible') return true;
    return false;
  };
  const found = [...document.body.querySelectorAll('*')]
    .filter(e => e.getClientRects().length && !e.closest('svg svg, svg > *'))
    .filter(e => e.getBoundingClientRect().right > limit + 1 && !contained(e))
    .map(e => `${e.tagName.toLowerCase()}${e.id ? '#' + e.id : ''} ends at `
      + `${Math.round(e.getBoundingClientRect().right)} of ${limit}`);
  const width = document.documentElement.scrollWidth;
  if (width > limit) found.push(`the page is ${width} wide, the window ${limit}`);
  return found.slice(0, 10);
}"""
DESCRIBE_FOCUS = """() => {
  const e = document.activeElement;
  if (!e || e === document.body) return null;
  const style = getComputedStyle(e);
  return {
    tag: e.tagName.toLowerCase(),
    text: (e.getAttribute('aria-label') || e.textContent || '').trim().slice(0, 60),
    visible: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0
      || style.boxShadow !== 'none',
  };
}"""


@dataclass
class BrowserPage:
    """One open page.

    page      Playwright's page
    errors    errors on the console, uncaught exceptions and dialogs
    fetched   addresses that the page asked for, other than files and data in the page itself
    """

    page: Any
    errors: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def find_overflow(self) -> list[str]:
        """List elements that are wider than the window and are not scrolled in a box."""
        found: list[str] = self.page.evaluate(FIND_OVERFLOW)
        return found

    def find_violations(self) -> list[str]:
        """List what axe-core objects to, contrast among it: the rule and the first element."""
        from axe_playwright_python.sync_playwright import Axe

        violations = Axe().run(self.page).response["violations"]
        return [
            f"{violation['id']}: {node['target']} {node.get('failureSummary', '')}"
            for violation in violations
            for node in violation["nodes"][:3]
        ]

    def resize(self, width: int, height: int = 900) -> None:
        """Change the size of the window."""
        self.page.set_viewport_size({"width": width, "height": height})

    def emulate(self, scheme: str | None = None, media: str | None = None) -> None:
        """Change to a light or dark scheme, to print or screen."""
        self.page.emulate_media(color_scheme=scheme, media=media)

    def tab_through(self, most: int = 400) -> list[dict[str, Any]]:
        """Press Tab until the focus leaves the page; return what had it. A trap is an error."""
        self.page.evaluate("() => { document.activeElement?.blur(); window.scrollTo(0, 0); }")
        stops: list[dict[str, Any]] = []
        for _ in range(most):
            self.page.keyboard.press("Tab")
            stop = self.page.evaluate(DESCRIBE_FOCUS)
            if stop is None:
                return stops
            stops.append(stop)
        raise AssertionError(f"the focus does not leave the page after {most} tabs: {stops[-3:]}")

    def print_pdf(self) -> Any:
        """Print to A4, with the margins that the page asks for; return what pypdf reads."""
        import pypdf

        pdf = self.page.pdf(format="A4", prefer_css_page_size=True, print_background=True)
        return pypdf.PdfReader(io.BytesIO(pdf))

    def find_print_problems(self) -> list[str]:
        """Print the page; list sheets that are not A4, and text that is cut off at a side."""
        problems = []
        for number, sheet in enumerate(self.print_pdf().pages, start=1):
            size = (round(float(sheet.mediabox.width)), round(float(sheet.mediabox.height)))
            if any(abs(a - b) > 1 for a, b in zip(size, A4_POINTS, strict=True)):
                problems.append(f"sheet {number} is {size[0]} by {size[1]} points, not A4")
            problems += [f"sheet {number}: {text}" for text in _find_cut_text(sheet, size[0])]
        self.emulate(media="print")
        self.resize(A4_PIXELS)
        problems += self.find_overflow()
        self.emulate(media="screen")
        return problems

    def print_text(self) -> str:
        """Return the text of the printed page."""
        return "\n".join(sheet.extract_text() for sheet in self.print_pdf().pages)


def _find_cut_text(sheet: Any, width: int) -> list[str]:
    """List text that begins outside of the sheet."""
    found: list[str] = []

    def visit(text: str, outer: list[float], inner: list[float], *_: object) -> None:
        # The position of the text after both transformations.
        x = inner[4] * outer[0] + inner[5] * outer[2] + outer[4]
        if text.strip() and not 0 <= x < width:
            found.append(f"{text.strip()[:40]!r} begins at {x:.0f} of {width}")

    sheet.extract_text(visitor_text=visit)
    return found


@contextmanager
def open_page(
    browser: Any, path: Path, width: int = 1440, scheme: str = "light"
) -> Iterator[BrowserPage]:
    """Open a file from disk in a window of its own, without a network."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        offline=True,
        reduced_motion="reduce",
    )
    opened = BrowserPage(context.new_page())
    page = opened.page
    page.on("console", lambda m: opened.errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: opened.errors.append(str(error)))
    page.on("dialog", lambda dialog: _dismiss(opened, dialog))
    page.on("request", lambda request: _note_request(opened, request.url, path))
    try:
        page.goto(path.resolve().as_uri(), wait_until="load")
        yield opened
    finally:
        context.close()


def _dismiss(opened: BrowserPage, dialog: Any) -> None:
    opened.errors.append(dialog.message)
    dialog.dismiss()


def _note_request(opened: BrowserPage, address: str, path: Path) -> None:
    own = path.resolve().as_uri()
    if address.partition("#")[0] != own and not address.startswith(("data:", "blob:")):
        opened.fetched.append(address)
