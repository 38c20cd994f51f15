"""Chrome traces as a stream, and their times: nothing of a number is lost, and what was cut is told."""

from __future__ import annotations

import gzip
import io
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megascope.collectors.importers.chrome_json import CHUNK, ChromeTrace, ns_of, open_stream
from megascope.collectors.importers.intervals import covered_between, enclosing
from megascope.profiler.errors import FormatError

EVENTS = [{"ph": "X", "name": f'n{i} "\\ \u00fc \U0001f600\n', "ts": i, "dur": 1} for i in range(50)]


def read(data: bytes) -> tuple[ChromeTrace, list[dict[str, object]]]:
    trace = ChromeTrace(io.BytesIO(data), "t.json")
    return trace, list(trace)


@given(st.integers(0, 2**52), st.integers(0, 999))
def test_microseconds_become_exact_nanoseconds(us: int, ns: int) -> None:
    assert ns_of(f"{us}.{ns:03d}") == us * 1000 + ns
    assert ns_of(us) == us * 1000
    assert ns_of(str(us)) == us * 1000


@given(st.decimals(min_value=-(10**15), max_value=10**15, places=6, allow_nan=False))
def test_what_is_finer_than_a_nanosecond_is_rounded(value: object) -> None:
    found = ns_of(str(value))
    assert found is not None
    assert abs(Fraction(found) - Fraction(str(value)) * 1000) <= Fraction(1, 2)


@pytest.mark.parametrize("value", [None, True, "nan", "inf", "x", "", [], {}, "1e400", 1 << 62, "9e18", float("nan")])
def test_what_is_no_time_is_none(value: object) -> None:
    assert ns_of(value) is None


def test_times_rounded_apart_never_give_a_negative_duration() -> None:
    start, duration = ns_of("100.7"), ns_of("0.2")
    assert (start, duration) == (100_700, 200)


@pytest.mark.parametrize("indent", [None, 2])
def test_an_object_with_what_stands_beside_its_events(indent: int | None) -> None:
    told = {"schemaVersion": 1, "deep": {"a": [1, {"b": None}]}, "traceEvents": EVENTS, "last": 1.5}
    trace, events = read(json.dumps(told, indent=indent).encode())
    assert events == EVENTS
    assert trace.header == {"schemaVersion": 1, "deep": {"a": [1, {"b": None}]}, "last": "1.5"}
    assert trace.lost is None


def test_a_list_of_events_which_nobody_closed() -> None:
    trace, events = read(json.dumps(EVENTS).encode().rstrip(b"]") + b",\n")
    assert events == EVENTS
    assert trace.lost is not None


@given(cut=st.integers(1, 2500))
@settings(max_examples=60)
def test_a_file_that_was_cut_keeps_its_whole_events(cut: int) -> None:
    data = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS}).encode()
    kept = data[:-cut]
    if b"traceEvents" not in kept:
        return
    trace, events = read(kept)
    assert events == EVENTS[: len(events)]
    assert len(events) >= len(EVENTS) - 1 - cut // 40
    assert trace.lost is not None
    assert f"{len(events):,} whole events" in trace.lost


@given(st.lists(st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(), st.none())), max_size=8))
def test_any_events_come_back(events: list[dict[str, object]]) -> None:
    _, found = read(json.dumps({"traceEvents": events}).encode("utf-8", "surrogatepass"))
    assert found == json.loads(json.dumps(events))


