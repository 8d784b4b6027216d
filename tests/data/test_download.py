"""Downloads, against a real server on this machine that can be told to misbehave."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from udjfl.data.download import Patience, Remote, checksum, fetch, fetch_all
from udjfl.errors import DataError

BODY = bytes(range(256)) * 1000  # 256,000 bytes, more than one chunk
MD5 = hashlib.md5(BODY).hexdigest()
HALF = len(BODY) // 2


class Server:
    """What to serve, how to misbehave, and what was asked."""

    def __init__(self) -> None:
        self.files = {"/file": BODY}
        self.ranges: list[str | None] = []  # the Range of each request, in order
        self.sent: list[int] = []  # the bytes of body sent for each request
        self.cut: list[int] = []  # the next requests end after so many bytes
        self.status: list[int] = []  # the next requests are answered with this
        self.ignores_range = False
        self.wrong_range = False  # answers 206 with other bytes than those asked for
        self.says_length = True
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers["Range"]
        self.ranges.append(asked)
        body = self.files.get(handler.path)
        if self.status or body is None:
            self.empty(handler, self.status.pop(0) if self.status else 404)
            return
        start = (
            int(asked.removeprefix("bytes=").removesuffix("-"))
            if asked and not self.ignores_range
            else 0
        )
        if start >= len(body):
            self.empty(handler, 416)
            return
        start = start // 2 if self.wrong_range else start
        handler.send_response(206 if asked and not self.ignores_range else 200)
        if asked and not self.ignores_range:
            handler.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if self.says_length:
            handler.send_header("Content-Length", str(len(body) - start))
        handler.end_headers()
        rest = body[start:][: self.cut.pop(0)] if self.cut else body[start:]
        self.sent.append(len(rest))
        handler.wfile.write(rest)

    def empty(self, handler: BaseHTTPRequestHandler, status: int) -> None:
        self.sent.append(0)
        handler.send_response(status)
        handler.send_header("Content-Length", "0")
        handler.end_headers()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    asked = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(ConnectionError):  # whoever asked may be gone
                asked.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        asked.url = f"http://127.0.0.1:{listening.server_port}/file"
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield asked
        listening.shutdown()
        thread.join()


class Pauses(list[float]):
    """Waits that take no time, noted down."""

    @property
    def patience(self) -> Patience:
        return Patience(timeout=10, pause=self.append)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


def part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def test_a_file_is_fetched_and_checked(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    target = tmp_path / "deep" / "down" / "file.bin"
    assert fetch(server.url, target, MD5.upper(), lambda *told: seen.append(told)) == target
    assert target.read_bytes() == BODY
    assert list(target.parent.iterdir()) == [target]
    assert seen[0] == ("file.bin", 0, len(BODY))
    assert seen[-1] == ("file.bin", len(BODY), len(BODY))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_file_that_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    target.write_bytes(BODY)
    fetch(server.url, target, MD5)
    assert server.ranges == []


def test_a_broken_transfer_goes_on_where_it_stopped(
    server: Server, tmp_path: Path, pauses: Pauses
) -> None:
    server.cut = [1000, 500]
    target = fetch(server.url, tmp_path / "file.bin", MD5, patience=pauses.patience)
    assert target.read_bytes() == BODY
    assert server.ranges == [None, "bytes=1000-", "bytes=1500-"]
    assert server.sent == [1000, 500, len(BODY) - 1500]
    assert pauses == [1, 2]


def test_it_gives_up_after_some_tries_and_keeps_what_came(
    server: Server, tmp_path: Path, pauses: Pauses
) -> None:
    server.cut = [10, 10, 10, 10]
    target = tmp_path / "file.bin"
    with pytest.raises(DataError, match="closed after 40 of 256000 bytes") as raised:
        fetch(server.url, target, MD5, patience=pauses.patience)
    assert server.url in str(raised.value)
    assert "run again: it goes on where it stopped" in str(raised.value)
    assert f"by hand into {tmp_path}" in str(raised.value)
    assert not target.exists()
    assert part_of(target).read_bytes() == BODY[:40]
    assert pauses == [1, 2, 4]
    fetch(server.url, target, MD5, patience=pauses.patience)
    assert target.read_bytes() == BODY
    assert server.ranges[-1] == "bytes=40-"


def test_a_killed_download_is_gone_on_with(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    program = f"""
import os, pathlib
from udjfl.data.download import fetch
def kill(stage, done, total):
    if done >= {HALF}:
        os._exit(7)
fetch({server.url!r}, pathlib.Path({str(target)!r}), {MD5!r}, kill)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 7
    assert not target.exists()
    kept = part_of(target).stat().st_size
    assert HALF <= kept < len(BODY)
    fetch(server.url, target, MD5)
    assert target.read_bytes() == BODY
    assert server.ranges == [None, f"bytes={kept}-"]
    assert server.sent[-1] == len(BODY) - kept
    assert not part_of(target).exists()


