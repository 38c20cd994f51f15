"""What a metric of table ``health`` is; what is blank or absurd becomes NULL with the reason beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

BLANK, OUT_OF_RANGE, RESET = "blank", "out-of-range", "reset"
"""Why there is no value: none was given, none that can be true, or a counter that began anew."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, named with its unit, and the values that it can have.

    One that ``is_steady`` is written again only when it changes, and now and then; one that ``is_delta`` counts since
    the sample before.
    """

    name: str
    lowest: float
    highest: float
    is_steady: bool = False
    is_delta: bool = False


RECORDER_SPAN = Metric("recorder_span_ns", 1, 1e6)
"""What recording one span costs a rank, as it measured when it began; one row a rank."""
OVERHEAD = Metric("recording_overhead_percent", -100, 1000)
OVERHEAD_LOW = Metric("recording_overhead_percent_low", -100, 1000)
OVERHEAD_HIGH = Metric("recording_overhead_percent_high", -100, 1000)
"""How much longer a timed step of this host's ranks takes than a shadow step, and its interval of 95 %."""


def judged(metric: Metric, value: float | None) -> dict[str, Any]:
    """Value and flag of a metric, as columns of ``health``: NULL where there is no value that can be true."""
    if value is None or math.isnan(value):
        return {"metric": metric.name, "value": None, "flag": BLANK}
    if not metric.lowest <= value <= metric.highest:
        return {"metric": metric.name, "value": None, "flag": OUT_OF_RANGE}
    return {"metric": metric.name, "value": float(value), "flag": None}
