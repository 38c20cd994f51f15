"""How the ranks of an attempt on this host ended: what the kernel tells of them, and what their launcher noted."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...profiler.exits import EXITS, Exit, read_exits
from ..spool.rank_drain import RankDrain

NOTICED = "noticed-death"
"""The action by which an incident notes a death."""


class Endings:
    """Adds exit codes to the deaths that incidents list, as they come to be known."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._size = -1
        self._noted: dict[tuple[int, int], Exit] = {}

    def of(self, rank: RankDrain) -> Exit:
        """How a rank ended, as far as that is known; the kernel's word comes before its launcher's."""
        size = 0
        with contextlib.suppress(OSError):
            size = (rank.path.parent / EXITS).stat().st_size
        if size != self._size:
            self._size, self._noted = size, read_exits(rank.path.parent)
        noted = self._noted.get((rank.rank, rank.reader.pid), Exit())
        return replace(noted, code=noted.code if rank.exit_code is None else rank.exit_code)

    def add_to(self, rank: RankDrain, actions: Sequence[dict[str, Any]]) -> None:
        """Complete a rank's noted death in ``actions``: ``exit_code``, ``asked_signal``, ``asked_ns``."""
        if rank.path.name in self._told:
            return
        ending = self.of(rank)
        known = {"exit_code": ending.code, "asked_signal": ending.asked, "asked_ns": ending.asked_ns}
        for action in actions:
            is_its = action["action"] == NOTICED and action["rank"] == rank.rank
            if is_its and action.get("pid") == rank.reader.pid:
                action.update({name: value for name, value in known.items() if value is not None})
        if ending.code is not None:
            self._told.add(rank.path.name)


def exit_of(action: Mapping[str, Any]) -> Exit:
    """How a rank ended, of a noted death."""
    return Exit(action.get("exit_code"), action.get("asked_signal"), action.get("asked_ns"))
