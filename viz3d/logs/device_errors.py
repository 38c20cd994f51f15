"""Errors of devices that a library logged and did not raise: which was the first, and on which host."""

from __future__ import annotations

import re

from ..verdict import Abstention, plain_utc
from .facts import DeviceError, LogEvidence, Place, Speaker
from .speakers import NOBODY

_BROKEN = re.compile(
    r"\b(CUDA_ERROR_(?:CONTAINED|NVLINK_UNCORRECTABLE|ECC_UNCORRECTABLE|ILLEGAL_ADDRESS|ILLEGAL_INSTRUCTION|"
    r"MISALIGNED_ADDRESS|INVALID_PC|INVALID_ADDRESS_SPACE|LAUNCH_FAILED|LAUNCH_TIMEOUT|HARDWARE_STACK_ERROR|"
    r"EXTERNAL_DEVICE))\b:? ?(.*)"
)
"""Errors after which a process cannot use its device any more; not those of a full memory or of a process that ends."""


def device_error(text: str, speaker: Speaker, moment_ns: int | None, place: Place) -> DeviceError | None:
    """The error that a line tells, if it tells one after which the device is of no use."""
    found = None if "CUDA_ERROR_" not in text else _BROKEN.search(text)
    return None if found is None else DeviceError(speaker, found[1], found[2].strip()[:300], moment_ns, place)


def first_device_error(evidence: LogEvidence) -> list[Abstention]:
    """The first error of a device, which accuses nobody by itself: it may have been met there and lie elsewhere."""
    if not evidence.device_errors:
        return []
    last = max((one.moment_ns for one in evidence.device_errors if one.moment_ns is not None), default=0)
    first = min(evidence.device_errors, key=lambda one: last + 1 if one.moment_ns is None else one.moment_ns)
    rank, host = first.speaker.rank, first.speaker.host
    if host is None and rank is not None:
        host = evidence.hosts.get(rank)
    whose = "" if rank is None else f" of rank {rank}"
    where = "" if host is None else f" on {host}"
    at = "" if first.moment_ns is None else f" at {plain_utc(first.moment_ns)}"
    others = len({_who(one) for one in evidence.device_errors} - {_who(first), NOBODY})
    more = f"; {others:,} other{'s' if others > 1 else ''} told one" if others else ""
    told = f"the first error of a device is {first.name}{whose}{where}{at}: {first.text} ({first.place}){more}"
    return [Abstention("devices", told)]


def _who(error: DeviceError) -> Speaker:
    """A rank is one speaker, whatever else its lines tell of it."""
    rank = error.speaker.rank
    return error.speaker if rank is None else Speaker(rank)
