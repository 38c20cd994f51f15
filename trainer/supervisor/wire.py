"""Messages between the supervisor and its nodes: one JSON object a line over TCP, after both have shown the token."""

from __future__ import annotations

import hmac
import json
import secrets
import select
import socket
import threading
from typing import Any

from ...profiler.errors import MegascopeError

MOST_BYTES = 4 * 2**20
"""A longer line is no message of ours."""

MOST_UNKNOWN_BYTES = 4096
"""Nor is one that is longer than this before its sender has shown the token."""

TOKEN_VARIABLE = "MEGASCOPE_TOKEN"
HANDSHAKE_S = 10.0

Message = dict[str, Any]


class UnansweredError(MegascopeError):
    """Nobody listens where the supervisor should be: perhaps not yet."""


class Wire:
    """One connection. `receive` never waits; `send` waits until the kernel has taken the message. Any thread may send.

    ``is_known``: the other side has shown the token; until then little is taken from it.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(HANDSHAKE_S)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.closed = self.is_known = False
        self._sending = threading.Lock()
        self._buffer = b""
        self._early: list[Message] = []

    def send(self, message: Message) -> None:
        """Send a message; a connection that is gone is noted in ``closed``."""
        content = json.dumps(message).encode() + b"\n"
        try:
            with self._sending:
                self.socket.sendall(content)
        except OSError:
            self.closed = True

    def receive(self) -> list[Message]:
        """The messages that have come. What is no message of ours closes the connection."""
        while not self.closed and self._has_news(0):
            try:
                content = self.socket.recv(65536)
            except OSError:
                content = b""
            if not content:
                self.closed = True
            self._buffer += content
            if len(self._buffer) > (MOST_BYTES if self.is_known else MOST_UNKNOWN_BYTES):
                self.closed = True
        *lines, self._buffer = self._buffer.split(b"\n")
        messages, self._early = self._early, []
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                self.closed = True
                break
            messages.append(message)
        return messages

    def wait(self, patience_s: float) -> None:
        """Wait until there is something to receive, at most so long."""
        if not self._early:
            self._has_news(patience_s)

    def _has_news(self, patience_s: float) -> bool:
        """Whether there is something to receive, or the other side is gone. Unlike select, it takes any descriptor."""
        poller = select.poll()
        poller.register(self.socket, select.POLLIN)
        return bool(poller.poll(patience_s * 1e3))

    def await_message(self, patience_s: float = HANDSHAKE_S) -> Message:
        """The next message; those behind it are left for `receive`. MegascopeError where none comes."""
        if not self._early and not self._has_news(patience_s):
            raise MegascopeError("The other side of the connection is silent: check that it is a supervisor.")
        messages = self.receive()
        if not messages:
            raise MegascopeError("The other side of the connection does not speak as a supervisor or node does.")
        first, *self._early = messages
        return first

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        self.socket.close()


def new_token() -> str:
    """A token for a supervisor and nodes of one user on one machine."""
    return secrets.token_hex(16)


def proof_of(token: str, who: str, challenge: str) -> str:
    """What shows that its sender knows the token, for this challenge alone."""
    return hmac.new(token.encode(), f"{who}:{challenge}".encode(), "sha256").hexdigest()


def is_proof(given: object, token: str, who: str, challenge: str) -> bool:
    """Whether a proof is right."""
    if not isinstance(given, str):
        return False
    return hmac.compare_digest(given.encode(errors="replace"), proof_of(token, who, challenge).encode())


def join(address: tuple[str, int], token: str, hello: Message) -> Wire:
    """A node's connection to its supervisor, each having shown the other the token.

    MegascopeError where there is no supervisor, or it has another token.
    """
    where = f"{address[0]}:{address[1]}"
    try:
        wire = Wire(socket.create_connection(address, HANDSHAKE_S))
    except OSError as error:
        raise UnansweredError(
            f"No supervisor answers at {where} ({error}): start `megascope supervise`, or check the address."
        ) from error
    own = secrets.token_hex(16)
    challenge = str(wire.await_message().get("challenge"))
    wire.send({**hello, "proof": proof_of(token, "node", challenge), "challenge": own})
    answer = wire.await_message()
    if answer.get("refused"):
        wire.close()
        raise MegascopeError(f"The supervisor at {where} refuses this node: {answer['refused']}")
    if not is_proof(answer.get("proof"), token, "supervisor", own):
        wire.close()
        raise MegascopeError(f"The supervisor at {where} has another token: set the same {TOKEN_VARIABLE} on both.")
    wire.is_known = True
    return wire
