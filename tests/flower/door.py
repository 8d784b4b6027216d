"""A reverse proxy that lets only SuperNodes through, as docs/deploying.md asks for: small, slow, and for tests alone."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from deploying import HOST, Deployment

DROPPED = {"connection", "transfer-encoding", "content-length", "date", "server"}


@contextlib.contextmanager
def fleet_door(deployment: Deployment) -> Iterator[tuple[int, list[str]]]:
    """Forwards what begins with /v1/fleet/ to the SuperLink; the port, and the paths that were turned away."""
    refused: list[str] = []
    trusted = ssl.create_default_context(cafile=deployment.ca)

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if not self.path.startswith("/v1/fleet/"):
                refused.append(self.path)
                self.send_response(403)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            behind = http.client.HTTPSConnection(
                HOST, deployment.port, context=trusted, timeout=300
            )
            with contextlib.closing(behind):
                behind.request("POST", self.path, body, dict(self.headers))
                reply = behind.getresponse()
                answer = reply.read()
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in DROPPED:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing."""

    door = ThreadingHTTPServer((HOST, 0), Door)
    door.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(deployment.keys / "server.crt", deployment.keys / "server.key")
    door.socket = context.wrap_socket(door.socket, server_side=True)
    thread = threading.Thread(target=door.serve_forever)
    thread.start()
    try:
        yield door.server_address[1], refused
    finally:
        door.shutdown()
        thread.join()
        door.server_close()
