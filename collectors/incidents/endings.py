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
        its = (NOTICED, rank.rank, rank.reader.pid)
        own = [one for one in actions if (one["action"], one.get("rank"), one.get("pid")) == its]
        incomplete = [one for one in own if "exit_code" not in one]
        if not incomplete:
            return
        ending = self.of(rank)
        known = {"exit_code": ending.code, "asked_signal": ending.asked, "asked_ns": ending.asked_ns}
        for action in incomplete:
            action.update({name: value for name, value in known.items() if value is not None})


def exit_of(action: Mapping[str, Any]) -> Exit:
    """How a rank ended, of a noted death."""
    return Exit(action.get("exit_code"), action.get("asked_signal"), action.get("asked_ns"))


def own_deaths(actions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The noted deaths, without those of ranks that ended because their launcher had told them to.

    As in a verdict an exception explains the death that follows it: told before it, a rank only followed; told
    afterwards, it did not, whatever its exit code.
    """
    noted = [one for one in actions if one["action"] == NOTICED and one["rank"] is not None]
    raised = {_process(one): one for one in noted if one["state"] == "exception"}
    return [one for one in noted if not _was_on_request(raised.get(_process(one), one))]


def _process(death: Mapping[str, Any]) -> tuple[int, int | None]:
    return int(death["rank"]), death.get("pid")


def _was_on_request(death: Mapping[str, Any]) -> bool:
    ending = exit_of(death)
    return ending.was_told_by(int(death["moment_ns"])) if death["state"] == "exception" else ending.was_on_request
