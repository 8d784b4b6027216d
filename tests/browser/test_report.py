"""The report as people see it: in a browser, from disk, by mouse and keyboard, and on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser_page import WIDTHS, BrowserPage
from hostile_runs import FOLDERS, IDS, make_federation_of_ids, train

from udjfl._ids import printable
from udjfl.report.html.page import write_report
from udjfl.search.settings import TuneSettings
from udjfl.search.tune import tune

Visit = Callable[..., BrowserPage]
METHODS = ("fedavg", "rawls:budget=2", "desert")
LARGEST = 1_000_000  # bytes
# Each figure's name for screen readers, and the number of rows of the table behind it.
LIST_FIGURES = """() => [...document.querySelectorAll('figure')].map(figure => ({
  name: figure.querySelector('[role=group]')?.getAttribute('aria-label') || '',
  drawn: figure.querySelector('svg')?.getBoundingClientRect().width || 0,
  rows: figure.querySelectorAll('tbody tr').length,
}))"""
LIST_CLIENTS = """() => [...document.querySelectorAll('#clients-table tbody tr')]
  .filter(row => !row.hidden).map(row => row.cells[0].firstChild.textContent.trim())"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report on three methods, five seeds and six clients."""
    folder = tmp_path_factory.mktemp("report")
    ids = [f"hospital {letter}" for letter in "fedcba"]
    path = folder / "report.html"
    write_report([train(folder / "runs", ids, METHODS, seeds=5)], path)
    return path


def open_details(opened: BrowserPage) -> None:
    opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")


def test_it_is_one_small_file_that_loads_nothing(visit: Visit, report: Path) -> None:
    assert report.stat().st_size < LARGEST
    opened = visit(report)
    open_details(opened)
    assert (opened.errors, opened.fetched) == ([], [])


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(visit: Visit, report: Path, width: int) -> None:
    opened = visit(report, width)
    assert opened.find_overflow() == []
    open_details(opened)
    assert opened.find_overflow() == []


@pytest.mark.parametrize(("scheme", "width"), [("light", WIDTHS[0]), ("dark", WIDTHS[-1])])
def test_axe_finds_no_violation(visit: Visit, report: Path, scheme: str, width: int) -> None:
    opened = visit(report, width, scheme)
    open_details(opened)
    assert opened.find_violations() == []


def test_every_figure_has_a_name_and_numbers(visit: Visit, report: Path) -> None:
    figures = visit(report).page.evaluate(LIST_FIGURES)
    assert len(figures) > 10
    assert [figure for figure in figures if not figure["name"] or not figure["rows"]] == []
    assert len({figure["name"] for figure in figures}) > 5


def sort_states(opened: BrowserPage) -> list[str | None]:
    states: list[str | None] = opened.page.evaluate(
        "() => [...document.querySelectorAll('#clients-table thead th')]"
        ".map(th => th.getAttribute('aria-sort'))"
    )
    return states


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
def test_clients_are_sorted(visit: Visit, report: Path, by: str) -> None:
    opened = visit(report)
    button = opened.page.locator("#clients-table thead button").first
    orders = []
    for _ in range(2):
        if by == "mouse":
            button.click()
        else:
            button.focus()
            opened.page.keyboard.press("Enter")
        orders.append((opened.page.evaluate(LIST_CLIENTS), sort_states(opened)[0]))
    letters = [f"hospital {letter}" for letter in "abcdef"]
    assert orders == [(letters, "ascending"), (letters[::-1], "descending")]


def test_clients_are_filtered(visit: Visit, report: Path) -> None:
    opened = visit(report)
    opened.page.locator("#clients-table-filter").focus()
    opened.page.keyboard.type("Hospital C")
    assert opened.page.evaluate(LIST_CLIENTS) == ["hospital c"]
    assert opened.page.locator("#clients-table-count").text_content() == "1 of 6"
    for _ in range(12):
        opened.page.keyboard.press("Backspace")
    assert len(opened.page.evaluate(LIST_CLIENTS)) == 6


def shown_tip(opened: BrowserPage) -> str | None:
    tip = opened.page.locator("#tip")
    return tip.text_content() if tip.is_visible() else None


def test_points_tell_their_numbers(visit: Visit, report: Path) -> None:
    opened = visit(report)
    chart = opened.page.locator(".chart").first
    assert shown_tip(opened) is None
    chart.locator("[data-tip]").first.hover(force=True)
    by_mouse = shown_tip(opened)
    opened.page.mouse.move(0, 0)
    chart.focus()
    opened.page.keyboard.press("ArrowRight")
    first = shown_tip(opened)
    opened.page.keyboard.press("ArrowRight")
    second = shown_tip(opened)
    opened.page.keyboard.press("Escape")
    assert by_mouse
    assert first
    assert second
    assert first != second
    assert shown_tip(opened) is None


