"""The clock of work: it stands still without a core, in waits and outside of work, and knows nothing where none is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megascope.profiler import session, work_clock
from megascope.profiler.cadence import Cadence
from megascope.profiler.opening import open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import SegmentKind
from megascope.profiler.work_clock import WorkClock
from support.recording import Recorded
from support.recording import settings as recorder_settings
from support.work_machine import Machine, spend, step_of

BUSY = "print(flush=True)\nwhile True: pass\n"
OPERATION = object()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:
        found = Machine(tmp_path / "schedstat", patch)
        yield found
        found.clock.close()


def test_only_work_on_a_core_counts(machine: Machine) -> None:
    clock = machine.clock
    machine.pass_(50, 7)
    clock.enter()
    machine.pass_(100, 30)
    clock.enter()
    machine.pass_(10, 3)
    clock.leave()
    clock.wait_begin(OPERATION)
    machine.pass_(5_000, 900)
    clock.wait_end(OPERATION)
    machine.pass_(1)
    clock.leave()
    machine.pass_(70, 70)
    assert clock.take() == 111
    assert clock.take() is None, "no work is not a work of nothing"


def test_waits_outside_of_work_change_nothing(machine: Machine) -> None:
    machine.clock.wait_begin(OPERATION)
    machine.pass_(5)
    machine.clock.wait_end(OPERATION)
    machine.pass_(5)
    assert machine.clock.take() is None
    machine.clock.leave()  # of work that began before it was counted
    assert machine.clock.take() is None


def test_other_threads_do_not_touch_it(machine: Machine) -> None:
    clock = machine.clock

    def elsewhere() -> None:
        clock.leave()
        clock.wait_begin(OPERATION)
        clock.enter()

    clock.enter()
    machine.pass_(10)
    other = threading.Thread(target=elsewhere)
    other.start()
    other.join()
    machine.pass_(10)
    clock.leave()
    assert clock.take() == 20


def test_a_file_that_went_away_stops_no_training(machine: Machine) -> None:
    clock = machine.clock
    clock.enter()
    clock.close()
    clock.enter()
    clock.leave()
    assert clock.take() is None


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.sampled_from(["enter", "leave", "wait", "take"]), max_size=30))
def test_it_never_counts_more_than_ran(machine: Machine, moves: list[str]) -> None:
    clock, depth, counted, ran = machine.clock, 0, 0, 0
    for move in moves:
        if move == "enter":
            clock.enter()
            depth += 1
        elif move == "leave":
            clock.leave()
            depth = max(depth - 1, 0)
        elif move == "wait":
            clock.wait_begin(OPERATION)
            machine.pass_(1_000, 10)
            clock.wait_end(OPERATION)
        else:
            counted += clock.take() or 0
        machine.pass_(7, 2)
        ran += 7 if depth else 0
    for _ in range(depth):
        clock.leave()
    assert counted + (clock.take() or 0) == ran


@pytest.mark.parametrize("text", [None, "", "0 0 0\n", "no numbers here\n"], ids=["absent", "empty", "off", "strange"])
def test_where_the_kernel_does_not_count_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, recorded: Recorded
) -> None:
    path = tmp_path / "schedstat"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(work_clock, "_PATH", str(path))
    assert WorkClock.of_this_thread() is None
    forward = recorded.recorder.segment("forward")
    assert "worked_ns" not in step_of(recorded, lambda: spend(recorded.recorder, forward, 0.0))


def test_a_rank_that_shares_its_core_works_for_a_part_of_its_time(recorded: Recorded) -> None:
    found = WorkClock.of_this_thread()
    if found is None:
        pytest.skip("this kernel does not count run-queue delay (CONFIG_SCHED_INFO)")
    found.close()
    forward, usual = recorded.recorder.segment("forward"), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usual)})
    try:
        with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            line = step_of(recorded, lambda: spend(recorded.recorder, forward, 0.3))
            other.kill()
    finally:
        os.sched_setaffinity(0, usual)
    assert 0 < line["worked_ns"] < 0.8 * line["duration_ns"]


def test_compute_and_optimizer_count_and_nothing_else(recorded: Recorded) -> None:
    recorder = recorded.recorder
    kinds = {kind: recorder.segment(f"of {kind}", kind) for kind in SegmentKind}
    step_of(recorded, lambda: None)
    counted = {index for index, clock in recorder.work_clocks.items() if isinstance(clock, WorkClock)}
    assert counted == {kinds[SegmentKind.COMPUTE], kinds[SegmentKind.OPTIMIZER]}

    def run() -> None:
        for index in kinds.values():
            spend(recorder, index, 0.01)

    line = step_of(recorded, run)
    assert 0 < line["worked_ns"] < 0.01e9 * len(kinds) < line["duration_ns"]


def test_waits_that_a_recorder_times_are_left_out(recorded: Recorded) -> None:
    recorder = recorded.recorder
    forward = recorder.segment("forward")
    gather = recorder.segment("tp_all_gather", SegmentKind.COLLECTIVE, "tp")

    def communicate() -> None:
        with recorder.span(forward):
            span = recorder.begin_async(gather)
            recorder.wait_begin(span)
            time.sleep(0.2)
            recorder.end_async(span)
            recorder.wait_end(span)

    assert step_of(recorded, communicate)["worked_ns"] < 100_000_000


def test_what_lies_between_steps_belongs_to_none(recorded: Recorded) -> None:
    recorder = recorded.recorder
    forward = recorder.segment("forward")
    step_of(recorded, lambda: spend(recorder, forward, 0.001))
    spend(recorder, forward, 0.2)
    assert step_of(recorded, lambda: spend(recorder, forward, 0.001))["worked_ns"] < 100_000_000


def test_a_step_without_timings_counts_nothing(tmp_path: Path) -> None:
    recorder = open_recorder(recorder_settings(tmp_path, cadence=Cadence(sample=2)))
    assert isinstance(recorder, Recorder)
    forward = recorder.segment("forward")
    recorder.step(0)
    with recorder.span(forward):
        recorder.step(1)  # of those that are not timed
        spend(recorder, forward, 0.001)
    spend(recorder, forward, 0.001)
    recorder.step(2)
    time.sleep(0.2)
    spend(recorder, forward, 0.001)
    recorder.close()
    lines = Recorded(recorder, tmp_path / "run" / "0").metadata()
    worked = {line["step"]: line["worked_ns"] for line in lines if line["kind"] == "step" and "worked_ns" in line}
    assert 1 not in worked
    assert 0 < worked[2] < 100_000_000


def test_segments_of_the_interface_count_too(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_recorder", recorded.recorder)

    def run() -> None:
        with session.segment("forward"):
            ends = time.thread_time() + 0.02
            while time.thread_time() < ends:
                pass

    step_of(recorded, run)  # registers the segment
    assert step_of(recorded, run)["worked_ns"] > 0.01e9


def test_a_closed_recorder_keeps_no_file_open(recorded: Recorded) -> None:
    before = open_files()
    step_of(recorded, lambda: None)
    recorded.recorder.close()
    assert open_files() == before
    assert not recorded.recorder.work_clocks


def open_files() -> int:
    """Counts of the kernel that this process holds open."""
    return sum(target(link).endswith("schedstat") for link in Path("/proc/self/fd").iterdir())


def target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
