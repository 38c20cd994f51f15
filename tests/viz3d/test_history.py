"""What ranks usually do, read from completed spans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.topology import group_id, segment_id
from megascope.viz3d.history import NoHistory, StoreHistory
from megascope.viz3d.states import Flight

TP, DP = group_id("tp", (0, 1)), group_id("dp", (0, 2))
PROGRAM = [("tp_gather", TP), ("dp_reduce", DP), ("tp_scatter", TP), ("dp_gather", DP)]
"""One step of rank 0, in order."""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> StoreHistory:
    root: Path = tmp_path_factory.mktemp("history") / "store"
    counts = {TP: 0, DP: 0}
    columns = ("step", "segment", "start_ns", "group", "sequence", "exposed_ns")
    rows: dict[str, list[int]] = {name: [] for name in columns}
    for step in range(5):
        for place, (name, group) in enumerate(PROGRAM):
            counts[group] += 1
            rows["step"].append(step)
            rows["segment"].append(segment_id(name, "collective", None))
            rows["start_ns"].append(1000 * step + 10 * place)
            rows["group"].append(group)
            rows["sequence"].append(counts[group])
            rows["exposed_ns"].append(1 if name == "dp_reduce" else 9)
    size = len(rows["step"])
    names = sorted({name for name, _ in PROGRAM})
    with TableWriter(root, "test") as writer:
        numbers = {"rank": [0] * size, "duration_ns": [10] * size, "self_ns": [10] * size}
        words = {"stream": ["host"] * size, "clock": ["host"] * size, "status": ["ok"] * size}
        writer.write("events", "job", 0, {**rows, **numbers, **words})
        ids = [segment_id(name, "collective", None) for name in names]
        writer.write("segments", "job", 0, {"segment": ids, "name": names, "kind": ["collective"] * len(names)})
        writer.commit()
    store = Store(root)
    return StoreHistory(store, store.attempt())


def test_what_comes_before_an_operation_is_known_from_the_step_before(history: StoreHistory) -> None:
    assert history.expected_issued(0, 5, TP, 12, DP) == 11  # at the second tp of step 5, one dp was issued
    assert history.expected_issued(0, 5, TP, 11, DP) == 10  # at the first none of this step
    assert history.expected_issued(0, 5, DP, 12, TP) == 12
    assert history.expected_segment(0, 5, TP, 11) == "tp_gather"
    assert history.expected_segment(0, 5, DP, 12) == "dp_gather"


def test_a_step_is_read_up_to_an_operation_in_flight(history: StoreHistory) -> None:
    """Step 4 of rank 0 is recorded; an operation is taken as in flight in it."""

    def flight(name: str, group: int, sequence: int, at: int) -> Flight:
        return Flight(name, "collective", group, sequence, begun_ns=4000 + at)

    assert history.begins_as_usual(0, 4, flight("tp_scatter", TP, 10, 20), []) is True
    assert history.begins_as_usual(0, 4, flight("tp_scatter", TP, 10, 20), [flight("dp_gather", DP, 10, 15)]) is False
    assert history.begins_as_usual(0, 4, flight("tp_scatter", TP, 10, 20), [], but=TP) is True
    swapped = [flight("dp_gather", DP, 10, 15)]  # too early, but for nobody who asks about its group
    assert history.begins_as_usual(0, 4, flight("tp_scatter", TP, 10, 20), swapped, but=DP) is True
    assert history.begins_as_usual(0, 4, flight("dp_gather", DP, 10, 8), []) is True  # its first has no record
    early = flight("dp_reduce", DP, 9, 8)
    assert history.begins_as_usual(0, 4, flight("dp_gather", DP, 10, 9), [early]) is True
    assert history.begins_as_usual(0, 4, flight("dp_gather", DP, 10, 9), [replace(early, segment="log")]) is False
    assert history.begins_as_usual(0, 5, flight("tp_scatter", TP, 12, 1020), []) is None  # nothing is recorded
    assert NoHistory().begins_as_usual(0, 4, early, []) is None


def test_what_is_not_known_is_none(history: StoreHistory) -> None:
    assert history.expected_issued(0, 1, TP, 3, DP) is None
    assert history.expected_issued(7, 5, TP, 12, DP) is None
    assert history.expected_segment(0, 5, TP, 99) is None
    assert NoHistory().expected_issued(0, 5, TP, 12, DP) is None
    assert NoHistory().expected_segment(0, 5, TP, 12) is None


def test_operations_that_run_beside_work_expose_little(history: StoreHistory) -> None:
    assert history.asynchronous() == {"dp_reduce"}


def test_what_the_host_times_runs_ahead_of_no_device(history: StoreHistory) -> None:
    assert history.runs_ahead() is False
    assert NoHistory().runs_ahead() is None