def test_the_keyboard_reaches_everything(visit: Visit, report: Path) -> None:
    opened = visit(report)
    stops = opened.tab_through()
    assert stops[0]["text"].startswith("Skip")
    assert [stop for stop in stops if not stop["visible"]] == []
    tags = {stop["tag"] for stop in stops}
    assert {"a", "button", "input", "summary", "div"} <= tags
    assert any(stop["text"].startswith("Figure: ") for stop in stops)


def test_it_fits_on_paper(visit: Visit, report: Path) -> None:
    opened = visit(report, scheme="dark")
    assert opened.find_print_problems() == []
    text = " ".join(opened.print_text().split())
    assert "hospital f" in text
    assert "How it was made" in text
    assert (opened.errors, opened.fetched) == ([], [])


# --- folders that a report must survive


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write the report on a strange folder, once."""
    root, written = tmp_path_factory.mktemp("hostile"), {}

    def write(name: str) -> Path:
        if name not in written:
            written[name] = root / f"{name}.html"
            write_report([FOLDERS[name](root / name)], written[name])
        return written[name]

    return write


@pytest.mark.parametrize("name", FOLDERS)
def test_a_strange_folder_has_a_report(visit: Visit, hostile: Any, name: str) -> None:
    path = hostile(name)
    assert path.stat().st_size < LARGEST
    opened = visit(path)
    open_details(opened)
    for width in (WIDTHS[-1], WIDTHS[0]):
        opened.resize(width)
        assert opened.find_overflow() == []
    assert (opened.errors, opened.fetched) == ([], [])


def test_ids_are_shown_and_do_nothing(visit: Visit, hostile: Any) -> None:
    opened = visit(hostile("hostile_ids"))
    shown = opened.page.evaluate(LIST_CLIENTS)
    assert sorted(shown) == sorted(printable(client).strip() for client in IDS)
    assert opened.page.locator("img, script[src], link, iframe").count() == 0
    text = opened.page.locator("main").text_content()
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)
    assert "49" not in text.replace("7 * 7", "").split()  # no template was evaluated
    assert opened.find_violations() == []
    assert opened.find_print_problems() == []
    assert opened.errors == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("unfinished", "not finished"),
        ("altered", "result.json is damaged"),
        ("no_fedavg", "FedAvg"),
        ("one_client", "one run only"),
        ("missing_metrics", "<script>alert('why')</script>"),
    ],
)
def test_the_report_says_what_is_missing(visit: Visit, hostile: Any, name: str, words: str) -> None:
    assert words in visit(hostile(name)).page.locator("body").text_content()


def test_a_thousand_clients_are_shown_in_groups(visit: Visit, hostile: Any) -> None:
    opened = visit(hostile("thousand_clients"))
    figures = opened.page.evaluate(LIST_FIGURES)
    assert figures
    assert max(figure["rows"] for figure in figures) < 100
    open_details(opened)
    assert opened.find_violations() == []


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report on a tuning and its test."""
    folder = tmp_path_factory.mktemp("tuned")
    settings = TuneSettings(
        **{"rounds": 3, "hidden": 4, "uncertainty_epochs": 2, "seeds": [0, 1], "workers": 1},
        budget=50.0,
        cost=14.0,
    )
    ids = [f"hospital {letter}" for letter in "cba"]
    tune(settings, data=lambda seed: make_federation_of_ids(ids, seed=seed), out=folder / "tune")
    write_report([folder / "tune"], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def by_log_loss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report on methods that are judged by log loss."""
    folder = tmp_path_factory.mktemp("loss")
    runs = train(folder / "runs", ["a", "b", "c"], METHODS, score="log-loss")
    write_report([runs], folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize("name", ["tuned", "by_log_loss"])
def test_searches_and_other_scores_have_the_same_page(
    visit: Visit, request: pytest.FixtureRequest, name: str
) -> None:
    opened = visit(request.getfixturevalue(name), WIDTHS[0], "dark")
    open_details(opened)
    assert opened.find_overflow() == []
    assert opened.find_violations() == []
    assert opened.find_print_problems() == []
    figures = opened.page.evaluate(LIST_FIGURES)
    assert [figure for figure in figures if not figure["name"] or not figure["rows"]] == []
    assert (opened.errors, opened.fetched) == ([], [])
