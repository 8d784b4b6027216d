"""Downloads, from a server on this machine that can be made to fail."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from data_helpers import serve

from udjfl.data.download import LOCK, Remote, RetryPolicy, compute_md5, fetch_all
from udjfl.errors import DataError

BODY = bytes(range(256)) * 1000  # 256,000 bytes, more than one chunk
MD5 = hashlib.md5(BODY).hexdigest()
HALF = len(BODY) // 2


def fetch(url: str, target: Path, md5: str, *others: Any, **named: Any) -> Path:
    """Download one file from one address."""
    (path,) = fetch_all([Remote(target.name, (url,), md5)], target.parent, *others, **named)
    return path


class Server:
    """The files to serve, the failures to simulate, and the requests received."""

    def __init__(self) -> None:
        self.files = {"/file": BODY}
        self.ranges: list[str | None] = []  # the Range of each request, in order
        self.sent: list[int] = []  # the bytes of body sent for each request
        self.cut: list[int] = []  # the bytes after which the next requests end
        self.status: list[int] = []  # the status codes of the next requests
        self.ignores_range = False
        self.wrong_range = False  # answers 206 with other bytes than requested
        self.says_length = True
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        requested = handler.headers["Range"]
        self.ranges.append(requested)
        body = self.files.get(handler.path)
        if self.status or body is None:
            self.empty(handler, self.status.pop(0) if self.status else 404)
            return
        start = (
            int(requested.removeprefix("bytes=").removesuffix("-"))
            if requested and not self.ignores_range
            else 0
        )
        if start >= len(body):
            self.empty(handler, 416)
            return
        start = start // 2 if self.wrong_range else start
        handler.send_response(206 if requested and not self.ignores_range else 200)
        if requested and not self.ignores_range:
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
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(ConnectionError):  # the client may be gone
                state.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serve(Handler) as address:
        state.url = f"{address}file"
        yield state


class Pauses(list[float]):
    """A list of the pauses between attempts, which take no time."""

    @property
    def retries(self) -> RetryPolicy:
        return RetryPolicy(timeout=10, sleep=self.append)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


def part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def test_file_is_downloaded_and_verified(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    target = tmp_path / "deep" / "down" / "file.bin"
    assert fetch(server.url, target, MD5.upper(), lambda *call: seen.append(call)) == target
    assert target.read_bytes() == BODY
    assert {path.name for path in target.parent.iterdir()} == {LOCK, target.name}
    assert seen[0] == ("file.bin", 0, len(BODY))
    assert seen[-1] == ("file.bin", len(BODY), len(BODY))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_existing_file_is_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    target.write_bytes(BODY)
    fetch(server.url, target, MD5)
    assert server.ranges == []


def test_broken_transfer_resumes(server: Server, tmp_path: Path, pauses: Pauses) -> None:
    server.cut = [1000, 500]
    target = fetch(server.url, tmp_path / "file.bin", MD5, retries=pauses.retries)
    assert target.read_bytes() == BODY
    assert server.ranges == [None, "bytes=1000-", "bytes=1500-"]
    assert server.sent == [1000, 500, len(BODY) - 1500]
    assert pauses == [1, 2]


def test_partial_file_is_kept_after_the_last_attempt(
    server: Server, tmp_path: Path, pauses: Pauses
) -> None:
    server.cut = [10, 10, 10, 10]
    target = tmp_path / "file.bin"
    with pytest.raises(DataError, match="closed after 40 of 256000 bytes") as raised:
        fetch(server.url, target, MD5, retries=pauses.retries)
    assert server.url in str(raised.value)
    assert "run again: the download resumes" in str(raised.value)
    assert f"by hand into {tmp_path}" in str(raised.value)
    assert not target.exists()
    assert part_of(target).read_bytes() == BODY[:40]
    assert pauses == [1, 2, 4]
    fetch(server.url, target, MD5, retries=pauses.retries)
    assert target.read_bytes() == BODY
    assert server.ranges[-1] == "bytes=40-"


def test_killed_download_resumes(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    program = f"""
import os, pathlib
from udjfl.data.download import LOCK, Remote, fetch_all
def kill(stage, done, total):
    if done >= {HALF}:
        os._exit(7)
remote = Remote({target.name!r}, ({server.url!r},), {MD5!r})
fetch_all([remote], pathlib.Path({str(target.parent)!r}), kill)
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


