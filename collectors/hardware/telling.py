"""Alarms of hardware: one for each error of a device, the same from the agent that saw it and from who reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ...profiler.host import host_name
from ..alarms.rules import Alarm, named
from .kernel_lines import Severity

AGAIN_S = 600.0
"""The same error of the same device is told again after so long."""

MOST_AT_ONCE = 20
"""More errors than that at a time are one trouble, which the first of them tell."""

Key = tuple[str, str | None, str, int | None]
"""Host, device, kind and number of an event."""


class _Header(Protocol):
    @property
    def device(self) -> str | None: ...


class _Rank(Protocol):
    rank: int

    @property
    def header(self) -> _Header | None: ...


class Job(Protocol):
    """An attempt that runs on this host."""

    run: str
    attempt: int

    @property
    def ranks(self) -> Sequence[_Rank]: ...

    @property
    def now_ns(self) -> int: ...


def hardware_alarm(
    run: str, attempt: int, event: Mapping[str, Any], ranks: tuple[int, ...], moment_ns: int, often: str = ""
) -> Alarm:
    """The alarm of a row of ``hardware_events``; ``ranks`` are on its device, ``often`` ends the sentence."""
    whose = f" ({'rank' if len(ranks) == 1 else 'ranks'} {named(ranks)})" if ranks else ""
    sentence = f"{event['host']}{whose}: {str(event['text']).rstrip('.')}{often}"
    kind = f"hardware-{event['kind']}" + (f"-{event['code']}" if event["code"] is not None else "")
    return Alarm(kind, "medium", run, attempt, ranks, (str(event["host"]),), f"{sentence}.", moment_ns)


class HardwareTeller:
    """Raises alarms of the errors that an agent sees on its own host, as they come."""

    def __init__(self, raise_alarm: Callable[[Alarm], None]) -> None:
        self._raise = raise_alarm
        self._told: dict[tuple[str, int, Key], float] = {}

    def tell(self, job: Job, events: Iterable[Mapping[str, Any]]) -> None:
        """Tell of the errors in events of this host that are new to the attempt, or come again after `AGAIN_S`."""
        host, now, count = host_name(), time.monotonic(), 0
        for event in events:
            if event["severity"] != Severity.ERROR:
                continue
            row = {"host": host, "device": None, "code": None, **event}
            key = job.run, job.attempt, (host, row["device"], str(row["kind"]), row["code"])
            if now - self._told.get(key, float("-inf")) < AGAIN_S or count >= MOST_AT_ONCE:
                continue
            self._told[key] = now
            count += 1
            ranks = tuple(sorted(one.rank for one in job.ranks if _is_on(one, row["device"])))
            self._raise(hardware_alarm(job.run, job.attempt, row, ranks, job.now_ns - int(row.get("age_ns", 0))))


def _is_on(rank: _Rank, device: str | None) -> bool:
    return device is not None and rank.header is not None and rank.header.device == device
