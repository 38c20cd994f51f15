"""The port behind which metrics are: one thread, one path, and an answer only to whom it is meant for."""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Thread, Timer
from typing import Any

from .address import MetricsAddress, is_loopback

log = logging.getLogger(__name__)

Page = Callable[[str], tuple[bytes, str]]
"""Body and content type for an ``Accept`` header."""

REQUEST_S = 5.0
"""A request that has not had its answer by then is cut off, however slowly it comes or is read."""

MOST_AT_ONCE = 8
"""Requests that are looked at together; the connections of others are closed at once, before their token is read."""

_PLAIN = "text/plain; charset=utf-8"


class Endpoint:
    """Listens from the moment it is made; OSError, RuntimeError or ValueError where it cannot."""

    def __init__(self, address: MetricsAddress, page: Page) -> None:
        self._server = _Server(address, page)
        self.port = int(self._server.server_address[1])
        try:
            self._thread = Thread(target=self._server.serve_forever, daemon=True, name="megascope-metrics")
            self._thread.start()
        except (OSError, RuntimeError):
            self._server.server_close()
            raise

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: MetricsAddress, page: Page) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.address, self.page = address, page
        self._free = BoundedSemaphore(MOST_AT_ONCE)
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's own name, which takes seconds where names do not resolve."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, if not too many are answered already and there is one to be had."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one request within `REQUEST_S`."""
        cut = Timer(REQUEST_S, _cut_off, (request,))
        cut.daemon = True
        try:
            cut.start()
        except RuntimeError:  # no thread can be had for it
            self.shutdown_request(request)
        else:
            super().process_request_thread(request, client_address)
        finally:
            cut.cancel()
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news either."""
        log.debug("A request for metrics failed", exc_info=True)


def _cut_off(request: socket.socket) -> None:
    """End a connection under whoever reads or writes it."""
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_S
    server: _Server
    server_version, sys_version = "megascope", ""

    def do_GET(self) -> None:
        """Answer one request."""
        refused = self._refusal()
        if refused is not None:
            self._answer(refused[0], refused[1].encode(), _PLAIN)
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(404, b"The metrics are at /metrics.\n", _PLAIN)
        else:
            self._answer(200, *self.server.page(self.headers.get("Accept", "")))

    def _refusal(self) -> tuple[int, str] | None:
        token = self.server.address.token
        if token is not None:
            given = self.headers.get("Authorization", "")
            is_known = hmac.compare_digest(given.encode(), f"Bearer {token}".encode())
            return None if is_known else (401, "This port wants the header Authorization: Bearer TOKEN.\n")
        name = self.headers.get("Host", "localhost")
        name = name if name.endswith("]") else name.rsplit(":", 1)[0]
        # So that no web page can reach the port by giving its own name this address.
        return None if is_loopback(name) else (403, f"This port answers on this machine only, not as {name!r}.\n")

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a scrape every few seconds is no news."""
