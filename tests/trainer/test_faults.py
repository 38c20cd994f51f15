"""Fault switches: parsed strictly, deterministic, recorded, and seen where an analysis will look for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import pytest

from megascope.profiler.errors import UsageError
from megascope.profiler.null import NullRecorder
from megascope.profiler.topology import Topology
from megascope.trainer.config import TrainConfig
from megascope.trainer.faults.checks import known_segments, receivers
from megascope.trainer.faults.kinds import Fault, FaultKind, parse_fault
from megascope.trainer.faults.switches import FaultSwitches
from megascope.trainer.topology import pipeline_edges
from support.training import run_config, small_config


def test_a_fault_is_parsed() -> None:
    assert parse_fault("slow rank=5,6 factor=1.5 segment=forward,backward from=20 to=100") == Fault(
        text="slow rank=5,6 factor=1.5 segment=forward,backward from=20 to=100",
        kind=FaultKind.SLOW,
        ranks=(5, 6),
        segments=("forward", "backward"),
        factor=1.5,
        first_step=20,
        last_step=100,
    )
    link = parse_fault("slow-link link=1>5 delay_ms=20")
    assert (link.link, link.ranks, link.delay_ms, link.last_step) == ((1, 5), (1, 5), 20.0, None)
    stop = parse_fault("stop rank=3 segment=forward step=12")
    assert (stop.first_step, stop.last_step) == (12, 12)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no known kind"),
        ("fast rank=1", "has no known kind: begin it with one of slow, slow-link, slow-nic, stop, freeze, hold-gil, "),
        ("slow rank=1", "lacks factor"),
        ("slow rank=1 factor=2 step=3", "has 'step=3', which slow does not take"),
        ("slow rank=1 factor=2 factor=3", "has 'factor=3'"),
        ("slow rank=one factor=2", "has a value that cannot be read"),
        ("slow rank=1 factor=0.5", "would do nothing"),
        ("slow rank=1 factor=nan", "would do nothing"),
        ("diverge factor=1", "would do nothing"),
        ("diverge rank=1 factor=3", "has 'rank=1', which diverge does not take"),
        ("slow rank=1 factor=2 from=9 to=3", "would do nothing"),
        ("slow-link link=1-5 delay_ms=3", "cannot be read"),
        ("kill rank=-1 step=3", "would do nothing"),
        ("kill rank=1 step=-1", "give ranks, steps and attempts from 0"),
        ("slow rank=1 factor=2 from=-3", "would do nothing"),
        ("kill rank=1 step=3 attempt=-1", "would do nothing"),
    ],
)
def test_a_wrong_fault_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fault(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "layout", "sentence"),
    [
        ("slow rank=0 factor=2 segment=foward", {}, "segment foward, where slow does not act: use data, data_read, "),
        ("stop rank=0 segment=forward,x step=1", {}, "segment x, where stop does not act: use data, "),
        ("kill rank=0 segment=setup step=0", {}, "segment setup, where kill does not act"),
        ("slow rank=0 factor=2 segment=checkpoint_write", {}, "segment checkpoint_write, where slow does not act"),
        ("slow rank=0 factor=2 segment=tp_all_gather", {"tp": 2}, "tp_all_gather, where slow does not act"),
        (
            "skip-collective rank=0 segment=dp_allgather step=1",
            {"dp": 2},
            "use dp_all_gather, dp_reduce_scatter, world",
        ),
        ("skip-collective rank=0 segment=tp_all_gather step=1", {"dp": 2}, "where skip-collective does not act"),
        ("skip-collective rank=0 segment=recv_forward step=1", {"pp": 2}, "does not act: use world_all_reduce."),
        ("skip-collective rank=0 segment=forward step=1", {}, "does not act: one process has no collectives."),
        ("slow-link link=0>0 delay_ms=1", {"pp": 2}, "from 0 to 0, over which nothing is sent: from 0 use one of 1."),
        ("slow-link link=0>2 delay_ms=1", {"pp": 4}, "from 0 to 2, over which nothing is sent: from 0 use one of 1."),
        ("slow-link link=0>3 delay_ms=1", {"tp": 2, "pp": 2}, "from 0 use one of 1, 2."),
        ("slow-link link=0>0 delay_ms=1", {}, "from 0 it sends to no rank."),
        ("slow-nic rank=0,1 delay_ms=1", {"pp": 2}, "names ranks that send to no others"),
        ("slow-nic rank=0 delay_ms=1", {}, "names ranks that send to no others"),
        ("kill rank=2,7 step=1", {"dp": 2}, "names rank [2, 7], but there are only ranks 0 to 1: name one of them."),
    ],
)
def test_a_fault_that_the_layout_has_no_place_for_is_refused(text: str, layout: Any, sentence: str) -> None:
    config = small_config(fault=(text,), **layout)
    with pytest.raises(UsageError) as caught:
        config.validate(config.topology().world_size)
    assert str(caught.value).startswith(f"The fault {text!r} names ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("chunks", [1, 2])
def test_links_are_those_of_the_edges_and_groups(chunks: int) -> None:
    topology = Topology.of(pp=4, dp=2, tp=2)
    links = {(edge.source, edge.destination) for edge in pipeline_edges(topology, chunks)}
    links |= {pair for axis in ("tp", "dp") for group in topology.groups(axis) for pair in permutations(group, 2)}
    assert {(rank, peer) for rank in range(16) for peer in receivers(topology, chunks, rank)} == links


@pytest.mark.parametrize(
    "config",
    [
        small_config(tp=2, pp=2, dp=2, steps=1),
        small_config(dp=4, parallel={"pod": 2}, train={"microbatches": 2}, steps=1),
    ],
    ids=["one level", "pods"],
)
def test_the_collectives_that_can_be_skipped_are_those_that_are_issued(config: TrainConfig) -> None:
    issued = {name for result in run_config(config) for name in result.traffic}
    assert set(known_segments(FaultKind.SKIP_COLLECTIVE, config)) == {
        name for name in issued if not name.startswith(("send_", "recv_"))
    }


def test_a_fault_of_another_attempt_does_not_act() -> None:
    fault = parse_fault("slow rank=0 factor=2 attempt=1")
    assert not FaultSwitches([fault], 0, NullRecorder()).active
    assert FaultSwitches([fault], 0, NullRecorder(), attempt=1).active


@dataclass
class NotedFaults(NullRecorder):
    """Keeps what is recorded as faults."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def fault(self, values: dict[str, Any]) -> None:
        self.rows.append(values)


