"""Reading black boxes of version 1, as megascope 0.1 wrote them: heads in the header, serials as generations."""

from __future__ import annotations

from typing import Any

import numpy as np

from .format import RECORD, UNKNOWN_FLAG, WORD_HEADS

RECORD_1 = np.dtype(
    [
        ("serial", "<u8"),
        ("begun_ns", "<i8"),
        ("step", "<i8"),
        ("size_bytes", "<i8"),
        ("sequence", "<i8"),
        ("segment", "<u4"),
        ("parent", "<u4"),
        ("group", "<u4"),
        ("peer", "<i4"),
        ("microbatch", "<i4"),
        ("chunk", "<i2"),
        ("stream", "<u2"),
        ("thread", "<u2"),
        ("clock", "u1"),
        ("ended", "u1"),
        ("reserved", "<u4"),
        ("serial_begin", "<u8"),
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("self_ns", "<i8"),
        ("exposed_ns", "<i8"),
        ("status", "<u4"),
        ("reserved_end", "<u4"),
        ("serial_end", "<u8"),
    ]
)
"""A record of version 1: 128 bytes, as those of version 2."""

_ANY_CODE = 255
_SAME = tuple(name for name in RECORD_1.names or () if name in (RECORD.names or ()) and name != "status")


def head(words: np.ndarray[Any, Any], ring: int) -> int:
    """Number of records ever written to a ring; ``words`` is the header, int64."""
    return int(words[WORD_HEADS + ring])


def completed(records: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Which copies from a ring (dtype RECORD_1) are whole, and all of them as dtype RECORD."""
    serial = records["serial"]
    whole = (serial == records["serial_end"]) & (serial == records["serial_begin"]) & (serial != 0)
    return whole, _converted(records)


def in_flight(slots: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Open slots (dtype RECORD_1) as dtype RECORD. An operation whose end was cut short counts as not ended."""
    whole = (slots["serial"] != 0) & (slots["serial"] == slots["serial_begin"])
    open_slots = slots[whole]
    converted = _converted(open_slots)
    converted["ended"] &= open_slots["serial_end"] == open_slots["serial"]
    return converted


def _converted(records: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    result = np.zeros(len(records), RECORD)
    for name in _SAME:
        result[name] = records[name]
    result["status"] = np.minimum(records["status"], _ANY_CODE)
    result["begun_again"] = result["begun_end"] = result["begun_ns"]
    result["extended"] = 1
    result["waiting"] = UNKNOWN_FLAG
    return result
