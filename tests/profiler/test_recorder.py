"""Spans with parent, self and exposed time; threads, overlap, forks, kills, full and read-only spools."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from megascope.profiler import annotations, opening
from megascope.profiler.box import ABSENT_I32, ABSENT_I64, ABSENT_INDEX, BoxLayout, BoxReader
from megascope.profiler.metadata import read_metadata
from megascope.profiler.null import NullRecorder
from megascope.profiler.opening import open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.topology import Topology
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


def test_a_full_spool_shrinks_the_box_and_then_moves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, sizes = os.posix_fallocate, []

    def fallocate(fd: int, offset: int, size: int) -> None:
        sizes.append(size)
        if size > 600_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    recorder = open_recorder(settings(tmp_path))
    assert isinstance(recorder, Recorder)
    assert recorder.layout.ring_records == 512
    assert len(sizes) == 2
    recorder.close()


def test_a_box_takes_only_its_share_of_a_small_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MB, as containers have it, for eight ranks: half stays free for collectives and data loaders."""
    room = os.statvfs_result((4096, 4096, 16384, 16384, 16384, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    recorder = open_recorder(settings(tmp_path, layout=BoxLayout(), local_world_size=8))
    assert isinstance(recorder, Recorder)
    assert recorder.layout.total_bytes <= 4 * 2**20
    assert recorder.layout.ring_records == 1024
    recorder.close()


def test_without_any_space_training_goes_on_unrecorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    recorder = open_recorder(settings(tmp_path))
    assert isinstance(recorder, NullRecorder)
    assert "Rank 0 is not recorded" in caplog.text
    with recorder.span(recorder.segment("work")):
        pass


def test_a_spool_that_cannot_be_made_falls_back_to_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    recorder = open_recorder(settings(blocker / "spool"))
    assert isinstance(recorder, Recorder)
    assert next(tmp_path.glob("megascope-*/spool-fallback/run/0/rank-00000.box"))
    recorder.close()


def test_metadata_that_cannot_be_written_is_counted_once_warned(
    recorded: Recorded, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        recorded.recorder.step(0)
        recorded.recorder.step(1)
        recorded.recorder.step(2)
    assert recorded.recorder.metadata_lost == 2
    assert caplog.text.count("training goes on") == 1


def test_two_processes_that_claim_one_rank_get_a_box_each(tmp_path: Path) -> None:
    recorders = [open_recorder(settings(tmp_path)) for _ in range(2)]
    assert sorted(path.name for path in tmp_path.glob("run/0/*.box")) == ["rank-00000.1.box", "rank-00000.box"]
    for recorder in recorders:
        recorder.close()


def test_names_are_data(recorded: Recorded, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotations, "MAX_SEGMENTS", 10)
    recorder = recorded.recorder
    odd = ["x" * 100_000, '"quotes"', "line\nbreak", "emoji 🙂", "../../etc", ""]
    indexes = [recorder.segment(name) for name in odd]
    assert len(set(indexes)) == len(odd)
    assert recorder.segment(odd[0]) == indexes[0]
    late = {recorder.segment(f"name {number}") for number in range(100)}
    assert len(late) == 4
    assert caplog.text.count("More than") == 1
    stored = [line["name"] for line in recorded.metadata() if line["kind"] == "segment"]
    assert stored[1:6] == odd[1:]
    assert len(stored[0]) < 1100
    assert len(stored) == 10


def test_all_ranks_of_a_host_share_one_clock_base(tmp_path: Path) -> None:
    bases = [opening.clock_base_ns(tmp_path) for _ in range(5)]
    assert len(set(bases)) == 1
    assert abs(bases[0] + time.monotonic_ns() - time.time_ns()) < 1e9
    (tmp_path / "clock.json").write_text('{"clock_base_ns": 5, "boot": "another"}')
    assert opening.clock_base_ns(tmp_path) != 5


def test_steps_metrics_topology_and_exit_are_metadata(recorded: Recorded) -> None:
    recorder = recorded.recorder
    recorder.topology(Topology.of(pp=2, tp=2), 3)
    recorder.step(0)
    recorder.step_metrics(0, loss=5.5, mfu=None)
    recorder.step(1)
    recorder.end_step()
    recorder.close("finished")
    lines = {line["kind"]: line for line in recorded.metadata()}
    assert lines["topology"]["coordinates"] == {"pp": 1, "tp": 1}
    assert lines["metrics"] == {"kind": "metrics", "step": 0, "loss": 5.5}
    assert [line["step"] for line in recorded.metadata() if line["kind"] == "step"] == [0, 1]
    assert lines["step"]["duration_ns"] > 0
    assert lines["exit"]["reason"] == "finished"
    assert BoxReader(recorded.box).closed


def test_a_short_write_costs_its_own_line_alone(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:10]))
        recorded.recorder.step_metrics(0, loss=1.0)
    recorded.recorder.step_metrics(1, loss=2.0)
    assert [line["step"] for line in recorded.metadata() if line["kind"] == "metrics"] == [1]
    assert BoxReader(recorded.box).metadata_lost == 1


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


def test_a_cut_metadata_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "meta"
    path.write_bytes(b'{"kind":"a"}\nnot json\n{"kind":"b"')
    (only,) = list(read_metadata(path))
    assert only == (13, {"kind": "a"})
    with path.open("ab") as file:
        file.write(b"}\n")
    assert [value["kind"] for _, value in read_metadata(path, 13)] == ["b"]


def test_absent_values_have_markers_of_their_own(recorded: Recorded) -> None:
    recorder = recorded.recorder
    recorder.end(recorder.begin(recorder.segment("bare")))
    (record,) = recorded.spans()
    assert record["microbatch"] == ABSENT_I32
    assert record["step"] == ABSENT_I64
    assert record["group"] == ABSENT_INDEX
