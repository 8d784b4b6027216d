"""The proxy: what passes, and what does not. The SuperLink behind it is a recorder."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("flwr")

import httpx
import uvicorn
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from uvicorn.server import ServerState

from udjfl.deployment import keys, listener, proxy
from udjfl.deployment.network import free_port, is_listening

ROUTES = sorted(PROTOBUF_REQUEST_TYPES)  # every (method, path) that Flower serves
PATHS = [path.decode() for path in sorted(proxy.NODE_PATHS)]
HEARTBEAT = "/v1/fleet/send-node-heartbeat"


class Recorder:
    """Answers every request with its own body, and keeps it."""

    def __init__(self, answer: Any = None) -> None:
        self.requests: list[httpx.Request] = []
        self._answer = answer

    async def handle(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.requests.append(request)
        if self._answer is not None:
            raise self._answer
        return httpx.Response(
            418,
            headers={"x-flower": "yes", "connection": "close"},
            content=in_parts(request.content),
        )


async def in_parts(content: bytes) -> AsyncIterator[bytes]:
    for byte in content:
        yield bytes([byte])


def send(
    method: str,
    target: str,
    *,
    content: Any = b"",
    headers: dict[str, str] | None = None,
    superlink: Recorder | None = None,
    max_body: int = 1000,
) -> tuple[httpx.Response, Recorder]:
    """Send one request through the proxy; the target is sent as it is written."""
    superlink = superlink or Recorder()

    async def exchange() -> httpx.Response:
        behind = httpx.AsyncClient(
            transport=httpx.MockTransport(superlink.handle), base_url="https://superlink"
        )
        path, _, query = target.partition("?")
        body = [content] if isinstance(content, bytes) else list(content)
        messages = [
            {"type": "http.request", "body": part, "more_body": index < len(body) - 1}
            for index, part in enumerate(body)
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def reply(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
            "client": ("192.0.2.1", 1),
        }
        async with behind:
            await proxy.FleetProxy(behind, max_body)(scope, receive, reply)
        text = b"".join(message.get("body", b"") for message in sent[1:])
        return httpx.Response(sent[0]["status"], headers=sent[0]["headers"], content=text)

    return asyncio.run(exchange()), superlink


@pytest.mark.parametrize("path", PATHS)
def test_a_nodes_request_passes_as_it_is(path: str) -> None:
    headers = {"flwr-signature": "abc", "connection": "keep-alive", "x-forwarded-for": "10.0.0.1"}
    reply, superlink = send("POST", path, content=[b"ab", b"c"], headers=headers)
    (request,) = superlink.requests
    assert (reply.status_code, reply.content, reply.headers["x-flower"]) == (418, b"abc", "yes")
    assert (request.method, request.url.path, request.content) == ("POST", path, b"abc")
    assert request.headers["flwr-signature"] == "abc"
    assert "x-forwarded-for" not in request.headers
    assert request.headers["host"] == "superlink"


def test_of_flowers_paths_only_those_of_nodes_pass() -> None:
    """All of Flower's own routes are tried; a new one would be refused until it is named here."""
    passed = [path for method, path in ROUTES if send(method, path)[1].requests]
    refused = [path for _, path in ROUTES if path not in passed]
    print(f"{len(passed)} of {len(ROUTES)} paths pass, {len(refused)} are refused")
    assert sorted(passed) == PATHS
    assert len(PATHS) == 10
    assert {"/v1/fleet/register-node", "/v1/fleet/unregister-node"} <= set(refused)
    assert any(path.startswith("/v1/control/") for path in refused)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "CONNECT"])
def test_only_posts_pass(method: str) -> None:
    reply, superlink = send(method, HEARTBEAT)
    assert (reply.status_code, reply.content, superlink.requests) == (404, b"", [])


@pytest.mark.parametrize(
    "target",
    [
        *("/", "/docs", "/openapi.json", "/health", "/v1/fleet/", "/v1/fleet", "*"),
        *("/v1/control/list-runs", "/v1/runtime/acquire-task", "/v1/chat/completions"),
        *("/v1/fleet/../control/list-runs", "/v1/fleet/pull-messages/../../control/list-runs"),
        *("/v1/fleet/%2e%2e/control/list-runs", "/v1/fleet/pull-messages/", "//v1/fleet/get-run"),
        *("/v1/fleet/pull-messages%00", "/V1/FLEET/PULL-MESSAGES", "/v1/fleet/pull-messages?x=1"),
        *(
            "/v1%2ffleet%2fpull-messages",
            "/v1/fleet/pull-messages;a=b",
            "http://x/v1/fleet/get-run",
        ),
    ],
)
def test_everything_else_gets_the_same_empty_answer(target: str) -> None:
    reply, superlink = send("POST", target)
    assert (reply.status_code, reply.content, superlink.requests) == (404, b"", [])


