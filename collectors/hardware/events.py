"""Rows of ``hardware_events`` as they come up, with room for a flood."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .kernel_lines import EventKind, Severity, pci_key
from .kernel_log import Logged

AGAIN = " answers again."
"""Ends the text of what is back; before that it has the words that the text of its silence begins with."""

MOST_EVENTS = 200
MINUTE_S = 60.0
"""So many rows a minute are kept: a kernel that repeats itself has said it by then. How many were left out is told."""


class EventRows:
    """Collects rows without host and moment; ``age_ns`` says how long ago each was."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._count = 0
        self._rows: list[dict[str, Any]] = []
        self._notes: dict[str, None] = {}
        self._uuids: dict[str, str] = {}
        self._left_out = 0

    def learn(self, pci: str, uuid: str) -> None:
        """Which GPU sits at a PCI address."""
        self._uuids[pci_key(pci)] = uuid

    def logged(self, one: Logged) -> str | None:
        """Add an event of the kernel's log; the device that it is of, a GPU by its UUID where that is known."""
        event = one.event
        device = None if event.device is None else self._uuids.get(pci_key(event.device), event.device)
        self._add(event.kind, event.severity, event.text, device, one.age_ns, event.code, event.pid)
        return device

    def not_sampled(self, sentence: str) -> bool:
        """Add what is not sampled, and why; False where that was said before."""
        if sentence in self._notes:
            return False
        self._notes[sentence] = None
        self._add(EventKind.NOT_SAMPLED, Severity.NOTE, sentence)
        return True

    def repeat_notes(self) -> None:
        """Say again what is not sampled: somebody new listens."""
        self._rows = [row for row in self._rows if row["kind"] != EventKind.NOT_SAMPLED]
        for sentence in self._notes:
            self._add(EventKind.NOT_SAMPLED, Severity.NOTE, sentence)

    def no_answer(self, device: str | None, what: str, within_s: float | None) -> None:
        """Something did not answer and is left alone for a while; None: who asked it died of it."""
        how = "did not answer, and the process that asked it ended" if within_s is None else "did not answer"
        text = f"{what} {how}." if within_s is None else f"{what} {how} within {within_s:g} s."
        self._add(EventKind.NO_ANSWER, Severity.ERROR, text, device)

    def answers_again(self, device: str | None, what: str) -> None:
        """Something that did not answer, or was lost, is back; ``what`` as `no_answer` was given it."""
        self._add(EventKind.ANSWERS, Severity.NOTE, f"{what}{AGAIN}", device)

    def gpu_lost(self, device: str, index: int, reason: str) -> None:
        """The driver cannot reach a GPU any more."""
        self._add(EventKind.GPU_LOST, Severity.ERROR, f"GPU {index} cannot be reached: {reason}.", device)

    def _add(
        self,
        kind: EventKind,
        severity: Severity,
        text: str,
        device: str | None = None,
        age_ns: int = 0,
        code: int | None = None,
        pid: int | None = None,
    ) -> None:
        self._count += 1
        if self._count > MOST_EVENTS:
            self._left_out += 1
            return
        self._rows.append(
            {"kind": str(kind), "severity": str(severity), "text": text, "device": device, "age_ns": age_ns,
             "code": code, "pid": pid}
        )  # fmt: skip

    def take(self) -> list[dict[str, Any]]:
        """The rows since the last call."""
        if self._clock() - self._began >= MINUTE_S:
            self._begin_minute()
        rows, self._rows = self._rows, []
        return rows

    def _begin_minute(self) -> None:
        left_out, self._left_out, self._count, self._began = self._left_out, 0, 0, self._clock()
        if left_out:
            text = f"{left_out:,} more events of hardware came within a minute and were not kept."
            self._add(EventKind.NOT_SAMPLED, Severity.WARNING, text)
