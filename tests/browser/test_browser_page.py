"""The checks themselves: a good page passes, and each fault of a bad page is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from browser_page import SCHEMES, WIDTHS, BrowserPage

Visit = Callable[..., BrowserPage]

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Clients</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
  @page {{ size: A4; margin: 15mm }}
  body {{ color: #111; background: #fff; margin: 1rem }}
  .wide {{ overflow-x: auto }}
  @media print {{ .wide {{ overflow-x: visible }} }}
  @media (prefers-color-scheme: dark) {{ body {{ color: #eee; background: #111 }} }}
  button:focus {{ outline: 2px solid }}
  {style}
</style></head><body><main><h1>Clients</h1>
<p>Some text about clients.</p>{body}
<button type="button">Sort</button></main>
<script>{script}</script></body></html>
"""


def page(folder: Path, style: str = "", body: str = "", script: str = "") -> Path:
    path = folder / "page.html"
    path.write_text(PAGE.format(style=style, body=body, script=script), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_good_page_passes(visit: Visit, tmp_path: Path, scheme: str) -> None:
    wide = '<div class="wide" tabindex="0"><div style="width: 600px">A wide figure</div></div>'
    opened = visit(page(tmp_path, body=wide), scheme=scheme)
    for width in WIDTHS:
        opened.resize(width)
        assert opened.find_overflow() == []
    assert opened.find_violations() == []
    assert opened.find_print_problems() == []
    assert "Some text about clients." in opened.print_text()
    assert [stop["tag"] for stop in opened.tab_through()] == ["div", "button"]
    assert opened.tab_through()[-1] == {"tag": "button", "text": "Sort", "visible": True}
    assert (opened.errors, opened.fetched) == ([], [])


def test_overflow_is_found_where_the_window_is_too_narrow(visit: Visit, tmp_path: Path) -> None:
    opened = visit(page(tmp_path, body='<p id="long" style="width: 800px">x</p>'))
    assert opened.find_overflow() == []
    opened.resize(375)
    assert "p#long ends at" in opened.find_overflow()[0]


def test_low_contrast_is_found_in_the_scheme_that_has_it(visit: Visit, tmp_path: Path) -> None:
    style = "p {{ color: #777 }} @media (prefers-color-scheme: light) {{ p {{ color: #000 }} }}"
    path = page(tmp_path, style=style.replace("{{", "{").replace("}}", "}"))
    assert visit(path).find_violations() == []
    (violation,) = visit(path, scheme="dark").find_violations()
    assert violation.startswith("color-contrast: ['p']")


def test_errors_dialogs_and_requests_are_noted(visit: Visit, tmp_path: Path) -> None:
    script = "alert('hello'); new Image().src = 'https://example.org/x.png'; missing()"
    opened = visit(page(tmp_path, script=script))
    opened.page.wait_for_timeout(50)
    assert "hello" in opened.errors
    assert any("missing is not defined" in error for error in opened.errors)
    assert opened.fetched == ["https://example.org/x.png"]


def test_paper_of_another_size_and_cut_text_are_found(visit: Visit, tmp_path: Path) -> None:
    letter = page(tmp_path, style="@page { size: letter }")
    assert "sheet 1 is 612 by 792 points, not A4" in visit(letter).find_print_problems()
    cut = page(tmp_path, body='<p style="position: absolute; left: 2000px">lost</p>')
    assert visit(cut).find_print_problems() != []


def test_a_keyboard_trap_is_found(visit: Visit, tmp_path: Path) -> None:
    script = "addEventListener('keydown', e => { if (e.key === 'Tab') e.preventDefault() });"
    opened = visit(page(tmp_path, script=script + "document.querySelector('button').focus();"))
    opened.page.evaluate("HTMLElement.prototype.blur = () => {}")
    with pytest.raises(AssertionError, match="does not leave"):
        opened.tab_through(most=5)
