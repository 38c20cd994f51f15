"""The black box's format is pinned, its rings count what they lose, and its reader refuses what is damaged."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from megascope.profiler import box, vocabulary
from megascope.profiler.box import BEGIN_BYTES, HEADER_BYTES, RECORD, RECORD_BYTES, BoxLayout, BoxReader
from megascope.profiler.errors import FormatError
from megascope.profiler.opening import open_recorder
from megascope.profiler.recorder import Recorder
from support.recording import Recorded, golden, settings


def test_offsets_and_types_are_those_of_the_golden_file() -> None:
    pinned = golden(Path(__file__).with_name("golden_box.json"))
    assert RECORD.fields is not None
    assert {name: [field[1], field[0].str] for name, field in RECORD.fields.items()} == pinned["fields"]
    assert box.MAGIC.hex() == pinned["magic"]
    assert (
        pinned["version"],
        pinned["header_bytes"],
        pinned["record_bytes"],
    ) == (box.VERSION, HEADER_BYTES, RECORD_BYTES)
    words = {name: getattr(box, f"WORD_{name.upper()}") for name in pinned["words"]}
    assert words == pinned["words"]
    assert list(vocabulary.STATUS_CODES) == pinned["statuses"]
    assert list(vocabulary.CLOCK_CODES) == pinned["clocks"]


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


def test_a_torn_record_is_left_out_and_counted(recorded: Recorded) -> None:
    segment = recorded.recorder.segment("work")
    for number in range(3):
        recorded.recorder.end(recorded.recorder.begin(segment, number))
    with recorded.box.open("r+b") as file:
        file.seek(BoxReader(recorded.box).layout.rings_offset + RECORD_BYTES + BEGIN_BYTES + 40)
        file.write(b"\x77")  # the last serial of the second record
    result = BoxReader(recorded.box).read_ring(0, 0)
    assert result.records["microbatch"].tolist() == [0, 2]
    assert (result.lost, result.tail) == (1, 3)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:1000], "has 1000 bytes"),
        (lambda data: data[: len(data) // 2], "is cut short"),
        (lambda data: b"NOTABOX\0" + data[8:], "wrong magic"),
        (lambda data: data[:8] + (99).to_bytes(4, "little") + data[12:], "newer than 1"),
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
    for _ in range(5000):  # laps the ring twice
        recorder.end(recorder.begin(inner))
    (slot,) = BoxReader(recorded.box).slots()
    assert (slot["microbatch"], slot["step"], slot["begun_ns"]) == (5, 7, held.begun_ns)
    recorder.end(held)
    assert len(BoxReader(recorded.box).slots()) == 0


def test_spans_beyond_the_slots_are_timed_and_counted(recorded: Recorded) -> None:
    recorder = recorded.recorder
    segment = recorder.segment("deep")
    spans = [recorder.begin(segment, depth) for depth in range(40)]
    assert BoxReader(recorded.box).unslotted == 8
    assert len(BoxReader(recorded.box).slots()) == 32
    for span in reversed(spans):
        recorder.end(span)
    assert sorted(recorded.spans()["microbatch"].tolist()) == list(range(40))
