"""The supervisor's side of its nodes: lets them in, hears them, and notices those that are gone."""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...profiler.errors import MegascopeError
from .wire import Message, Wire, is_proof, proof_of

SILENT_S = 10.0
"""A node that has not said anything for so long is taken for lost: it says something every second.

A node that has not heard anything for as long ends its ranks, so that a host that only seems to be gone cannot write
beside the next attempt.
"""

MOST_STRANGERS = 256
"""Connections that have not shown the token yet; others wait."""


@dataclass(slots=True)
class Node:
    """A host that has joined. ``address``: where its ranks can be reached; ``slots``: ranks that it can take."""

    host: str
    slots: int
    address: str
    wire: Wire
    heard_s: float
    is_lost: bool = False
    said: dict[str, Message] = field(default_factory=dict)

    def tell(self, message: Message) -> None:
        """Send it a message; where that fails the node is found lost the next time."""
        self.wire.send(message)


class Hub:
    """Listens for nodes. `turn` gives what they said since the last time, and who was lost."""

    def __init__(self, listening: socket.socket, token: str, banned: frozenset[str] = frozenset()) -> None:
        self._listening, self._token = listening, token
        self.banned = set(banned)
        self.nodes: dict[str, Node] = {}
        self._new: dict[Wire, tuple[str, float]] = {}
        self._selector = selectors.DefaultSelector()
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ)

    @property
    def port(self) -> int:
        """Where nodes join."""
        return int(self._listening.getsockname()[1])

    def ping(self) -> None:
        """Let all nodes know that they are not alone; any thread may."""
        for node in list(self.nodes.values()):
            node.tell({"do": "ping"})

    def turn(self, patience_s: float) -> Iterator[tuple[Node, Message]]:
        """Wait for news, at most so long; then each message with its node. A lost one says ``{"say": "lost"}`` once."""
        self._selector.select(patience_s)
        with contextlib.suppress(OSError):  # nobody else waits, or there is no descriptor left for now
            while len(self._new) < MOST_STRANGERS:
                self._greet()
        for wire in list(self._new):
            self._admit(wire)
        now = time.monotonic()
        for node in list(self.nodes.values()):
            messages = node.wire.receive()
            if messages:
                node.heard_s = now
            for message in messages:
                yield node, message
            if not node.is_lost and (node.wire.closed or now - node.heard_s > SILENT_S):
                node.is_lost = True
                self._forget(node.wire)
                del self.nodes[node.host]
                yield node, {"say": "lost"}

    def _greet(self) -> None:
        connection, _ = self._listening.accept()
        connection.setblocking(True)
        wire, challenge = Wire(connection), secrets.token_hex(16)
        self._selector.register(connection, selectors.EVENT_READ)
        self._new[wire] = challenge, time.monotonic()
        wire.send({"challenge": challenge})

    def _admit(self, wire: Wire) -> None:
        challenge, since = self._new[wire]
        messages = wire.receive()
        if not messages and not wire.closed and time.monotonic() - since < SILENT_S:
            return
        del self._new[wire]
        hello = messages[0] if messages else {}
        if not is_proof(hello.get("proof"), self._token, "node", challenge):
            wire.send({"refused": "it has another token."})
            self._forget(wire)
            return
        host, slots = hello.get("host"), hello.get("slots")
        if not isinstance(host, str) or not isinstance(slots, int):
            wire.send({"refused": "it does not say its host and how many ranks it can take: is it of this version?"})
            self._forget(wire)
            return
        problem = None
        if host in self.banned:
            problem = f"{host} is fenced: repair it, and remove it from the run's history."
        elif host in self.nodes:
            problem = f"a node {host} is there already: give hosts names of their own (MEGASCOPE_HOST)."
        if problem is not None:
            wire.send({"refused": problem})
            self._forget(wire)
            return
        wire.is_known = True
        wire.send({"proof": proof_of(self._token, "supervisor", str(hello.get("challenge")))})
        address = str(hello.get("address") or wire.socket.getpeername()[0])
        self.nodes[host] = Node(host, slots, address, wire, time.monotonic())

    def _forget(self, wire: Wire) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(wire.socket)
        wire.close()

    def ban(self, host: str) -> None:
        """Never use a host again; its ranks are killed, its agent writes what is left."""
        self.banned.add(host)
        if host in self.nodes:
            self.nodes[host].tell({"do": "fence"})

    def close(self) -> None:
        """Let all nodes go."""
        for wire in [*self._new, *(node.wire for node in self.nodes.values())]:
            self._forget(wire)
        self._selector.close()
        self._listening.close()


def open_listener(address: str, port: int) -> socket.socket:
    """The listening socket. MegascopeError where the address cannot be used."""
    try:
        return socket.create_server((address, port), backlog=1024)
    except OSError as error:
        raise MegascopeError(
            f"Cannot listen on {address}:{port} ({error.strerror}): choose another with --listen."
        ) from error
