"""Records of a black box become rows: every value, every marker for a missing one, whatever the order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.collectors.spool import event_rows as event_module
from megascope.collectors.spool.event_rows import DEVICE_TICK_NS, event_rows, span_arrays
from megascope.collectors.spool.rows import Group, Names, Segment, flights, group_progress, known_codes
from megascope.collectors.tables.parquet import conform, sort_rows
from megascope.collectors.tables.schemas import TABLES
from megascope.profiler.box.box import ABSENT_I16, ABSENT_I32, ABSENT_I64, ABSENT_INDEX, PROGRESS, RECORD
from megascope.profiler.box.format import UNKNOWN_FLAG
from megascope.profiler.topology import group_id, segment_id
from megascope.profiler.vocabulary import CLOCK_CODES, STATUS_CODES

BASE_NS = 1_790_000_000_000_000_000
SEGMENTS = [("forward", "compute", None), ("tp_all_reduce", "collective", "tp"), ("näme \n", "host", None)]
GROUPS = [("tp", (0, 1)), ("dp", (0, 2))]


def _names() -> Names:
    names = Names(streams={1: "stream 1"})
    for index, segment in enumerate(SEGMENTS):
        names.add_segment(index, Segment.of(*segment))
    for index, group in enumerate(GROUPS):
        names.add_group(index, Group.of(*group))
    return names


_MOMENTS = st.integers(0, 2**55)
_RECORD = st.fixed_dictionaries(
    {
        "begun_ns": _MOMENTS,
        "start_ns": _MOMENTS,
        "duration_ns": _MOMENTS | st.just(ABSENT_I64),
        "self_ns": st.integers(-(2**40), 2**55) | st.just(ABSENT_I64),
        "exposed_ns": _MOMENTS | st.just(ABSENT_I64),
        "step": st.integers(-5, 2**40) | st.just(ABSENT_I64),
        "size_bytes": st.integers(0, 2**62) | st.just(ABSENT_I64),
        "sequence": st.integers(0, 2**62) | st.just(ABSENT_I64),
        "segment": st.integers(0, len(SEGMENTS) - 1),
        "parent": st.integers(0, len(SEGMENTS) - 1) | st.just(ABSENT_INDEX),
        "group": st.integers(0, len(GROUPS) - 1) | st.just(ABSENT_INDEX),
        "peer": st.integers(0, 2**31 - 1) | st.just(ABSENT_I32),
        "microbatch": st.integers(0, 2**31 - 1) | st.just(ABSENT_I32),
        "chunk": st.integers(0, 2**15 - 1) | st.just(ABSENT_I16),
        "stream": st.integers(0, 3),
        "thread": st.integers(0, 63),
        "clock": st.integers(0, len(CLOCK_CODES) - 1),
        "status": st.integers(0, len(STATUS_CODES) - 1),
    }
)


def _expected(record: dict[str, Any]) -> dict[str, Any]:
    """One row by the plain words of the schema, a value at a time."""

    def known(name: str, absent: int) -> int | None:
        return None if record[name] == absent else record[name]

    on_device = CLOCK_CODES[record["clock"]] == "device"

    def time(name: str) -> int | None:
        value = known(name, ABSENT_I64)
        return _rounded(value) if on_device and value is not None else value

    return {
        "rank": 3,
        "step": known("step", ABSENT_I64),
        "microbatch": known("microbatch", ABSENT_I32),
        "chunk": known("chunk", ABSENT_I16),
        "segment": segment_id(*SEGMENTS[record["segment"]]),
        "stream": {0: "host", 1: "stream 1", 2: "stream 2", 3: "stream 3"}[record["stream"]],
        "thread": record["thread"],
        "parent": None if record["parent"] == ABSENT_INDEX else segment_id(*SEGMENTS[record["parent"]]),
        "start_ns": _rounded(record["start_ns"] + BASE_NS) if on_device else record["start_ns"] + BASE_NS,
        "duration_ns": time("duration_ns"),
        "self_ns": time("self_ns"),
        "exposed_ns": time("exposed_ns"),
        "enqueue_ns": record["begun_ns"] + BASE_NS if on_device else None,
        "clock": str(CLOCK_CODES[record["clock"]]),
        "group": None if record["group"] == ABSENT_INDEX else group_id(*GROUPS[record["group"]]),
        "sequence": known("sequence", ABSENT_I64),
        "peer": known("peer", ABSENT_I32),
        "size_bytes": known("size_bytes", ABSENT_I64),
        "status": str(STATUS_CODES[record["status"]]),
    }


def _array(records: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    array = np.zeros(len(records), RECORD)
    for index, record in enumerate(records):
        for name, value in record.items():
            array[index][name] = value
    return array


def _rounded(value: int) -> int:
    """To the tick of the device's clock, by the plain words."""
    return (value + DEVICE_TICK_NS // 2) // DEVICE_TICK_NS * DEVICE_TICK_NS


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["step"] is None, row["step"], row["rank"], row["start_ns"]


@given(st.lists(_RECORD, max_size=20), st.integers(1, 7))
@settings(max_examples=80, deadline=None)
def test_rows_are_what_the_schema_says(records: list[dict[str, Any]], piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_module, "_PIECE_RECORDS", piece)
        arrays = span_arrays([_array(records)], 3, BASE_NS, _names())
        rows = conform(TABLES["events"], "run", 2, event_rows([arrays]), ())
    expected = [{"run": "run", "attempt": 2, **_expected(record)} for record in records]
    expected.sort(key=_place)
    assert rows.to_pylist() == expected


def test_a_segment_whose_metadata_was_lost_gets_a_name() -> None:
    names = Names()
    records = np.zeros(2, RECORD)
    records["segment"], records["parent"], records["group"] = [5, 0], ABSENT_INDEX, 4
    rows = event_rows([span_arrays([records], 0, 0, names)])
    assert rows["segment"].to_pylist() == [names.segments[5].id, names.segments[0].id]
    assert names.segments[5].name == "(unnamed segment 5)"
    assert rows["group"].to_pylist() == [None, None]
    assert names.version > 0, "the table of segments has to be written again"


def test_flights_leave_out_what_is_done() -> None:
    slots = np.zeros(3, RECORD)
    slots["ended"], slots["waiting"] = [1, 0, 0], [1, 1, UNKNOWN_FLAG]
    slots["begun_ns"], slots["segment"], slots["group"], slots["sequence"] = 10, 1, 1, 4
    slots["peer"], slots["microbatch"], slots["step"] = ABSENT_I32, ABSENT_I32, 6
    slots["size_bytes"] = 4096
    flight, told_less = flights(slots, BASE_NS, _names())
    assert flight == {
        "segment": "tp_all_reduce",
        "kind": "collective",
        "group": group_id(*GROUPS[1]),
        "sequence": 4,
        "peer": None,
        "microbatch": None,
        "step": 6,
        "begun_ns": BASE_NS + 10,
        "size_bytes": 4096,
        "waiting": True,
    }
    assert told_less["waiting"] is None


def test_group_progress_names_groups_that_were_used() -> None:
    progress = np.zeros(4, PROGRESS)
    progress["issued"] = [0, 7, 9, 0]
    progress["completed"] = [0, 6, 9, 0]
    assert group_progress(progress, _names()) == [{"group": group_id(*GROUPS[1]), "issued": 7, "completed": 6}]


def test_an_index_that_only_damage_can_give_takes_no_memory() -> None:
    names = Names()
    records = np.zeros(3, RECORD)
    records["segment"], records["parent"], records["group"] = [2**32 - 2, 2**31, 5], ABSENT_INDEX, ABSENT_INDEX
    rows = event_rows([span_arrays([records], 0, 0, names)])
    first, second, third = rows["segment"].to_pylist()
    assert first == second != third
    assert len(names.segments) == 2
    assert names.segment(2**40).id == first
    with pytest.raises(ValueError, match="index"):
        names.add_group(2**31, Group.of("dp", (0,)))


def test_only_segments_that_occur_are_named() -> None:
    names = Names()
    names.add_segment(900, Segment.of("far", "host", None))
    records = np.zeros(1, RECORD)
    span_arrays([records], 0, 0, names)
    assert sorted(names.segments) == [0, 900]


def test_codes_of_no_clock_and_no_status_are_told_apart() -> None:
    records = np.zeros(3, RECORD)
    records["clock"], records["status"] = [0, len(CLOCK_CODES), 1], [0, 0, len(STATUS_CODES)]
    assert known_codes(records).tolist() == [True, False, False]


def test_rows_of_several_ranks_lie_in_the_order_of_the_table() -> None:
    parts, expected = [], []
    for rank, streams in ((5, {1: "compute"}), (2, {1: "comm"}), (5, {})):
        records = np.zeros(40, RECORD)
        records["step"], records["start_ns"] = np.arange(40) // 10, np.arange(40)[::-1]
        records["step"][7], records["stream"] = ABSENT_I64, np.arange(40) % 2
        parts.append(span_arrays([records[:15], records[15:]], rank, 0, Names(streams=streams)))
        for index, record in enumerate(records):
            step = None if index == 7 else int(record["step"])
            stream = streams.get(1, "stream 1") if index % 2 else "host"
            expected.append((step is None, step, rank, int(record["start_ns"]), stream))
    rows = event_rows(parts).to_pylist()
    found = [(row["step"] is None, row["step"], row["rank"], row["start_ns"], row["stream"]) for row in rows]
    assert [row[:4] for row in found] == sorted(row[:4] for row in expected)
    assert Counter(found) == Counter(expected)


@given(st.lists(st.lists(_RECORD, max_size=8), min_size=1, max_size=4), st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_sorted_already(boxes: list[list[dict[str, Any]]], ranks: int) -> None:
    parts = [span_arrays([_array(box)], index % (ranks + 1), BASE_NS, _names()) for index, box in enumerate(boxes)]
    rows = conform(TABLES["events"], "run", 0, event_rows(parts), ())
    assert sort_rows("events", rows).to_pylist() == rows.to_pylist()
    by_hand = rows.sort_by([("step", "ascending"), ("rank", "ascending"), ("start_ns", "ascending")])
    assert (
        rows.select(["step", "rank", "start_ns"]).to_pylist()
        == by_hand.select(["step", "rank", "start_ns"]).to_pylist()
    )
