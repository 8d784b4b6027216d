"""A reverse proxy that forwards SuperNodes' requests only, as docs/deploying.md asks for.

Small, slow, and for tests.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from deploy.local import Deployment

from udjfl.deployment.network import HOST

DROPPED = {"connection", "transfer-encoding", "content-length", "date", "server"}


@contextlib.contextmanager
def run_fleet_proxy(deployment: Deployment) -> Iterator[tuple[int, list[str]]]:
    """Forward /v1/fleet/ to the SuperLink; yield the port and the list of refused paths."""
    refused: list[str] = []
    trusted = ssl.create_default_context(cafile=deployment.ca)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if not self.path.startswith("/v1/fleet/"):
                refused.append(self.path)
                self.send_response(403)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            superlink = http.client.HTTPSConnection(
                HOST, deployment.port, context=trusted, timeout=300
            )
            with contextlib.closing(superlink):
                superlink.request("POST", self.path, body, dict(self.headers))
                reply = superlink.getresponse()
                content = reply.read()
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in DROPPED:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing."""

    proxy = ThreadingHTTPServer((HOST, 0), Handler)
    proxy.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(deployment.keys / "server.crt", deployment.keys / "server.key")
    proxy.socket = context.wrap_socket(proxy.socket, server_side=True)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield proxy.server_address[1], refused
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
