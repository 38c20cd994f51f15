"""Perfetto's viewer at the server: only this host, only its own files; and a page that does without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megascope.collectors.reading.store import Store
from megascope.collectors.timeline import export_chrome
from megascope.dashboards.app import create_app
from megascope.dashboards.pages import timeline
from megascope.dashboards.perfetto import ROUTE, perfetto_folder
from megascope.dashboards.view import View
from megascope.dashboards.workbench import Workbench
from support.span_store import Span, write_spans


def test_the_viewer_is_served_shut_off_from_other_hosts(slow_store: Path) -> None:
    with Store(slow_store) as store:
        app = create_app(store)
        client = app.server.test_client()
        with client.get(ROUTE) as answer:  # a file, which is to be closed
            assert answer.status_code == 200
            assert b"Perfetto" in answer.data
            policy = answer.headers["Content-Security-Policy"]
        assert "frame-ancestors 'self'" in policy
        assert "connect-src 'self' data: blob:;" in policy
        assert not {part for part in policy.split() if part.startswith(("http", "*"))}
        folder = perfetto_folder()
        assert folder is not None
        assert (folder / "../__init__.py").is_file(), "there is something to be kept from"
        for outside in ("../__init__.py", "..%2f__init__.py", "%2e%2e/__init__.py"):
            assert client.get(f"{ROUTE}{outside}").status_code == 404
        assert client.get(f"{ROUTE}no-such-file.js").status_code == 404
        assert "frame-ancestors 'none'" in client.get("/timeline").headers["Content-Security-Policy"]
        app.server.extensions["megascope"].close()


def test_without_the_viewer_the_page_says_how_to_get_it(
    slow_store: Path, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert perfetto_folder() is not None
    assert "open-perfetto" in str(timeline.PAGE.body(View(), bench).children)
    for module in ("pages.timeline", "perfetto"):
        monkeypatch.setattr(f"megascope.dashboards.{module}.perfetto_folder", lambda: None)
    shown = str(timeline.PAGE.body(View(), bench).children)
    assert "open-perfetto" not in shown
    assert "/export/timeline.json" in shown
    assert "install megascope[perfetto]" in shown
    with Store(slow_store) as store:
        app = create_app(store)
        assert app.server.test_client().get(ROUTE).status_code == 404
        app.server.extensions["megascope"].close()


def test_viewers_that_sort_by_number_or_by_name_show_ranks_in_their_order(tmp_path: Path) -> None:
    spans = [Span(rank, 0, "forward", 0, 1) for rank in range(12)]
    with write_spans(tmp_path / "s", spans, layout={"dp": 12}) as store:
        export_chrome(store, store.attempt(), tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    places = {event["pid"]: event["args"]["sort_index"] for event in events if event["name"] == "process_sort_index"}
    assert sorted(names, key=lambda rank: names[rank]) == list(range(12))
    assert sorted(places, key=lambda rank: places[rank]) == list(range(12))
    assert names[3].startswith("rank 03 ")