@pytest.mark.parametrize("length", ["1001", "-1", "1e3", "x", "99999999999999999999999"])
def test_a_body_that_is_announced_too_large_is_refused_at_once(length: str) -> None:
    reply, superlink = send("POST", HEARTBEAT, headers={"content-length": length})
    assert (reply.status_code, superlink.requests) == (404, [])


def test_a_body_with_two_lengths_is_refused() -> None:
    headers = {"content-length": "4", "transfer-encoding": "chunked"}
    reply, superlink = send("POST", HEARTBEAT, content=b"abcd", headers=headers)
    assert (reply.status_code, reply.content, superlink.requests) == (404, b"", [])
    assert send("POST", HEARTBEAT, headers={"transfer-encoding": "chunked"})[0].status_code == 418


def test_a_body_that_grows_too_large_is_refused() -> None:
    reply, superlink = send("POST", HEARTBEAT, content=[b"x" * 600, b"x" * 600])
    assert (reply.status_code, superlink.requests) == (404, [])


@pytest.mark.parametrize("path", PATHS)
def test_only_paths_for_models_may_have_large_bodies(path: str) -> None:
    """The SuperLink holds a body in memory before it knows who has sent it."""
    content = [b"x" * proxy.SMALL, b"x"]
    reply, superlink = send("POST", path, content=content, max_body=proxy.MAX_BODY)
    may_be_large = path.rpartition("/")[2].startswith(("pull-", "push-"))
    assert [len(r.content) for r in superlink.requests] == [proxy.SMALL + 1] * may_be_large
    assert reply.status_code == (418 if may_be_large else 404)


def test_a_body_is_awaited_before_the_superlink_is_connected_to() -> None:
    """A request that stops in the middle of a small body takes no connection."""
    superlink = Recorder()
    connections = []

    class Transport(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            connections.append(request)  # before any of its body is read
            return await superlink.handle(request)

    async def exchange() -> None:
        more: asyncio.Queue[Any] = asyncio.Queue()
        more.put_nowait({"type": "http.request", "body": b"a", "more_body": True})
        scope = {
            **{"type": "http", "method": "POST", "raw_path": HEARTBEAT.encode()},
            **{"query_string": b"", "headers": [], "client": ("192.0.2.1", 1)},
        }

        async def reply(message: Any) -> None:
            pass

        async with httpx.AsyncClient(transport=Transport(), base_url="https://s") as client:
            task = asyncio.create_task(proxy.FleetProxy(client)(scope, more.get, reply))
            while not more.empty():
                await asyncio.sleep(0)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not connections
            more.put_nowait({"type": "http.request", "body": b"b", "more_body": False})
            await task

    asyncio.run(exchange())
    assert [request.content for request in superlink.requests] == [b"ab"]


@pytest.mark.parametrize(("rate", "ends"), [(1, False), (1000, True)])
def test_a_body_that_only_drips_is_given_up(
    monkeypatch: pytest.MonkeyPatch, rate: int, ends: bool
) -> None:
    """Of 200 parts, one comes each second; no single silence is long."""
    now = 0.0
    monkeypatch.setattr("udjfl.deployment.proxy.time", Mock(monotonic=lambda: now))
    monkeypatch.setattr(proxy, "SLOWEST", 100)
    parts = 0

    async def receive() -> Any:
        nonlocal now, parts
        now, parts = now + 1, parts + 1
        return {"type": "http.request", "body": b"x" * rate, "more_body": parts < 200}

    async def read() -> int:
        return sum([len(part) async for part in proxy.read_body(receive, proxy.MAX_BODY)])

    if ends:
        assert asyncio.run(read()) == 200 * rate
    else:
        with pytest.raises(TimeoutError):
            asyncio.run(read())
        assert parts == pytest.approx(proxy.SILENCE, abs=2)


class FakeTransport(Mock):
    """A connection from an address; `aborted` tells if it was cut."""

    def __init__(self, host: str = "192.0.2.1", **options: Any) -> None:
        super().__init__(**options)
        self.aborted = asyncio.Event()
        self.abort.side_effect = self.aborted.set
        self.is_closing.side_effect = self.aborted.is_set
        info = {"peername": (host, 1), "sockname": ("192.0.2.2", 2)}
        self.get_extra_info.side_effect = info.get

    def _get_child_mock(self, **options: Any) -> Mock:
        return Mock(**options)


def open_connection(state: ServerState, transport: FakeTransport, app: Any) -> proxy.Connection:
    config = uvicorn.Config(app, http=proxy.Connection, ws="none", lifespan="off", log_config=None)
    connection = proxy.Connection(config, state, {})
    connection.connection_made(transport)
    return connection


def test_every_request_of_a_connection_has_to_come_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "SILENCE", 0.01)
    answered = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.1)  # the SuperLink may take longer than a silence
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        answered.set()

    async def exchange() -> None:
        first = FakeTransport()
        open_connection(ServerState(), first, app)
        await asyncio.wait_for(first.aborted.wait(), 60)
        second = FakeTransport()
        connection = open_connection(ServerState(), second, app)
        connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(answered.wait(), 60)
        assert not second.aborted.is_set()
        connection.data_received(b"GET / HT")
        await asyncio.wait_for(second.aborted.wait(), 60)

    asyncio.run(exchange())


