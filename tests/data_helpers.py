"""Small federations and other helpers that the tests of data share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch

from udjfl.data import Client, Examples, Federation, Pools

SEEDS = (0, 1, 7)


def list_rows(examples: Examples) -> list[bytes]:
    """Return the features of each example as bytes."""
    return [row.tobytes() for row in examples.x.numpy()]


def row_set(*parts: Examples | None) -> set[bytes]:
    """Return the features of all examples as a set of bytes."""
    return {row for part in parts if part is not None for row in list_rows(part)}


def train_rows(federation: Federation) -> set[bytes]:
    """Return the features of all train parts."""
    return row_set(*(client.train for client in federation.clients))


def held_out_rows(federation: Federation) -> set[bytes]:
    """Return the features of all test parts and the global test set."""
    return row_set(federation.test, *(client.test for client in federation.clients))


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a web server on this machine and yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def small_pools(copies: int = 1, ambiguous: bool = True, test: bool = True) -> Pools:
    """Make 100 clean images and 100 / copies ambiguous ones, each `copies` times.

    Copies have different labels. Features of ambiguous images are 1000 and above.
    """
    clean = Examples(torch.arange(100.0).reshape(100, 1), torch.arange(100) % 4)
    image = torch.arange(100) // copies
    ambiguous_part = Examples(1000.0 + image.float().reshape(100, 1), torch.arange(100) % 4)
    held_out = Examples(torch.tensor([[-1.0], [-2.0]]), torch.tensor([0, 1]))
    return Pools(
        clean=clean,
        ambiguous=ambiguous_part if ambiguous else None,
        test=held_out if test else None,
        class_names=("a", "b", "c", "d"),
        clean_groups=np.arange(100),
        ambiguous_groups=100 + image.numpy() if ambiguous else np.empty(0, dtype=np.int64),
    )


def make_labels(clean: int, ambiguous: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Make labels 0, 1, ..., 0, 1, ... and a mask of the ambiguous examples, which are last."""
    labels = np.arange(clean + ambiguous) % classes
    return labels, np.arange(clean + ambiguous) >= clean


def make_examples(start: float, labels: list[int], features: int = 2) -> Examples:
    """Make one example per label; examples with another `start` have other values."""
    count = len(labels) * features
    offsets = torch.arange(count, dtype=torch.float32).reshape(len(labels), features) / 100
    return Examples(start + offsets, torch.tensor(labels, dtype=torch.int64))


def make_client(
    name: str, start: float, labels: list[int] | None = None, share: float | None = None
) -> Client:
    """Make a client with three train and two test examples."""
    train, test = make_examples(start, labels or [0, 1, 1]), make_examples(start + 50, [0, 1])
    return Client(name, train, test, share)


def make_federation(*clients: Client, test: Examples | None = None, **changes: Any) -> Federation:
    """Make a federation of two classes with other values for some fields."""
    values = {
        "name": "small",
        "clients": clients,
        "test": make_examples(900, [0, 1]) if test is None else test,
        "class_names": ("no", "yes"),
    }
    return Federation(**{**values, **changes})


def grouped_federation(groups: object, **more: Any) -> Federation:
    """Make two clients with this sensitive attribute."""
    clients = {
        "a": ([[1.0], [2.0]], [0, 1], [[3.0]], [0]),
        "b": ([[4.0], [5.0]], [0, 1], [[6.0]], [1]),
    }
    return Federation.from_arrays(clients, test=([[7.0]], [0]), sensitive=groups, **more)
