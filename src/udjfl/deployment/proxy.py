"""The only open port of a deployment: a reverse proxy that forwards what SuperNodes need.

    python -m udjfl.deployment.proxy --listen 0.0.0.0:8443 --superlink 127.0.0.1:8000 \\
        --ca ca.crt --certificate server.crt --key server.key

A SuperLink serves SuperNodes, operators and its own helpers on one port, and only SuperNodes have
to prove who they are. This proxy forwards POST requests to the ten paths of `NODE_PATHS`, over TLS
on both sides. Everything else gets the same empty 404: other paths and methods, queries, bodies
that are too large, and `register-node`, which nodes with keys do not need. It decides by the path
as it was sent, before anything is decoded. The SuperLink checks keys and signatures.

A connection without a whole request after `SILENCE` seconds is closed, and so is one whose body
stops for as long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import resource
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from udjfl._ids import printable

logger = logging.getLogger("udjfl.proxy")
NODE_PATHS = frozenset(
    f"/v1/fleet/{name}".encode()
    for name in (
        *("activate-node", "deactivate-node", "send-node-heartbeat"),
        *("pull-messages", "push-messages", "confirm-message-received"),
        *("pull-object", "push-object", "get-run", "get-fab"),
    )
)
SILENCE = 30.0  # seconds
ANSWER = 300.0  # seconds that the SuperLink has for an answer
KEPT_OPEN = 2.0  # seconds; the SuperLink closes idle connections after 5
MAX_BODY = 1 << 30  # bytes of one request; a model is sent in pieces
MAX_CONNECTIONS = 2000
LONGEST_PATH = 100  # characters of a refused path in the log
# Of one connection (RFC 9110, 7.6.1), or decided here.
NOT_FORWARDED = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade"),
        *(b"transfer-encoding", b"host", b"forwarded", b"x-forwarded-for", b"x-forwarded-proto"),
        *(b"date", b"server", b"expect"),
    )
)
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class FleetProxy:
    """An ASGI application that forwards SuperNodes' requests to a SuperLink."""

    def __init__(self, client: httpx.AsyncClient, max_body: int = MAX_BODY) -> None:
        self._client, self._max_body = client, max_body
        self._refused, self._logged_at = 0, 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        reason = self._refusal(scope)
        if reason is not None:
            self._log_refusal(scope, reason)
            await _answer(send, 404)
            return
        try:
            await self._forward(scope, receive, send)
        except ValueError as error:
            self._log_refusal(scope, str(error))
            await _answer(send, 404)
        except (TimeoutError, ConnectionError) as error:
            logger.warning("A node's request stopped in the middle: %s", type(error).__name__)
            await _answer(send, 503)  # over a slow line, a SuperNode tries again
        except httpx.HTTPError as error:
            logger.warning("The SuperLink does not answer: %s", type(error).__name__)
            await _answer(send, 502)  # a SuperNode tries again

    def _refusal(self, scope: Scope) -> str | None:
        if scope["method"] != "POST":
            return "not a POST"
        if scope["raw_path"] not in NODE_PATHS or scope["query_string"]:
            return "not a path of nodes"
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        if not all(value.isdigit() and int(value) <= self._max_body for value in lengths):
            return f"a body above {self._max_body} bytes"
        return None

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._client.build_request(
            "POST",
            scope["raw_path"].decode("ascii"),
            headers=_forwarded(scope["headers"]),
            content=self._read_body(receive),
        )
        reply = await self._client.send(request, stream=True)
        started = False
        try:
            headers = _forwarded(reply.headers.raw)
            await send(
                {"type": "http.response.start", "status": reply.status_code, "headers": headers}
            )
            started = True
            async for part in reply.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except httpx.HTTPError:
            if not started:
                raise
            # Too late for another status: uvicorn closes the connection, the node tries again.
            logger.warning("The SuperLink stopped in the middle of an answer")
        finally:
            await reply.aclose()

    async def _read_body(self, receive: Receive) -> AsyncIterator[bytes]:
        size = 0
        while True:
            message = await asyncio.wait_for(receive(), SILENCE)
            if message["type"] == "http.disconnect":
                raise ConnectionError("the node hung up")
            body = message.get("body", b"")
            size += len(body)
            if size > self._max_body:
                raise ValueError(f"a body above {self._max_body} bytes")
            if body:
                yield body
            if not message.get("more_body", False):
                return

    def _log_refusal(self, scope: Scope, reason: str) -> None:
        """Log at most one line a second: strangers must not fill the disk."""
        self._refused += 1
        now = time.monotonic()
        if now - self._logged_at < 1:
            return
        self._logged_at = now
        path = printable(scope["raw_path"][:LONGEST_PATH].decode("latin-1"))
        peer = (scope.get("client") or ("?",))[0]
        logger.warning(
            "Refused %s %s from %s: %s (%d refused so far)",
            *(printable(scope["method"]), path, peer, reason, self._refused),
        )


class Connection(H11Protocol):
    """A connection that is closed unless its first request comes soon."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for the request."""
        super().connection_made(transport)
        self.loop.call_later(SILENCE, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


def _forwarded(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in NOT_FORWARDED]


async def _answer(send: Send, status: int) -> None:
    # The connection may be gone, or an answer begun.
    with contextlib.suppress(RuntimeError):
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    trusted = ssl.create_default_context(cafile=options.ca)
    limits = httpx.Limits(
        max_connections=100, max_keepalive_connections=20, keepalive_expiry=KEPT_OPEN
    )
    host, _, port = options.listen.rpartition(":")
    async with httpx.AsyncClient(
        base_url=f"https://{options.superlink}",
        verify=trusted,
        timeout=ANSWER,
        limits=limits,
        trust_env=False,
    ) as client:
        config = uvicorn.Config(
            FleetProxy(client, options.max_body),
            host=host.strip("[]"),
            port=int(port),
            http=Connection,
            ws="none",
            lifespan="off",
            ssl_certfile=options.certificate,
            ssl_keyfile=options.key,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=5,
            access_log=False,
            server_header=False,
            date_header=False,
            log_config=None,
        )
        config.load()
        assert config.ssl is not None, "there are a certificate and a key"
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
        await uvicorn.Server(config).serve()


def main(arguments: list[str] | None = None) -> None:
    """Run the proxy."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT")
    for name in ("ca", "certificate", "key"):
        parser.add_argument(f"--{name}", required=True, type=Path, metavar="FILE")
    parser.add_argument("--max-body", type=int, default=MAX_BODY, metavar="BYTES")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # A connection is a file: the usual limit of 1024 is below MAX_CONNECTIONS.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS * 2
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    asyncio.run(serve(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
