"""The exchange about clocks, with the hosts' processes as threads."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from megascope.profiler.topology import Topology
from megascope.trainer.preflight.check import Answer, Effort, Here
from megascope.trainer.preflight.clock_skew import ClockSkew
from megascope.trainer.preflight.measurements import Member
from megascope.trainer.preflight.plan import Cluster

pytestmark = pytest.mark.timeout(60)


class Told:
    """Values by key; who asks waits until they are there."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def exchange(self, key: str, value: str | None) -> str:
        with self._changed:
            if value is not None:
                self._values[key] = value
                self._changed.notify_all()
            assert self._changed.wait_for(lambda: key in self._values, 20)
            return self._values[key]


class Skewed(ClockSkew):
    """A clock that is off by so many ms."""

    def __init__(self, off_ms: float) -> None:
        self.off_ms = off_ms

    def now_ns(self) -> int:
        return time.time_ns() + round(self.off_ms * 1e6)


def measured(*off_ms: float, timeout_s: float = 20.0) -> list[Answer | Exception]:
    """What each host finds; the first one's clock is the reference."""
    members = {rank: Member(rank=rank, host=f"h{rank}", local_rank=0) for rank in range(len(off_ms))}
    told, cluster = Told(), Cluster(members, Topology.of(dp=len(off_ms)))

    def one(rank: int) -> Answer | Exception:
        here = Here(
            rank=rank, team=tuple(members), device="cpu", local_rank=0, cluster=cluster,
            effort=Effort(timeout_s=timeout_s), note=lambda _: None, exchange=told.exchange,
        )  # fmt: skip
        try:
            return Skewed(off_ms[rank]).measure(here)
        except RuntimeError as error:
            return error

    with ThreadPoolExecutor(len(off_ms)) as pool:
        return list(pool.map(one, members))


def test_offsets_lie_within_what_is_claimed() -> None:
    first, fast, slow = measured(0.0, 500.0, -30.0)
    assert isinstance(first, Answer)
    assert first.values == {}
    for answer, truth in ((fast, 500.0), (slow, -30.0)):
        assert isinstance(answer, Answer)
        assert abs(answer.values["offset"] - truth) <= answer.uncertainty["offset"]


def test_without_an_answer_there_is_no_offset() -> None:
    class Deaf(Told):
        def exchange(self, key: str, value: str | None) -> str:
            return '["127.0.0.1", 9, "00000000000000000000000000000000"]'

    member = {rank: Member(rank=rank, host=f"h{rank}", local_rank=0) for rank in range(2)}
    here = Here(
        rank=1, team=(0, 1), device="cpu", local_rank=0, cluster=Cluster(member, Topology.of(dp=2)), effort=Effort(),
        note=lambda _: None, exchange=Deaf().exchange,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=r"no answer about the time came from 127\.0\.0\.1, port 9"):
        ClockSkew().measure(here)
