"""Supervisor and nodes: who is let in, what a connection survives, and how a lost node is noticed."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.profiler.errors import MegascopeError
from megascope.trainer.supervisor import hub as hub_module
from megascope.trainer.supervisor.hub import Hub, open_listener
from megascope.trainer.supervisor.wire import MOST_BYTES, Wire, is_proof, join, proof_of


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(open_listener("127.0.0.1", 0), "secret")
    yield hub
    hub.close()


def joined(hub: Hub, host: str, token: str = "secret", **more: Any) -> Wire:
    """Join while the hub takes its turns."""
    found: list[Wire | BaseException] = []

    def work() -> None:
        try:
            found.append(join(("127.0.0.1", hub.port), token, {"host": host, "slots": 2, **more}))
        except MegascopeError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        list(hub.turn(0.01))
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def test_a_node_with_the_token_is_let_in(hub: Hub) -> None:
    wire = joined(hub, "node-0", address="10.0.0.7")
    node = hub.nodes["node-0"]
    assert (node.slots, node.address) == (2, "10.0.0.7")
    node.tell({"do": "start"})
    wire.wait(5)
    assert {"do": "start"} in wire.receive()
    wire.send({"say": "beat"})
    assert next((one.host, message) for one, message in hub.turn(5)) == ("node-0", {"say": "beat"})
    wire.close()


def test_a_node_without_an_address_is_reached_where_it_came_from(hub: Hub) -> None:
    wire = joined(hub, "node-0")
    assert hub.nodes["node-0"].address == "127.0.0.1"
    wire.close()


def test_another_token_is_refused(hub: Hub) -> None:
    with pytest.raises(MegascopeError, match="refuses this node: it has another token"):
        joined(hub, "node-0", "wrong")
    assert hub.nodes == {}


def test_a_supervisor_without_the_token_is_not_obeyed() -> None:
    listening = open_listener("127.0.0.1", 0)

    def pretend() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b'{"challenge": "x"}\n')
            connection.recv(4096)
            connection.sendall(json.dumps({"proof": proof_of("wrong", "supervisor", "x")}).encode() + b"\n")

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(MegascopeError, match="has another token: set the same MEGASCOPE_TOKEN"):
        join(("127.0.0.1", listening.getsockname()[1]), "secret", {"host": "node-0", "slots": 1})
    thread.join()
    listening.close()


def test_a_fenced_host_and_a_second_one_of_a_name_are_refused(hub: Hub) -> None:
    hub.ban("node-1")
    with pytest.raises(MegascopeError, match="node-1 is fenced: repair it"):
        joined(hub, "node-1")
    first = joined(hub, "node-0")
    with pytest.raises(MegascopeError, match="a node node-0 is there already"):
        joined(hub, "node-0")
    first.close()


def test_a_node_that_is_gone_is_said_to_be_lost_once(hub: Hub) -> None:
    joined(hub, "node-0").close()
    said: list[tuple[str, Any]] = []
    deadline = time.monotonic() + 10
    while not said and time.monotonic() < deadline:
        said = [(node.host, message) for node, message in hub.turn(0.1)]
    assert said == [("node-0", {"say": "lost"})]
    assert list(hub.turn(0.01)) == []
    assert hub.nodes == {}


def test_a_node_that_is_silent_is_lost(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = joined(hub, "node-0")
    monkeypatch.setattr(hub_module, "SILENT_S", 0.0)
    time.sleep(0.01)
    assert [message for _, message in hub.turn(0)] == [{"say": "lost"}]
    wire.close()


def test_where_nobody_listens_a_node_says_so() -> None:
    listening = open_listener("127.0.0.1", 0)
    port = listening.getsockname()[1]
    listening.close()
    with pytest.raises(MegascopeError, match=f"No supervisor answers at 127.0.0.1:{port}"):
        join(("127.0.0.1", port), "secret", {})


def test_an_address_that_is_taken_is_said() -> None:
    with open_listener("127.0.0.1", 0) as first, pytest.raises(MegascopeError, match="choose another with --listen"):
        open_listener("127.0.0.1", first.getsockname()[1])


messages = st.dictionaries(st.text(max_size=5), st.one_of(st.text(), st.integers(), st.none()), max_size=3)


@settings(deadline=None)
@given(st.lists(messages, max_size=5), st.integers(1, 7))
def test_messages_arrive_whole_however_they_are_cut(sent: list[dict[str, Any]], size: int) -> None:
    ours, theirs = socket.socketpair()
    content = b"".join(json.dumps(message).encode() + b"\n" for message in sent)
    wire, received = Wire(ours), []
    for start in range(0, len(content), size):
        theirs.sendall(content[start : start + size])
        received += wire.receive()
    theirs.close()
    received += wire.receive()
    assert received == sent
    assert wire.closed
    wire.close()


@pytest.mark.parametrize("content", [b"[1]\n", b"{half\n", b"\xff\xfe\n", b"x" * (MOST_BYTES + 1)])
def test_what_is_no_message_closes_the_connection(content: bytes) -> None:
    ours, theirs = socket.socketpair()
    wire = Wire(ours)
    thread = threading.Thread(target=lambda: _send_all(theirs, content))
    thread.start()
    deadline = time.monotonic() + 20
    while not wire.closed and time.monotonic() < deadline:
        assert wire.receive() == []
    assert wire.closed
    wire.close()
    thread.join()
    theirs.close()


def _send_all(connection: socket.socket, content: bytes) -> None:
    try:
        connection.sendall(content)
    except OSError:
        return


def test_a_proof_is_of_one_side_and_one_challenge() -> None:
    proof = proof_of("secret", "node", "a")
    assert is_proof(proof, "secret", "node", "a")
    for token, who, challenge in (("other", "node", "a"), ("secret", "supervisor", "a"), ("secret", "node", "b")):
        assert not is_proof(proof, token, who, challenge)
    assert not is_proof(None, "secret", "node", "a")


@pytest.mark.parametrize(
    "line",
    [b'{"proof": "\xc3\xa9"}', b"[" * 4000, b'{"proof": 5}', b"x" * 10_000, b'{"host": [], "proof": null}'],
    ids=["not ascii", "deep", "a number", "long", "no proof"],
)
def test_a_stranger_ends_nothing_but_its_own_connection(hub: Hub, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", hub.port), 5) as stranger:
        for _ in range(3):
            assert list(hub.turn(0.05)) == []
        stranger.sendall(line + b"\n")
        for _ in range(5):
            assert list(hub.turn(0.05)) == []
    assert hub.nodes == {}
    assert not hub._new


def test_strangers_that_say_nothing_do_not_use_up_all_connections(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "MOST_STRANGERS", 4)
    strangers = [socket.create_connection(("127.0.0.1", hub.port), 5) for _ in range(8)]
    for _ in range(3):
        assert list(hub.turn(0.05)) == []
    assert len(hub._new) == 4
    for one in strangers:
        one.close()
