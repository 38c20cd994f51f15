"""All checks by area, and running them: side by side, each guarded, none waited for without end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from ..profiler.errors import MegascopeError
from . import (
    clocks,
    communication,
    debugging,
    devices,
    installation,
    limits,
    permissions,
    ports,
    settings,
    spool,
    store,
)
from .finding import Answer, Finding, not_checked, problem
from .machine import Machine

Check = Callable[[Machine], Answer]

AREAS: Mapping[str, Mapping[str, Check]] = {
    "installation": {
        "python": installation.python, "packages": installation.packages, "extras": installation.extras,
        "torch": devices.torch_version, "torch-build": devices.torch_build, "gpus": devices.gpus,
    },
    "settings": {
        "variables": settings.variables, "recording": settings.recording, "alarms": settings.alarms,
        "host-name": settings.host_name,
    },
    "communication": {
        "flight-recorder": communication.flight_recorder, "dump-on-timeout": communication.dump_on_timeout,
        "dump-place": communication.dump_place, "watchdog": communication.watchdog,
        "heartbeat": communication.heartbeat, "stall-limit": communication.stall_limit,
        "nccl-messages": debugging.nccl_messages,
        "slow-settings": debugging.slow_settings,
    },
    "spool": {"place": spool.place, "room": spool.room, "agent": spool.agent},
    "store": {"place": store.place, "room": store.room, "size": store.size, "shared": store.shared},
    "clocks": {"source": clocks.clock_source, "synchronised": clocks.synchronised},
    "permissions": {
        "stacks": permissions.stacks, "kernel-log": permissions.kernel_log, "open-files": permissions.open_files,
        "locked-memory": permissions.locked_memory,
    },
    "limits": {"memory": limits.memory, "processors": limits.processors},
    "ports": {"dashboards": ports.dashboards, "metrics": ports.metrics},
}  # fmt: skip

MUST_ANSWER = frozenset({spool.place, store.place})
"""Where silence is an answer: a job would wait for that place as this check does."""

PATIENCE_S = 5.0
"""A check that takes longer is not waited for."""


def run_checks(
    machine: Machine, areas: Mapping[str, Mapping[str, Check]] = AREAS, patience_s: float = PATIENCE_S
) -> list[Finding]:
    """The findings of all checks, in their order; one that fails or does not end says so."""
    until = time.monotonic() + patience_s
    named = [(area, name, check) for area, checks in areas.items() for name, check in checks.items()]
    running = [_Running(check, machine) for _, _, check in named]
    answers = [one.answer(until, patience_s) for one in running]
    return [Finding.of(area, name, answer) for (area, name, _), answer in zip(named, answers, strict=True)]


class _Running:
    """One check on a thread of its own, which ends with the process."""

    def __init__(self, check: Check, machine: Machine) -> None:
        self._check, self._machine = check, machine
        self._answer: Answer | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads are allowed: then one after the other, and with whatever patience
            self._run()

    def _run(self) -> None:
        try:
            self._answer = self._check(self._machine)
        except MegascopeError as error:
            self._answer = self._of_no_place(str(error))
        except Exception as error:  # no machine is so odd that the other checks should not be made
            words = " ".join(str(error).split())[:200]
            self._answer = not_checked(_title(self._check), f"the check failed ({type(error).__name__}: {words})")

    def answer(self, until: float, patience_s: float) -> Answer:
        """What the check said, or that it said nothing until then (by the monotonic clock)."""
        if self._answer is None:
            self._thread.join(max(0.0, until - time.monotonic()))
        if self._answer is not None:
            return self._answer
        silence = f"no answer within {patience_s:g} s"
        if self._check in MUST_ANSWER:
            return problem(_title(self._check), silence, "see to its file system or server: ranks would wait too")
        return not_checked(_title(self._check), silence)

    def _of_no_place(self, sentence: str) -> Answer:
        """What is said where no store can be at the place that is named: once, not by each check that needs it."""
        if self._check is store.place:
            return problem(_title(self._check), "no store can be there", sentence)
        return not_checked(_title(self._check), sentence)


def _title(check: Check) -> str:
    """What a check asks, from its own description."""
    return (check.__doc__ or check.__name__).split("\n", 1)[0].rstrip(".")
