"""Rows of heartbeats as states: the same as read one by one, and equal lists are one object."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.collectors.tables.schemas import TABLES
from megascope.viz3d.beats import COLUMNS, states_of
from megascope.viz3d.collector import without_collector
from megascope.viz3d.states import Flight, RankState

SCHEMA = pa.schema([pa.field(column.name, column.type) for column in TABLES["heartbeats"].columns])

NUMBERS = st.none() | st.integers(0, 3) | st.integers(-(2**63), 2**63 - 1)
SMALL = st.none() | st.integers(0, 2)
FLIGHTS = st.fixed_dictionaries(
    {
        "segment": st.sampled_from([None, "", "forward", "tp_all_gather"]),
        "kind": st.sampled_from([None, "compute", "collective"]),
        "group": NUMBERS,
        "sequence": NUMBERS,
        "peer": SMALL,
        "microbatch": SMALL,
        "begun_ns": NUMBERS,
        "size_bytes": NUMBERS,
        "waiting": st.none() | st.booleans(),
    }
)
PROGRESS = st.fixed_dictionaries({"group": st.integers(0, 5), "issued": SMALL, "completed": SMALL})
BEATS = st.fixed_dictionaries(
    {
        "rank": st.integers(0, 99),
        "moment_ns": st.integers(0, 2**62),
        "step": NUMBERS,
        "in_flight": st.none() | st.lists(FLIGHTS, max_size=3),
        "progress": st.none() | st.lists(PROGRESS, max_size=3),
        "process_state": st.sampled_from([None, "running", "gone"]),
        "spans": NUMBERS,
    }
)


def read(beats: Sequence[Mapping[str, Any]]) -> list[RankState]:
    schema = pa.schema([SCHEMA.field(name) for name in COLUMNS])
    return states_of(pa.Table.from_pylist(list(beats), schema))


def one_by_one(beat: Mapping[str, Any]) -> RankState:
    flights = (
        Flight(**{**one, "segment": one["segment"] or "", "kind": one["kind"] or ""})
        for one in beat["in_flight"] or ()
    )  # fmt: skip
    progress = {one["group"]: (one["issued"] or 0, one["completed"] or 0) for one in beat["progress"] or ()}
    plain = {name: beat[name] for name in ("rank", "moment_ns", "step", "process_state", "spans")}
    return RankState(**plain, flights=tuple(flights), progress=progress)


@settings(max_examples=60, deadline=None)
@given(beats=st.lists(BEATS, max_size=6))
def test_states_are_those_that_the_rows_have_one_by_one(beats: list[dict[str, Any]]) -> None:
    """As text, which tells 0, False and None apart."""
    assert repr(read(beats)) == repr([one_by_one(beat) for beat in beats])


def beat(rank: int, begun_ns: int, issued: int) -> dict[str, Any]:
    flight = {"segment": "all_reduce", "kind": "collective", "group": 7, "sequence": 3, "begun_ns": begun_ns}
    progress = [{"group": 7, "issued": issued, "completed": 2}]
    return {"rank": rank, "moment_ns": begun_ns + 10, "in_flight": [flight], "progress": progress}


def test_equal_lists_are_one_object_and_others_are_not() -> None:
    first, second, third = read([beat(0, 100, 3), beat(1, 100, 4), beat(2, 101, 4)])
    assert first.flights is second.flights
    assert second.flights != third.flights
    assert second.progress is third.progress
    assert first.progress != second.progress


def test_a_store_without_a_field_has_nothing_in_it() -> None:
    """Stores of the first version have no `waiting`."""
    flight = pa.list_(pa.struct([("segment", pa.string()), ("kind", pa.string()), ("begun_ns", pa.int64())]))
    table = pa.Table.from_pylist([beat(0, 100, 3)], pa.schema([SCHEMA.field(name) for name in COLUMNS]))
    at = table.column_names.index("in_flight")
    short = pa.array([[{"segment": "forward", "kind": "compute", "begun_ns": 5}]], flight)
    [state] = states_of(table.set_column(at, "in_flight", short))
    assert state.flights == (Flight("forward", "compute", begun_ns=5),)


def test_of_threads_that_overlap_the_last_turns_the_collector_on_again() -> None:
    first, second = without_collector(), without_collector()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


@pytest.mark.parametrize("was_on", [False, True])
def test_the_collector_is_as_it_was_before_also_after_an_error(was_on: bool) -> None:
    (gc.enable if was_on else gc.disable)()
    try:
        inside = []
        with pytest.raises(ZeroDivisionError), without_collector():
            inside.append(1 // gc.isenabled())
        assert inside == []
        assert gc.isenabled() is was_on
    finally:
        gc.enable()