def test_a_whole_part_only_needs_its_name(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    part_of(target).write_bytes(BODY)
    fetch(server.url, target, MD5)
    assert target.read_bytes() == BODY
    assert server.ranges == []
    assert not part_of(target).exists()


@pytest.mark.parametrize("oddity", ["ignores_range", "wrong_range"])
def test_a_server_that_does_not_go_on_there_starts_again(
    server: Server, tmp_path: Path, oddity: str
) -> None:
    setattr(server, oddity, True)
    target = tmp_path / "file.bin"
    part_of(target).write_bytes(BODY[:1000])
    fetch(server.url, target, MD5)
    assert target.read_bytes() == BODY
    assert server.sent[-1] == len(BODY)
    assert server.ranges == (
        ["bytes=1000-"] if oddity == "ignores_range" else ["bytes=1000-", None]
    )


def test_a_part_longer_than_the_file_starts_again(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    part_of(target).write_bytes(BODY + b"more")
    fetch(server.url, target, MD5)  # the server answers 416
    assert target.read_bytes() == BODY
    assert server.ranges == [f"bytes={len(BODY) + 4}-", None]


def test_a_file_of_unknown_size(server: Server, tmp_path: Path) -> None:
    server.says_length = False
    seen: list[tuple[str, int, int]] = []
    target = fetch(server.url, tmp_path / "file.bin", MD5, lambda *told: seen.append(told))
    assert target.read_bytes() == BODY
    assert seen[-1] == ("file.bin", len(BODY), 0)


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path, pauses: Pauses) -> None:
    expected = "0" * 32
    with pytest.raises(DataError) as raised:
        fetch(server.url, tmp_path / "file.bin", expected, patience=pauses.patience)
    for told in (server.url, expected, MD5, "run again", str(tmp_path)):
        assert told in str(raised.value)
    assert list(tmp_path.iterdir()) == []
    assert len(server.ranges) == 1  # the same bytes would come again


def test_a_part_of_another_file_is_removed_and_the_next_call_succeeds(
    server: Server, tmp_path: Path
) -> None:
    target = tmp_path / "file.bin"
    part_of(target).write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="removed what came"):
        fetch(server.url, target, MD5)
    assert fetch(server.url, target, MD5).read_bytes() == BODY


def test_a_wrong_file_is_replaced_by_one_that_is_right(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    target.write_bytes(b"another version")
    during: list[bytes] = []
    fetch(server.url, target, MD5, lambda stage, done, total: during.append(target.read_bytes()))
    assert target.read_bytes() == BODY
    assert set(during) == {b"another version"}


@pytest.mark.parametrize("failure", ["404", "broken", "checksum"])
def test_a_wrong_file_is_left_when_the_new_one_does_not_come(
    server: Server, tmp_path: Path, pauses: Pauses, failure: str
) -> None:
    target = tmp_path / "file.bin"
    target.write_bytes(b"another version")
    server.status = [404] if failure == "404" else []
    server.cut = [10] * 4 if failure == "broken" else []
    server.files["/file"] = b"neither" if failure == "checksum" else BODY
    with pytest.raises(DataError, match="it was left as it is") as raised:
        fetch(server.url, target, MD5, patience=pauses.patience)
    assert checksum(target) in str(raised.value)
    assert target.read_bytes() == b"another version"


@pytest.mark.parametrize(("status", "tries"), [(404, 1), (403, 1), (503, 4), (429, 4)])
def test_only_what_may_pass_is_tried_again(
    server: Server, tmp_path: Path, pauses: Pauses, status: int, tries: int
) -> None:
    server.status = [status] * 4
    with pytest.raises(DataError, match=f"the server answered {status}"):
        fetch(server.url, tmp_path / "file.bin", MD5, patience=pauses.patience)
    assert len(server.ranges) == tries
    assert len(pauses) == tries - 1


def test_an_answer_without_the_file(server: Server, tmp_path: Path) -> None:
    server.status = [204]
    with pytest.raises(DataError, match="answered 204"):
        fetch(server.url, tmp_path / "file.bin", MD5)


def test_no_server_at_all(server: Server, tmp_path: Path, pauses: Pauses) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as listening:
        port = listening.server_port  # nobody listens there from here on
    target = tmp_path / "file.bin"
    part_of(target).write_bytes(BODY[:1000])
    with pytest.raises(DataError, match="Check the connection and run again") as raised:
        fetch(f"http://127.0.0.1:{port}/file", target, MD5, patience=pauses.patience)
    assert "refused" in str(raised.value)
    assert pauses == [1, 2, 4]
    assert part_of(target).read_bytes() == BODY[:1000]


def test_a_place_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(DataError, match="cannot be written or read"):
        fetch(server.url, tmp_path / "taken" / "file.bin", MD5)


def test_the_second_address_is_asked_when_the_first_fails(
    server: Server, tmp_path: Path, pauses: Pauses
) -> None:
    missing = server.url.replace("/file", "/elsewhere")
    server.files["/other"] = b"other"
    remotes = [
        Remote("file.bin", (missing, server.url), MD5),
        Remote(
            "other.bin", (server.url.replace("/file", "/other"),), hashlib.md5(b"other").hexdigest()
        ),
    ]
    paths = fetch_all(remotes, tmp_path, patience=pauses.patience)
    assert paths == [tmp_path / "file.bin", tmp_path / "other.bin"]
    assert [path.read_bytes() for path in paths] == [BODY, b"other"]
    assert pauses == []


def test_a_wrong_checksum_at_the_first_address_is_no_end(server: Server, tmp_path: Path) -> None:
    server.files["/changed"] = b"changed"
    changed = server.url.replace("/file", "/changed")
    (path,) = fetch_all([Remote("file.bin", (changed, server.url), MD5)], tmp_path)
    assert path.read_bytes() == BODY
    assert server.ranges == [None, None]  # nothing of the changed file is built upon


def test_every_address_that_failed_is_named(server: Server, tmp_path: Path) -> None:
    one, two = (server.url.replace("/file", path) for path in ("/one", "/two"))
    with pytest.raises(
        DataError, match=r"one: the server answered 404[^\n]*\n.*two: the server answered 404"
    ):
        fetch_all([Remote("file.bin", (one, two), MD5)], tmp_path)


def test_checksum(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert (
        checksum(tmp_path / "empty") == "d41d8cd98f00b204e9800998ecf8427e"
    )  # the well-known MD5 of nothing