def test_the_port_is_one_that_counts_connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Strangers that are silent before TLS keep out only themselves, and not for long."""
    monkeypatch.setattr(proxy, "MAX_PER_PEER", 3)
    monkeypatch.setattr(listener, "HANDSHAKE", 1.0)
    keys.make_ca(tmp_path)
    keys.make_server_certificate(tmp_path, ["127.0.0.1"])
    port = free_port()
    options = argparse.Namespace(
        **{"listen": f"127.0.0.1:{port}", "superlink": "127.0.0.1:1", "max_body": 10},
        **{"ca": tmp_path / "ca.crt", "certificate": tmp_path / "server.crt"},
        key=tmp_path / "server.key",
    )
    trusted = ssl.create_default_context(cafile=tmp_path / "ca.crt")

    async def request() -> int:
        async with httpx.AsyncClient(verify=trusted, trust_env=False) as client:
            return (await client.get(f"https://127.0.0.1:{port}/")).status_code

    async def exchange() -> None:
        serving = asyncio.create_task(proxy.serve(options))
        while not is_listening("127.0.0.1", port):
            await asyncio.sleep(0.05)
        assert await request() == 404
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        with pytest.raises(httpx.TransportError):
            await request()
        for reader, writer in silent:  # each is closed without a word
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
        while True:
            with contextlib.suppress(httpx.TransportError):
                assert await request() == 404
                break
            await asyncio.sleep(0.05)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    with asyncio.Runner(loop_factory=listener.ListenerLoop) as runner:
        runner.run(asyncio.wait_for(exchange(), 60))


def test_a_superlink_that_does_not_answer_is_a_bad_gateway() -> None:
    """A SuperNode tries again after 502, and gives up after 404."""
    reply, _ = send("POST", HEARTBEAT, superlink=Recorder(httpx.ConnectError("no")))
    assert (reply.status_code, reply.content) == (502, b"")


def test_a_refusal_is_logged_without_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    application = proxy.FleetProxy(httpx.AsyncClient(), 10)
    scope = {"method": "GET\x1b[2J", "raw_path": b"/\x1b]0;title", "client": ("192.0.2.1", 1)}
    application._log_refusal(scope, "not a POST")
    assert "192.0.2.1: not a POST (1 refused so far)" in caplog.text
    assert "\x1b" not in caplog.text


def test_few_large_bodies_of_an_address_are_held_at_once() -> None:
    """Others of that address wait, and those of other addresses do not."""
    at_once, most, done = 0, 0, asyncio.Event()

    async def hold(request: httpx.Request) -> httpx.Response:
        nonlocal at_once, most
        await request.aread()
        at_once += 1
        most = max(most, at_once)
        await done.wait()
        at_once -= 1
        return httpx.Response(200, content=in_parts(b""))

    async def exchange() -> list[int]:
        behind = httpx.AsyncClient(transport=httpx.MockTransport(hold), base_url="https://s")
        forward = proxy.FleetProxy(behind)
        statuses: list[int] = []

        async def push(address: str, size: int) -> None:
            messages = [{"type": "http.request", "body": bytes(size), "more_body": False}]

            async def receive() -> Any:
                return messages.pop()

            async def reply(message: Any) -> None:
                statuses.extend([message["status"]] if "status" in message else [])

            path = b"/v1/fleet/push-object"
            scope = {"type": "http", "method": "POST", "raw_path": path, "query_string": b""}
            await forward({**scope, "headers": [], "client": (address, 1)}, receive, reply)

        large = [push("192.0.2.1", proxy.SMALL) for _ in range(3 * proxy.LARGE_AT_ONCE)]
        tasks = [asyncio.create_task(each) for each in large]
        await asyncio.sleep(0.1)
        assert at_once == proxy.LARGE_AT_ONCE
        others = [push("192.0.2.2", proxy.SMALL), push("192.0.2.1", proxy.SMALL - 1)]
        tasks += [asyncio.create_task(each) for each in others]
        await asyncio.sleep(0.1)
        assert at_once == proxy.LARGE_AT_ONCE + 2
        done.set()
        await asyncio.gather(*tasks)
        assert len(forward._large) == 0
        return statuses

    assert asyncio.run(exchange()) == [200] * (3 * proxy.LARGE_AT_ONCE + 2)
    assert most == proxy.LARGE_AT_ONCE + 2
