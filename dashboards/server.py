"""`serve`: the dashboards of a store on a port of this machine, or of a network to those who have the token."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import waitress

from ..collectors.reading.store import Store
from ..profiler.errors import MegascopeError, UsageError
from ..profiler.racks import Racks
from .app import create_app
from .pages import PAGES
from .security import is_loopback
from .view import View
from .workbench import Workbench

log = logging.getLogger(__name__)

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8321
THREADS = 8
SHORTEST_TOKEN = 16
SPILL_BYTES = 2**30
"""Waitress spills a larger answer to a file, which it leaks where the reader hangs up; ours is in memory anyway."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that listens. ``url`` is what a person opens (with the token in it, if there is one)."""

    url: str
    port: int
    bench: Workbench
    _server: Any
    _channels: dict[int, Any]

    def run(self) -> None:
        """Serve until `close` is called or the process is interrupted."""
        self._server.run()

    def close(self) -> None:
        """Stop listening, hang up on everybody, and end the background work. A second call does nothing."""
        # In the loop's own thread, which may be waiting on these very sockets.
        with contextlib.suppress(OSError):  # closed before
            self._server.trigger.pull_trigger(self._hang_up)
        self._server.task_dispatcher.shutdown(timeout=2)
        self.bench.close()

    def _hang_up(self) -> None:
        for channel in list(self._channels.values()):
            channel.close()


def open_server(
    store_path: str | Path,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    token: str | None = None,
    *,
    racks: Racks | None = None,
) -> RunningServer:
    """Open the store and bind the port; 0 takes a free one. ``racks`` are drawn in the 3D page.

    Raises UsageError for a token that is missing or too short or a port out of range, MegascopeError for a store
    that cannot be opened or a port that cannot be bound.
    """
    _check(host, port, token)
    store = Store(store_path)
    try:
        listening = _listen(host, port)
    except OSError as error:
        store.close()
        raise _bind_error(error, host, port) from error
    app = create_app(store, token=token)
    app.server.extensions["megascope"].racks = racks
    channels: dict[int, Any] = {}
    server = waitress.create_server(
        app.server,
        map=channels,
        sockets=[listening],
        threads=THREADS,
        ident="megascope",
        clear_untrusted_proxy_headers=True,
        outbuf_overflow=SPILL_BYTES,
    )
    bound = int(listening.getsockname()[1])
    query = "?" + urlencode({"token": token}) if token else ""
    shown = "127.0.0.1" if host in {"0.0.0.0", "::"} else host
    shown = f"[{shown}]" if ":" in shown else shown
    return RunningServer(f"http://{shown}:{bound}/{query}", bound, app.server.extensions["megascope"], server, channels)


def serve(
    store_path: str | Path,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    token: str | None = None,
    *,
    racks: Racks | None = None,
    on_open: Callable[[str], None] | None = None,
) -> None:
    """Serve a store until interrupted (KeyboardInterrupt ends it quietly). ``on_open`` is told the address.

    Raises what `open_server` raises.
    """
    server = open_server(store_path, host, port, token, racks=racks)
    threading.Thread(target=warm, args=(server.bench,), daemon=True, name="megascope-warm").start()
    if on_open is not None:
        on_open(server.url)
    try:
        server.run()
    except KeyboardInterrupt:
        log.info("Interrupted: the dashboards end")
    finally:
        server.close()


@contextlib.contextmanager
def background_server(
    store_path: str | Path,
    host: str = DEFAULT_HOST,
    port: int = 0,
    token: str | None = None,
    *,
    racks: Racks | None = None,
) -> Iterator[RunningServer]:
    """Serve a store from a thread, for tests, notebooks and other commands."""
    server = open_server(store_path, host, port, token, racks=racks)
    thread = threading.Thread(target=server.run, daemon=True, name="megascope-server")
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(timeout=5)


def warm(bench: Workbench) -> None:
    """Compute ahead what the first page asks for. Failures do not matter here: the page itself will tell."""
    for page in PAGES.values():
        with contextlib.suppress(MegascopeError):
            page.body(View(), bench)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. It is opened here, because waitress leaks its own where the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host.strip("[]"), port), family=family, backlog=128)


def _check(host: str, port: int, token: str | None) -> None:
    if not 0 <= port <= 65535:
        raise UsageError(f"The port {port} is out of range: choose one from 1 to 65535, or 0 for a free one.")
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise UsageError(f"The token has {len(token)} characters: use at least {SHORTEST_TOKEN}, hard to guess.")
    if not is_loopback(host) and token is None:
        raise UsageError(f"Serving on {host} lets other machines in: give a token with --token, or stay on 127.0.0.1.")


def _bind_error(error: OSError, host: str, port: int) -> MegascopeError:
    if error.errno == errno.EADDRINUSE:
        return MegascopeError(f"The port {port} on {host} is in use: choose another with --port, or end its server.")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return MegascopeError(f"This user may not open the port {port} on {host}: choose one above 1023 with --port.")
    if isinstance(error, socket.gaierror) or not _is_address(host):
        return MegascopeError(f"The host {host!r} is not known here: give an address of this machine with --host.")
    return MegascopeError(f"Cannot listen on {host}:{port} ({error.strerror}): give an address of this machine.")


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return host == "localhost"
