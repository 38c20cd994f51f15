"""Spans on their way to an endpoint: what it took is counted, and why it did not take the rest is said."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from ...profiler.errors import MegascopeError, UsageError

DEFAULT_ENDPOINT = "http://localhost:4318"
TIMEOUT_S = 10.0

_PATH = "/v1/traces"


def traces_url(endpoint: str) -> str:
    """The address that takes traces: of an endpoint without a path, the one that OTLP gives them."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"--endpoint {endpoint} is no address: give one such as {DEFAULT_ENDPOINT}.")
    return urlunsplit(parts._replace(path=parts.path if parts.path.strip("/") else _PATH))


class EndpointError(MegascopeError):
    """The endpoint did not take spans; the message says why, in a few words."""


class Sender:
    """Sends spans; ``sent`` and ``rejected`` count what the endpoint said of them.

    The exporter tries again within ``timeout_s`` what may pass. Headers, certificates and the like come from
    ``OTEL_EXPORTER_OTLP_HEADERS`` and its sisters.
    """

    def __init__(self, endpoint: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url = traces_url(endpoint)
        self.sent = self.rejected = 0
        self._session = _WatchedSession()
        self._exporter = OTLPSpanExporter(
            self.url, timeout=timeout_s, compression=Compression.Gzip, session=self._session
        )

    def send(self, spans: Sequence[ReadableSpan]) -> None:
        """Send one batch. EndpointError where the endpoint does not take it."""
        with _quiet():
            result = self._exporter.export(spans)
        if result != SpanExportResult.SUCCESS:
            raise EndpointError(self._session.reason())
        rejected = min(self._session.rejected(), len(spans))
        self.sent, self.rejected = self.sent + len(spans) - rejected, self.rejected + rejected

    def close(self) -> None:
        """Give the connection free."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class _WatchedSession(requests.Session):
    """Keeps what came of the last request: the exporter only tells whether it was taken."""

    def __init__(self) -> None:
        super().__init__()
        self._error: Exception | None = None
        self._answer: requests.Response | None = None

    def send(self, request: requests.PreparedRequest, **keywords: Any) -> requests.Response:
        """Send, and remember."""
        self._error = self._answer = None
        try:
            self._answer = super().send(request, **keywords)
        except Exception as error:
            self._error = error
            raise
        return self._answer

    def reason(self) -> str:
        """Why the last request was not taken, in a few words."""
        if self._answer is not None:
            return f"it answers {self._answer.status_code} {self._answer.reason}".rstrip()
        if isinstance(self._error, requests.Timeout):
            return "it does not answer in time"
        if isinstance(self._error, requests.ConnectionError):
            return "nothing listens there, or it hangs up"
        return "the request failed" if self._error is None else f"{type(self._error).__name__}: {self._error}"

    def rejected(self) -> int:
        """Spans that the endpoint said it left out; an answer that cannot be read says nothing of that."""
        if self._answer is None or "protobuf" not in self._answer.headers.get("Content-Type", ""):
            return 0
        try:
            answer = ExportTraceServiceResponse.FromString(self._answer.content)
        except DecodeError:
            return 0
        return max(0, int(answer.partial_success.rejected_spans))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Within, the exporter writes nothing: what went wrong is said once, by who called."""
    logger = logging.getLogger("opentelemetry.exporter")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
