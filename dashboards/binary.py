"""The pages' binary payload: a JSON header and aligned little-endian arrays, which JavaScript maps without copying."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..profiler.errors import FormatError

_TYPES = {"f4": "<f4", "f8": "<f8", "i4": "<i4", "i2": "<i2", "u2": "<u2", "u1": "u1"}
_ALIGNMENT = 8


def pack(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """One payload: uint32 length of the header, the header (JSON, padded with spaces to 8 bytes), the arrays.

    The header is ``{"meta": ..., "arrays": {name: {"type", "offset", "count"}}}``; offsets count from the end of the
    header, each a multiple of 8. int64 is refused because JavaScript's numbers cannot hold it: send float64 of times
    relative to a base (whole ns are exact up to 104 days).
    """
    described: dict[str, dict[str, Any]] = {}
    parts: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        kind = array.dtype.str.lstrip("<>|=")
        if kind not in _TYPES:
            raise FormatError(f"The array {name} has the type {array.dtype}; convert it to {', '.join(_TYPES)}.")
        data = np.ascontiguousarray(array, dtype=_TYPES[kind]).tobytes()
        described[name] = {"type": kind, "offset": offset, "count": int(array.size)}
        padding = -len(data) % _ALIGNMENT
        parts.append(data + b"\0" * padding)
        offset += len(data) + padding
    header = json.dumps({"meta": meta, "arrays": described}, allow_nan=False, separators=(",", ":")).encode()
    header += b" " * (-(len(header) + 4) % _ALIGNMENT)
    return len(header).to_bytes(4, "little") + header + b"".join(parts)


def unpack(payload: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """The inverse of `pack`, for tests and notebooks. Raises FormatError for bytes that are no payload."""
    try:
        size = int.from_bytes(payload[:4], "little")
        header = json.loads(payload[4 : 4 + size])
        base = 4 + size
        arrays = {
            name: np.frombuffer(payload, _TYPES[entry["type"]], entry["count"], base + entry["offset"])
            for name, entry in header["arrays"].items()
        }
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"The {len(payload)} bytes are no page payload ({error}). Load the page again.") from error
    return header["meta"], arrays
