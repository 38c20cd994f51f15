"""Four real gloo processes (dp 2, tp 2) that come to stand still and leave their dumps, with the mesh beside them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from megascope.profiler.dump_taking import is_over
from megascope.profiler.flight_recorder import DUMPS, DumpOnRequest, request_dumps
from megascope.profiler.topology import Topology
from megascope.profiler.topology_file import describe, write_topology_file
from support.forkrun import fork_ranks

MESH = Topology.of(dp=2, tp=2)
BEFORE = 3
"""Collectives that every rank completes first: one in each of its groups."""

Stand = Mapping[int, tuple[int, int]]
"""For each rank that leaves a dump: how many collectives it has issued since then when it stands still, and how many of
them are in flight."""


@dataclass(slots=True)
class Rank:
    """One process in its three groups."""

    rank: int
    groups: Mapping[str, Any]

    def all_reduce(self, kind: str, elements: int = 4) -> None:
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(elements), group=self.groups[kind])

    def broadcast(self, kind: str, source: int) -> None:
        import torch
        import torch.distributed as dist

        dist.broadcast(torch.ones(4), source, group=self.groups[kind])

    def send(self, target: int) -> None:
        import torch
        import torch.distributed as dist

        dist.send(torch.ones(4), target)

    def receive(self, source: int) -> None:
        import torch
        import torch.distributed as dist

        dist.recv(torch.ones(4), source)

    def gives_up(self, kind: str) -> None:
        """An all-reduce that fails, and a rank that goes on after it."""
        try:
            self.all_reduce(kind)
        except RuntimeError:
            return
        raise AssertionError("it did not fail")


def dumps_of(folder: Path, program: Callable[[Rank], None], stand: Stand, *, limit_s: float | None = None) -> Path:
    """Run ``program`` on every rank, ask for dumps until all of ``stand`` stand as it says, and end the processes.

    A rank whose program comes to its end sleeps. ``limit_s``: time limit of the program's collectives in pairs.
    AssertionError where they do not come to stand so.
    """
    spool = folder / "spool"
    spool.mkdir()

    def work() -> None:
        import torch.distributed as dist

        rank = dist.get_rank()
        watch = DumpOnRequest(spool, rank)
        groups: dict[str, Any] = {"world": None}
        for kind in MESH.names:
            for members in MESH.groups(kind):
                group = dist.new_group(list(members), group_desc=kind)
                if rank in members:
                    groups[kind] = group
        own = Rank(rank, groups)
        for kind in groups:
            own.all_reduce(kind)
        if limit_s is not None:
            for kind in MESH.names:
                dist.distributed_c10d._set_pg_timeout(timedelta(seconds=limit_s), groups[kind])
        program(own)
        time.sleep(120)
        watch.close()

    asking = _Asking(spool, stand)
    outcomes = fork_ranks(MESH.world_size, work, timeout_s=75, settle_s=0, until=asking.all_stand)
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    assert {rank: asking.stands(rank) for rank in stand} == stand, errors
    write_topology_file(spool / DUMPS, describe(MESH))
    return spool / DUMPS


@dataclass(slots=True)
class _Asking:
    spool: Path
    stand: Stand
    asked: int = 0
    next_s: float = 0.0

    def all_stand(self) -> bool:
        """Whether all stand as they should. Asks again every second: who has not begun to listen misses a request."""
        if time.monotonic() < self.next_s:
            return False
        if all(self.stands(rank) == wanted for rank, wanted in self.stand.items()):
            return True
        self.asked += 1
        self.next_s = time.monotonic() + 1
        request_dumps(self.spool, self.asked)
        return False

    def stands(self, rank: int) -> tuple[int, int] | None:
        """Collectives that a rank has issued and has in flight, by its dump."""
        try:
            entries = json.loads(self._path(rank).read_text())["entries"]
        except FileNotFoundError:
            return None
        return len(entries) - BEFORE, sum(not is_over(one) for one in entries)

    def _path(self, rank: int) -> Path:
        return self.spool / DUMPS / f"_dump_{rank}.json"


def dies() -> None:
    """End this process at once, as a kill does."""
    os._exit(0)
