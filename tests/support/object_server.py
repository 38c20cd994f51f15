"""A real S3 server on this machine (moto's), and a proxy in front of it that fails, dawdles or is away."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BUCKET = "traces"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Faults:
    """What the proxy does to requests; all may be changed at any time.

    ``failing``: share of them that are answered with 500 without reaching the server. ``losing``: share that reach it
    and whose answers are lost. ``late_s``: what each answer takes more. ``is_away``: connections are closed at once.
    ``is_mute``: they are left open, nothing is read of what is to be written, and nothing answered.
    """

    def __init__(self) -> None:
        self.random = random.Random(7)
        self.heal()

    def heal(self) -> None:
        """No faults from now on."""
        self.failing = self.losing = self.late_s = 0.0
        self.is_away = self.is_mute = self.ignores_conditions = False
        self.requests: list[tuple[str, str]] = []
        self.hurt = 0


def _handler(port: int, faults: Faults) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_expect_100(self) -> bool:
            return not self._is_left() and super().handle_expect_100()

        def _is_left(self) -> bool:
            """Whether the connection was left without a word for as long as the server was mute."""
            was_mute = faults.is_mute
            while faults.is_mute:
                time.sleep(0.02)
            self.close_connection |= was_mute
            return was_mute

        def _pass(self) -> None:
            if self._is_left():
                return
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            faults.requests.append((self.command, self.path))
            if faults.is_away:
                self.close_connection = True
                return
            if faults.late_s:
                time.sleep(faults.late_s)
            if faults.random.random() < faults.failing:
                faults.hurt += 1
                self._answer(500, {}, b"<Error><Code>InternalError</Code><Message>no</Message></Error>")
                return
            inner = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            headers = dict(self.headers.items())
            headers.pop("Expect", None)
            if faults.ignores_conditions:
                headers.pop("If-None-Match", None)
            inner.request(self.command, self.path, body, headers)
            answer = inner.getresponse()
            content = answer.read()
            inner.close()
            if faults.random.random() < faults.losing:
                faults.hurt += 1
                self.close_connection = True
                return
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in _OWN}
            self._answer(answer.status, kept, content, answer.getheader("Content-Length"))

        def _answer(self, status: int, headers: dict[str, str], content: bytes, length: str | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            is_head = self.command == "HEAD"
            self.send_header("Content-Length", str(length if is_head and length else len(content)))
            self.end_headers()
            if not is_head:
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


_OWN = {"connection", "content-length", "date", "server", "transfer-encoding", "keep-alive"}


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is no news."""


@contextlib.contextmanager
def object_server() -> Iterator[tuple[str, Faults]]:
    """The URL of the proxy, with an empty bucket behind it, and its faults."""
    port = _free_port()
    environment = {**os.environ, **CREDENTIALS, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _create_bucket(port)
            faults = Faults()
            proxy = _Quiet(("127.0.0.1", 0), _handler(port, faults))
            thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{proxy.server_address[1]}", faults
            finally:
                proxy.shutdown()
                thread.join()
                proxy.server_close()
        finally:
            server.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _create_bucket(port: int) -> None:
    until = time.monotonic() + 60
    while True:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                assert answer.status == 200
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
