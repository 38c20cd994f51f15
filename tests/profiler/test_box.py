"""The black box's format is pinned, its rings count what they lose, and its reader refuses what is damaged."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from megascope.profiler import vocabulary
from megascope.profiler.box import format as box_format
from megascope.profiler.box import version_1 as box_version_1
from megascope.profiler.box.box import ABSENT_I64, ABSENT_INDEX, RAW, RECORD_BYTES, BoxLayout, BoxReader
from megascope.profiler.box.format import EXTENDED, FACTS, HEAD, LAP_OFFSET, LEAF, LEAF_END, PLAIN
from megascope.profiler.errors import FormatError
from megascope.profiler.opening import open_recorder
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import SegmentKind
from support.recording import Recorded, golden, settings


def test_offsets_and_types_are_those_of_the_golden_file() -> None:
    pinned = golden(Path(__file__).with_name("golden_box.json"))
    assert RAW.fields is not None
    assert {name: [field[1], field[0].str] for name, field in RAW.fields.items()} == pinned["fields"]
    assert box_format.MAGIC.hex() == pinned["magic"]
    sizes = (box_format.VERSION, box_format.HEADER_BYTES, RECORD_BYTES)
    assert sizes == (pinned["version"], pinned["header_bytes"], pinned["record_bytes"])
    words = {name: getattr(box_format, f"WORD_{name.upper()}") for name in pinned["words"]}
    assert words == pinned["words"]
    assert list(vocabulary.STATUS_CODES) == pinned["statuses"]
    assert list(vocabulary.CLOCK_CODES) == pinned["clocks"]


def test_what_is_packed_is_what_the_fields_say() -> None:
    """Every packer against numpy, so that the fast native one writes what the portable one would."""
    facts = FACTS.pack(21, 22, 23, 24, 25, 26, 1, 0, 1)
    head = HEAD.pack(1, 2, 3, 4, 5, 6, 1, 3, 1)
    whole = np.frombuffer(EXTENDED.pack(head, 11, 12, 13, 14, 15, facts, 1), RAW)[0]
    expected = {
        "begun_ns": 1, "step": 2, "segment": 3, "parent": 4, "microbatch": 5, "chunk": 6, "extended": 1, "status": 3,
        "begun_again": 1, "child_ns": 11, "duration_ns": 12, "lap": 13, "start_ns": 14, "exposed_ns": 15,
        "size_bytes": 21, "sequence": 22, "group": 23, "peer": 24, "stream": 25, "thread": 26, "clock": 1, "ended": 0,
        "waiting": 1, "begun_end": 1,
    }  # fmt: skip
    assert {name: int(whole[name]) for name in RAW.names or ()} == expected
    half = np.frombuffer(LEAF.pack(1, 2, 3, 4, 5, 6, 1)[:48] + LEAF_END.pack(12, 13) + bytes(64), RAW)[0]
    plain = np.frombuffer(PLAIN.pack(HEAD.pack(1, 2, 3, 4, 5, 6, 0, 0, 1), 0, 12, 13) + bytes(64), RAW)[0]
    assert half == plain
    assert (half["begun_again"], half["duration_ns"], half["lap"], half["extended"]) == (1, 12, 13, 0)


def test_a_box_of_version_1_is_still_read(tmp_path: Path) -> None:
    """The file in the archive was written by version 1: 10 spans and an operation, a ring of 8, two slots open."""
    pinned = golden(Path(__file__).with_name("golden_box_v1.json"))
    fields = box_version_1.RECORD_1.fields
    assert fields is not None
    assert {name: [field[1], field[0].str] for name, field in fields.items()} == pinned["fields"]
    with zipfile.ZipFile(Path(__file__).with_name("golden_box_v1.zip")) as archive:
        archive.extractall(tmp_path)
    reader = BoxReader(tmp_path / "rank-00003.box")
    assert (reader.version, reader.rank, reader.pid, reader.step, reader.closed) == (1, 3, 4711, 42, False)
    read = reader.read_ring(0, 0)
    assert (read.tail, read.lost) == (11, 3)
    assert read.records["microbatch"].tolist() == [3, 4, 5, 6, 7, 8, 9, 5]
    assert read.records["step"].tolist() == [41] * 7 + [42]
    operation, work = read.records[-1], read.records[0]
    assert [int(operation[name]) for name in ("group", "sequence", "peer", "size_bytes", "chunk")] == [0, 7, 2, 4096, 1]
    assert operation["self_ns"] == operation["duration_ns"] > 0
    assert operation["exposed_ns"] >= 0
    assert (work["group"], work["exposed_ns"], work["start_ns"]) == (ABSENT_INDEX, ABSENT_I64, work["begun_ns"])
    outer, ended = reader.slots()
    assert (outer["microbatch"], outer["ended"], outer["duration_ns"]) == (77, 0, ABSENT_I64)
    assert (ended["sequence"], ended["ended"], ended["waiting"]) == (8, 1, box_format.UNKNOWN_FLAG)
    assert ended["duration_ns"] > 0
    assert reader.progress()[0].tolist() == (8, 8)


@given(
    batches=st.lists(st.integers(0, 40), max_size=8),
    reads=st.lists(st.booleans(), min_size=8, max_size=8),
)
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_every_span_is_read_once_or_counted_as_lost(tmp_path: Path, batches: list[int], reads: list[bool]) -> None:
    spool = tmp_path / str(time.monotonic_ns())
    layout = BoxLayout(slots=4, rings=2, ring_records=512, groups=2)
    recorder = open_recorder(settings(spool, layout=layout))
    assert isinstance(recorder, Recorder)
    segment = recorder.segment("work")
    reader = BoxReader(spool / "run" / "0" / "rank-00000.box")
    seen: list[int] = []
    tail = lost = written = 0
    for batch, read in zip(batches, reads, strict=False):
        for _ in range(batch * 20):
            recorder.end(recorder.begin(segment, written))
            written += 1
        if read:
            result = reader.read_ring(0, tail)
            tail, lost = result.tail, lost + result.lost
            seen += result.records["microbatch"].tolist()
    result = reader.read_ring(0, tail)
    seen += result.records["microbatch"].tolist()
    assert len(seen) + lost + result.lost == written
    assert seen == sorted(set(seen))
    assert seen[-512:] == list(range(written))[-512:]
    reader.close()
    recorder.close()


@pytest.mark.parametrize(
    ("offset", "kept", "tail"), [(RECORD_BYTES + 33, [0, 2], 3), (2 * RECORD_BYTES + LAP_OFFSET, [0, 1], 2)]
)
def test_a_torn_record_is_left_out(recorded: Recorded, offset: int, kept: list[int], tail: int) -> None:
    """Cut in its first part (the generation's second copy), it is lost; without its lap it is not complete yet."""
    segment = recorded.recorder.segment("work")
    for number in range(3):
        recorded.recorder.end(recorded.recorder.begin(segment, number))
    with recorded.box.open("r+b") as file:
        file.seek(BoxReader(recorded.box).layout.rings_offset + offset)
        file.write(b"\x77")
    result = BoxReader(recorded.box).read_ring(0, 0)
    assert result.records["microbatch"].tolist() == kept
    assert (result.lost, result.tail) == (tail - len(kept), tail)


def test_a_torn_operation_is_left_out(recorded: Recorded) -> None:
    recorder = recorded.recorder
    operation = recorder.begin_async(recorder.segment("gather", SegmentKind.COLLECTIVE), sequence=1)
    recorder.end_async(operation)
    recorder.abandon(operation)
    assert len(recorded.spans()) == 1
    with recorded.box.open("r+b") as file:
        file.seek(BoxReader(recorded.box).layout.rings_offset + RECORD_BYTES - 16)
        file.write(b"\x77")  # the generation's last copy
    assert len(recorded.spans()) == 0


@pytest.mark.parametrize("written", [0, 1, 5, 511, 512, 513, 1023, 1024, 1025, 1500])
@pytest.mark.parametrize("is_open", [False, True])
def test_the_head_is_found_wherever_the_ring_stands(tmp_path: Path, written: int, is_open: bool) -> None:
    recorder = open_recorder(settings(tmp_path, layout=BoxLayout(slots=4, rings=2, ring_records=512, groups=2)))
    assert isinstance(recorder, Recorder)
    segment = recorder.segment("work")
    for number in range(written):
        recorder.end(recorder.begin(segment, number))
    if is_open:
        recorder.begin(segment, 7777)
    reader = BoxReader(tmp_path / "run" / "0" / "rank-00000.box")
    assert reader.head(0) == written
    read = reader.read_ring(0, 0)
    oldest = max(0, written - 512 + is_open)  # the open span stands where the oldest one did
    assert read.records["microbatch"].tolist() == list(range(oldest, written))
    assert (read.tail, read.lost) == (written, min(oldest, written))
    assert reader.slots()["microbatch"].tolist() == [7777] * is_open
    reader.close()
    recorder.close()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:1000], "has 1000 bytes"),
        (lambda data: data[: len(data) // 2], "is cut short"),
        (lambda data: b"NOTABOX\0" + data[8:], "wrong magic"),
        (lambda data: data[:8] + (99).to_bytes(4, "little") + data[12:], "newer than 2"),
    ],
)
def test_a_damaged_box_is_refused_with_a_sentence(recorded: Recorded, damage, said: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "damaged.box"
    path.write_bytes(damage(recorded.box.read_bytes()))
    with pytest.raises(FormatError, match=said):
        BoxReader(path)


def test_the_slot_of_an_open_span_is_never_overwritten(recorded: Recorded) -> None:
    recorder = recorded.recorder
    outer, inner = recorder.segment("outer"), recorder.segment("inner")
    recorder.step(7)
    held = recorder.begin(outer, 5)
    recorder.step(8)
    for _ in range(5000):  # laps the ring twice
        recorder.end(recorder.begin(inner))
    (slot,) = BoxReader(recorded.box).slots()
    assert (slot["microbatch"], slot["step"], slot["begun_ns"]) == (5, 7, held)
    recorder.end(held)
    assert len(BoxReader(recorded.box).slots()) == 0


def test_spans_beyond_the_slots_are_timed_and_counted(recorded: Recorded) -> None:
    """32 slots, and one more span that is open in the ring."""
    recorder = recorded.recorder
    segment = recorder.segment("deep")
    spans = [recorder.begin(segment, depth) for depth in range(40)]
    assert BoxReader(recorded.box).unslotted == 7
    assert len(BoxReader(recorded.box).slots()) == 33
    for span in reversed(spans):
        recorder.end(span)
    assert sorted(recorded.spans()["microbatch"].tolist()) == list(range(40))
    assert len(BoxReader(recorded.box).slots()) == 0
    assert BoxReader(recorded.box).leaked == 0


def test_spans_that_nobody_ends_give_their_slots_to_others(recorded: Recorded) -> None:
    """The older half of the segment that has most of them is written as aborted; one that is open for long stays."""
    recorder = recorded.recorder
    run, forgotten, work = (recorder.segment(name) for name in ("run", "forgotten", "work"))
    recorder.step(0)
    whole = recorder.begin(run)
    for number in range(100):
        recorder.step(number)
        recorder.begin(forgotten, number)
        recorder.end(recorder.begin(work, number))
    reader = BoxReader(recorded.box)
    assert (reader.unslotted, reader.leaked > 60) == (0, True)
    assert len(reader.slots()) <= 32
    assert {run, forgotten} == set(reader.slots()["segment"].tolist())
    recorder.end(whole)
    spans = recorded.spans()
    aborted = spans[spans["segment"] == forgotten]
    assert aborted["microbatch"].tolist() == list(range(len(aborted)))
    assert len(aborted) == reader.leaked
    assert set(aborted["duration_ns"].tolist()) == {ABSENT_I64}
    assert {vocabulary.STATUS_CODES[code] for code in aborted["status"]} == {vocabulary.Status.ABORTED}
    assert spans[spans["segment"] == work]["microbatch"].tolist() == list(range(100))
    assert np.count_nonzero(spans["segment"] == run) == 1


def test_operations_that_nobody_ends_are_bounded_too(recorded: Recorded) -> None:
    recorder = recorded.recorder
    send = recorder.segment("send", SegmentKind.P2P)
    spans = []
    for number in range(100):
        recorder.step(number)
        spans.append(recorder.begin_async(send, microbatch=number))
    reader = BoxReader(recorded.box)
    assert reader.unslotted == 0
    assert reader.slots()["microbatch"].tolist() == list(range(reader.leaked, 100))
    for span in spans:
        recorder.end_async(span)
        recorder.abandon(span)
    assert sorted(recorded.spans()["microbatch"].tolist()) == list(range(100))


def test_without_steps_what_nobody_ends_is_bounded_by_twice_the_slots(recorded: Recorded) -> None:
    recorder = recorded.recorder
    segment = recorder.segment("forgotten")
    for number in range(200):
        recorder.begin(segment, number)
    reader = BoxReader(recorded.box)
    assert reader.leaked == 200 - 1 - 2 * 32
    assert recorded.spans()["microbatch"].tolist() == list(range(64, 199))
