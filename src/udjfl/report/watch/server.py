"""The live page on this machine's own address, or in a file that is written again and again."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from udjfl._files import write_atomic
from udjfl.report.watch.page import LivePage
from udjfl.report.watch.progress import Snapshot, Watcher

HOST = "127.0.0.1"


def watch_in_file(
    watcher: Watcher,
    path: Path,
    every: float,
    on_written: Callable[[], Any] = lambda: None,
    wait: Callable[[float], Any] = time.sleep,
) -> Snapshot:
    """Write the page every few seconds until all runs are finished; return the last state.

    `on_written` is called once, when the page is there for the first time. However it ends, the
    page that stays does not load itself again.
    """
    page = LivePage()
    snapshot = watcher.look()
    write_atomic(path, page.render(snapshot, every).encode())
    on_written()
    try:
        while not snapshot.is_finished:
            wait(every)
            snapshot = watcher.look()
            write_atomic(path, page.render(snapshot, every).encode())
    finally:
        write_atomic(path, page.render(snapshot, 0).encode())
    return snapshot


class LiveServer:
    """Serves the page on the loopback interface, under an address that cannot be guessed."""

    def __init__(self, watcher: Watcher, every: float) -> None:
        self.watcher, self.every = watcher, every
        self._page, self._lock = LivePage(), threading.Lock()
        self._snapshot = watcher.look()
        self._rendered: bytes | None = None
        self.has_shown_the_end = False
        self._path = f"/{secrets.token_urlsafe(12)}/"
        self._server = ThreadingHTTPServer((HOST, 0), self._make_handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        """The address to open."""
        return f"http://{HOST}:{self._server.server_port}{self._path}"

    def __enter__(self) -> LiveServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def look(self) -> Snapshot:
        """Read what is new; the next request has it."""
        with self._lock:
            self._snapshot, self._rendered = self.watcher.look(), None
            return self._snapshot

    def wait_until_finished(self, wait: Callable[[float], Any] = time.sleep) -> Snapshot:
        """Look every few seconds until all runs are finished, and a browser had time to see it."""
        snapshot = self._snapshot
        while not snapshot.is_finished:
            wait(self.every)
            snapshot = self.look()
        for _ in range(3):
            if self.has_shown_the_end:
                break
            wait(self.every)
        return snapshot

    def render(self) -> bytes:
        """Return the page as it is now."""
        with self._lock:
            ended = self._snapshot.is_finished
            if self._rendered is None:
                text = self._page.render(self._snapshot, 0 if ended else self.every)
                self._rendered = text.encode()
            self.has_shown_the_end |= ended
            return self._rendered

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        live = self

        class Handler(BaseHTTPRequestHandler):
            """Answers requests for the page, and refuses all others."""

            def do_GET(self) -> None:
                """Send the page."""
                if self._is_allowed():
                    self._answer(HTTPStatus.OK, live.render())

            def do_HEAD(self) -> None:
                """Say that the page is there."""
                if self._is_allowed():
                    self._answer(HTTPStatus.OK, b"")

            def _is_allowed(self) -> bool:
                # A page of another site whose name was made to point here has that name as host.
                port = live._server.server_port
                if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
                    self._answer(HTTPStatus.FORBIDDEN, b"")
                    return False
                asked = self.path.partition("?")[0]
                if not secrets.compare_digest(asked.encode(), live._path.encode()):
                    self._answer(HTTPStatus.NOT_FOUND, b"")
                    return False
                return True

            def _answer(self, status: HTTPStatus, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Print nothing: the terminal has the address."""

        return Handler
