"""Pages are opened in a browser where there is one."""

from __future__ import annotations

import webbrowser

import pytest

from udjfl.cli.output import open_page

ADDRESS = "file:///there/report.html"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    addresses: list[str] = []
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")

    def open_one(address: str) -> bool:
        addresses.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", open_one)
    return addresses


@pytest.mark.parametrize("name", ["BROWSER", "DISPLAY", "WAYLAND_DISPLAY"])
def test_a_desktop_opens_the_page(
    opened: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    monkeypatch.setenv(name, ":0")
    open_page(ADDRESS, "report.html")
    assert opened == [ADDRESS]
    assert capsys.readouterr() == ("", "")


def test_without_a_desktop_one_line_has_the_path(
    opened: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    open_page(ADDRESS, "report.html")
    assert opened == []
    expected = "there is no browser here; open `report.html` where there is one\n"
    assert capsys.readouterr() == ("", expected)


def test_a_browser_that_does_not_start_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    open_page(ADDRESS, "report.html")
    assert "open `report.html` where" in capsys.readouterr().err
