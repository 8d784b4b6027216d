"""The open port itself: connections are counted by address from the moment they are accepted.

A connection that never begins with TLS reaches no protocol, so nothing behind it can count or end
it. Here an accepted socket is counted until it is closed, and the loop gives TLS little time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import weakref
from collections import Counter
from typing import Any

# Seconds for TLS. A SuperNode waits for 30 and tries again; it comes to its end if it is cut off
# before that.
HANDSHAKE = 40.0
QUEUED = 2048  # connections that are not accepted yet


class PeerConnections:
    """The numbers of open connections by address, of IPv6 by network of 64 bits."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open: Counter[str] = Counter()

    def enter(self, peer: str) -> bool:
        """Count one more connection, unless its peer has too many."""
        if self.open[peer] >= self.most:
            return False
        self.open[peer] += 1
        return True

    def leave(self, peer: str) -> None:
        """Count one connection less."""
        self.open[peer] -= 1
        if not self.open[peer]:
            del self.open[peer]


class CountedSocket(socket.socket):
    """An accepted connection that is counted until it is closed."""

    leave: weakref.finalize[..., Any]

    def close(self) -> None:
        """Close the connection."""
        super().close()
        self.leave()


class Listener(socket.socket):
    """A listening socket that closes connections of peers that have too many."""

    peers: PeerConnections

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; raise ConnectionAbortedError, as for one that ended by itself."""
        accepted, address = super().accept()
        peer = describe_peer(address[0])
        if not self.peers.enter(peer):
            accepted.close()
            raise ConnectionAbortedError(f"{peer} has {self.peers.most} connections")
        connection = CountedSocket(self.family, self.type, self.proto, accepted.detach())
        connection.leave = weakref.finalize(connection, self.peers.leave, peer)
        return connection, address


class ListenerLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers end connections that do not come to TLS in time."""

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        """Serve with `HANDSHAKE`: uvicorn has no such setting."""
        options = {"ssl_handshake_timeout": HANDSHAKE, **options}
        return await super().create_server(*arguments, **options)


def listen(host: str, port: int, most: int) -> list[socket.socket]:
    """Listen on all addresses of a host; each peer can have so many connections in all."""
    peers = PeerConnections(most)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = Listener(family, kind, protocol)
            listeners.append(listener)
            listener.peers = peers
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # IPv4 peers would all be of one network
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listener.listen(QUEUED)
            listener.setblocking(False)
    except OSError:
        for opened in listeners:
            opened.close()
        raise
    return listeners


def describe_peer(host: str) -> str:
    """Return the address of a peer, of IPv6 its network: a peer has all addresses of one."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return address.exploded[:19] if address.version == 6 else str(address)
