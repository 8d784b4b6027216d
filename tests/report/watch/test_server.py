"""The server of the live page, and the file in its place."""

from __future__ import annotations

import http.client
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from udjfl.report.watch.progress import Watcher
from udjfl.report.watch.server import LiveServer, watch_in_file
from udjfl.training.records import Record
from udjfl.training.run_folder import RunFolder


def start(path: Path) -> RunFolder:
    settings = {"method": "fedavg", "params": {}, "seed": 0, "training": {"rounds": 3}}
    return RunFolder.create(path, settings, {})


def finish(folder: RunFolder) -> None:
    folder.append([Record(round, "a", "test_accuracy", 50.0) for round in (1, 2, 3)])
    folder.write_json("result.json", {})
    folder.unlock()


def ask(address: str, method: str = "GET", path: str | None = None, host: str | None = None):  # type: ignore[no-untyped-def]
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    headers = {} if host is None else {"Host": host}
    connection.request(method, parts.path if path is None else path, headers=headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response, text


def test_the_page_is_served_on_loopback_only(tmp_path: Path) -> None:
    folder = start(tmp_path)
    with LiveServer(Watcher(tmp_path), 1.0) as server:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{16}/", server.address)
        response, text = ask(server.address)
        assert response.status == 200
        assert response.headers["Cache-Control"] == "no-store"
        assert "Preparing" in text
        folder.append([Record(1, "a", "test_accuracy", 50.0)])
        assert "Preparing" in ask(server.address)[1]  # until it looks again
        server.look()
        assert "1 of 3 rounds" in ask(server.address)[1]
        assert ask(server.address, "HEAD")[1] == ""
    folder.unlock()
    with pytest.raises(OSError):  # noqa: PT011  # refused, in the words of the system
        ask(server.address)


@pytest.mark.parametrize(
    ("method", "path", "host", "status"),
    [
        ("GET", "/", None, 404),
        ("GET", "/../../etc/passwd", None, 404),
        ("GET", "/%C3%A4", None, 404),
        ("GET", None, "example.org", 403),  # a name that was made to point here
        ("HEAD", None, "example.org", 403),
        ("POST", None, None, 501),
    ],
)
def test_other_requests_are_refused(
    tmp_path: Path, method: str, path: str | None, host: str | None, status: int
) -> None:
    with LiveServer(Watcher(tmp_path), 1.0) as server:
        response, text = ask(server.address, method, path, host)
        assert response.status == status
        assert "udjfl watch" not in text


def test_it_ends_after_a_browser_saw_the_end(tmp_path: Path) -> None:
    folder = start(tmp_path)
    with LiveServer(Watcher(tmp_path), 7.0) as server:
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 2:
                finish(folder)
            if len(waits) == 3:
                assert "Finished" in ask(server.address)[1]

        assert server.wait_until_finished(wait).is_finished
        assert waits == [7.0] * 3


def test_it_ends_without_a_browser(tmp_path: Path) -> None:
    finish(start(tmp_path))
    with LiveServer(Watcher(tmp_path), 1.0) as server:
        waits: list[float] = []
        assert server.wait_until_finished(waits.append).done == 3
        assert len(waits) == 3


def test_the_file_is_written_again_until_the_end(tmp_path: Path) -> None:
    folder, path, seen = start(tmp_path / "run"), tmp_path / "live.html", []

    def wait(_: float) -> None:
        seen.append(path.read_text(encoding="utf-8"))
        if len(seen) == 2:
            finish(folder)

    opened: list[bool] = []
    snapshot = watch_in_file(
        Watcher(tmp_path / "run"), path, 2.0, on_written=lambda: opened.append(True), wait=wait
    )
    assert snapshot.is_finished
    assert opened == [True]
    assert all('data-every="2.0"' in text for text in seen)
    last = path.read_text(encoding="utf-8")
    assert 'data-every="0"' in last
    assert "Finished" in last
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("live")] == ["live.html"]


def test_an_interrupted_file_does_not_load_itself_again(tmp_path: Path) -> None:
    folder, path = start(tmp_path / "run"), tmp_path / "live.html"

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch_in_file(Watcher(tmp_path / "run"), path, 2.0, wait=interrupt)
    assert "The watch has ended." in path.read_text(encoding="utf-8")
    folder.unlock()
