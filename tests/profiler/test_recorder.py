"""Spans with parent, self and exposed time; threads, overlap, forks, kills, full and read-only spools."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from megascope.profiler import opening
from megascope.profiler.box.box import ABSENT_I32, ABSENT_I64, ABSENT_INDEX, BoxReader
from megascope.profiler.null import NullRecorder
from megascope.profiler.opening import open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import STATUS_CODES, SegmentKind, Status
from support.recording import Recorded, settings

Tree = list[Any]
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.just([]), lambda children: st.lists(children, max_size=4), max_leaves=20
)


@given(tree=TREES)
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
def test_self_times_of_a_tree_add_up_to_its_duration(tmp_path: Path, tree: Tree) -> None:
    recorder = open_recorder(settings(tmp_path / str(time.monotonic_ns())))
    assert isinstance(recorder, Recorder)
    segments = [recorder.segment(f"level {depth}") for depth in range(30)]

    def run(children: Tree, depth: int) -> None:
        with recorder.span(segments[depth]):
            for child in children:
                run(child, depth + 1)

    run(tree, 0)
    recorder.close()
    box = next(tmp_path.glob("*/run/0/rank-00000.box"))
    spans = BoxReader(box).read_ring(0, 0).records
    box.unlink()
    root = spans[spans["parent"] == ABSENT_INDEX]
    assert len(root) == 1
    assert spans["self_ns"].sum() == root["duration_ns"][0]
    assert (spans["self_ns"] >= 0).all()
    assert ((spans["segment"] == 0) == (spans["parent"] == ABSENT_INDEX)).all()
    inside = spans["parent"] != ABSENT_INDEX
    assert (spans["parent"][inside] == spans["segment"][inside] - 1).all()


def test_waiting_for_an_operation_is_exposed_and_not_self_time(recorded: Recorded) -> None:
    recorder = recorded.recorder
    forward = recorder.segment("forward")
    gather = recorder.segment("tp_all_gather", SegmentKind.COLLECTIVE, "tp")
    group = recorder.group("tp", [1, 0])
    done = threading.Event()
    with recorder.span(forward, 3):
        span = recorder.begin_async(gather, group=group, sequence=1, size_bytes=4096, microbatch=3)

        def finish() -> None:
            time.sleep(0.05)
            recorder.end_async(span)
            done.set()

        thread = threading.Thread(target=finish)
        thread.start()
        time.sleep(0.02)
        recorder.wait_begin(span)
        done.wait()
        recorder.wait_end(span)
        thread.join()
    first, second = recorded.spans()
    assert (first["segment"], first["parent"], first["group"], first["sequence"]) == (gather, forward, group, 1)
    assert 50e6 <= first["duration_ns"] < 200e6
    assert 15e6 <= first["exposed_ns"] <= first["duration_ns"] - 15e6
    assert second["self_ns"] == second["duration_ns"] - first["exposed_ns"]
    assert second["exposed_ns"] == ABSENT_I64
    progress = BoxReader(recorded.box).progress()[group]
    assert (progress["issued"], progress["completed"]) == (1, 1)


def test_an_operation_in_flight_shows_what_it_waits_for(recorded: Recorded) -> None:
    recorder = recorded.recorder
    receive = recorder.segment("recv_forward", SegmentKind.P2P, "pp")
    group = recorder.group("pp_forward", [0, 4])
    span = recorder.begin_async(receive, group=group, sequence=9, peer=4, size_bytes=10, microbatch=2)
    (slot,) = BoxReader(recorded.box).slots()
    assert [int(slot[name]) for name in ("sequence", "peer", "microbatch", "ended")] == [9, 4, 2, 0]
    recorder.end_async(span)
    (slot,) = BoxReader(recorded.box).slots()
    assert slot["ended"] == 1
    assert slot["duration_ns"] >= 0
    assert (BoxReader(recorded.box).progress()[group]["completed"]) == 9
    recorder.abandon(span)
    assert recorded.spans()["exposed_ns"].tolist() == [ABSENT_I64]


def test_an_operation_that_never_ended_is_aborted_not_zero(recorded: Recorded) -> None:
    recorder = recorded.recorder
    span = recorder.begin_async(recorder.segment("send", SegmentKind.P2P))
    recorder.abandon(span)
    (record,) = recorded.spans()
    assert record["duration_ns"] == ABSENT_I64
    assert STATUS_CODES[record["status"]] is Status.ABORTED


def test_a_span_that_an_exception_ends_is_aborted(recorded: Recorded) -> None:
    recorder = recorded.recorder
    segment = recorder.segment("forward")
    with pytest.raises(ValueError, match="lost"), recorder.span(segment):
        raise ValueError("lost")
    with recorder.span(segment):
        pass
    assert [STATUS_CODES[record["status"]] for record in recorded.spans()] == [Status.ABORTED, Status.OK]


def test_overlapping_spans_and_double_ends_do_no_harm(recorded: Recorded) -> None:
    recorder = recorded.recorder
    a, b, c = (recorder.segment(name) for name in "abc")
    first, second = recorder.begin(a), recorder.begin(b)
    recorder.end(first)
    recorder.end(first)
    with recorder.span(c):
        pass
    recorder.end(second)
    assert recorder.innermost() is None
    spans = recorded.spans()
    assert spans["segment"].tolist() == [a, c, b]
    assert spans["parent"].tolist() == [ABSENT_INDEX, b, a]
    assert len(set(spans["begun_ns"].tolist())) == 3


def test_each_thread_has_its_ring_and_late_threads_share_the_last(recorded: Recorded) -> None:
    recorder = recorded.recorder
    segment = recorder.segment("work")

    def work(number: int) -> None:
        for _ in range(100):
            with recorder.span(segment, number):
                pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader = BoxReader(recorded.box)
    results = [reader.read_ring(ring, 0) for ring in range(4)]
    assert sum(len(result.records) for result in results) == 900
    assert sum(result.lost for result in results) == 0
    assert [len(set(result.records["microbatch"].tolist())) for result in results] == [1, 1, 1, 6]


def test_a_span_may_end_on_another_thread(recorded: Recorded) -> None:
    recorder = recorded.recorder
    span = recorder.begin(recorder.segment("handed over"))
    thread = threading.Thread(target=recorder.end, args=(span,))
    thread.start()
    thread.join()
    assert recorder.innermost() is None
    assert len(recorded.spans(0)) + len(recorded.spans(1)) == 1


def test_a_forked_child_writes_nothing_into_its_parents_box(recorded: Recorded) -> None:
    from megascope.profiler import session

    session.install(recorded.recorder)
    segment = recorded.recorder.segment("work")
    recorded.recorder.end(recorded.recorder.begin(segment, 1))
    child = os.fork()
    if child == 0:
        with session.segment("in the child"):
            recorded.recorder.end(recorded.recorder.begin(segment, 2))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    session.install(NullRecorder())
    assert status == 0
    recorded.recorder.end(recorded.recorder.begin(segment, 3))
    assert recorded.spans()["microbatch"].tolist() == [1, 3]
    assert "in the child" not in recorded.box.with_suffix(".meta.jsonl").read_text()


KILLED = """
import os, sys, time
from pathlib import Path
from megascope.profiler.opening import RecorderSettings, open_recorder
recorder = open_recorder(RecorderSettings(run="run", attempt=0, rank=0, world_size=1, spool=Path(sys.argv[1])))
work, stuck = recorder.segment("work"), recorder.segment("stuck")
for number in range(1000):
    recorder.step(number)
    recorder.end(recorder.begin(work, number))
