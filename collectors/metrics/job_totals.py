"""What the ranks of one host tell of the whole job: tokens, loss, MFU, and what recording costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .family import Samples

_KEPT_STEPS = 256

_OF_STEP = {
    "mfu": "megascope_mfu_ratio",
    "loss": "megascope_loss",
    "grad_norm": "megascope_grad_norm",
    "tokens_per_second": "megascope_tokens_per_second",
}
_OF_HEALTH = {
    "recording_overhead_percent": ("megascope_recording_overhead_ratio", 0.01),
    "recorder_span_ns": ("megascope_recorder_span_seconds", 1e-9),
}


class JobTotals:
    """The newest value of each, and the sum of tokens: several ranks tell those of one step, which count once."""

    def __init__(self) -> None:
        self.tokens: int | None = None
        self._counted: dict[int, None] = {}
        self._newest: dict[str, tuple[int, float]] = {}
        self._costs: dict[str, float] = {}

    def add_step(self, row: Mapping[str, Any]) -> None:
        """A row of ``steps`` of any rank."""
        step, tokens, duration_ns = row["step"], row.get("tokens"), row.get("duration_ns")
        if tokens is not None and step not in self._counted:
            self._counted[step] = None
            self.tokens = (self.tokens or 0) + tokens
            while len(self._counted) > _KEPT_STEPS:
                del self._counted[next(iter(self._counted))]
        rate = 1e9 * tokens / duration_ns if tokens is not None and duration_ns else None
        for name in _OF_STEP:
            value = rate if name == "tokens_per_second" else row.get(name)
            if value is not None and step >= self._newest.get(name, (step, 0.0))[0]:
                self._newest[name] = step, value

    def add_health(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows of ``health``: what recording costs is among them."""
        for row in rows:
            if row["metric"] in _OF_HEALTH and row["value"] is not None:
                name, factor = _OF_HEALTH[row["metric"]]
                self._costs[name] = row["value"] * factor

    def add_to(self, samples: Samples, run: str) -> None:
        """All that is known."""
        samples.add("megascope_tokens_total", self.tokens, run)
        for name, (_, value) in self._newest.items():
            samples.add(_OF_STEP[name], value, run)
        for name, value in self._costs.items():
            samples.add(name, value, run)
