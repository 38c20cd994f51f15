"""The Flask routes from which widgets fetch data, and the downloads; an error is one sentence in JSON."""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

from flask import Flask, Response, request, send_file

from ..collectors.reading.sql import SqlLimits, run_sql
from ..collectors.reading.store import Attempt
from ..collectors.timeline import export_chrome
from ..profiler.errors import MegascopeError, UsageError
from .curves import curve_panels
from .heat.export import heat_csv
from .heat.payload import heat_payload
from .perfetto import add_perfetto
from .scene.data import judged_or_plain, scene_payload
from .scene.history import Past
from .scene.page import page_html
from .security import is_loopback
from .spans.choice import choose_spans
from .spans.data import links_payload, spans_payload
from .spans.outline import outline_payload
from .verdicts import hang_of
from .view import View, parse_view
from .workbench import Workbench

log = logging.getLogger(__name__)

EXPORTED_ROWS = 200_000
EXPORTED_SPANS = 500_000
"""About 200 MB of JSON: what a browser and its viewer still take. The command line exports without a limit."""

SQUEEZED_FROM_BYTES = 16 * 1024
"""Smaller answers are not worth the time; text becomes a tenth, 100 kB of it in 2 ms."""

EXPORT_WAIT_S = 30.0
"""So long a download waits for the verdict that belongs into it."""

_MARKS = {"v", "verdict"}
Builder = Callable[[Workbench, Attempt, View], bytes]


def add_endpoints(server: Flask, bench: Workbench) -> None:
    """Add the routes under /data/ and /export/."""
    for name, (build, kind) in {
        "curves": (_curves, "application/json"),
        "heatmap": (heat_payload, "application/octet-stream"),
        "spans": (spans_payload, "application/octet-stream"),
        "links": (links_payload, "application/octet-stream"),
        "outline": (outline_payload, "application/octet-stream"),
        "scene": (scene_payload, "application/json"),
    }.items():
        server.add_url_rule(f"/data/{name}", name, _data_route(bench, build, kind))
    early = _early(_data_route(bench, heat_payload, "application/octet-stream"))
    server.add_url_rule("/data/heatmap/early", "heatmap_early", early)
    add_perfetto(server)
    server.add_url_rule("/export/sql.csv", "export_sql", _guarded(lambda: _export_sql(bench)))
    server.add_url_rule("/export/heatmap.csv", "export_heatmap", _guarded(lambda: _export_heatmap(bench)))
    server.add_url_rule("/export/hang.html", "export_hang", _guarded(lambda: _export_hang(bench)))
    server.add_url_rule("/export/timeline.json", "export_timeline", _guarded(lambda: _export_timeline(bench)))


def _view() -> View:
    """The view in the request's address; ``v`` and ``verdict`` only tell newer data from older."""
    pairs = [part for part in request.query_string.decode().split("&") if part.partition("=")[0] not in _MARKS]
    return parse_view("&".join(pairs))


def _data_route(bench: Workbench, build: Builder, kind: str) -> Callable[[], Response]:
    def route() -> Response:
        view = _view()
        attempt = bench.attempt(view)
        answer = Response(build(bench, attempt, view), content_type=kind)
        answer.headers["Cache-Control"] = "no-store"
        _squeeze(answer)
        return answer

    return _guarded(route)


def _early(route: Callable[[], Response]) -> Callable[[], Response]:
    """A route that is asked before the page is there: what goes wrong is the page's to say, so the answer is empty."""

    def early() -> Response:
        answer = route()
        return answer if answer.status_code == 200 else Response(status=204)

    return early


def _squeeze(answer: Response) -> None:
    """Compress a large answer for who takes that: the 3D scene of 12,288 ranks becomes a twelfth in 35 ms.

    Arrays become little smaller, and on this machine their way is shorter than the time that takes.
    """
    if answer.mimetype == "application/octet-stream" and is_loopback(request.remote_addr or ""):
        return
    body = answer.get_data()
    if len(body) < SQUEEZED_FROM_BYTES or not request.accept_encodings.quality("gzip"):
        return
    answer.set_data(gzip.compress(body, 1))
    answer.headers["Content-Encoding"] = "gzip"
    answer.headers["Vary"] = "Accept-Encoding"


