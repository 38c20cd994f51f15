"""Messages between hosts at the start of a job that bound the offset of their clocks, off the training's threads."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import opening
from .host import host_name
from .identity import Identity, rendezvous_store
from .recorder import Recorder

log = logging.getLogger(__name__)

Clock = Callable[[], int]
"""The moment now on a host's clock, ns."""

ROUND_TRIPS = 48
PAUSE_S = 0.02
"""Between round trips, so that they do not all meet the same load."""

REPLY_TIMEOUT_S = 0.2
PATIENCE_S = 120.0
"""So long the reference host answers, and the others look for its address, from `start_exchange` on."""

_TOKEN_BYTES = 16
_ASK = struct.Struct(f"<{_TOKEN_BYTES}sq")
_REPLY = struct.Struct(f"<{_TOKEN_BYTES}sqqq")


@dataclass(frozen=True, slots=True)
class Exchange:
    """What has to be added to this host's times, at one of its moments, and how far that may be wrong (all ns).

    The true offset lies within the uncertainty whatever the delays of the two ways are.
    """

    reference: str
    moment_ns: int
    offset_ns: int
    uncertainty_ns: int
    round_trips: int


def open_server() -> socket.socket:
    """A UDP socket on a free port of all addresses, IPv6 and IPv4 where the host has both. Raises OSError."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            both = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            both.bind(("::", 0))
            return both
    only = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    only.bind(("", 0))
    return only


def answer(
    server: socket.socket, token: bytes, clock: Clock, until: float, on_first: Callable[[], None] = lambda: None
) -> int:
    """Answer who knows the token, until a monotonic moment (s); the number of answers. Others get nothing."""
    answers = 0
    while (left := until - time.monotonic()) > 0:
        try:
            server.settimeout(left)
            message, sender = server.recvfrom(_ASK.size + 1)
            received_ns = clock()
            if len(message) == _ASK.size and secrets.compare_digest(message[:_TOKEN_BYTES], token):
                server.sendto(_REPLY.pack(token, _ASK.unpack(message)[1], received_ns, clock()), sender)
                answers += 1
                if answers == 1:
                    on_first()
        except TimeoutError:
            break
        except OSError as error:  # an answer that could not be delivered, or a server that was closed
            log.debug("No answer was given about the clock: %s", error)
            if server.fileno() < 0:
                break
    return answers


def ask(
    addresses: Sequence[str], port: int, token: bytes, clock: Clock, reference: str, round_trips: int = ROUND_TRIPS
) -> Exchange | None:
    """Measure this host's offset from the one that answers at the first of the addresses that does; None: nobody.

    Each round trip bounds the offset: it is the middle of the two ways' differences, give or take half of the time that
    was spent on the way (RFC 5905, section 8). The quickest round trip is taken: waiting only ever adds.
    """
    for family, place in _places(addresses, port):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as client:
            client.settimeout(REPLY_TIMEOUT_S)
            client.connect(place)
            found = _best_of(client, token, clock, reference, round_trips)
            if found is not None:
                return found
    return None


def _places(addresses: Sequence[str], port: int) -> list[tuple[socket.AddressFamily, Any]]:
    found: list[tuple[socket.AddressFamily, Any]] = []
    for address in addresses:
        with contextlib.suppress(OSError):
            for family, _, _, _, place in socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM):
                if (family, place) not in found:
                    found.append((family, place))
    return found


def _best_of(client: socket.socket, token: bytes, clock: Clock, reference: str, round_trips: int) -> Exchange | None:
    best: tuple[int, int, int] | None = None
    count = failures = 0
    while count + failures < round_trips and (count or failures < 5):
        trip = _round_trip(client, token, clock)
        if trip is None:
            failures += 1
            continue
        count += 1
        best = trip if best is None or trip < best else best
        time.sleep(PAUSE_S)
    if best is None:
        return None
    spent_ns, offset_ns, moment_ns = best
    return Exchange(reference, moment_ns, offset_ns, spent_ns // 2 + 1, count)


def _round_trip(client: socket.socket, token: bytes, clock: Clock) -> tuple[int, int, int] | None:
    """Time on the way, offset, and the moment of it; None without an answer."""
    sent_ns = clock()
    try:
        client.send(_ASK.pack(token, sent_ns))
        while True:
            message = client.recv(_REPLY.size + 1)
            back_ns = clock()
            if len(message) == _REPLY.size and message[:_TOKEN_BYTES] == token:
                _, asked_ns, received_ns, answered_ns = _REPLY.unpack(message)
                if asked_ns == sent_ns:
                    break
    except OSError:
        return None
    spent_ns = (back_ns - sent_ns) - (answered_ns - received_ns)
    offset_ns = ((received_ns - sent_ns) + (answered_ns - back_ns)) // 2
    return spent_ns, offset_ns, (sent_ns + back_ns) // 2


@dataclass(frozen=True, slots=True)
class Party:
    """One process in the exchange. ``job`` is the same for all; ``clock`` is that of the files that ``host`` writes."""

    job: str
    rank: int
    host: str
    clock: Clock


def start_exchange(
    party: Party, find_store: Callable[[], Any], done: Callable[[Exchange], None], patience_s: float = PATIENCE_S
) -> threading.Thread:
    """Take part in the exchange on a thread of its own: rank 0 answers, the others ask. It never holds up training.

    Rank 0 names its host; the first process of each other host says that it wants to ask; only then does rank 0 listen.
    So nobody listens on a job of one host.

    ``find_store`` gives the job's rendezvous store (``set``, ``get``, ``add``, ``check``), None while there is none;
    its calls here never wait. ``done`` gets the result: of rank 0, once somebody asked, that it is the reference. Where
    nothing comes of it, nothing happens: hosts are aligned by the ends of what they do together all the same.
    """
    thread = threading.Thread(
        target=_take_part, args=(party, find_store, done, time.monotonic() + patience_s), name="megascope-clock",
        daemon=True,
    )  # fmt: skip
    thread.start()
    return thread


def join_exchange(recorder: Recorder, who: Identity) -> None:
    """Take part for a rank's host: rank 0, and local rank 0 of every other host; nothing on a job of one host.

    Where the launcher does not say how many ranks a host has (srun, mpirun), all take part: see `start_exchange`.
    """
    if who.world_size <= 1 or recorder.spool is None:
        return
    if "LOCAL_WORLD_SIZE" in os.environ and (who.world_size <= who.local_world_size or who.local_rank != 0):
        return
    try:
        base_ns = opening.clock_base_ns(opening.attempt_folder(recorder.spool, who.run, who.attempt))
    except OSError as error:
        log.debug("No exchange about clocks: %s", error)
        return

    def write(found: Exchange) -> None:
        recorder.clock(found.reference, found.moment_ns - base_ns, found.offset_ns, found.uncertainty_ns)

    party = Party(f"{who.run}/{who.attempt}", who.rank, host_name(), lambda: base_ns + time.monotonic_ns())
    start_exchange(party, rendezvous_store, write)


def _take_part(party: Party, find_store: Callable[[], Any], done: Callable[[Exchange], None], until: float) -> None:
    key = f"megascope/clock/{party.job}"
    try:
        store = _patiently(find_store, until)
        if store is None:
            return
        if party.rank == 0:
            store.set(f"{key}/host", party.host)
            if not _patiently(lambda: store.check([f"{key}/asked"]), until):
                return
            with open_server() as server:
                token = secrets.token_bytes(_TOKEN_BYTES)
                store.set(key, json.dumps([party.host, _own_addresses(), server.getsockname()[1], token.hex()]))
                reference = Exchange(party.host, party.clock(), 0, 0, 0)
                answer(server, token, party.clock, until, lambda: done(reference))
            return
        if not _patiently(lambda: store.check([f"{key}/host"]), until):
            return
        if store.get(f"{key}/host").decode() == party.host or store.add(f"{key}/of/{party.host}", 1) > 1:
            return
        store.set(f"{key}/asked", "1")
        if not _patiently(lambda: store.check([key]), until):
            return
        host, addresses, port, token_hex = json.loads(store.get(key))
        found = ask(addresses, int(port), bytes.fromhex(token_hex), party.clock, host)
        if found is not None:
            done(found)
    except (OSError, RuntimeError, ValueError, TypeError) as error:  # a store that went away is no news here
        log.debug("No exchange about clocks: %s", error)


def _patiently(look: Callable[[], Any], until: float) -> Any:
    """What a look gives once it gives anything; None when time is up."""
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(0.25)
    return None


def _own_addresses() -> list[str]:
    """Where others may reach this host, the likeliest first: as the launcher named it, then by its own name."""
    names = [os.environ.get("MASTER_ADDR", ""), socket.gethostname(), socket.getfqdn()]
    return list(dict.fromkeys(name for name in names if name))