class VirtualTime:
    """A clock that moves by work and by sleep alone; every sleep overshoots by 0.2 ms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns, self.slept_ns = 1_000_000_000, 0
        monkeypatch.setattr("megascope.trainer.faults.switches.time.monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr("megascope.trainer.faults.switches.time.sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept_ns += int(seconds * 1e9) + 200_000
        self.now_ns += int(seconds * 1e9) + 200_000

    def run(self, switches: FaultSwitches, segment: str, *parts: tuple[str, float]) -> float:
        """Milliseconds that a segment of (work or wait or name of an inner segment, milliseconds) sleeps."""
        before_ns = self.slept_ns
        switches.enter(segment)
        for kind, duration_ms in parts:
            if kind == "wait":
                switches.pause()
                self.now_ns += int(duration_ms * 1e6)
                switches.resume()
            elif kind == "work":
                self.now_ns += int(duration_ms * 1e6)
            else:
                self.run(switches, kind, ("work", duration_ms))
        switches.leave()
        return (self.slept_ns - before_ns) / 1e6


def test_a_slow_rank_sleeps_for_its_own_work_and_not_for_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, recorder = VirtualTime(monkeypatch), NotedFaults()
    switches = FaultSwitches([parse_fault("slow rank=0 factor=3 segment=forward from=1")], 0, recorder)
    switches.step(0)
    assert clock.run(switches, "forward", ("work", 20)) == 0
    assert recorder.rows == []
    switches.step(1)
    acted_ns = clock.now_ns
    parts = [("work", 20), ("wait", 50), ("work", 0.1), ("wait", 5), ("work", 3), ("loss", 7)]
    total = sum(clock.run(switches, "forward", *parts) for _ in range(50))
    assert total == pytest.approx(50 * 2 * 30.1, abs=0.3)  # the overshoot of a sleep is made up for by the next
    assert clock.run(switches, "backward", ("work", 20)) == 0
    (row,) = recorder.rows
    assert (row["kind"], row["ranks"], row["segment"], row["factor"]) == ("slow", [0], "forward", 3.0)
    assert (row["first_step"], row["last_step"], row["first_ns"]) == (1, None, acted_ns)


@pytest.mark.parametrize("inner", ["factor=5 segment=data_read", None])
def test_what_lies_inside_a_slow_segment_is_slow_too(monkeypatch: pytest.MonkeyPatch, inner: str | None) -> None:
    """All work of a segment may lie in those inside it. One that has a factor of its own keeps it."""
    clock = VirtualTime(monkeypatch)
    texts = ["slow rank=0 factor=3 segment=data", *([f"slow rank=0 {inner}"] if inner else [])]
    switches = FaultSwitches([parse_fault(text) for text in texts], 0, NullRecorder())
    switches.step(0)
    total = sum(clock.run(switches, "data", ("data_read", 20), ("work", 1)) for _ in range(20))
    assert total == pytest.approx(20 * (20 * (4 if inner else 2) + 1 * 2), abs=0.3)


def test_what_a_segment_owes_is_not_slept_in_the_one_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a short inner segment would show many times the factor that was put in."""
    clock = VirtualTime(monkeypatch)
    switches = FaultSwitches([parse_fault("slow rank=0 factor=1.5 segment=forward")], 0, NullRecorder())
    switches.step(0)
    inside_ns = 0
    for _ in range(100):
        switches.enter("forward")
        clock.now_ns += 1_600_000  # owes 0.8 ms, too little to sleep at once
        before_ns = clock.slept_ns
        clock.run(switches, "loss", ("work", 1))
        inside_ns += clock.slept_ns - before_ns
        switches.leave()
    assert 100 * 0.5 <= inside_ns / 1e6 <= 100 * (0.5 + 0.2)  # what a sleep overshoots is made up for outside
    assert clock.slept_ns / 1e6 == pytest.approx(100 * (0.8 + 0.5), abs=0.5)


