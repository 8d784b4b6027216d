"""One browser for all tests of this folder; without one they are skipped, with the reason."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from browser_page import ARGUMENTS, CHROMIUM, BrowserPage, open_page

MISSING = [
    name
    for name in ("playwright", "axe_playwright_python", "pypdf")
    if importlib.util.find_spec(name) is None
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if MISSING:
        pytest.skip(f"no {MISSING[0]}: install it with `pip install 'udjfl[browser]'`")
    if not CHROMIUM.exists():
        pytest.skip(f"no {CHROMIUM}: install it with `make browser`")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=list(ARGUMENTS), headless=True
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., BrowserPage]]:
    """Open files from disk; they are closed after the test."""
    with ExitStack() as stack:

        def open_file(path: Path, width: int = 1440, scheme: str = "light") -> BrowserPage:
            return stack.enter_context(open_page(browser, path, width, scheme))

        yield open_file
