"""The built documentation in a browser: from disk, without a network. `make docs` builds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from browser_page import SCHEMES, WIDTHS, BrowserPage

SITE = Path(__file__).parents[2] / "build" / "site"
PAGES = (
    *("index", "tour", "theories", "methods", "reading", "report", "glossary", "api"),
    *("notebooks/quickstart", "notebooks/own_hospitals", "experiments/RESULTS"),
)
MISSING_IMAGES = "[...document.images].filter(i => i.offsetParent && !i.naturalWidth).length"
Visit = Callable[..., BrowserPage]

pytestmark = pytest.mark.skipif(
    not (SITE / "index.html").exists(), reason="the site is not built: `make docs`"
)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_every_window_and_loads_only_local_files(visit: Visit, name: str) -> None:
    for scheme in SCHEMES:
        opened = visit(SITE / f"{name}.html", scheme=scheme)
        for width in WIDTHS:
            opened.resize(width)
            page_width = opened.page.evaluate("document.documentElement.scrollWidth")
            assert page_width <= width, f"{name} at {width}"
        assert opened.page.evaluate(MISSING_IMAGES) == 0
        assert opened.errors == []
        assert [url for url in opened.fetched if not url.startswith(SITE.as_uri())] == []


@pytest.mark.parametrize("name", ["index", "methods", "reading", "api"])
@pytest.mark.parametrize("width", [WIDTHS[0], WIDTHS[-1]])
def test_a_page_can_be_used_with_a_keyboard_and_a_screen_reader(
    visit: Visit, name: str, width: int
) -> None:
    """What Zensical leaves undone is mended by docs/assets/accessible.js."""
    assert visit(SITE / f"{name}.html", width).find_violations() == []


def test_search_works_from_disk(visit: Visit) -> None:
    opened = visit(SITE / "experiments" / "JUSTICE.html")
    opened.page.get_by_role("button", name="Search").first.click()
    box = opened.page.get_by_role("combobox")
    box.wait_for()
    opened.page.keyboard.type("levelled down", delay=20)
    opened.page.get_by_role("option", name="Verdicts").wait_for()
    assert box.input_value() == "levelled down"
    assert opened.errors == []
