"""A receiver of OTLP over HTTP in this process: it decodes what comes, and answers as it is told."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

Span = dict[str, Any]


class Receiver(ThreadingHTTPServer):
    """Keeps requests. From ``fails_from`` on, counted from 0, it answers ``status``; it rejects ``rejects`` of each."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []
        self.fails_from, self.status, self.rejects = 10**9, 400, 0
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        """Without a path."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spans(self) -> list[Span]:
        """Everything that came, flat: attributes and resource as plain values, identities as hexadecimal text."""
        return [
            _plain(span, resource.resource)
            for _, request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        """Take one request."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        is_failure = len(self.server.requests) >= self.server.fails_from
        if not is_failure:
            self.server.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
        answer = ExportTraceServiceResponse()
        if self.server.rejects:
            answer.partial_success.rejected_spans = self.server.rejects
        self.send_response(self.server.status if is_failure else 200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(answer.SerializeToString())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver that listens."""
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def _plain(span: Any, resource: Any) -> Span:
    return {
        "name": span.name,
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        "kind": span.kind,
        "status": span.status.code,
        "links": [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        "attributes": _values(span.attributes),
        "resource": _values(resource.attributes),
    }


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
