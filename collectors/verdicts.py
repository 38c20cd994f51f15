"""What every verdict is made of: evidence that can be asked for again, abstentions, and the turn into JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

VERDICT_SCHEMA = 1
"""Version of the JSON of verdicts."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number behind an accusation.

    ``statement`` is plain English with its numbers and units; ``value`` is the number of the accused and ``peers``
    the same number of those who do the same work (None where there is none); ``sql`` asks ``table`` for ``value``
    again, and is what `megascope sql` runs.
    """

    statement: str
    value: float | None
    peers: float | None
    table: str
    sql: str


@dataclass(frozen=True, slots=True)
class Abstention:
    """A signal that was not judged, and why: what is missing, or what makes it unusable."""

    signal: str
    reason: str


def to_json(value: Any) -> Any:
    """Turn a verdict's dataclasses into what `json.dumps` takes, with the fields in their order.

    A number that is not finite becomes None: missing is null, never NaN.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
