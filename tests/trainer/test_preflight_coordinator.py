"""The coordinator on scripted answers: orders, measuring again, ranks that are absent, and clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from megascope.profiler.topology import Topology
from megascope.trainer.preflight.check import Answer, Check, Effort, Here
from megascope.trainer.preflight.clock_skew import ClockSkew
from megascope.trainer.preflight.coordinator import Coordinator
from megascope.trainer.preflight.links import Pairs
from megascope.trainer.preflight.measurements import Culprit, Kind, Member, Metric, Outcome, Reason
from megascope.trainer.preflight.meeting import Order
from megascope.trainer.preflight.plan import Cluster, Round, alone

Script = Callable[[Order, int], dict[str, Any] | None]


class Scripted:
    """In the place of a meeting: answers as a function of order and rank say; None is no answer."""

    def __init__(self, script: Script) -> None:
        self.script, self.orders = script, list[Order]()

    def give(self, order: Order) -> None:
        self.orders.append(order)

    def answers(self, number: int, ranks: Sequence[int], timeout_s: float) -> dict[int, dict[str, Any]]:
        found = {rank: self.script(self.orders[number], rank) for rank in ranks}
        return {rank: one for rank, one in found.items() if one is not None}

    def wait_until_left(self, ranks: Iterable[int]) -> None:
        pass


def ok(**values: float) -> dict[str, Any]:
    value = {"values": values, "kind": "", "uncertainty": {}, "facts": {}}
    return {"status": "ok", "value": value, "message": "", "notes": [], "seconds": 1.0}


def bad(status: str, message: str, notes: int = 1) -> dict[str, Any]:
    return {"status": status, "value": None, "message": message, "notes": ["."] * notes, "seconds": 1.0}


class Rate(Check):
    """A number for each rank."""

    name = "rate"
    metrics = (Metric(name="rate", unit="1", margin_cpu=0.1),)

    def rounds(self, cluster: Cluster) -> list[Round]:
        return alone(cluster)

    def measure(self, here: Here) -> Answer:
        raise NotImplementedError


def run(
    script: Script, *checks: Check, topology: Topology | None = None, per_host: int = 2
) -> tuple[Coordinator, Scripted, list[Culprit]]:
    topology = topology or Topology.of(dp=8)
    members = {
        rank: Member(rank=rank, host=f"host{rank // per_host}", local_rank=rank % per_host)
        for rank in range(topology.world_size)
    }
    meeting = Scripted(script)
    coordinator = Coordinator(meeting, Cluster(members, topology), checks, Effort())  # type: ignore[arg-type]
    culprits, _, _ = coordinator.run({})
    assert meeting.orders[-1].check is None, "all are told when it is over"
    return coordinator, meeting, culprits


def accused(culprits: list[Culprit]) -> list[tuple[Kind, Reason, tuple[int, ...]]]:
    return [(one.kind, one.reason, one.ranks) for one in culprits]


def test_what_was_disturbed_recovers_when_it_is_measured_again() -> None:
    seen: list[int] = []

    def script(order: Order, rank: int) -> dict[str, Any]:
        seen.append(rank)
        return ok(rate=50.0 if rank == 3 and seen.count(3) == 1 else 100.0)

    coordinator, meeting, culprits = run(script, Rate())
    assert culprits == []
    assert seen.count(3) == 2
    assert all(seen.count(rank) == 1 for rank in range(8) if rank != 3)
    assert meeting.orders[-2].teams == ((3,),), "it is measured alone"
    assert coordinator.verdict(culprits, {}) is Outcome.HEALTHY


def test_what_is_slow_again_is_accused_with_its_better_value() -> None:
    values = iter([40.0, 50.0])
    _, _, culprits = run(lambda order, rank: ok(rate=next(values) if rank == 3 else 100.0), Rate())
    assert accused(culprits) == [(Kind.RANK, Reason.OUTLIER, (3,))]
    assert culprits[0].value == 50.0


def test_who_gives_no_answer_is_not_asked_again() -> None:
    def script(order: Order, rank: int) -> dict[str, Any] | None:
        return None if rank == 5 else ok(rate=100.0, bandwidth=1.0, latency=1.0)

    coordinator, meeting, culprits = run(script, Rate(), Pairs())
    assert accused(culprits) == [(Kind.RANK, Reason.MISSING, (5,))]
    asked = [order for order in meeting.orders if any(5 in team for team in order.teams)]
    assert len(asked) == 1
    pairs = {one.ranks for one in coordinator.measurements if one.check == "pairs"}
    assert pairs == {(0, 1), (1, 2), (2, 3), (3, 4), (6, 7), (0, 7)}


def test_a_rank_that_hangs_all_its_pairs_is_named_once() -> None:
    def script(order: Order, rank: int) -> dict[str, Any]:
        team = order.team_of(rank) or ()
        if 2 in team:
            return bad("hung", "not done in 10 s", notes=1 if rank == 2 else 2)
        return ok(bandwidth=1.0, latency=1.0)

    _, _, culprits = run(script, Pairs())
    assert accused(culprits) == [(Kind.RANK, Reason.HUNG, (2,))]
    assert "and 1 more like it" in culprits[0].statement


def test_the_first_host_explains_that_nobody_got_the_time() -> None:
    def script(order: Order, rank: int) -> dict[str, Any]:
        if rank == 0:
            return bad("hung", "not done in 10 s after: answering")
        return bad("failed", "RuntimeError: no answer about the time came")

    _, _, culprits = run(script, ClockSkew())
    assert accused(culprits) == [(Kind.RANK, Reason.HUNG, (0,))]


def test_one_host_that_gets_no_time_is_named_itself() -> None:
    def script(order: Order, rank: int) -> dict[str, Any]:
        if rank == 0:
            return ok()
        return bad("failed", "RuntimeError: no answer") if rank == 4 else ok(offset=0.1)

    _, _, culprits = run(script, ClockSkew())
    assert accused(culprits) == [(Kind.RANK, Reason.FAILED, (4,))]


def test_a_clock_that_is_off_is_its_hosts() -> None:
    _, _, culprits = run(lambda order, rank: ok(offset=250.0) if rank == 6 else ok(offset=0.0), ClockSkew())
    assert [(one.kind, one.hosts) for one in culprits] == [(Kind.HOST, ("host3",))]
