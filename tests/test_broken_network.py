"""The link that tests break."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from broken_network import Link


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=repeat, args=(connection,), daemon=True).start()

        def repeat(connection: socket.socket) -> None:
            with connection:
                while data := connection.recv(1000):
                    connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def connect(link: Link) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(link.address.rpartition(":")[2])), 10)


def passes(connection: socket.socket, seconds: float = 0.3) -> bool:
    """Send a byte, and tell if one comes back within so many seconds."""
    connection.sendall(b"x")
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b"x"
    except TimeoutError:
        return False


def test_what_a_black_hole_kept_arrives_when_it_is_gone(echo: int) -> None:
    with Link("127.0.0.1", echo) as link, connect(link) as connection:
        assert passes(connection, 10)
        link.passing = False
        assert not passes(connection)
        link.passing = True
        connection.settimeout(10)
        assert connection.recv(1) == b"x"


def test_half_open_connections_are_dead_and_new_ones_work(echo: int) -> None:
    with Link("127.0.0.1", echo) as link, connect(link) as old:
        assert passes(old, 10)
        link.forget()
        assert not passes(old)
        with connect(link) as new:
            assert passes(new, 10)


def test_a_delay_is_that_of_every_byte_in_each_direction(echo: int) -> None:
    with Link("127.0.0.1", echo) as link, connect(link) as connection:
        link.delay = 0.2
        assert not passes(connection, 0.3)
        connection.settimeout(10)
        assert connection.recv(1) == b"x"


def test_new_connections_are_cut_off_and_later_ones_work(echo: int) -> None:
    with Link("127.0.0.1", echo) as link:
        link.cutting = True
        with connect(link) as connection:
            connection.sendall(b"x")
            assert connection.recv(1) == b""
        link.cutting = False
        with connect(link) as connection:
            assert passes(connection, 10)
