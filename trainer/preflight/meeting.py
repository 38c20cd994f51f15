"""How ranks and the coordinator talk: orders and answers as keys of torch's store, each with a time limit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import DistStoreError

from .measurements import Member

Connect = Callable[[], Store]
"""Makes a new connection to the store: each process needs its own."""

GRACE_S = 5.0
"""How long after the time limit of its work an answer may take to arrive."""


@dataclass(frozen=True, slots=True)
class Order:
    """Work for some ranks: a check by its index, and the teams that run it at the same time; no check: the end."""

    number: int
    check: int | None
    teams: tuple[tuple[int, ...], ...] = ()

    def team_of(self, rank: int) -> tuple[int, ...] | None:
        """The team that a rank is in; None if it has nothing to do."""
        return next((team for team in self.teams if rank in team), None)


class Meeting:
    """A connection to the store of this preflight."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def arrive(self, member: Member) -> None:
        """Say where a rank is."""
        self._store.set(f"member/{member.rank}", json.dumps(asdict(member)))

    def members(self, world_size: int, timeout_s: float) -> dict[int, Member]:
        """All that arrive in time."""
        found = self.collect("member", range(world_size), timeout_s)
        return {rank: Member(**fields) for rank, fields in found.items()}

    def introduce(self, members: Iterable[Member]) -> None:
        """Tell everybody who is there."""
        self._store.set("members", json.dumps([asdict(member) for member in members]))

    def introduced(self, timeout_s: float) -> dict[int, Member]:
        """Who is there, as the coordinator says."""
        return {fields["rank"]: Member(**fields) for fields in json.loads(self._get("members", timeout_s))}

    def give(self, order: Order) -> None:
        """Give an order."""
        self._store.set(f"order/{order.number}", json.dumps(asdict(order)))

    def order(self, number: int, timeout_s: float) -> Order:
        """Wait for the order of this number. Raises DistStoreError where it does not come."""
        found = json.loads(self._get(f"order/{number}", timeout_s))
        return Order(found["number"], found["check"], tuple(tuple(team) for team in found["teams"]))

    def answer(self, number: int, rank: int, value: dict[str, Any]) -> None:
        """Say what came of an order."""
        self._store.set(f"answer/{number}/{rank}", json.dumps(value))

    def answers(self, number: int, ranks: Sequence[int], timeout_s: float) -> dict[int, dict[str, Any]]:
        """The answers of those that give one in time."""
        return self.collect(f"answer/{number}", ranks, timeout_s)

    def leave(self, rank: int) -> None:
        """Say that a rank needs the store no more."""
        self._store.set(f"left/{rank}", "true")

    def wait_until_left(self, ranks: Iterable[int]) -> None:
        """Wait for those that are still there, for a while: the store may end with this process."""
        self.collect("left", ranks, GRACE_S)

    def collect(self, prefix: str, ranks: Iterable[int], timeout_s: float) -> dict[int, Any]:
        """Values of the ranks that have set theirs within the time."""
        deadline, found = time.monotonic() + timeout_s, {}
        for rank in ranks:
            key = f"{prefix}/{rank}"
            left = max(0.0, deadline - time.monotonic())
            if left == 0.0 and not self._store.check([key]):
                continue
            try:
                found[rank] = json.loads(self._get(key, max(left, 0.1)))
            except DistStoreError:
                continue
        return found

    def _get(self, key: str, timeout_s: float) -> str:
        self._store.wait([key], timedelta(seconds=timeout_s))
        return self._store.get(key).decode()


def exchange_in(store: Store, timeout_s: float) -> Callable[[str, str | None], str]:
    """A function (key, value) that sets a value, or waits for one where it is None."""

    def exchange(key: str, value: str | None) -> str:
        if value is not None:
            store.set(key, value)
            return value
        store.wait([key], timedelta(seconds=timeout_s))
        return str(store.get(key).decode())

    return exchange


def join_team(store: Store, prefix: str, index: int, size: int, device: str, timeout_s: float) -> None:
    """Initialise a process group of this team alone: NCCL on GPUs, gloo on CPUs.

    It waits longer than the process lives: so those that wait are ended like the one that they wait for, and how far
    each came tells them apart.
    """
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=PrefixStore(prefix, store),
        rank=index,
        world_size=size,
        timeout=timedelta(seconds=timeout_s + 60),
    )
