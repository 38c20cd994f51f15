"""Samples as the text that Prometheus reads, through its own client library."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from .family import Family, Sample, Samples

Source = Callable[[], Samples | None]


def render(source: Source, accept: str = "") -> tuple[bytes, str]:
    """Body and content type of an answer to who accepts this; without samples, no metrics."""
    registry = CollectorRegistry()
    registry.register(_Shown(source))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Shown:
    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterable[Metric]:
        """Nothing is looked at when it is registered."""
        return []

    def collect(self) -> Iterable[Metric]:
        """All families that have samples."""
        samples = self._source()
        if samples is None:
            return
        for family, found in samples.families():
            yield _metric(family, found, samples.age_s if family.ages else 0.0)


def _metric(family: Family, samples: Iterable[Sample], aged_s: float) -> Metric:
    labels = list(family.labels)
    if family.kind == "summary":
        summary = SummaryMetricFamily(family.name, family.doc, labels=labels)
        for sample in samples:
            assert sample.count is not None
            summary.add_metric(list(sample.labels), int(sample.count), sample.value)
        return summary
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.doc, labels=labels)
    for sample in samples:
        metric.add_metric(list(sample.labels), sample.value + aged_s)
    return metric
