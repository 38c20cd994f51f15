"""Fault switches: parsed strictly, deterministic, recorded, and seen where an analysis will look for them."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from megascope.profiler.errors import UsageError
from megascope.profiler.metadata import MetadataKind, read_metadata
from megascope.profiler.null import NullRecorder
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.trainer.faults import Fault, FaultKind, FaultSwitches, parse_fault
from megascope.trainer.worker import run_worker
from support.forkrun import Outcome, fork_ranks, run_ranks
from support.training import small_config


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
        ("fast rank=1", "has no known kind: begin it with one of slow, slow-link, stop, kill, skip-collective"),
        ("slow rank=1", "lacks factor"),
        ("slow rank=1 factor=2 step=3", "has 'step=3', which slow does not take"),
        ("slow rank=1 factor=2 factor=3", "has 'factor=3'"),
        ("slow rank=one factor=2", "has a value that cannot be read"),
        ("slow rank=1 factor=0.5", "would do nothing"),
        ("slow rank=1 factor=nan", "would do nothing"),
        ("slow rank=1 factor=2 from=9 to=3", "would do nothing"),
        ("slow-link link=1-5 delay_ms=3", "cannot be read"),
        ("kill rank=-1 step=3", "would do nothing"),
    ],
)
def test_a_wrong_fault_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fault(text)
    assert sentence in str(caught.value)


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
        monkeypatch.setattr("megascope.trainer.faults.time.monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr("megascope.trainer.faults.time.sleep", self._sleep)

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
    assert total == pytest.approx(50 * 2 * 23.1, abs=0.3)  # the overshoot of a sleep is made up for by the next
    assert clock.run(switches, "backward", ("work", 20)) == 0
    (row,) = recorder.rows
    assert (row["kind"], row["ranks"], row["segment"], row["factor"]) == ("slow", [0], "forward", 3.0)
    assert (row["first_step"], row["last_step"], row["first_ns"]) == (1, None, acted_ns)


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


def test_a_collective_is_skipped_once() -> None:
    switches = FaultSwitches([parse_fault("skip-collective rank=0 segment=dp_all_gather step=2")], 0, NullRecorder())
    switches.step(2)
    assert [switches.skips(name) for name in ("tp_all_gather", "dp_all_gather", "dp_all_gather")] == [
        False,
        True,
        False,
    ]


# -- in training -------------------------------------------------------------------------------------------------


def train_recorded(spool: Path, *, fault: str, is_stuck: bool = False, **layout: Any) -> list[Outcome[Any]]:
    """Outcomes of six steps whose ranks record into ``spool``; a job that gets stuck is ended once the fault acted."""
    config = small_config(steps=6, fault=(fault,), **layout)
    world = config.topology().world_size

    def work() -> Any:
        import torch.distributed as dist

        settings = RecorderSettings(run="run", attempt=0, rank=dist.get_rank(), world_size=world, spool=spool)
        return run_worker(config, open_recorder(settings))

    def has_acted() -> bool:
        ranks = range(world) if is_stuck else ()
        return any(metadata(spool, rank, MetadataKind.FAULT) for rank in ranks)

    return fork_ranks(world, work, timeout_s=40, settle_s=1, until=has_acted)


def metadata(spool: Path, rank: int, kind: MetadataKind) -> list[dict[str, Any]]:
    path = spool / "run" / "0" / f"rank-{rank:05d}.meta.jsonl"
    if not path.exists():
        return []
    return [value for _, value in read_metadata(path) if value["kind"] == kind]


def step_durations(spool: Path, rank: int) -> list[float]:
    return [line["duration_ns"] / 1e9 for line in metadata(spool, rank, MetadataKind.STEP)]


@pytest.mark.timeout(60)
def test_kill_ends_the_rank_at_the_step_and_is_recorded(tmp_path: Path) -> None:
    outcomes = train_recorded(tmp_path, fault="kill rank=1 step=3", dp=2)
    assert outcomes[1].code == -signal.SIGKILL
    assert outcomes[0].code != 0
    assert [line["step"] for line in metadata(tmp_path, 1, MetadataKind.STEP)] == [0, 1, 2]
    (fault,) = metadata(tmp_path, 1, MetadataKind.FAULT)
    assert (fault["fault_kind"], fault["ranks"], fault["first_step"]) == ("kill", [1], 3)
    assert metadata(tmp_path, 0, MetadataKind.FAULT) == []
    (error,) = metadata(tmp_path, 0, MetadataKind.EXCEPTION)
    assert error["type"] == "PeerLostError"
    assert "group of ranks 0, 1 broke after" in error["message"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "fault", ["stop rank=1 segment=forward step=2", "skip-collective rank=1 segment=tp_all_gather step=2"]
)
def test_a_rank_that_stops_or_skips_brings_the_job_to_a_stand(tmp_path: Path, fault: str) -> None:
    outcomes = train_recorded(tmp_path, fault=fault, is_stuck=True, tp=2)
    assert all(outcome.code != 0 for outcome in outcomes)
    for rank in range(2):
        assert [line["step"] for line in metadata(tmp_path, rank, MetadataKind.STEP)] == [0, 1]
    assert len(metadata(tmp_path, 1, MetadataKind.FAULT)) == 1


@pytest.mark.timeout(60)
def test_a_slow_link_lengthens_every_step(tmp_path: Path) -> None:
    outcomes = train_recorded(tmp_path, fault="slow-link link=0>1 delay_ms=60 from=3", pp=2)
    assert [outcome.code for outcome in outcomes] == [0, 0]
    durations = step_durations(tmp_path, 0)
    held_back_s = 4 * 0.06  # four micro-batches, each on its way up
    assert min(durations[3:]) > held_back_s > min(durations[1:3])


def test_losses_do_not_change_under_slowness() -> None:
    plain = run_ranks(2, lambda: run_worker(small_config(tp=2, steps=4), NullRecorder()))[0]
    faults = ("slow rank=1 factor=2", "slow-link link=0>1 delay_ms=1")
    slow = run_ranks(2, lambda: run_worker(small_config(tp=2, steps=4, fault=faults), NullRecorder()))[0]
    assert slow.losses == plain.losses
