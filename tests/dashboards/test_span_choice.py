"""Which ranks the Timeline shows: groups by the recorded coordinates, the nearest peers of a large group, clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.reading.store import Attempt, Store
from megascope.collectors.writing.writer import TableWriter
from megascope.dashboards.binary import unpack
from megascope.dashboards.moments import step_moments
from megascope.dashboards.pages import PAGES
from megascope.dashboards.spans.choice import choose_spans, group_of, nearest
from megascope.dashboards.spans.data import spans_payload
from megascope.dashboards.spans.steps import step_bounds
from megascope.dashboards.verdicts import stragglers_of
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from megascope.heatmap.peers import Placement
from megascope.profiler.errors import UsageError
from megascope.profiler.topology import Topology
from support.span_store import Span, write_spans

FIRST_NS = 1_790_000_000 * 10**9
LAG_NS = 10**9
"""How far the clock of host b is ahead."""


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[Workbench]:
    """Two ranks that do the same at the same moment on hosts whose clocks differ by a second."""
    starts = [FIRST_NS, FIRST_NS + LAG_NS]
    open_forward = [_flight(start + 5 * 10**7) for start in starts]
    tables: dict[str, Mapping[str, Sequence[Any]]] = {
        "runs": {"layout": ['{"dp":2}'], "world_size": [2], "start_ns": [FIRST_NS]},
        "segments": {"segment": [1], "name": ["forward"], "kind": ["compute"]},
        "events": {
            "rank": [0, 1],
            "step": [0, 0],
            "segment": [1, 1],
            "start_ns": starts,
            "duration_ns": [10**6] * 2,
            "clock": ["host"] * 2,
            "status": ["ok"] * 2,
        },
        "steps": {"rank": [0, 1], "step": [0, 0], "start_ns": starts, "duration_ns": [10**7] * 2},
        "clock_offsets": {
            "host": ["a", "b", "b"],
            "moment_ns": [FIRST_NS, FIRST_NS - 10**12, FIRST_NS],
            "offset_ns": [0, 77, -LAG_NS],
            "drift_ppb": [None, 0.0, 40.0],
            "uncertainty_ns": [1000] * 3,
        },
        "heartbeats": {
            "rank": [0, 1],
            "moment_ns": [start + 10**8 for start in starts],
            "step": [0, 0],
            "process_state": ["running"] * 2,
            "in_flight": [[flight] for flight in open_forward],
        },
    }
    with TableWriter(tmp_path, "test") as writer:
        for table, rows in tables.items():
            writer.write(table, "job", 0, rows)
        writer.write("ranks", "job", 0, {"rank": [0, 1], "host": ["a", "b"], "dp": [0, 1]}, axes=("dp",))
        writer.commit()
    with Store(tmp_path) as store:
        bench = Workbench(store)
        yield bench
        bench.close()


def _flight(begun_ns: int) -> dict[str, Any]:
    nothing = dict.fromkeys(("group", "sequence", "peer", "microbatch"))
    return {"segment": "forward", "kind": "compute", "begun_ns": begun_ns, **nothing}


def place(ranks: Sequence[int], **axes: Sequence[int]) -> Placement:
    """A placement by hand; -1 is an unknown coordinate."""
    columns = {axis: np.array(values, np.int64) for axis, values in axes.items()}
    return Placement(np.array(ranks, np.int64), ("a",) * len(ranks), columns)


def group(layout: dict[str, int], placement: Placement, axis: str, rank: int) -> tuple[int, ...]:
    """The group in an attempt of that layout."""
    return group_of(Attempt("job", 0, layout), placement, axis, rank)


def test_a_group_is_read_off_the_recorded_coordinates_not_off_the_layout() -> None:
    layout = {"dp": 2, "pp": 2}
    inner_dp = place([0, 1, 2, 3], dp=[0, 1, 0, 1], pp=[0, 0, 1, 1])
    assert group(layout, inner_dp, "dp", 0) == (0, 1)
    assert group(layout, inner_dp, "pp", 3) == (1, 3)
    turned = place([0, 1, 2, 3], dp=[1, 0, 1, 0], pp=[0, 0, 1, 1])
    assert group(layout, turned, "dp", 0) == (1, 0), "in the order of the axis"


def test_numbers_of_ranks_may_have_gaps() -> None:
    assert group({"dp": 4}, place([0, 2, 8, 9], dp=[0, 1, 2, 3]), "dp", 8) == (0, 2, 8, 9)


def test_a_rank_whose_place_is_not_known_stands_alone() -> None:
    layout = {"pp": 2, "dp": 2}
    assert group(layout, place([0, 1, 2], pp=[0, -1, 0], dp=[0, 1, 1]), "dp", 1) == (1,)
    assert group(layout, place([0, 1, 2], pp=[0, -1, 0], dp=[0, 1, 1]), "dp", 0) == (0, 2)
    assert group(layout, place([0, 1, 2], dp=[0, 1, 0]), "dp", 0) == (0,), "no coordinates on pp at all"


@given(
    st.dictionaries(st.sampled_from(["pp", "dp", "tp", "cp"]), st.integers(1, 4), min_size=1),
    st.randoms(use_true_random=False),
)
def test_groups_are_the_topologys_whatever_the_order_of_ranks(layout: dict[str, int], random: Any) -> None:
    mesh = Topology.from_mapping(layout)
    numbers = list(range(mesh.world_size))
    random.shuffle(numbers)
    coordinates = [mesh.coordinates(number) for number in numbers]
    placement = place(range(mesh.world_size), **{axis: [one[axis] for one in coordinates] for axis in mesh.names})
    for axis in mesh.names:
        expected = [numbers.index(number) for number in mesh.group(axis, numbers[0])]
        assert list(group(layout, placement, axis, 0)) == expected


@pytest.mark.parametrize(
    ("rank", "expected"),
    [(0, (0, 1, 2, 3)), (5, (3, 4, 5, 6)), (9, (6, 7, 8, 9)), (8, (6, 7, 8, 9))],
)
def test_the_nearest_ranks_lie_around_the_chosen_one(rank: int, expected: tuple[int, ...]) -> None:
    assert nearest(tuple(range(10)), rank, 4) == expected
    assert nearest(expected, rank, 4) == expected


def test_a_group_that_is_too_large_opens_at_the_culprit_and_its_nearest_peers(tmp_path: Path) -> None:
    spans = [
        Span(rank, step, "forward", step * 100, 60 if rank == 211 else 20) for step in range(40) for rank in range(300)
    ]
    with write_spans(tmp_path, spans, layout={"dp": 300}) as store:
        bench, attempt = Workbench(store), store.attempt()
        assert stragglers_of(bench, attempt, wait_s=30).value is not None
        meta, _ = unpack(spans_payload(bench, attempt, View()))
        shown = list(dict.fromkeys(rank for rank, _ in meta["lanes"]))
        assert meta["rank"] == 211
        assert shown == list(range(179, 243))
        choice = choose_spans(View(rank=0, axis="dp"), bench, attempt)
        assert (choice.ranks, choice.group_size) == (tuple(range(64)), 300), "as a link from the heatmap opens it"
        page = str(PAGES["/timeline"].body(View(), bench).children)
        assert "the nearest 64 of 300 ranks" in page
        with pytest.raises(UsageError, match="257 ranks; the timeline draws 256"):
            spans_payload(bench, attempt, View(ranks=tuple(range(257))))
        bench.close()


def test_a_rank_that_is_absent_is_refused_with_the_ranks_that_there_are(tmp_path: Path) -> None:
    spans = [Span(rank, 0, "forward", 0, 20) for rank in (0, 2, 8, 9)]
    with write_spans(tmp_path, spans, layout={"dp": 10}) as store:
        bench = Workbench(store)
        with pytest.raises(UsageError, match="no data of rank 5: its ranks are 0, 2, 8-9"):
            choose_spans(View(rank=5), bench, store.attempt())
        bench.close()


def test_steps_and_what_is_in_flight_are_on_the_clock_of_the_spans(two_hosts: Workbench) -> None:
    meta, arrays = unpack(spans_payload(two_hosts, two_hosts.store.attempt(), View(axis="dp")))
    spans: dict[int, list[float]] = {}
    for lane, start in zip(arrays["lane"], arrays["start"], strict=True):
        spans.setdefault(meta["lanes"][lane][0], []).append(float(start))
    drift_ns = 40  # 40 ppb of the second since the offset was measured
    flight_drift_ns = 42
    assert spans == {0: [0.0, 5e7], 1: [drift_ns, 5e7 + flight_drift_ns]}
    assert meta["steps"] == [[0, 0, 0], [1, 0, drift_ns]]


def test_moments_of_steps_are_on_the_reference_clock(two_hosts: Workbench) -> None:
    attempt = two_hosts.store.attempt()
    moments = step_moments(two_hosts, attempt)
    raw = two_hosts.store.query("SELECT rank, start_ns, duration_ns FROM steps", attempt=attempt).to_pylist()
    own = next(row for row in raw if row["rank"] == 0)
    assert abs(int(moments.began_ns[0]) - own["start_ns"]) < 1000
    assert abs(int(moments.ended_ns[0]) - own["start_ns"] - own["duration_ns"]) < 1000
    for rank in (0, 1):
        bounds = step_bounds(two_hosts, attempt, choose_spans(View(rank=rank, axis="rank"), two_hosts, attempt))
        assert bounds is not None
        assert abs(bounds.first_ns - own["start_ns"]) < 1000
        assert bounds.is_aligned


def test_hosts_that_cannot_be_aligned_are_named(tmp_path: Path) -> None:
    spans = [Span(rank, 0, "forward", 0, 20) for rank in range(2)]
    with write_spans(tmp_path, spans, layout={"dp": 2}, hosts={0: "a", 1: "b"}) as store:
        bench = Workbench(store)
        meta, arrays = unpack(spans_payload(bench, store.attempt(), View(axis="dp")))
        bench.close()
    assert meta["hosts"] == {"0": "a (by its own clock)", "1": "b (by its own clock)"}
    assert len(arrays["start"]) == 2
