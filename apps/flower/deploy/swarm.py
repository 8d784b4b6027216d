"""Many SuperNodes in one process, for load tests and benchmarks; never for a real federation.

    python apps/flower/deploy/swarm.py CONNECTION NODES.json [--threads 4] [--pause 1.0]

A real SuperNode starts a process for every message, which imports torch: a hundred of them are too
many for one machine. To the SuperLink the nodes of a swarm look the same: each has a registered key
of its own, signs every request with it, sends heartbeats (less often), and uses Flower's own code
for the protocol over TLS. The app in apps/flower answers in this process.

NODES.json maps client ids to data files. CONNECTION is named in the config.toml of FLWR_HOME.
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
from collections.abc import Callable, Mapping, Sequence
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from udjfl_app.client_app import app

ONLINE = "nodes are online"  # printed, after their number, when all of them are
IDLE_SLEEP = 0.01  # seconds, while no node of a thread is due
HEARTBEAT = 600  # seconds; at Flower's 30, heartbeats alone can keep a SuperLink busy
BACKOFF = 0.05  # seconds before a missing part of a message is requested again


class Node:
    """One node: its connection to the SuperLink and the context of the current run."""

    def __init__(self, config: dict[str, str], connection: tuple[Any, ...]) -> None:
        self.config, self.due_at = config, 0.0
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
        """Fetch a message, if there is one, and reply to it."""
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
        # The serialised message does not contain its own id.
        message.metadata.__dict__["_message_id"] = tree.object_id
        start = time.perf_counter()
        reply = _reply(message, context)
        self._send(reply, run, time.perf_counter() - start)

    def _context(self, run: int) -> Context:
        if run not in self._contexts:
            run_info = self.get_run(run)
            fab = self.get_fab(run_info.fab_hash, run).content
            config = get_fused_config_from_fab(fab, run_info)
            context = Context(run, self.id, dict(self.config), RecordDict(), config)
            self._contexts = {run: context}  # of the latest run only
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


def _reply(message: Message, context: Context) -> Message:
    try:
        return app(message=message, context=context)
    except Exception as error:  # a SuperNode also sends the error of its app
        reason = f"{type(error)}:<'{error}'>"
        return Message(
            Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message
        )


def serve(nodes: Sequence[Node], pause: float, stopped: Callable[[], bool]) -> None:
    """Serve messages for these nodes in turn until `stopped` returns True.

    Each node pauses between its requests: the SuperLink searches all messages at every request.
    """
    while not stopped():
        due = [node for node in nodes if node.due_at <= time.monotonic()]
        for node in due:
            if stopped():
                return
            try:
                node.serve()
            except (httpx.HTTPStatusError, RunNotRunningException) as error:  # the run has ended
                print(f"node {node.id}: {error}", flush=True)
            node.due_at = time.monotonic() + pause
        if not due:
            time.sleep(IDLE_SLEEP)


def _register(link: Any, keys: Mapping[str, ec.EllipticCurvePublicKey]) -> None:
    with contextlib.closing(init_http_client_from_connection(link)) as control:
        for name, key in keys.items():
            control.RegisterNode(
                RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name)
            )


def run_swarm(connection: str, files: dict[str, str], threads: int, pause: float) -> None:
    """Register and activate the nodes; serve messages until SIGTERM."""
    torch.set_num_threads(1)
    replaced: tuple[Any, ...] = (heartbeat, fleet_http_connection)
    for module in replaced:  # a node announces its interval
        module.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    link = read_superlink_connection(connection)
    address, authority = str(link.address), str(link.root_certificates)
    # P-256 where SuperNodes usually have P-384: the SuperLink verifies a signature per request.
    private = {name: ec.generate_private_key(ec.SECP256R1()) for name in files}
    keys = {name: (key, key.public_key()) for name, key in private.items()}
    _register(link, {name: public for name, (_, public) in keys.items()})
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
        "--pause", type=float, default=1.0, help="seconds between a node's requests for work"
    )
    options = parser.parse_args(arguments)
    files = json.loads(options.nodes.read_text(encoding="utf-8"))
    run_swarm(options.connection, files, options.threads, options.pause)


if __name__ == "__main__":
    main()