recorder.begin(stuck, 77)
print("ready", flush=True)
time.sleep(60)
"""


def test_what_was_recorded_survives_kill_9(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    reader = BoxReader(tmp_path / "run" / "0" / "rank-00000.box")
    assert reader.read_ring(0, 0).records["microbatch"].tolist() == list(range(1000))
    assert not reader.closed
    assert reader.step == 999
    assert reader.pid == process.pid
    assert reader.slots()["microbatch"].tolist() == [77]


def test_all_ranks_of_a_host_share_one_clock_base(tmp_path: Path) -> None:
    bases = [opening.clock_base_ns(tmp_path) for _ in range(5)]
    assert len(set(bases)) == 1
    assert abs(bases[0] + time.monotonic_ns() - time.time_ns()) < 1e9
    (tmp_path / "clock.json").write_text('{"clock_base_ns": 5, "boot": "another"}')
    assert opening.clock_base_ns(tmp_path) != 5


def test_numbers_that_do_not_fit_are_absent_and_stop_nothing(recorded: Recorded) -> None:
    recorder = recorded.recorder
    segment = recorder.segment("work")
    for microbatch, chunk in ((2**40, 0), (1, 2**20), ("three", 0), (7, 1)):
        recorder.end(recorder.begin(segment, microbatch, chunk))  # type: ignore[arg-type]
    recorder.configuration({("a", "tuple"): 1})  # type: ignore[dict-item]
    assert recorded.spans()["microbatch"].tolist() == [ABSENT_I32] * 3 + [7]
    assert len(BoxReader(recorded.box).slots()) == 0
    assert recorder.metadata_lost == 1


def test_an_end_that_comes_after_abandoning_harms_no_other_span(recorded: Recorded) -> None:
    recorder = recorded.recorder
    segment = recorder.segment("send", SegmentKind.P2P)
    first = recorder.begin_async(segment)
    recorder.abandon(first)
    recorder.begin_async(segment, microbatch=5)
    recorder.end_async(first)
    assert BoxReader(recorded.box).slots()["ended"].tolist() == [0]


def test_a_span_that_another_thread_ended_is_nobodys_parent(recorded: Recorded) -> None:
    recorder = recorded.recorder
    a, b, c = (recorder.segment(name) for name in "abc")
    first, second = recorder.begin(a), recorder.begin(b)
    thread = threading.Thread(target=recorder.end, args=(first,))
    thread.start()
    thread.join()
    recorder.end(second)
    recorder.end(recorder.begin(c))
    assert recorded.spans()["segment"].tolist() == [b, c]
    assert recorded.spans()["parent"].tolist() == [a, ABSENT_INDEX]
    assert recorded.spans(1)["segment"].tolist() == [a]
    assert recorded.spans(1)["thread"].tolist() == [0]


def test_a_reader_looks_twice_so_that_no_overwritten_record_is_taken(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = recorded.recorder
    segment = recorder.segment("work")

    def write(spans: range) -> None:
        for number in spans:
            recorder.end(recorder.begin(segment, number))

    write(range(100))
    copy = BoxReader._copy

    def copy_while_written(reader: BoxReader, ring: int, first: int, end: int) -> Any:
        copied = copy(reader, ring, first, end)
        write(range(100, 2048 + 40))  # the writer laps the reader by 40 records, and one more is open
        recorder.begin(segment, 7)
        return copied

    monkeypatch.setattr(BoxReader, "_copy", copy_while_written)
    result = BoxReader(recorded.box).read_ring(0, 0)
    assert result.records["microbatch"].tolist() == list(range(41, 100))
    assert (result.lost, result.tail) == (41, 100)


def test_absent_values_have_markers_of_their_own(recorded: Recorded) -> None:
    recorder = recorded.recorder
    recorder.end(recorder.begin(recorder.segment("bare")))
    (record,) = recorded.spans()
    assert record["microbatch"] == ABSENT_I32
    assert record["step"] == ABSENT_I64
    assert record["group"] == ABSENT_INDEX
