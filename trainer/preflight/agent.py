"""A rank's side: waits for orders, does each in a process that is bounded in time, and says what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from ...profiler.topology import Topology
from .bounded import Ended, Note, run_bounded
from .check import Check, Effort, Here
from .measurements import Member
from .meeting import Connect, Meeting, exchange_in, join_team
from .plan import Cluster, Team

PATIENCE_S = 3600.0
"""So long a rank waits for the next order; a coordinator that died is noticed at once, by the broken connection."""


def run_agent(
    connect: Connect, me: Member, checks: Sequence[Check], topology: Topology, chunks: int, effort: Effort
) -> None:
    """Serve until the coordinator says that it is over. Raises torch's DistError where the coordinator is gone."""
    meeting = Meeting(connect())
    meeting.arrive(me)
    cluster = Cluster(meeting.introduced(PATIENCE_S), topology, chunks)
    number = 0
    while True:
        order = meeting.order(number, PATIENCE_S)
        if order.check is None:
            meeting.leave(me.rank)
            return
        team = order.team_of(me.rank)
        if team is not None:
            child = _Child(connect, checks[order.check], me, team, cluster, effort, number)
            meeting.answer(number, me.rank, _told(run_bounded(child.work, effort.timeout_s)))
        number += 1


def _told(ended: Ended) -> dict[str, Any]:
    return {
        "status": str(ended.status), "value": ended.value, "message": ended.message, "notes": list(ended.notes),
        "seconds": ended.seconds,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Child:
    """What the child of an order needs."""

    connect: Connect
    check: Check
    me: Member
    team: Team
    cluster: Cluster
    effort: Effort
    number: int

    def work(self, note: Note) -> dict[str, Any]:
        """Join the team, measure, and return the answer as JSON can hold it."""
        store = PrefixStore(f"team/{self.number}/{self.team[0]}", self.connect())
        limit_s = self.effort.timeout_s
        here = Here(
            rank=self.me.rank, team=self.team, device=self.me.device, local_rank=self.me.local_rank,
            cluster=self.cluster, effort=self.effort, note=note, exchange=exchange_in(store, limit_s),
        )  # fmt: skip
        if self.check.needs_group:
            note("joining its team")
            here.torch_device()
            join_team(store, "group", here.index, len(self.team), self.me.device, limit_s)
        note("measuring")
        return asdict(self.check.measure(here))
