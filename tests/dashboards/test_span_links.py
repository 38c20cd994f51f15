"""Who waited for whom, and the critical path: on jobs whose truth is written down by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.dashboards.binary import unpack
from megascope.dashboards.spans import whole as span_whole
from megascope.dashboards.spans.data import links_payload, spans_payload
from megascope.dashboards.spans.links import Links
from megascope.dashboards.spans.path import critical_path
from megascope.dashboards.spans.segment import Segment
from megascope.dashboards.spans.table import SpanTable
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from support.meeting_job import MS, MeetingJob

Shown = Callable[..., dict[str, Any]]


def read(bench: Workbench, view: View) -> dict[str, Any]:
    """Both payloads of a view as named rows, and the path as (rank, segment, first ms, last ms)."""
    attempt = bench.attempt(view)
    meta, spans = unpack(spans_payload(bench, attempt, view))
    about, links = unpack(links_payload(bench, attempt, view))
    assert about["key"] == meta["key"]

    def name(span: int) -> tuple[int, str]:
        return meta["lanes"][spans["lane"][span]][0], meta["segments"][spans["segment"][span]]["name"]

    zero = spans["start"].min()
    pieces = zip(links["path_span"], links["path_begin"], links["path_end"], strict=True)
    return {
        "waiting": {name(span): links["waiting"][span] / MS for span in range(len(spans["start"]))},
        "awaited": {name(span): links["awaited"][span] for span in range(len(spans["start"]))},
        "cause": {name(span): cause for span, cause in enumerate(links["cause"])},
        "path": [(*name(span), (begin - zero) / MS, (end - zero) / MS) for span, begin, end in pieces],
        "leaves": about["leaves"],
        "whole": about["whole"],
        "arrows": [(name(one), name(other)) for one, other in zip(spans["arrow_from"], spans["arrow_to"], strict=True)],
        "name": name,
    }


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    opened: list[Workbench] = []

    def open_job(job: MeetingJob, view: View | None = None, uncertainty_ms: float | None = None) -> dict[str, Any]:
        opened.append(Workbench(job.write(tmp_path / f"store{len(opened)}", uncertainty_ms)))
        return read(opened[-1], view or View(axis="all"))

    yield open_job
    for bench in opened:
        bench.close()
        bench.store.close()


def three(**more: Any) -> MeetingJob:
    """Rank 1 works longest before all meet; rank 2 is the last to end."""
    job = MeetingJob(3, **more)
    for rank, length in enumerate((10, 20, 15)):
        job.add("forward", rank, 0, length)
    job.meet([10, 20, 15], 22)
    for rank, length in enumerate((3, 4, 8)):
        job.add("optimizer", rank, 22, 22 + length)
    return job


def test_waiting_is_told_from_transfer_and_names_who_came_last(shown: Shown) -> None:
    found = shown(three())
    assert [found["waiting"][rank, "all_reduce"] for rank in range(3)] == [10, 0, 5]
    assert [found["awaited"][rank, "all_reduce"] for rank in (0, 2)] == [1, 1]
    assert np.isnan(found["awaited"][1, "all_reduce"])
    assert found["name"](found["cause"][0, "all_reduce"]) == (1, "all_reduce")
    assert np.isnan(found["waiting"][0, "forward"])


def test_the_critical_path_goes_back_to_the_last_arrival(shown: Shown) -> None:
    path = [(1, "forward", 0, 20), (2, "all_reduce", 20, 22), (2, "optimizer", 22, 30)]
    assert shown(three())["path"] == path


def test_ranks_that_are_not_shown_count_all_the_same(shown: Shown) -> None:
    found = shown(three(), View(ranks=(0, 2)))
    assert [found["waiting"][rank, "all_reduce"] for rank in (0, 2)] == [10, 5]
    assert found["awaited"][0, "all_reduce"] == 1
    assert found["cause"][0, "all_reduce"] == -1
    assert found["whole"]
    assert found["path"] == [(2, "all_reduce", 20, 22), (2, "optimizer", 22, 30)]


def test_without_the_others_spans_the_path_says_where_it_leaves(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_whole, "MAX_RANKS", 2)
    found = shown(three(), View(ranks=(0, 2)))
    assert [found["waiting"][rank, "all_reduce"] for rank in (0, 2)] == [10, 5], "looked up in the store"
    assert (found["leaves"], found["whole"]) == (1, False)
    assert [piece[:2] for piece in found["path"]] == [(2, "all_reduce"), (2, "optimizer")]


def test_a_group_of_which_a_rank_is_missing_tells_nothing(shown: Shown) -> None:
    found = shown(three(members=(0, 1, 2, 3)))
    assert all(np.isnan(found["waiting"][rank, "all_reduce"]) for rank in range(3))


@pytest.mark.parametrize(
    ("uncertainty_ms", "expected"), [(0.5, [10, 0, 5]), (3, [10, 0, 0]), (None, [None, 0, None]), (8, [0, 0, 0])]
)
def test_no_order_finer_than_the_clocks_is_claimed(
    shown: Shown, uncertainty_ms: float | None, expected: list[float | None]
) -> None:
    found = shown(three(hosts=("a", "b", "c")), None, uncertainty_ms)
    waiting = [found["waiting"][rank, "all_reduce"] for rank in range(3)]
    assert [None if np.isnan(one) else one for one in waiting] == expected


def test_a_message_is_an_arrow_and_its_receive_waits_for_its_send(shown: Shown) -> None:
    job = MeetingJob(2)
    job.add("forward", 0, 0, 30)
    job.add("send", 0, 30, 31, peer=1, sequence=1, group=7)
    job.add("recv", 1, 5, 32, peer=0, sequence=1, group=7, exposed_ms=27)
    job.add("forward", 1, 32, 40)
    found = shown(job)
    assert found["arrows"] == [((0, "send"), (1, "recv"))]
    assert found["waiting"][1, "recv"] == 25
    assert found["awaited"][1, "recv"] == 0
    assert found["path"][0] == (0, "forward", 0, 30)
    assert [piece[:2] for piece in found["path"]] == [(0, "forward"), (0, "send"), (1, "recv"), (1, "forward")]


SEGMENTS = (Segment("forward", "compute", None), Segment("all_reduce", "collective", "dp"))


def rounds_of(work_ms: Sequence[Sequence[int]]) -> tuple[SpanTable, Links]:
    """Rounds of work that end in a collective of 2 ms; rows: rank, segment, start, end, and who came last."""
    rows: list[tuple[int, int, float, float, int]] = []
    now = 0
    for lengths in work_ms:
        end = now + max(lengths) + 2
        last = len(rows) + 2 * lengths.index(max(lengths)) + 1
        for rank, length in enumerate(lengths):
            rows.append((rank, 0, now, now + length, -1))
            rows.append((rank, 1, now + length, end, last if len(rows) != last else -1))
        now = end
    ranks, segments, start, ends_ms, causes = np.array(rows).T
    length, nothing = (ends_ms - start) * MS, np.full(len(rows), np.nan)
    columns = {
        "rank": ranks.astype(np.int64),
        "segment": segments.astype(np.int64),
        "start": start * float(MS),
        "duration": length * 1.0,
        "exposed": np.where(segments == 1, length, nothing),
        "peer": nothing,
        "status": np.zeros(len(rows), np.int64),
    }
    cause = causes.astype(np.int64)
    awaited = np.where(cause < 0, -1, ranks[cause].astype(np.int64))
    table = SpanTable(0, (), SEGMENTS, {"status": ["ok"], "clock": ["host"]}, columns)
    return table, Links(np.zeros(0, np.int64), np.zeros(0, np.int64), nothing, cause, awaited)


@given(st.integers(2, 6).flatmap(lambda ranks: st.lists(st.permutations(range(10, 10 + 5 * ranks, 5)), min_size=1)))
def test_the_path_is_as_long_as_the_job_and_runs_over_the_slowest_of_each_round(work_ms: list[list[int]]) -> None:
    spans, links = rounds_of(work_ms)
    path = critical_path(spans, links)
    total_ms = sum(max(lengths) + 2 for lengths in work_ms)
    assert (path.ends - path.begins).sum() == pytest.approx(total_ms * MS)
    assert (path.begins[1:] == path.ends[:-1]).all(), "without a gap"
    work = spans.columns["segment"][path.spans] == 0
    slowest = [lengths.index(max(lengths)) for lengths in work_ms]
    assert spans.columns["rank"][path.spans[work]].tolist() == slowest
