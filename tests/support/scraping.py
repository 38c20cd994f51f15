"""A scrape as Prometheus makes it: over HTTP, parsed by its own library, and asked for by name and labels."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable

from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from megascope.dashboards.metrics_families import ANALYSERS


class Scrape:
    """The series of one scrape."""

    def __init__(self, text: str) -> None:
        self.series: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
        self.kinds: dict[str, str] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self.series.setdefault(sample.name, {})[frozenset(sample.labels.items())] = float(sample.value)
                self.kinds[sample.name] = family.type

    def names(self) -> set[str]:
        """Names of all series."""
        return set(self.series)

    def labels(self, name: str) -> list[dict[str, str]]:
        """Labels of every series of a name."""
        return [dict(labels) for labels in self.series.get(name, {})]

    def value(self, name: str, **labels: str) -> float:
        """The value at exactly these labels; KeyError where there is none."""
        return self.series[name][frozenset(labels.items())]


def scrape_page(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
    """Status, body and content type."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers["Content-Type"]
    finally:
        connection.close()


def scrape(client: FlaskClient) -> Scrape:
    """One scrape of a server."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    return Scrape(answer.text)


def scraped_until(client: FlaskClient, is_enough: Callable[[Scrape], bool]) -> Scrape:
    """Scrapes of a server until its background has computed what is waited for."""
    deadline = time.monotonic() + 60
    while not is_enough(found := scrape(client)):
        assert time.monotonic() < deadline, sorted(found.names())
        time.sleep(0.05)
    return found


def has_both_verdicts(found: Scrape) -> bool:
    """Whether both analysers have judged."""
    return {labels["analyser"] for labels in found.labels("megascope_verdict")} == set(ANALYSERS)
