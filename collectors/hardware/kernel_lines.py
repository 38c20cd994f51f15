"""Which lines of the kernel's log tell of hardware, and what: Xids, memory errors, OOM kills, links that went down."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from .xids import XIDS, Blame, tell

MOST_TEXT = 300


class EventKind(StrEnum):
    """Kinds of rows of ``hardware_events``."""

    XID = "xid"
    SXID = "sxid"
    MEMORY_ERROR = "memory-error"
    OOM_KILL = "oom-kill"
    LINK_DOWN = "link-down"
    LINK_UP = "link-up"
    TASK_BLOCKED = "task-blocked"
    STORAGE = "storage-not-responding"
    CPU_THROTTLED = "cpu-throttled"
    NO_ANSWER = "no-answer"
    ANSWERS = "answers-again"
    GPU_LOST = "gpu-lost"
    NOT_SAMPLED = "not-sampled"


class Severity(StrEnum):
    """How bad an event is: told only, worth a look, or likely to stop or slow a job."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """What one line tells. ``device``: a PCI address in small letters, a network interface, or None."""

    kind: EventKind
    severity: Severity
    text: str
    device: str | None = None
    code: int | None = None
    pid: int | None = None


_HEAD = re.compile(r"^(?:<\d+>|\w{3} +\d+ [\d:]{8} \S+ kernel: )?(?:\[ *\d+\.\d+\] *)?")
"""What a log puts before a line's text: priority or date, and the kernel's own clock."""

_PCI = r"(?:PCI:)?(?P<device>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"
_PID = re.compile(r"pid='?(?P<pid>\d+)")


def _xid(found: re.Match[str], line: str) -> KernelEvent:
    number = int(found["code"])
    known = XIDS.get(number)
    is_program = known is not None and (known.blame == Blame.PROGRAM or known.goes_on)
    severity = Severity.WARNING if is_program else Severity.ERROR
    pid = _PID.search(found["rest"])
    text = f"{tell(number)}: {found['rest'].strip()}" if found["rest"].strip() else tell(number)
    return KernelEvent(
        EventKind.XID, severity, text, found["device"].lower(), number, None if pid is None else int(pid["pid"])
    )


def _sxid(found: re.Match[str], line: str) -> KernelEvent:
    severity = Severity.WARNING if "non-fatal" in line.lower() else Severity.ERROR
    return KernelEvent(EventKind.SXID, severity, line, found["device"].lower(), int(found["code"]))


def _plain(kind: EventKind, severity: Severity) -> Callable[[re.Match[str], str], KernelEvent]:
    def make(found: re.Match[str], line: str) -> KernelEvent:
        named = found.groupdict()
        pid, device = named.get("pid"), named.get("device")
        return KernelEvent(
            kind, severity, line, None if device is None else device.lower(), None, None if pid is None else int(pid)
        )

    return make


_RULES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], KernelEvent]], ...] = (
    (re.compile(rf"NVRM: Xid \({_PCI}\): (?P<code>\d+),? ?(?P<rest>.*)$"), _xid),
    (re.compile(rf"nvidia-nvswitch\d+: SXid \({_PCI}\): (?P<code>\d+)"), _sxid),
    (
        re.compile(rf"NVRM: (?:The NVIDIA )?GPU (?:at )?{_PCI}.* (?:has )?fallen off the bus"),
        _plain(EventKind.GPU_LOST, Severity.ERROR),
    ),
    (
        re.compile(r"[Oo]ut of memory: Killed process (?P<pid>\d+)"),
        _plain(EventKind.OOM_KILL, Severity.ERROR),
    ),
    (re.compile(r"EDAC MC\d+: \d+ UE\b|Uncorrected (?:hardware )?(?:memory )?error|Hardware Error\]: .*[Uu]ncorrected"),
     _plain(EventKind.MEMORY_ERROR, Severity.ERROR)),
    (re.compile(r"EDAC MC\d+: \d+ CE\b|\[Hardware Error\]: .*[Cc]orrected"),
     _plain(EventKind.MEMORY_ERROR, Severity.WARNING)),
    (re.compile(r"(?:^|[ :])(?P<device>[\w.-]+): (?:NIC )?[Ll]ink (?:is )?[Dd]own\b"),
     _plain(EventKind.LINK_DOWN, Severity.ERROR)),
    (re.compile(r"(?:^|[ :])(?P<device>[\w.-]+): (?:NIC )?[Ll]ink (?:is )?[Uu]p\b"),
     _plain(EventKind.LINK_UP, Severity.NOTE)),
    (re.compile(r"task \S+:(?P<pid>\d+) blocked for more than \d+ seconds"),
     _plain(EventKind.TASK_BLOCKED, Severity.ERROR)),
    (re.compile(r"(?:nfs|lustre|LustreError|ceph).*not responding", re.IGNORECASE),
     _plain(EventKind.STORAGE, Severity.ERROR)),
    (re.compile(r"(?:Core|Package) temperature (?:is )?above threshold"),
     _plain(EventKind.CPU_THROTTLED, Severity.WARNING)),
)  # fmt: skip


def event_of(line: str) -> KernelEvent | None:
    """What a line's text tells (without priority and time, or with them); None where it is of no interest."""
    for pattern, make in _RULES:
        found = pattern.search(line)
        if found is not None:
            made = make(found, _HEAD.sub("", line.strip()))
            return KernelEvent(made.kind, made.severity, made.text[:MOST_TEXT], made.device, made.code, made.pid)
    return None


def same_device(one: str, other: str) -> bool:
    """Whether two PCI addresses are of one device: domains have four digits or eight, functions may be left out."""
    return pci_key(one) == pci_key(other)


def pci_key(address: str) -> str:
    """An address such that those of one device are equal; other names stay as they are."""
    domain, colon, rest = address.lower().partition(":")
    if not colon or ":" not in rest:
        return address.lower()
    return f"{domain.lstrip('0') or '0'}:{rest.split('.')[0]}"