def test_complete_part_is_only_renamed(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    part_of(target).write_bytes(BODY)
    fetch(server.url, target, MD5)
    assert target.read_bytes() == BODY
    assert server.ranges == []
    assert not part_of(target).exists()


@pytest.mark.parametrize("oddity", ["ignores_range", "wrong_range"])
def test_download_restarts_if_the_server_cannot_resume(
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


def test_download_restarts_if_the_part_is_longer_than_the_file(
    server: Server, tmp_path: Path
) -> None:
    target = tmp_path / "file.bin"
    part_of(target).write_bytes(BODY + b"more")
    fetch(server.url, target, MD5)  # the server answers 416
    assert target.read_bytes() == BODY
    assert server.ranges == [f"bytes={len(BODY) + 4}-", None]


def test_file_of_unknown_size_is_downloaded(server: Server, tmp_path: Path) -> None:
    server.says_length = False
    seen: list[tuple[str, int, int]] = []
    target = fetch(server.url, tmp_path / "file.bin", MD5, lambda *call: seen.append(call))
    assert target.read_bytes() == BODY
    assert seen[-1] == ("file.bin", len(BODY), 0)


def test_download_with_a_wrong_checksum_is_removed(
    server: Server, tmp_path: Path, pauses: Pauses
) -> None:
    expected = "0" * 32
    with pytest.raises(DataError) as raised:
        fetch(server.url, tmp_path / "file.bin", expected, retries=pauses.retries)
    for words in (server.url, expected, MD5, "run again", str(tmp_path)):
        assert words in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    assert len(server.ranges) == 1  # a retry would give the same bytes


def test_part_of_another_file_is_removed_and_the_next_call_succeeds(
    server: Server, tmp_path: Path
) -> None:
    target = tmp_path / "file.bin"
    part_of(target).write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="the download was removed"):
        fetch(server.url, target, MD5)
    assert fetch(server.url, target, MD5).read_bytes() == BODY


def test_wrong_file_is_replaced_in_one_step(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    target.write_bytes(b"another version")
    during: list[bytes] = []
    fetch(server.url, target, MD5, lambda stage, done, total: during.append(target.read_bytes()))
    assert target.read_bytes() == BODY
    assert set(during) == {b"another version"}


@pytest.mark.parametrize("failure", ["404", "broken", "checksum"])
def test_wrong_file_is_kept_if_the_download_fails(
    server: Server, tmp_path: Path, pauses: Pauses, failure: str
) -> None:
    target = tmp_path / "file.bin"
    target.write_bytes(b"another version")
    server.status = [404] if failure == "404" else []
    server.cut = [10] * 4 if failure == "broken" else []
    server.files["/file"] = b"neither" if failure == "checksum" else BODY
    with pytest.raises(DataError, match="it was left as it is") as raised:
        fetch(server.url, target, MD5, retries=pauses.retries)
    assert compute_md5(target) in str(raised.value)
    assert target.read_bytes() == b"another version"


@pytest.mark.parametrize(("status", "tries"), [(404, 1), (403, 1), (503, 4), (429, 4)])
def test_only_temporary_errors_are_retried(
    server: Server, tmp_path: Path, pauses: Pauses, status: int, tries: int
) -> None:
    server.status = [status] * 4
    with pytest.raises(DataError, match=f"the server answered {status}"):
        fetch(server.url, tmp_path / "file.bin", MD5, retries=pauses.retries)
    assert len(server.ranges) == tries
    assert len(pauses) == tries - 1


def test_response_without_the_file_is_an_error(server: Server, tmp_path: Path) -> None:
    server.status = [204]
    with pytest.raises(DataError, match="answered 204"):
        fetch(server.url, tmp_path / "file.bin", MD5)


def test_refused_connection_keeps_the_part(server: Server, tmp_path: Path, pauses: Pauses) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as listening:
        port = listening.server_port  # closed from here on
    target = tmp_path / "file.bin"
    part_of(target).write_bytes(BODY[:1000])
    with pytest.raises(DataError, match="Check the connection and run again") as raised:
        fetch(f"http://127.0.0.1:{port}/file", target, MD5, retries=pauses.retries)
    assert "refused" in str(raised.value)
    assert pauses == [1, 2, 4]
    assert part_of(target).read_bytes() == BODY[:1000]


def test_target_that_cannot_be_written_is_an_error(server: Server, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(DataError, match="cannot be written or read"):
        fetch(server.url, tmp_path / "taken" / "file.bin", MD5)


def test_second_address_is_tried_if_the_first_fails(
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
    paths = fetch_all(remotes, tmp_path, retries=pauses.retries)
    assert paths == [tmp_path / "file.bin", tmp_path / "other.bin"]
    assert [path.read_bytes() for path in paths] == [BODY, b"other"]
    assert pauses == []


def test_second_address_is_tried_after_a_wrong_checksum(server: Server, tmp_path: Path) -> None:
    server.files["/changed"] = b"changed"
    changed = server.url.replace("/file", "/changed")
    (path,) = fetch_all([Remote("file.bin", (changed, server.url), MD5)], tmp_path)
    assert path.read_bytes() == BODY
    assert server.ranges == [None, None]  # the changed file is not resumed


def test_error_names_every_address_that_failed(server: Server, tmp_path: Path) -> None:
    one, two = (server.url.replace("/file", path) for path in ("/one", "/two"))
    with pytest.raises(
        DataError, match=r"one: the server answered 404[^\n]*\n.*two: the server answered 404"
    ):
        fetch_all([Remote("file.bin", (one, two), MD5)], tmp_path)


def test_a_second_download_waits_for_the_first_and_uses_its_file(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first is held up in the middle of the file until the second has begun to wait."""
    target = tmp_path / "file.bin"
    waits = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: waits.set()  # type: ignore[method-assign]
    logger = logging.getLogger("udjfl")
    logger.addHandler(handler)
    begun = threading.Event()

    def hold_up(name: str, done: int, total: int) -> None:
        begun.set()
        assert waits.wait(30)

    try:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(fetch, server.url, target, MD5, hold_up)
            assert begun.wait(30)
            second = pool.submit(fetch, server.url, target, MD5)
            assert first.result() == second.result() == target
    finally:
        logger.removeHandler(handler)
    assert target.read_bytes() == BODY
    assert server.ranges == [None]  # it was sent once
    assert "Another process downloads into" in caplog.text


@pytest.mark.parametrize("name", ["file.bin.part", LOCK])
def test_a_link_is_not_followed(server: Server, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / name).symlink_to(outside)
    with pytest.raises(DataError, match="cannot be written or read"):
        fetch(server.url, folder / "file.bin", MD5)
    assert outside.read_bytes() == b"precious"


def test_md5_of_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert (
        compute_md5(tmp_path / "empty") == "d41d8cd98f00b204e9800998ecf8427e"
    )  # the well-known MD5 of nothing
