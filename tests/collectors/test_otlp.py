"""Steps as OpenTelemetry traces, at a receiver that decodes them: spans, places, times, and honest counts."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.cli import main
from megascope.collectors.agent.agent import Agent
from megascope.collectors.otlp import exporting
from megascope.collectors.otlp.nesting import parents
from megascope.collectors.otlp.sending import traces_url
from megascope.collectors.reading.store import Store
from megascope.profiler.errors import UsageError
from megascope.profiler.recorder import Recorder
from support.collecting import collective, drain_all
from support.otlp_receiver import Span, receiver
from support.span_store import FIRST_NS, MS, write_spans
from support.span_store import Span as Written
from support.synthetic_store import SyntheticJob, write_synthetic_store

STEPS = (2, 3)
JOB = SyntheticJob(steps=5)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("otlp") / "store"
    write_synthetic_store(root, JOB)
    return root


@pytest.fixture(scope="module")
def taken(store: Path) -> Iterator[list[Span]]:
    """What a receiver got of two steps of all ranks."""
    with receiver() as server:
        assert main(["export", "otlp", str(store), "--steps", "2:3", "--endpoint", server.url, "--json"]) == 0
        assert {path for path, _ in server.requests} == {"/v1/traces"}
        yield server.spans()


def truth(store: Path) -> list[dict[str, Any]]:
    with Store(store) as opened:
        sql = "SELECT * FROM spans WHERE step BETWEEN ? AND ?"
        return list(opened.query(sql, list(STEPS), opened.attempt()).to_pylist())


def of_store(spans: list[Span]) -> list[Span]:
    return [span for span in spans if "megascope.segment" in span["attributes"]]


def test_every_span_of_the_steps_arrives_once_with_its_times(store: Path, taken: list[Span]) -> None:
    def key(rank: int, name: str, start_ns: int, end_ns: int) -> tuple[Any, ...]:
        return rank, name, start_ns, end_ns

    wanted = Counter(
        key(row["rank"], row["segment_name"], row["start_ns"], row["start_ns"] + (row["duration_ns"] or 0))
        for row in truth(store)
    )
    got = Counter(
        key(span["attributes"]["megascope.rank"], span["name"], span["start_ns"], span["end_ns"])
        for span in of_store(taken)
    )
    assert got == wanted
    assert len({span["id"] for span in taken}) == len(taken)


def test_a_trace_is_a_step_and_a_tree(taken: list[Span]) -> None:
    ranks = JOB.topology.world_size
    traces = {span["trace"] for span in taken}
    assert len(traces) == STEPS[1] - STEPS[0] + 1
    for trace in traces:
        spans = {span["id"]: span for span in taken if span["trace"] == trace}
        (root,) = (span for span in spans.values() if not span["parent"])
        below = [span for span in spans.values() if span["parent"] == root["id"]]
        assert {span["attributes"]["megascope.step"] for span in spans.values()} == {int(root["name"].split()[1])}
        assert sorted(span["name"] for span in below) == sorted(f"rank {rank}" for rank in range(ranks))
        assert root["start_ns"] == min(span["start_ns"] for span in below)
        assert root["end_ns"] == max(span["end_ns"] for span in below)
        for span in of_store(list(spans.values())):
            parent = spans[span["parent"]]
            assert parent["attributes"]["megascope.rank"] == span["attributes"]["megascope.rank"]
            assert parent["start_ns"] <= span["start_ns"]


def test_what_is_known_of_a_span_is_in_its_attributes(store: Path, taken: list[Span]) -> None:
    rows = {(row["rank"], row["segment_name"], row["start_ns"]): row for row in truth(store)}
    named = 0
    for span in of_store(taken):
        found = span["attributes"]
        row = rows[found["megascope.rank"], span["name"], span["start_ns"]]
        for name in ("step", "microbatch", "chunk", "kind", "axis", "sequence", "peer", "size_bytes", "self_ns"):
            assert found.get(f"megascope.{name}") == row[name], name
        assert found.get("megascope.group") == (None if row["group"] is None else str(row["group"]))
        named += "megascope.group_kind" in found
        assert span["resource"]["service.name"] == JOB.run
        assert span["resource"]["host.name"] == row["host"]
        assert span["resource"]["megascope.pp"] == row["stage"]
    assert named > 0


def test_a_receive_is_linked_to_its_send(taken: list[Span]) -> None:
    ids = {(span["trace"], span["id"]): span for span in taken}
    linked = [(span, ids[link]) for span in taken for link in span["links"]]
    assert linked
    for receive, send in linked:
        assert "recv" in receive["name"]
        assert "send" in send["name"]
        assert send["attributes"]["megascope.peer"] == receive["attributes"]["megascope.rank"]
        assert send["attributes"]["megascope.sequence"] == receive["attributes"]["megascope.sequence"]


def test_an_endpoint_that_stops_taking_is_counted_to_the_span(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "BATCH_SPANS", 100)
    with receiver() as server:
        server.fails_from = 2
        assert main(["export", "otlp", str(store), "--steps", "2:3", "--endpoint", server.url]) == 1
        arrived = len(server.spans())
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert "it answers 400 Bad Request" in err
    assert arrived == 200
    assert "200 were sent" in err
    assert f"the {len(truth(store)):,} in the store" in err


def test_nobody_at_the_endpoint_is_one_sentence(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with receiver() as server:
        url = server.url
    options = ["--steps", "2", "--endpoint", url, "--timeout", "0.2"]
    assert main(["export", "otlp", str(store), *options]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert "nothing listens there" in err
    assert "0 were sent" in err


def test_what_the_endpoint_rejects_is_not_claimed(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with receiver() as server:
        server.rejects = 3
        assert main(["export", "otlp", str(store), "--steps", "2", "--endpoint", server.url, "--json"]) == 0
        arrived, requests = len(server.spans()), len(server.requests)
    told = json.loads(capsys.readouterr().out)
    assert told["spans_rejected"] == 3 * requests
    assert told["spans_sent"] + told["spans_rejected"] == arrived
    assert told["traces"] == 1


def test_chosen_ranks_alone_are_sent_and_link_to_nobody_else(store: Path) -> None:
    with receiver() as server:
        arguments = ["--steps", "2", "--ranks", "0,1", "--endpoint", server.url]
        assert main(["export", "otlp", str(store), *arguments]) == 0
        spans = server.spans()
    assert {span["attributes"]["megascope.rank"] for span in of_store(spans)} == {0, 1}
    ids = {span["id"] for span in spans}
    assert all(link in ids for span in spans for _, link in span["links"])


@pytest.mark.parametrize(
    ("options", "code", "part"),
    [
        ([], 2, "choose --steps"),
        (["--steps", "900:901"], 1, "has no spans of these ranks and steps"),
        (["--steps", "2", "--endpoint", "collector:4318"], 2, "--endpoint collector:4318 is no address"),
    ],
)
def test_what_cannot_be_sent_is_said(
    store: Path, options: list[str], code: int, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "otlp", str(store), *options]) == code
    assert part in capsys.readouterr().err


def test_without_the_library_the_extra_is_named(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("exporting", "sending", "traces"):
        monkeypatch.delitem(sys.modules, f"megascope.collectors.otlp.{name}")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert main(["export", "otlp", str(store), "--steps", "2"]) == 1
    assert "pip install 'megascope[otel]'" in capsys.readouterr().err


def test_hosts_that_cannot_be_aligned_keep_their_clock_and_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spans = [Written(rank, 0, "forward", 0.0, 5.0, status="ok" if rank else "aborted") for rank in range(2)]
    write_spans(tmp_path, spans, layout={"dp": 2}, hosts={0: "alpha", 1: "beta"}).close()
    with receiver() as server:
        assert main(["export", "otlp", str(tmp_path), "--steps", "0", "--endpoint", server.url, "--json"]) == 0
        found = of_store(server.spans())
    assert json.loads(capsys.readouterr().out)["hosts_on_a_clock_of_their_own"] == ["alpha", "beta"]
    assert [(span["start_ns"], span["end_ns"]) for span in found] == [(FIRST_NS, FIRST_NS + 5 * MS)] * 2
    assert [span["attributes"]["megascope.clock_aligned"] for span in found] == [False, False]
    assert Counter(span["status"] for span in found) == {2: 1, 0: 1}  # 2: an error


def test_spans_lie_below_those_that_were_open_around_them(
    recorder: Callable[..., Recorder], agent: Callable[..., Agent], store_root: Path
) -> None:
    rank = recorder()
    forward, layer = rank.segment("forward"), rank.segment("layer")
    for step in range(2):
        rank.step(step)
        for microbatch in range(2):
            with rank.span(forward, microbatch), rank.span(layer, microbatch):
                collective(rank, 2 * step + microbatch + 1)
    rank.close("finished")
    drain_all(agent())
    with receiver() as server:
        assert main(["export", "otlp", str(store_root), "--steps", "0:1", "--endpoint", server.url]) == 0
        spans = {span["id"]: span for span in server.spans()}
    above = Counter((span["name"], spans[span["parent"]]["name"]) for span in of_store(list(spans.values())))
    assert above == {("forward", "rank 0"): 4, ("layer", "forward"): 4, ("dp_all_reduce", "layer"): 4}
    for span in of_store(list(spans.values())):
        parent = spans[span["parent"]]
        if span["name"] == "layer":
            assert parent["attributes"]["megascope.microbatch"] == span["attributes"]["megascope.microbatch"]
        assert parent["start_ns"] <= span["start_ns"] <= span["end_ns"] <= parent["end_ns"] or span["name"] != "layer"


def test_a_path_is_added_only_where_there_is_none() -> None:
    assert traces_url("http://host:4318") == traces_url("http://host:4318/") == "http://host:4318/v1/traces"
    assert traces_url("https://host/otlp/v1/traces") == "https://host/otlp/v1/traces"
    with pytest.raises(UsageError, match="is no address"):
        traces_url("ftp://host")


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_nested_spans_find_the_span_that_was_open_around_them(seed: int, count: int) -> None:
    """Spans of two threads, opened and closed at random, also within their own segment."""
    pick = random.Random(seed)
    stacks: dict[int, list[int]] = {0: [], 1: []}
    rows: list[dict[str, Any]] = []
    truth: list[int | None] = []
    for index in range(count):
        thread, now = pick.randrange(2), 10 * index
        stack = stacks[thread]
        for _ in range(pick.randrange(len(stack) + 1)):
            ended = rows[stack.pop()]
            ended["duration_ns"] = now - 5 - ended["begun_ns"]
        parent = stack[-1] if stack else None
        known = {"clock": "host", "duration_ns": 10**6, "begun_ns": now}
        above = None if parent is None else rows[parent]["segment"]
        rows.append({"thread": thread, "segment": pick.randrange(3), "parent": above, **known})
        truth.append(parent)
        stack.append(index)
    assert parents(rows) == truth


def test_a_parent_on_another_thread_is_found() -> None:
    known = {"clock": "device", "duration_ns": None, "begun_ns": 0}
    rows = [
        {"thread": 0, "segment": 1, "parent": None, **known},
        {"thread": 1, "segment": 2, "parent": 1, **known},
        {"thread": 0, "segment": 3, "parent": 9, **known},
    ]
    assert parents(rows) == [None, 0, None]
