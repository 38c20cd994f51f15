"""Lines of NCCL itself and of the driver: who is in which communicator, connections that broke, faults of devices."""

from __future__ import annotations

import re

from .facts import GpuFault, LinkError, Member, Place, Speaker

_PROCESS = re.compile(r"([\w.-]+):(\d+):\d+ \[(\d*)\] (?:.*?)NCCL (INFO|WARN) (.*)$")
_COMM = re.compile(
    r"comm (0x[0-9a-f]+) rank (\d+) n?ranks (\d+)(?: cudaDev (\d+))?(?: nvmlDev \d+)?(?: busId ([0-9a-f]+))?"
    r"(?: commId (0x[0-9a-f]+))?.* Init (?:START|COMPLETE)"
)
_LOST = re.compile(
    r"socketProgress|Connection closed by remote peer|Got completion from peer|Call to (?:connect|recv|send|read|write)"
    r".* failed|async fatal event|NET/IB ?: .*(?:port error|error event)|Timeout waiting for|timed? ?out"
)
_PEER = re.compile(r"(?:peer|to|from) ([\w.:-]+?)<\d+>")
_STATUS = re.compile(r"(?:status=|error )(\d+)")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),? ?(.*)$")
_KERNEL_HOST = re.compile(r"(?:^|\s)([\w.-]+) kernel:")


def nccl_fact(text: str, speaker: Speaker, place: Place) -> Member | LinkError | None:
    """What a line of NCCL tells: a process joined a communicator, or lost a connection."""
    found = _PROCESS.search(text)
    if found is None:
        return None
    host, pid, device, level, rest = found[1], int(found[2]), found[3], found[4], found[5]
    if level == "INFO":
        comm = _COMM.search(rest)
        if comm is None:
            return None
        return Member(
            host, pid, comm[1], comm[6], int(comm[2]), int(comm[3]), None if comm[4] is None else int(comm[4]), comm[5]
        )
    if _LOST.search(rest) is None:
        return None
    peer, status = _PEER.search(rest), _STATUS.search(rest)
    return LinkError(
        Speaker(speaker.rank, speaker.local_rank, host), int(device) if device else None,
        None if peer is None else peer[1], None if status is None else int(status[1]), rest.strip()[:300], place,
    )  # fmt: skip


def gpu_fault(text: str, speaker: Speaker, moment_ns: int | None, place: Place) -> GpuFault | None:
    """An Xid of the driver, if the line is one."""
    found = _XID.search(text)
    if found is None:
        return None
    host = _KERNEL_HOST.search(text)
    return GpuFault(
        speaker.host if host is None else host[1], found[1].lower(), int(found[2]), found[3][:200], moment_ns, place
    )


def same_bus(one: str, other: str) -> bool:
    """Whether two bus ids are of one device: `0000:9b:00` of the driver is `9b000` of NCCL, with the domain before."""
    return _plain_bus(one) == _plain_bus(other)


def _plain_bus(text: str) -> str:
    if ":" not in text:
        return f"{int(text, 16):x}"
    parts = text.split(":")
    domain, bus, rest = parts[:3] if len(parts) > 2 else ("0", *parts)
    device, _, function = rest.partition(".")
    return f"{int(f'{int(domain, 16):x}{bus}{device}{function or 0}', 16):x}"
