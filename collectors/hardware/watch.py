"""The hardware of this host for the agent: one call a turn, which never waits; rows go to the attempts that run."""

from __future__ import annotations

import ctypes
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ...profiler.host import host_name
from ..health import judged
from ..spool.outbox import Outbox, Whole
from .asking import ANSWER_S, REST_S, START_S, Answer, Asker
from .events import EventRows
from .host import HostReader
from .kernel_log import KernelLog, Logged
from .machine import DMI, SYSTEM_ID, this_machine
from .metrics import XID
from .probe import NVML, PORTS
from .rdma import ROOT
from .reading import Rows
from .thinning import Thinner

log = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml.so.1"

NO_LIBRARY = f"No GPU is sampled: there is no NVIDIA driver library ({LIBRARY}) on this host."

MOST_REST = 2
"""Samples that may be left out while nothing runs: after a longer pause counters begin anew."""

_NAMES = {NVML: "NVML, the driver's library,", PORTS: "The driver of the RDMA ports"}


class Sink(Protocol):
    """An attempt that runs on this host."""

    outbox: Outbox

    @property
    def now_ns(self) -> int:
        """UTC by the clock of the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where hardware is looked for; tests name other places. ``kernel_log`` None is the system's."""

    spool: Path | None = None
    has_gpus: bool | None = None
    ports: Path = ROOT
    kernel_log: Path | None = None
    dmi: Path = DMI
    system_id: Path = SYSTEM_ID
    answer_s: float = ANSWER_S
    start_s: float = START_S
    rest_s: float = REST_S


@dataclass(slots=True)
class _Gpu:
    """What is known of a GPU from earlier answers."""

    name: str
    pci: str | None = None
    is_lost: bool = False
    is_silent: bool = False


