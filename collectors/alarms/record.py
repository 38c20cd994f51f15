"""What a store keeps of its alarms: which were told, when, by whom and to which targets, and which still wait."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..manifests.manifest import quote_name
from .rules import Alarm

FOLDER = "_alarms"
"""Folder of the store; in it are folders of run and attempt."""

WAITING, TOLD = ".alarm", ".told"
"""How the names of files of alarms end that wait, and that were told."""

MOST_READ = 4096
"""Files of an attempt that are read, of each sort, the newest first."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """An alarm of an attempt. ``told_ns`` (UTC) is None while it waits; ``targets`` are command and webhook, as far as
    they took it, never their addresses; ``teller`` is the host that told of it."""

    alarm: Alarm
    told_ns: int | None = None
    targets: tuple[str, ...] = ()
    teller: str | None = None


def alarm_folder(root: Path, run: str, attempt: int) -> Path:
    """Where the alarms of an attempt are kept; ``root`` is `FOLDER` in the store."""
    return root / f"run={quote_name(run)}" / f"attempt={attempt}"


def told_text(recorded: Recorded) -> str:
    """What is written of an alarm once it was told: all but its verdict, which its incident has."""
    value = {
        "key": recorded.alarm.key,
        "alarm": asdict(replace(recorded.alarm, verdict=None)),
        "told_ns": recorded.told_ns,
        "targets": list(recorded.targets),
        "teller": recorded.teller,
    }
    return json.dumps(value, default=str) + "\n"


def recorded_alarms(store: Path, run: str, attempt: int) -> list[Recorded]:
    """Alarms of an attempt that wait or were told, the newest first; files that cannot be read are left out.

    One that came up again after it was told waits beside that. Those whose memory was pruned are no more there. Raises
    OSError where the store cannot be read.
    """
    folder = alarm_folder(store / FOLDER, run, attempt)
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return []
    told = list(_parsed(paths, TOLD, _told))
    told_ns = {one.alarm.key: one.told_ns or 0 for one in told}
    waiting = [one for one in _parsed(paths, WAITING, _waiting) if told_ns.get(one.alarm.key, -1) < one.alarm.moment_ns]
    return sorted([*told, *waiting], key=lambda one: -one.alarm.moment_ns)


def _parsed(paths: Iterable[Path], suffix: str, parse: Any) -> Iterator[Recorded]:
    for path in sorted((one for one in paths if one.name.endswith(suffix)), key=_changed, reverse=True)[:MOST_READ]:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            yield parse(json.loads(path.read_text(encoding="utf-8")))


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it was told, or given up, a moment ago
        return 0.0


def _waiting(value: Mapping[str, Any]) -> Recorded:
    return Recorded(Alarm.parse(value))


def _told(value: Mapping[str, Any]) -> Recorded:
    targets = tuple(map(str, value["targets"]))
    teller = value["teller"]
    return Recorded(
        Alarm.parse(value["alarm"]), int(value["told_ns"]), targets, None if teller is None else str(teller)
    )
