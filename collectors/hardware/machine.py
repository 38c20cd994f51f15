"""Which machine a host is, whatever its name: by the board's serial number, its GPUs, or what its system says."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..reading.store import Store

DMI = Path("/sys/class/dmi/id")
SYSTEM_ID = Path("/etc/machine-id")

_NO_SERIALS = frozenset({"", "0", "none", "not specified", "default string", "to be filled by o.e.m.", "system serial"})
"""What boards without a serial number say."""


class Basis(StrEnum):
    """What a machine was told by, the surest first."""

    BOARD = "board"
    GPUS = "gpus"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of the machine behind a host. Serial numbers are kept as hashes only."""

    board: str | None = None
    gpus: tuple[str, ...] = ()
    system: str | None = None

    @property
    def basis(self) -> Basis | None:
        """The surest that there is."""
        if self.board is not None:
            return Basis.BOARD
        return Basis.GPUS if self.gpus else Basis.SYSTEM if self.system is not None else None

    @property
    def name(self) -> str | None:
        """A name that stays while what it was told by stays; None where nothing is known."""
        match self.basis:
            case Basis.BOARD:
                return f"board-{self.board}"
            case Basis.GPUS:
                return f"gpus-{_hashed(' '.join(self.gpus))}"
            case Basis.SYSTEM:
                return f"system-{self.system}"
        return None

    def row(self, host: str) -> dict[str, Any]:
        """Row of ``machines``."""
        return {"host": host, "machine": self.name, "basis": self.basis, "board": self.board, "gpus": list(self.gpus)}


def this_machine(gpus: Iterable[str] = (), dmi: Path = DMI, system_id: Path = SYSTEM_ID) -> Machine:
    """Read what this host tells of its machine; the serial number needs root."""
    serials = [text for name in ("board_serial", "product_serial") if (text := _text(dmi / name)) is not None]
    known = [text for text in serials if text.lower() not in _NO_SERIALS]
    system = _text(system_id)
    return Machine(
        _hashed(known[0]) if known else None, tuple(sorted(set(gpus))), None if not system else _hashed(system)
    )


def _text(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return None


def _hashed(text: str) -> str:
    return hashlib.sha256(f"megascope machine {text}".encode()).hexdigest()[:16]


def same_machines(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """(row, machine) of every row of ``machines`` that tells of one; rows of one machine have the same name.

    Two rows are of one machine where the board is the same, or, where either has none, where at least half of the
    smaller set of GPUs is in both: one GPU may have been replaced. What the system says holds only for rows without
    both. The name is that of the first row.
    """
    told = [row for row in rows if row["machine"] is not None]
    parents = list(range(len(told)))

    def root(index: int) -> int:
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index

    for one, other in _candidates(told):
        if _is_same(told[one], told[other]):
            first, second = sorted((root(one), root(other)))
            parents[second] = first
    for index, row in enumerate(told):
        yield row, str(told[root(index)]["machine"])


def machines_of(store: Store) -> dict[tuple[str, int, str], str]:
    """(run, attempt, host) to the name of its machine, over the whole store; hosts that tell of none are left out."""
    rows = store.query("SELECT * FROM machines ORDER BY run, attempt, host").to_pylist()
    return {(str(row["run"]), int(row["attempt"]), str(row["host"])): name for row, name in same_machines(rows)}


def _candidates(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    """Pairs of rows that share a name, a board or a GPU: each with the last one before it."""
    last: dict[str, int] = {}
    for index, row in enumerate(rows):
        for mark in {str(row["machine"]), str(row["board"] or row["machine"]), *(row["gpus"] or ())}:
            if mark in last:
                yield last[mark], index
            last[mark] = index


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if one["board"] is not None and other["board"] is not None:
        return bool(one["board"] == other["board"])
    mine, theirs = set(one["gpus"] or ()), set(other["gpus"] or ())
    if mine and theirs:
        return 2 * len(mine & theirs) >= min(len(mine), len(theirs))
    return bool(one["machine"] == other["machine"])