@dataclass(slots=True)
class _Found:
    """What one turn has brought: rows of ``health``, and events."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    has_answer: bool = False


class HardwareWatch:
    """Samples every ``every_s`` seconds while something runs; `close` ends its child.

    ``tell`` gets the events of each attempt that runs, as they come.
    """

    def __init__(
        self,
        every_s: float,
        sources: Sources | None = None,
        tell: Callable[[Any, Sequence[Mapping[str, Any]]], None] | None = None,
    ) -> None:
        self._tell = tell
        self._every_s, self._sources = every_s, sources or Sources()
        self._host_name = host_name()
        self._host = HostReader(self._sources.spool)
        self._log: KernelLog | None = None
        self._rows, self._thinner, self._events = Rows(), Thinner(), EventRows()
        self._gpus: dict[int, _Gpu] = {}
        self._ports: set[str] = set()
        self._asker: Asker | None = None
        self._due = 0.0
        self._is_started = self._is_broken = False
        self._known: list[Sink] = []
        self._rest_since: float | None = None
        self._silent: set[str] = set()

    def poll(self, attempts: Sequence[Sink]) -> None:
        """Take what has come, ask again when it is time, and hand the rows to the attempts. Never raises."""
        if self._is_broken:
            return
        try:
            self._poll(attempts)
        except Exception:  # an agent without samples of hardware is of use, one that ended for them is not
            self._is_broken = True
            log.warning("Hardware is not sampled any more: reading it failed.", exc_info=True)
            self.close()

    def _poll(self, attempts: Sequence[Sink]) -> None:
        if not attempts:
            self._known = []
            self._rest()
            return
        self._forget_after_rest()
        self._rest_since = None
        self._start()
        self._welcome(attempts)
        found = _Found()
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every_s
            found.rows += self._rows.of_host(self._host.read())
            if self._asker is not None:
                self._asker.ask()
                self._not_sampled(self._asker.problem)
        self._take(found)
        if self._log is not None:
            self._take_log(self._log.read(), found)
        self._hand_over(attempts, found)

    def _rest(self) -> None:
        """Nothing runs: the kernel's log is read on, so that what it says keeps its age."""
        if self._rest_since is None:
            self._rest_since = time.monotonic()
        if self._log is not None:
            self._log.keep()
        self._forget_after_rest()

    def _forget_after_rest(self) -> None:
        """What was counted and asked before a pause says nothing of an attempt that begins after it."""
        if self._rest_since is None or time.monotonic() - self._rest_since < MOST_REST * self._every_s:
            return
        self._rest_since = math.inf  # once in each rest
        self._rows, self._host = Rows(), HostReader(self._sources.spool)
        if self._asker is not None:
            self._asker.close()

    def _start(self) -> None:
        """Look once at what there is on this host; what there is not is told in a sentence."""
        if self._is_started:
            return
        self._is_started = True
        self._log = KernelLog(self._sources.kernel_log)
        has_gpus = has_library() if self._sources.has_gpus is None else self._sources.has_gpus
        has_ports = self._sources.ports.is_dir()
        if has_gpus or has_ports:
            self._asker = Asker(
                has_gpus=has_gpus, has_ports=has_ports, ports_root=self._sources.ports,
                answer_s=self._sources.answer_s, start_s=self._sources.start_s, rest_s=self._sources.rest_s,
            )  # fmt: skip
        for problem in (None if has_gpus else NO_LIBRARY, self._log.problem):
            self._not_sampled(problem)

    def _not_sampled(self, problem: str | None) -> None:
        if problem is not None and self._events.not_sampled(problem):
            log.info("%s", problem)

    def _welcome(self, attempts: Sequence[Sink]) -> None:
        """An attempt that is new gets everything once: limits, and what is not sampled."""
        is_new = any(all(one is not known for known in self._known) for one in attempts)
        self._known = list(attempts)
        if is_new:
            self._thinner.reset()
            self._events.repeat_notes()
            self._due = 0.0

    # -- what has come ------------------------------------------------------------------------------------------

    def _take(self, found: _Found) -> None:
        answer = None if self._asker is None else self._asker.take()
        if answer is None:
            return
        found.has_answer = True
        now_s = time.monotonic()
        if answer.absent is not None:
            self._not_sampled(f"No GPU is sampled: {answer.absent}.")
        if answer.unreadable is not None:
            self._not_sampled(f"No GPU is sampled: the driver does not tell them ({answer.unreadable}).")
        for told in answer.gpus:
            self._take_gpu(told, now_s, found)
        for port in answer.ports or ():
            self._ports.add(str(port["port"]))
            found.rows += self._rows.of_port(port, now_s)
        self._note_silence(answer, now_s, found)
        if NVML in answer.silent or answer.unreadable is not None or answer.absent is not None:
            for gpu in self._gpus.values():
                found.rows += self._rows.of_gpu(gpu.name, {}, now_s)
        if PORTS in answer.silent:
            for name in sorted(self._ports):
                found.rows += self._rows.of_silent_port(name)

    def _take_gpu(self, told: Mapping[str, Any], now_s: float, found: _Found) -> None:
        index = int(told["gpu"])
        gpu = self._gpus.setdefault(index, _Gpu(f"index {index}"))
        if told["uuid"] is not None:
            gpu.name, gpu.pci = str(told["uuid"]), told["pci"]
            if gpu.pci is not None:
                self._events.learn(gpu.pci, gpu.name)
        if gpu.is_silent or (gpu.is_lost and told["lost"] is None):
            self._events.answers_again(gpu.name, f"GPU {index} ({gpu.name})")
        if told["lost"] is not None and not gpu.is_lost:
            self._events.gpu_lost(gpu.name, index, str(told["lost"]))
        gpu.is_silent, gpu.is_lost = False, told["lost"] is not None
        found.rows += self._rows.of_gpu(gpu.name, told["values"], now_s)

    def _note_silence(self, answer: Answer, now_s: float, found: _Found) -> None:
        """What did not answer is an event, and its metrics are blank."""
        for what in answer.silent:
            within_s = None if answer.has_ended else self._sources.answer_s
            if isinstance(what, int):
                gpu = self._gpus.setdefault(what, _Gpu(f"index {what}"))
                if not gpu.is_silent:
                    self._events.no_answer(gpu.name, f"GPU {what} ({gpu.name})", within_s)
                gpu.is_silent = True
                found.rows += self._rows.of_gpu(gpu.name, {}, now_s)
            elif what not in self._silent:
                self._silent.add(what)
                if what == NVML and within_s is not None:
                    within_s = self._sources.start_s
                self._events.no_answer(None, _NAMES[what], within_s)
        back = {NVML: bool(answer.gpus), PORTS: answer.ports is not None}
        for name in [name for name in self._silent if back[name]]:
            self._silent.discard(name)
            self._events.answers_again(None, _NAMES[name])

    def _take_log(self, logged: Iterable[Logged], found: _Found) -> None:
        for one in logged:
            device = self._events.logged(one)
            if one.event.code is not None and one.event.kind == "xid":
                found.rows.append({"device": device, "age_ns": one.age_ns, **judged(XID, one.event.code)})
        if self._log is not None:
            self._not_sampled(self._log.problem)

    # -- to the store -------------------------------------------------------------------------------------------

    def _hand_over(self, attempts: Sequence[Sink], found: _Found) -> None:
        rows = list(self._thinner.thin(found.rows, time.monotonic()))
        events = self._events.take()
        for attempt in attempts:
            now_ns = attempt.now_ns
            attempt.outbox.append("health", (_dated(row, self._host_name, now_ns) for row in rows))
            attempt.outbox.append("hardware_events", (_dated(row, self._host_name, now_ns) for row in events))
            if self._tell is not None and events:
                self._tell(attempt, events)
            if rows or events:
                gpus = [gpu.name for gpu in self._gpus.values() if gpu.pci is not None]
                machine = this_machine(gpus, self._sources.dmi, self._sources.system_id)
                attempt.outbox.put("machines", Whole([machine.row(self._host_name)]))

    def close(self) -> None:
        """End the child and close the log."""
        if self._asker is not None:
            self._asker.close()
        if self._log is not None:
            self._log.close()


def _dated(row: Mapping[str, Any], host: str, now_ns: int) -> dict[str, Any]:
    more = {name: value for name, value in row.items() if name != "age_ns"}
    return {**more, "host": host, "moment_ns": now_ns - int(row.get("age_ns", 0))}


def has_library() -> bool:
    """Whether NVML can be loaded; loading it talks to no device yet."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True