def test_the_end_of_a_fault_is_noted_under_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, recorder = VirtualTime(monkeypatch), NotedFaults()
    texts = ["slow rank=0 factor=3 to=1", "slow rank=0 factor=2 segment=data", "slow rank=0 factor=2 segment=gc"]
    switches = FaultSwitches([parse_fault(text) for text in texts], 0, recorder)
    for step in range(4):
        switches.step(step)
        clock.run(switches, "forward", ("work", 20))
        clock.run(switches, "data", ("work", 1))
        if step == 1:
            assert [row["last_ns"] for row in recorder.rows] == [None, None]
            last_ns = clock.now_ns
    switches.close()
    switches.close()
    ends = {row["fault"]: (row["first_ns"], row["last_ns"]) for row in recorder.rows[2:]}
    assert ends == {
        texts[0]: (recorder.rows[0]["first_ns"], last_ns),
        texts[1]: (recorder.rows[1]["first_ns"], clock.now_ns),
    }


def test_what_diverges_is_carried_by_all_ranks_alike() -> None:
    fault = parse_fault("diverge factor=30 from=2 to=4")
    assert (fault.ranks, fault.factor, fault.first_step, fault.last_step) == ((), 30.0, 2, 4)
    for rank in (0, 5):
        recorder = NotedFaults()
        switches = FaultSwitches([fault, parse_fault("diverge factor=2 from=4")], rank, recorder)
        stretches = []
        for step in range(7):
            switches.step(step)
            stretches.append(switches.stretch())
        assert stretches == [1, 1, 30, 30, 60, 2, 2]
        first, second, ended = recorder.rows
        assert (first["fault"], first["kind"], first["ranks"], first["factor"]) == (fault.text, "diverge", [], 30.0)
        assert (second["first_step"], second["last_ns"]) == (4, None)
        assert (ended["fault"], ended["last_ns"] is None) == (fault.text, False)


def test_others_are_not_slowed() -> None:
    assert not FaultSwitches([parse_fault("slow rank=0 factor=3")], 1, NullRecorder()).active


def test_a_slow_link_is_carried_by_its_source_and_one_way() -> None:
    fault = parse_fault("slow-link link=1>5 delay_ms=20 from=3 to=4")
    source = FaultSwitches([fault], 1, NullRecorder())
    assert source.active
    assert not FaultSwitches([fault], 5, NullRecorder()).active
    source.step(3)
    assert source.link_delay_s((1, 5), 5) == pytest.approx(0.02)
    assert source.link_delay_s((1, 5), None) == pytest.approx(0.02)
    assert source.link_delay_s((1, 5), 1) == 0
    assert source.link_delay_s((1, 3), 3) == 0
    source.step(5)
    assert source.link_delay_s((1, 5), 5) == 0


def test_what_crosses_a_slow_card_is_late_once_and_both_ways() -> None:
    fault = parse_fault("slow-nic rank=2,3 delay_ms=20 from=3 to=4")
    recorders = {rank: NotedFaults() for rank in range(5)}
    ranks = {rank: FaultSwitches([fault], rank, recorders[rank]) for rank in range(5)}
    for switches in ranks.values():
        switches.step(3)
    delays = {(rank, to): ranks[rank].link_delay_s((0, 1, 2, 3), to) for rank in range(4) for to in range(4)}
    crossing = {(rank, to) for rank, to in delays if (rank in {2, 3}) != (to in {2, 3})}
    assert {pair for pair, delay_s in delays.items() if delay_s} == crossing
    assert set(delays.values()) == {0.0, 0.02}
    assert [ranks[rank].link_delay_s((0, 1, 2, 3), None) for rank in range(4)] == [0.0, 0.0, 0.02, 0.02]
    assert ranks[2].link_delay_s((2, 3), 3) == ranks[2].link_delay_s((2, 3), None) == 0
    assert ranks[0].link_delay_s((0, 1), 1) == 0
    assert ranks[0].slows_link((0, 1, 2))
    assert not ranks[0].slows_link((0, 1))
    assert not ranks[2].slows_link((2, 3))
    assert {rank for rank, recorder in recorders.items() if recorder.rows} == {2, 3}  # those whose card it is
    ranks[2].step(5)
    assert ranks[2].link_delay_s((0, 2), 0) == 0


def test_a_collective_is_skipped_once() -> None:
    switches = FaultSwitches([parse_fault("skip-collective rank=0 segment=dp_all_gather step=2")], 0, NullRecorder())
    switches.step(2)
    assert [switches.skips(name) for name in ("tp_all_gather", "dp_all_gather", "dp_all_gather")] == [
        False,
        True,
        False,
    ]
