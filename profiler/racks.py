"""Racks of hosts from a file of the user's: `host,rack` on each line."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from .errors import UsageError

Racks = Mapping[str, str]
"""The rack of each host, by the host's name as the store has it."""

HEADER = ["host", "rack"]


def read_racks(path: Path | None) -> Racks | None:
    """The file's racks; None without a file. A first line of `host,rack` is a header; `#` begins a comment.

    UsageError for a file that cannot be read, a line that does not have two fields, and a host in two racks.
    """
    if path is None:
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The racks in {path} cannot be read ({error}): give a text file of host,rack.") from error
    racks: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = [field.strip() for field in next(csv.reader([line]))]
        if not racks and [field.lower() for field in fields] == HEADER:
            continue
        if len(fields) != len(HEADER) or not all(fields):
            raise UsageError(f"Line {number} of {path} is not host,rack: give one host and its rack on each line.")
        host, rack = fields
        if racks.setdefault(host, rack) != rack:
            raise UsageError(f"Line {number} of {path} puts {host} into rack {rack}, an earlier one into "
                             f"{racks[host]}: keep one of them.")  # fmt: skip
    if not racks:
        raise UsageError(f"There is no host in {path}: give one host and its rack on each line, as host,rack.")
    return racks
