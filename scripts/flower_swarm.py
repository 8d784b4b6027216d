"""Many SuperNodes in one process, for tests of load and for benchmarks; never for a real federation.

    python scripts/flower_swarm.py CONNECTION NODES.json [--threads 4] [--pause 1.0]

A real SuperNode starts a process for every message, which imports torch: a hundred of them are too much for one machine. To the
SuperLink these here are no different: each has a key of its own, which is registered, signs every request with it, sends
heartbeats (but fewer), and speaks Flower's protocol over TLS by Flower's own code. The app in apps/flower answers, in here.

NODES.json has the data file of each client, by its id. CONNECTION is the operator's, in the config.toml of FLWR_HOME.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, Error, Message, RecordDict
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.utils import init_http_client_from_connection
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.supercore import heartbeat
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import fleet_http_connection

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "apps" / "flower"))

from udjfl_app.client_app import app

ONLINE = "nodes are online"  # what is printed, after their number, when all of them are
NAP = 0.01  # seconds, when none of a thread's nodes is to ask now
HEARTBEAT = 600  # seconds: at Flower's 30, a SuperLink that gets little of its machine does nothing but take heartbeats
BACKOFF = 0.05  # seconds before a part of a message that is still on its way to the SuperLink is asked for again


class Node:
    """One node: what it has of Flower's connection, and what a SuperNode remembers of a run."""

    def __init__(self, config: dict[str, str], connection: tuple[Any, ...]) -> None:
        self.config, self.asks_at = config, 0.0
        (
            self.id,
            self.receive,
            self.send,
            self.get_run,
            self.get_fab,
            self.pull,
            self.push,
            self.confirm,
        ) = connection
        self._contexts: dict[int, Context] = {}

    def serve(self) -> None:
        """Fetch a message, if there is one, and answer it."""
        received = self.receive()
        if received is None:
            return
        head, tree = received
        run = head.metadata.run_id
        context = self._context(run)
        message = pull_and_inflate_object_from_tree(
            tree,
            functools.partial(self.pull, run),
            functools.partial(self.confirm, run),
            return_type=Message,
            initial_backoff=BACKOFF,
        )
        message.metadata.__dict__["_message_id"] = (
            tree.object_id
        )  # an object does not have its own id in it
        begin = time.perf_counter()
        reply = _answer(message, context)
        self._send(reply, run, time.perf_counter() - begin)

    def _context(self, run: int) -> Context:
        if run not in self._contexts:
            about = self.get_run(run)
            config = get_fused_config_from_fab(self.get_fab(about.fab_hash, run).content, about)
            self._contexts = {
                run: Context(run, self.id, dict(self.config), RecordDict(), config)
            }  # of the last run alone
        return self._contexts[run]

    def _send(self, reply: Message, run: int, seconds: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            missing, session = self.send(reply, get_object_tree(reply), seconds)
            push_objects(
                get_all_nested_objects(reply),
                functools.partial(self.push, run, session),
                object_ids_to_push=missing,
            )


def _answer(message: Message, context: Context) -> Message:
    try:
        return app(message=message, context=context)
    except Exception as error:  # a SuperNode also sends whatever the app raises
        reason = f"{type(error)}:<'{error}'>"
        return Message(
            Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message
        )


def serve(nodes: Sequence[Node], pause: float, stopped: Callable[[], bool]) -> None:
    """Let these nodes ask in turn, each with a pause in between: the SuperLink looks through all messages for everyone."""
    while not stopped():
        due = [node for node in nodes if node.asks_at <= time.monotonic()]
        for node in due:
            if stopped():
                return
            try:
                node.serve()
            except (
                httpx.HTTPStatusError,
                RunNotRunningException,
            ) as error:  # the run has ended meanwhile
                print(f"node {node.id}: {error}", flush=True)
            node.asks_at = time.monotonic() + pause
        if not due:
            time.sleep(NAP)


def play(connection: str, files: dict[str, str], threads: int, pause: float) -> None:
    """Register, activate and serve until SIGTERM."""
    torch.set_num_threads(1)
    for module in (
        heartbeat,
        fleet_http_connection,
    ):  # a node tells the SuperLink how often to expect one
        module.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    link = read_superlink_connection(connection)
    address, authority = str(link.address), str(link.root_certificates)
    # P-256, where SuperNodes otherwise have P-384: the SuperLink checks a signature for every request of a hundred nodes.
    private = {name: ec.generate_private_key(ec.SECP256R1()) for name in files}
    keys = {name: (key, key.public_key()) for name, key in private.items()}
    with contextlib.closing(init_http_client_from_connection(link)) as control:
        for name, (_, public) in keys.items():
            control.RegisterNode(
                RegisterNodeRequest(public_key=public_key_to_bytes(public), name=name)
            )
    with contextlib.ExitStack() as connections:
        nodes = [
            Node(
                {"client-id": name, "data": path},
                connections.enter_context(
                    fleet_http_connection.http_request_response(
                        address, False, authority, keys[name]
                    )
                ),
            )
            for name, path in files.items()
        ]
        print(f"{len(nodes)} {ONLINE}", flush=True)
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            working = [
                pool.submit(serve, nodes[first::threads], pause, stop.is_set)
                for first in range(threads)
            ]
            concurrent.futures.wait(working, return_when=concurrent.futures.FIRST_EXCEPTION)
            stop.set()
        for work in working:
            work.result()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("connection")
    parser.add_argument("nodes", type=Path, metavar="NODES.json")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument(
        "--pause", type=float, default=1.0, help="seconds before a node asks again for work"
    )
    given = parser.parse_args(arguments)
    play(
        given.connection,
        json.loads(given.nodes.read_text(encoding="utf-8")),
        given.threads,
        given.pause,
    )


if __name__ == "__main__":
    main()
