"""The Dash app: one callback turns the address and the store's version into a page; widgets fetch their own data."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, no_update
from flask import Flask

from ..collectors.reading.store import Store
from ..profiler.errors import MegascopeError
from .components import Awaited, Rendered, problem
from .endpoints import add_endpoints
from .metrics import add_metrics
from .pages import PAGES
from .pages.page import Page
from .security import keep_at_home, require_local_names, require_token
from .shell import PENDING_TICK_MS, TICK_MS, age_text, app_layout, jobs_key, navigation
from .view import View, parse_view
from .workbench import Workbench

log = logging.getLogger(__name__)

FOLDER = Path(__file__).resolve().parent


def create_app(store: Store, *, token: str | None = None) -> Dash:
    """The app over a store. With a ``token`` nothing is answered without it; without, only local host names are
    answered to."""
    # Paths are given, because Flask would look for them through the import system and fails in some installations.
    server = Flask("megascope", static_folder=None, root_path=str(FOLDER), instance_path=str(FOLDER))
    bench = Workbench(store)
    server.extensions["megascope"] = bench
    if token is not None:
        require_token(server, token)
    else:
        require_local_names(server)
    add_endpoints(server, bench)
    add_metrics(server, bench)
    app = Dash(
        __name__,
        server=cast("Any", server),  # annotated too narrowly in Dash 4.4
        assets_folder=str(FOLDER / "assets"),
        title="megascope",
        update_title="",
        serve_locally=True,
        suppress_callback_exceptions=True,
    )
    app.layout = app_layout()
    _add_callbacks(app, bench)
    keep_at_home(app)
    return app


def _add_callbacks(app: Dash, bench: Workbench) -> None:
    names = {page.path: page.name for page in PAGES.values()}

    # While the callback runs, `running` stops the interval: a slow store never piles up requests.
    @app.callback(
        Output("nav", "children"),
        Output("banner", "children"),
        Output("frame", "children"),
        Output("body", "children"),
        Output("shown", "data"),
        Output("age", "children"),
        Output("age", "data-age"),
        Output("age", "data-newest"),
        Output("tick", "interval"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("tick", "n_intervals"),
        Input("again", "n_clicks"),
        State("shown", "data"),
        running=[(Output("tick", "disabled"), True, False)],
    )
    def show(
        path: str, search: str, ticks: int | None, again: int | None, shown: dict[str, Any] | None
    ) -> tuple[Any, ...]:
        address = f"{path}{search or ''}"
        is_tick = shown is not None and shown.get("address") == address and ctx.triggered_id != "again"
        return render(bench, names, path, search, shown if is_tick else None, ticks or 0)

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("megascope", "arrived"),
        Output("nav", "className"),
        Input("shown", "data"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("megascope", "pause"),
        Output("tick", "max_intervals"),
        Output("pause", "children"),
        Input("pause", "n_clicks"),
        prevent_initial_call=True,
    )


def render(
    bench: Workbench, names: dict[str, str], path: str, search: str, shown: dict[str, Any] | None, ticks: int
) -> tuple[Any, ...]:
    """The callback's outputs. ``shown`` is what the browser shows of the same address, None for another one."""
    page = PAGES.get(path)
    try:
        if page is None:
            known = ", ".join(names)
            raise MegascopeError(f"There is no page {path}. The pages are {known}.")
        view = parse_view(search)
        attempt = bench.attempt(view)
        version = bench.stamp()
        age = age_text(bench, attempt, ticks)
        mark: dict[str, Any] = {"address": f"{path}{search or ''}", "version": version}
        if shown is not None and not page.live:
            return (*[no_update] * 5, *age, no_update)
        if shown is not None and shown.get("version") == version and not shown.get("pending"):
            return (*[no_update] * 5, *age, no_update)
        body = page.body(view, bench)
        mark |= {"pending": body.awaited != Awaited.NOTHING, "frame": f"{jobs_key(bench, attempt)}|{body.frame_key}"}
        is_same = shown is not None and shown.get("frame") == mark["frame"]
        frame = no_update if is_same else page.frame(view, bench)
    except MegascopeError as error:
        return _failed(names, path, search, str(error))
    except Exception as error:
        log.exception("The page %s failed", path)
        return _failed(names, path, search, f"The page failed ({type(error).__name__}): the server's log says why.")
    return _succeeded(names, page, view, frame, body, mark, age)


def _succeeded(
    names: dict[str, str],
    page: Page,
    view: View,
    frame: Any,
    body: Rendered,
    mark: dict[str, Any],
    age: tuple[str, str, str],
) -> tuple[Any, ...]:
    interval = PENDING_TICK_MS if body.awaited == Awaited.FIRST else TICK_MS
    return (navigation(names, page.path, view), body.banner, frame, body.children, mark, *age, interval)


def _failed(names: dict[str, str], path: str, search: str, sentence: str) -> tuple[Any, ...]:
    href = path if path in names else "/"
    message = problem(sentence, href)
    mark = {"address": f"{path}{search or ''}", "version": None, "pending": False}
    return (navigation(names, path, View()), message, [], [], mark, "", "", "", TICK_MS)