def test_events_on_the_border_of_two_reads() -> None:
    events = [{"name": "x" * (CHUNK // 7), "n": number} for number in range(30)]
    assert read(json.dumps({"traceEvents": events}).encode())[1] == events
    long = [{"name": "y" * (3 * CHUNK)}, {"n": 123456789}]
    assert read(json.dumps(long).encode())[1] == long


def test_a_packed_file_that_was_cut(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    events = [
        {"ph": "X", "name": f"{value:x}", "ts": i} for i, value in enumerate(rng.integers(0, 2**60, 5000).tolist())
    ]
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode())[:-100])
    with open_stream(path) as stream:
        trace = ChromeTrace(stream, path.name)
        found = list(trace)
    assert len(found) > 4900
    assert found == events[: len(found)]
    assert trace.lost is not None


@pytest.mark.parametrize("data", [b"", b"hello", b'"text"', b"12", b"{1: 2}", b'{"a" 3}'])
def test_what_is_no_trace_is_said(data: bytes) -> None:
    with pytest.raises(FormatError, match="no Chrome trace"):
        read(data)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("whole", "broken"),
    [
        ('"ts": 25', '"ts" 25'),
        ('"ts": 25', '"ts": ' + "9" * 5000),
        ('"ts": 25', '"ts": ' + "[" * 100_000),
        ("25", '2"5'),
    ],
)
def test_damage_in_the_middle_costs_one_event(whole: str, broken: str, indent: int | None) -> None:
    trace, events = read(json.dumps({"traceEvents": EVENTS}, indent=indent).replace(whole, broken, 1).encode())
    assert events == [one for one in EVENTS if one["ts"] != 25]
    assert trace.lost == "t.json is damaged in 1 place: what stands there is left out, and the rest was read"


@example(at=2097, junk=b"]")
@given(at=st.integers(20, 3000), junk=st.sampled_from([b"\0", b'"', b"{", b"}", b"]", b"\xff", b",,", b"\\"]))
@settings(max_examples=60)
def test_no_damage_breaks_the_reader_or_goes_unsaid(at: int, junk: bytes) -> None:
    data = json.dumps({"traceEvents": EVENTS}).encode()
    trace, events = read(data[:at] + junk + data[at + 1 :])
    wrong = [one for one in events if one not in EVENTS]
    assert len(wrong) <= 1
    assert len(events) == len(EVENTS) or trace.lost is not None


def test_damage_with_nothing_behind_it_is_no_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, events = read(json.dumps(EVENTS).encode().replace(b'"ts": 49', b'"ts" 49'))
    assert events == EVENTS[:49]
    assert trace.lost == "t.json is damaged behind event 49, and nothing after it can be read"
    monkeypatch.setattr("megascope.collectors.importers.chrome_json.LARGEST_VALUE", 1000)
    data = json.dumps(EVENTS).encode().replace(b'"ts": 25', b'"ts": "25')
    trace, events = read(data[: data.index(b'"ts": "25')] + b'"ts": "' + b"5" * 3 * CHUNK)
    assert events == EVENTS[:25]
    assert "damaged behind event 25" in str(trace.lost)
    with pytest.raises(FormatError, match="damaged in its header"):
        read(b'{"a": [1 2], "traceEvents": []}')


INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12)


@given(INTERVALS, INTERVALS)
def test_what_is_covered_is_counted_once(covers: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    begin, end = (np.array([low + more * length for low, length in covers], np.int64) for more in (0, 1))
    start, stop = (np.array([low + more * length for low, length in asked], np.int64) for more in (0, 1))
    points = {at for low, high in zip(begin.tolist(), end.tolist(), strict=True) for at in range(low, high)}
    expected = [sum(at in points for at in range(low, low + length)) for low, length in asked]
    assert covered_between(begin, end, start, stop).tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(0, 10)), max_size=14))
def test_the_parent_is_the_smallest_that_holds(spans: list[tuple[int, int, int]]) -> None:
    lane, start, length = (np.array([one[at] for one in spans], np.int64) for at in range(3))
    end = start + length
    parent = enclosing(lane, start, end)
    for index, found in enumerate(parent.tolist()):
        if found >= 0:
            assert lane[found] == lane[index]
            assert start[found] <= start[index]
            assert end[found] >= end[index]
            assert found != index
        elif length[index]:
            strictly = (lane == lane[index]) & (start <= start[index]) & (end >= end[index]) & (length > length[index])
            assert not strictly.any()
