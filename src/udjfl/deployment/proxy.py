"""The only open port of a deployment: a reverse proxy that forwards what SuperNodes need.

    python -m udjfl.deployment.proxy --listen 0.0.0.0:8443 --superlink 127.0.0.1:8000 \\
        --ca ca.crt --certificate server.crt --key server.key

A SuperLink serves SuperNodes, operators and its own helpers on one port, and only SuperNodes have
to prove who they are. This proxy forwards POST requests to the ten paths of `NODE_PATHS`, over TLS
on both sides. Everything else gets the same empty 404: other paths and methods, queries, bodies
that are too large, and `register-node`, which nodes with keys do not need. It decides by the path
as it was sent, before anything is decoded. The SuperLink checks keys and signatures.

Slow strangers must not keep nodes out:

- a connection is closed if it has not come to TLS after `HANDSHAKE` seconds (`listener`), if its
  first request has not begun `SILENCE` seconds later, or if the head of any request, once begun,
  takes longer than that;
- a body has to come at `SLOWEST` bytes a second on average, with `SILENCE` seconds in advance, and
  the SuperLink is connected to only when it is there, or its first `SMALL` bytes are;
- one address has at most `MAX_PER_PEER` connections (of IPv6, one network of 64 bits), counted from
  the moment they are accepted (`listener`).

A SuperLink holds a body in memory before it checks the signature. Only the paths in `LARGE_PATHS`
may have one of up to `MAX_BODY` bytes, all others one of `SMALL` bytes; and of the larger ones,
`LARGE_AT_ONCE` from one address at a time: others wait, unread.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import httpx
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from udjfl._ids import printable
from udjfl.deployment.listener import ListenerLoop, describe_peer, listen
from udjfl.deployment.log_limit import OneASecond
from udjfl.deployment.network import parse_address
from udjfl.errors import DeploymentError

logger = logging.getLogger("udjfl.proxy")
NODE_PATHS = frozenset(
    f"/v1/fleet/{name}".encode()
    for name in (
        *("activate-node", "deactivate-node", "send-node-heartbeat"),
        *("pull-messages", "push-messages", "confirm-message-received"),
        *("pull-object", "push-object", "get-run", "get-fab"),
    )
)
# With messages, objects or lists of them: Flower cuts arrays into objects of 5 MiB.
LARGE_PATHS = frozenset(
    f"/v1/fleet/{name}".encode()
    for name in ("pull-messages", "push-messages", "pull-object", "push-object")
)
SILENCE = 30.0  # seconds
SLOWEST = 16 << 10  # bytes a second
ANSWER = 300.0  # seconds that the SuperLink has for an answer
KEPT_OPEN = 2.0  # seconds; the SuperLink closes idle connections after 5
MAX_BODY = 64 << 20  # bytes of one request; a model is sent in pieces
SMALL = 64 << 10  # bytes
LARGE_AT_ONCE = 8  # bodies above `SMALL` from one address; a SuperNode sends about as many
MAX_CONNECTIONS = 2000
MAX_PER_PEER = 200  # a SuperNode uses about ten; several may share an address
KEEP_ALIVE = 75  # seconds that a connection may stay open between two requests
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
        self._refused = 0
        # A semaphore is there as long as a request of its address uses it.
        self._large: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

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
        most = self._most_bytes(scope)
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        if lengths and any(name == b"transfer-encoding" for name, _ in scope["headers"]):
            return "a body with two lengths"  # of which each of two servers may believe another
        # A number of many digits is not even read.
        if not all(v.isdigit() and len(v) < 20 and int(v) <= most for v in lengths):
            return f"a body above {most} bytes"
        return None

    def _most_bytes(self, scope: Scope) -> int:
        return self._max_body if scope["raw_path"] in LARGE_PATHS else min(SMALL, self._max_body)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = read_body(receive, self._most_bytes(scope))
        first = bytearray()
        async for part in parts:
            first += part
            if len(first) >= SMALL:
                break
        request = self._client.build_request(
            "POST",
            scope["raw_path"].decode("ascii"),
            headers=_forwarded(scope["headers"]),
            content=_chain(bytes(first), parts),
        )
        turn = self._large_turn(scope) if len(first) >= SMALL else contextlib.nullcontext()
        async with turn:
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

    @contextlib.asynccontextmanager
    async def _large_turn(self, scope: Scope) -> AsyncIterator[None]:
        """Wait until few large bodies of the same address are being forwarded."""
        client = scope.get("client")  # None if it is gone already
        peer = "" if client is None else describe_peer(client[0])
        turns = self._large.get(peer)
        if turns is None:
            turns = self._large[peer] = asyncio.Semaphore(LARGE_AT_ONCE)
        await asyncio.wait_for(turns.acquire(), SILENCE)
        try:
            yield
        finally:
            turns.release()

    def _log_refusal(self, scope: Scope, reason: str) -> None:
        self._refused += 1
        path = printable(scope["raw_path"][:LONGEST_PATH].decode("latin-1"))
        peer = (scope.get("client") or ("?",))[0]
        logger.warning(
            "Refused %s %s from %s: %s (%d refused so far)",
            *(printable(scope["method"]), path, peer, reason, self._refused),
        )


class Connection(H11Protocol):
    """A connection that is closed when a request does not come whole in time."""

    _silence: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._watch_silence()

    def data_received(self, data: bytes) -> None:
        """Give every request that has begun a time to become whole, and not each piece of it."""
        super().data_received(data)
        self._watch_silence()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._stop_watching()

    def _watch_silence(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_watching()  # there is a request, whose body has a time of its own
        elif self._silence is None and not self.transport.is_closing():
            self._silence = self.loop.call_later(SILENCE, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None


async def read_body(receive: Receive, most: int) -> AsyncIterator[bytes]:
    """Yield the parts of a body; raise ValueError if it is too large, TimeoutError if too slow."""
    size, begin = 0, time.monotonic()
    while True:
        left = SILENCE + size / SLOWEST - (time.monotonic() - begin)
        message = await asyncio.wait_for(receive(), min(left, SILENCE))
        if message["type"] == "http.disconnect":
            raise ConnectionError("the node hung up")
        body = message.get("body", b"")
        size += len(body)
        if size > most:
            raise ValueError(f"a body above {most} bytes")
        if body:
            yield body
        if not message.get("more_body", False):
            return


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for part in rest:
        yield part


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
    listeners = listen(*parse_address(options.listen, "listen"), MAX_PER_PEER)
    with contextlib.ExitStack() as opened:
        for listener in listeners:
            opened.enter_context(listener)
        await _serve_on(listeners, options)


async def _serve_on(listeners: list[socket.socket], options: argparse.Namespace) -> None:
    trusted = ssl.create_default_context(cafile=options.ca)
    limits = httpx.Limits(
        max_connections=MAX_CONNECTIONS, max_keepalive_connections=20, keepalive_expiry=KEPT_OPEN
    )
    async with httpx.AsyncClient(
        base_url=f"https://{options.superlink}",
        verify=trusted,
        timeout=ANSWER,
        limits=limits,
        trust_env=False,
    ) as client:
        config = uvicorn.Config(
            FleetProxy(client, options.max_body),
            http=Connection,
            ws="none",
            lifespan="off",
            ssl_certfile=options.certificate,
            ssl_keyfile=options.key,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=5,
            access_log=False,
            server_header=False,
            date_header=False,
            log_config=None,
        )
        config.load()
        assert config.ssl is not None, "there are a certificate and a key"
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
        await uvicorn.Server(config).serve(listeners)


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
    for handler in logging.getLogger().handlers:  # all loggers, uvicorn's as well
        handler.addFilter(OneASecond())
    # A connection is a file: the usual limit of 1024 is below MAX_CONNECTIONS.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS * 2
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    options = parser.parse_args(arguments)
    try:
        with asyncio.Runner(loop_factory=ListenerLoop) as runner:
            runner.run(serve(options))
    except (OSError, DeploymentError) as error:
        parser.exit(1, f"cannot listen on {options.listen}: {error}\n")


if __name__ == "__main__":
    main()
