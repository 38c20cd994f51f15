"""The agent of one host in a supervised job: starts its ranks, watches them, and does what the supervisor says.

It is one process without threads that has imported all that ranks need: a restart, or a spare that steps in, is a fork.
Ranks and the host's collector die with it, and it ends them when the supervisor is gone.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...profiler.agent_process import HostAgent
from ...profiler.errors import MegascopeError
from ...profiler.exits import notes_on
from ...profiler.host import host_name
from ...profiler.opening import default_spool
from ..children import Children
from ..launch import preload
from .checks import Check
from .hub import SILENT_S
from .ranks import Start, hold_rendezvous, remove_control, run_rank, tail_of, write_control
from .wire import Message, UnansweredError, Wire, join

log = logging.getLogger(__name__)

BEAT_S = 1.0
GRACE_S = 5.0
TURN_S = 0.1
AGAIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Where the supervisor is, and what this host offers. ``address``: where other hosts reach its ranks.

    ``wait_s``: how long to try until the supervisor answers.
    """

    supervisor: tuple[str, int]
    token: str
    slots: int
    address: str | None = None
    wait_s: float = 0.0


class NodeAgent:
    """The loop of a host's agent."""

    def __init__(self, settings: NodeSettings) -> None:
        preload()
        self._host, self._address = host_name(), settings.address
        self._ranks, self._rendezvous = Children(), Children()
        self._start: Start | None = None
        self._kill_at: float | None = None
        self._collector: HostAgent | None = None
        self._check: Check | None = None
        self._beat_at, self._heard_s = 0.0, time.monotonic()
        self._is_done = self._is_dismissed = False
        hello = {"host": self._host, "slots": settings.slots, "pid": os.getpid(), "address": settings.address}
        self._wire = _join_patiently(settings, hello)
        self._orders: dict[str, Callable[[Message], None]] = {
            "start": self._begin,
            "stop": lambda _: self._stop(),
            "kill": lambda _: self._kill(),
            "fence": lambda _: self._kill(),
            "port": self._give_port,
            "save-and-stop": self._save_and_stop,
            "check": self._begin_check,
            "ping": lambda _: None,
            "end": lambda _: self._end(),
        }

    def run(self) -> int:
        """Work until the supervisor says that it is over (0), or is gone (1)."""
        try:
            while not self._is_done:
                self.turn()
        finally:
            self._ranks.end()
            self._rendezvous.end()
            if self._check is not None:
                self._check.close()
            if self._start is not None:
                remove_control(self._start.control)
            if self._collector is not None and not self._collector.end():
                self._collector.leave()
            self._wire.close()
        return 0 if self._is_dismissed else 1

    def turn(self) -> None:
        """One round: do what was said, and tell what happened."""
        self._wire.wait(TURN_S)
        messages = self._wire.receive()
        self._heard_s = time.monotonic() if messages else self._heard_s
        for message in messages:
            self._orders.get(str(message.get("do")), self._ignore)(message)
        if self._wire.closed or time.monotonic() - self._heard_s > SILENT_S:
            log.warning("The supervisor is gone: the ranks of %s are ended.", self._host)
            self._is_done = True
            return
        self._tell_ends()
        self._tell_check()
        if self._collector is not None:
            self._collector.ensure()
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + BEAT_S
            self._wire.send({"say": "beat", "running": len(self._ranks)})

    @staticmethod
    def _ignore(message: Message) -> None:
        log.warning("The supervisor asks for %r, which this version does not know.", message.get("do"))

    # -- ranks --------------------------------------------------------------------------------------------------

    def _begin(self, message: Message) -> None:
        if len(self._ranks):
            self._wire.send({"say": "refused", "attempt": message["attempt"], "why": "ranks still run"})
            return
        start = self._start = Start.of(message)
        self._kill_at = None
        self._ranks.note_in(notes_on(default_spool(start.store), start.run, start.attempt))
        remove_control(start.control)
        if self._collector is None:
            self._collector = HostAgent(default_spool(start.store), start.store)
            self._collector.start()
        for local in range(start.local_ranks):
            self._ranks.fork(start.first_rank + local, lambda local=local: self._rank(start, local))  # type: ignore[misc]
        self._wire.send(
            {
                "say": "started",
                "attempt": start.attempt,
                "pids": {str(rank): pid for rank, pid in self._ranks.pids.items()},
            }
        )

    def _rank(self, start: Start, local: int) -> int:
        self._wire.socket.close()
        return run_rank(start, local)

    def _tell_ends(self) -> None:
        if self._start is None:
            return
        ended = self._ranks.reap()
        if ended:
            codes = {str(rank): code for rank, code in ended}
            said = tail_of(self._start.log) if any(code for _, code in ended) else ""
            message = {"say": "ended", "attempt": self._start.attempt, "codes": codes, "left": len(self._ranks)}
            self._wire.send({**message, "said": said})
        if self._kill_at is not None:
            if not len(self._ranks):
                self._kill_at = None
                remove_control(self._start.control)
                self._wire.send({"say": "stopped", "attempt": self._start.attempt})
            elif time.monotonic() >= self._kill_at:
                self._ranks.send(signal.SIGKILL)

    def _stop(self) -> None:
        self._ranks.send(signal.SIGTERM)
        self._kill_at = time.monotonic() + GRACE_S

    def _kill(self) -> None:
        self._ranks.send(signal.SIGKILL)
        self._kill_at = time.monotonic()

    def _save_and_stop(self, message: Message) -> None:
        if self._start is not None:
            write_control(self._start.control, int(message["step"]))

    def _give_port(self, message: Message) -> None:
        """Hold the rendezvous of an attempt, in a process of its own: it stays when rank 0 goes."""
        self._rendezvous.kill()
        with self._listener() as server:
            port = server.getsockname()[1]
            self._rendezvous.fork(0, lambda: self._hold(server))
        self._wire.send({"say": "port", "attempt": message["attempt"], "port": port})

    def _listener(self) -> socket.socket:
        """Where ranks meet: only on this machine, where the supervisor is reached so and no address was given."""
        own, family = str(self._wire.socket.getsockname()[0]), self._wire.socket.family
        if self._address is None and ipaddress.ip_address(own).is_loopback:
            return socket.create_server((own, 0), family=family, backlog=1024)
        return socket.create_server(("", 0), family=family, backlog=1024, dualstack_ipv6=family == socket.AF_INET6)

    def _hold(self, server: socket.socket) -> int:
        self._wire.socket.close()
        return hold_rendezvous(server)

    # -- the rest -----------------------------------------------------------------------------------------------

    def _begin_check(self, message: Message) -> None:
        if self._check is not None:
            self._check.close()
        self._check = Check([str(part) for part in message["command"]], float(message["timeout_s"]))

    def _tell_check(self) -> None:
        if self._check is None:
            return
        result = self._check.poll()
        if result is not None:
            self._check = None
            self._wire.send({"say": "checked", "passed": result.passed, "report": result.report})

    def _end(self) -> None:
        self._is_done = self._is_dismissed = True

    def interrupt(self) -> None:
        """End after this round."""
        self._is_done = True


def _join_patiently(settings: NodeSettings, hello: Message) -> Wire:
    deadline = time.monotonic() + settings.wait_s
    while True:
        try:
            return join(settings.supervisor, settings.token, hello)
        except UnansweredError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(AGAIN_S)


def run_node(settings: NodeSettings) -> int:
    """Join a supervisor and serve it to the end; the exit code. Raises MegascopeError where it cannot join."""
    agent = NodeAgent(settings)

    def end(*_: object) -> None:
        agent.interrupt()

    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return agent.run()


def checked_slots(slots: int) -> int:
    """The number of ranks that a host takes. MegascopeError below 1."""
    if slots < 1:
        raise MegascopeError(f"A node with {slots} ranks is of no use: give --nproc 1 or more.")
    return slots