def _guarded(route: Callable[[], Response]) -> Callable[[], Response]:
    def guarded() -> Response:
        try:
            return route()
        except UsageError as error:
            return _sentence(str(error), 400)
        except MegascopeError as error:
            return _sentence(str(error), 422)
        except Exception as error:
            log.exception("The request %s failed", request.path)
            return _sentence(f"The server failed ({type(error).__name__}): its log says why.", 500)

    return guarded


def _sentence(text: str, status: int) -> Response:
    return Response(json.dumps({"error": text}), status, content_type="application/json")


def _curves(bench: Workbench, attempt: Attempt, _: View) -> bytes:
    key = ("curves", attempt.run, attempt.attempt)
    return bench.cached(key, lambda: json.dumps(curve_panels(bench.store, attempt), allow_nan=False).encode())


def _export_sql(bench: Workbench) -> Response:
    """The rows of a query as CSV, up to `EXPORTED_ROWS`; NULL is an empty field."""
    view = _view()
    if view.q is None:
        raise UsageError("The address has no query: run one on the SQL page first.")
    attempt = bench.attempt(view) if view.around != "store" else None
    result = run_sql(bench.store, view.q, attempt=attempt, limits=SqlLimits(rows=EXPORTED_ROWS))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(result.table.column_names)
    writer.writerows(zip(*(column.to_pylist() for column in result.table.columns), strict=True))
    answer = Response(text.getvalue(), content_type="text/csv; charset=utf-8")
    answer.headers["Content-Disposition"] = 'attachment; filename="query.csv"'
    answer.headers["X-Truncated"] = "yes" if result.truncated else "no"
    return answer


def _export_heatmap(bench: Workbench) -> Response:
    """The shown cells as CSV; what is missing is an empty field."""
    view = _view()
    answer = Response(heat_csv(bench, bench.attempt(view), view), content_type="text/csv; charset=utf-8")
    answer.headers["Content-Disposition"] = 'attachment; filename="heatmap.csv"'
    return answer


def _export_hang(bench: Workbench) -> Response:
    """The 3D picture and its verdict as one file that needs no server."""
    view = _view()
    attempt = bench.attempt(view)
    latest = hang_of(bench, attempt, view.moment, wait_s=EXPORT_WAIT_S)
    if latest.value is None:
        raise MegascopeError(latest.error or "The hang is still being judged: download it again in a moment.")
    judged = judged_or_plain(bench, attempt, view, latest)
    title = f"{attempt.run}, attempt {attempt.attempt}"
    page = page_html(judged, title=title, past=Past(bench.store, attempt), racks=bench.racks)
    answer = Response(page, content_type="text/html")
    answer.headers["Content-Disposition"] = 'attachment; filename="hang.html"'
    return answer


_COUNT = "SELECT count(*) AS spans FROM events WHERE list_contains(?, rank) AND step BETWEEN ? AND ?"


def _export_timeline(bench: Workbench) -> Response:
    """The shown ranks and steps in Chrome's trace format, which Perfetto opens; up to `EXPORTED_SPANS` spans."""
    view = _view()
    attempt = bench.attempt(view)
    choice = choose_spans(view, bench, attempt)
    spans = bench.store.query(_COUNT, [list(choice.ranks), *choice.steps], attempt)["spans"][0].as_py()
    if spans > EXPORTED_SPANS:
        raise UsageError(
            f"The view has {spans:,} spans; the page exports {EXPORTED_SPANS:,}. Choose fewer steps or ranks, "
            "or export with `megascope timeline`."
        )
    with tempfile.TemporaryDirectory(prefix="megascope-") as folder:
        path = Path(folder) / "timeline.json"
        export_chrome(bench.store, attempt, path, ranks=choice.ranks, steps=choice.steps)
        file = path.open("rb")  # readable after its folder is gone, until the answer is sent
    name = f"timeline-{attempt.attempt}-steps-{choice.steps[0]}-{choice.steps[1]}.json"
    answer = send_file(file, "application/json", as_attachment=True, download_name=name)
    answer.call_on_close(file.close)
    return answer
