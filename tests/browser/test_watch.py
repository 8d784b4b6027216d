"""The live page in a browser: it goes on with the run, can be paused, and ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser_page import WIDTHS, BrowserPage
from hostile_runs import IDS

from udjfl.report.watch.page import LivePage
from udjfl.report.watch.progress import Watcher
from udjfl.report.watch.server import LiveServer
from udjfl.training.records import Record
from udjfl.training.run_folder import RunFolder

Visit = Callable[..., BrowserPage]


def start(path: Path, seed: int = 0) -> RunFolder:
    settings = {"method": "fedavg", "params": {}, "seed": seed, "training": {"rounds": 9}}
    return RunFolder.create(path, settings, {})


def add_rounds(folder: RunFolder, first: int, last: int, ids: tuple[str, ...] = IDS) -> None:
    folder.append(
        [
            Record(round, client, metric, 50.0 + round)
            for round in range(first, last + 1)
            for client in ids
            for metric in ("test_accuracy", "train_loss")
        ]
    )


def wait_for(page: Any, text: str) -> None:
    """Wait until the page shows a text. Its policy forbids to evaluate expressions for that."""
    page.get_by_text(text).wait_for()


def open_with_held_clock(browser: Any, address: str) -> Any:
    """Open a page whose timers fire only when the test moves the page's own clock."""
    page = browser.new_context().new_page()
    page.clock.install(time=0)
    page.clock.pause_at(1)
    page.goto(address)
    return page


@pytest.mark.parametrize(("scheme", "width"), [("light", WIDTHS[0]), ("dark", WIDTHS[-1])])
def test_a_page_from_disk_passes_every_check(
    visit: Visit, tmp_path: Path, scheme: str, width: int
) -> None:
    folder = start(tmp_path / "run")
    add_rounds(folder, 1, 5)
    folder.append([Record(5, IDS[0], "absent", "<img src=x onerror=alert(1)>")])
    few = start(tmp_path / "few", seed=1)
    add_rounds(few, 1, 5, ("a", "b"))
    path = tmp_path / "live.html"
    path.write_text(LivePage().render(Watcher(tmp_path).look(), 600), encoding="utf-8")
    folder.unlock()
    few.unlock()
    opened = visit(path, width, scheme)
    assert opened.page.locator("h1").text_content() == "Training"
    assert opened.page.locator("figure").count() >= 2
    assert opened.find_overflow() == []
    assert opened.find_violations() == []
    assert [stop for stop in opened.tab_through() if not stop["visible"]] == []
    assert (opened.errors, opened.fetched) == ([], [])


def test_the_page_goes_on_with_the_run_and_can_be_paused(browser: Any, tmp_path: Path) -> None:
    folder = start(tmp_path)
    add_rounds(folder, 1, 2, ("a", "b"))
    errors: list[str] = []
    with LiveServer(Watcher(tmp_path), 5) as server:
        page = open_with_held_clock(browser, server.address)
        page.on("pageerror", lambda error: errors.append(str(error)))
        lead = page.locator(".lead")
        wait_for(page, "2 of 9 rounds")
        add_rounds(folder, 3, 4, ("a", "b"))
        server.look()
        page.clock.run_for(5_000)
        wait_for(page, "4 of 9 rounds")
        page.get_by_role("button", name="Pause").press("Enter")
        add_rounds(folder, 5, 9, ("a", "b"))
        folder.write_json("result.json", {})
        folder.unlock()
        server.look()
        page.clock.run_for(60_000)
        assert "4 of 9 rounds" in lead.text_content()
        # A page that had been loaded again would be finished, without this button.
        page.get_by_role("button", name="Continue").click()
        assert "4 of 9 rounds" in lead.text_content()
        page.clock.run_for(5_000)
        wait_for(page, "9 of 9 rounds")
        assert page.locator("h1").text_content() == "Finished"
        page.locator("#pause").wait_for(state="hidden")
        page.context.close()
    assert errors == []


def test_a_pause_holds_back_a_page_that_is_on_its_way(browser: Any, tmp_path: Path) -> None:
    folder = start(tmp_path)
    add_rounds(folder, 1, 2, ("a", "b"))
    held: list[Any] = []
    with LiveServer(Watcher(tmp_path), 5) as server:
        page = open_with_held_clock(browser, server.address)
        box = page.get_by_role("button", name="Pause").bounding_box()
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        add_rounds(folder, 3, 4, ("a", "b"))
        server.look()
        page.route(
            server.address,
            lambda route: (
                held.append(route) if route.request.method == "GET" else route.continue_()
            ),
        )
        with page.expect_request(lambda request: request.method == "GET"):
            page.clock.run_for(5_000)
        with page.expect_event("requestfailed"):
            page.mouse.click(*middle)  # a locator would wait for the next page
        assert len(held) == 1
        assert "2 of 9 rounds" in page.locator(".lead").text_content()
        assert page.locator("#refresh-state").text_content() == "Not updated."
        page.context.close()
    folder.unlock()


def test_a_page_without_its_server_keeps_the_last_state(browser: Any, tmp_path: Path) -> None:
    folder = start(tmp_path)
    add_rounds(folder, 1, 3, ("a", "b"))
    with LiveServer(Watcher(tmp_path), 5) as server:
        page = open_with_held_clock(browser, server.address)
    page.clock.run_for(5_000)
    wait_for(page, "The watch has ended")
    assert "3 of 9 rounds" in page.locator(".lead").text_content()
    page.context.close()
    folder.unlock()
