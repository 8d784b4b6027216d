"""The open port: connections by address, counted from the moment they are accepted."""

from __future__ import annotations

import gc
import socket
from typing import Any

import pytest

from udjfl.deployment.listener import PeerConnections, describe_peer, listen
from udjfl.deployment.network import free_port


def test_one_address_cannot_take_all_connections() -> None:
    peers = PeerConnections(2)
    hosts = ["192.0.2.1"] * 3 + ["192.0.2.9"]
    hosts += ["2001:db8::1", "2001:db8::2", "2001:db8::3%eth0", "2001:db8:0:1::3"]
    admitted = [peers.enter(describe_peer(host)) for host in hosts]
    assert admitted == [True, True, False, True, True, True, False, True]
    peers.leave("192.0.2.1")
    assert peers.enter("192.0.2.1")
    for peer in list(peers.open.elements()):
        peers.leave(peer)
    assert not peers.open  # nothing is kept of addresses that are gone


def test_a_connection_counts_until_it_is_closed_or_forgotten() -> None:
    (listener,) = listen("127.0.0.1", free_port(), 2)
    listener.settimeout(10)
    with listener:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(5)]
        first, (host, _) = listener.accept()
        second: list[Any] = [listener.accept()[0]]
        second.append(second)  # a cycle: it is forgotten when garbage is collected
        assert host == "127.0.0.1"
        with pytest.raises(ConnectionAbortedError, match="has 2 connections"):
            listener.accept()
        assert clients[2].recv(1) == b""  # it is closed
        first.close()
        first.close()  # counted once
        third, _ = listener.accept()
        with pytest.raises(ConnectionAbortedError):
            listener.accept()
        del second
        with pytest.warns(ResourceWarning):
            gc.collect()
        clients.append(socket.create_connection(listener.getsockname()))
        fourth, _ = listener.accept()
        for each in (third, fourth, *clients):
            each.close()


def test_all_addresses_of_a_host_are_listened_on() -> None:
    port = free_port()
    listeners = listen("localhost", port, 1)
    families = {own.family for own in listeners}
    known = {found[0] for found in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM)}
    for own in listeners:
        own.close()
    assert families == known


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", other.getsockname()[1], 1)
