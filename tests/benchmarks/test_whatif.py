"""The benchmark of what-if: its way past the store gives what the way through it gives, and says what was published."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.whatif import measure


def test_a_trace_is_measured_both_ways(traces: Path) -> None:
    found = measure(traces / "bytedance_whatif" / "trace-ST.parquet", repeats=1)
    assert found["slowdown"] == pytest.approx(found["published"]["slowdown"], rel=0.01)
    assert found["m_w"] == pytest.approx(found["published"]["m_w"], abs=0.02)
    assert found["m_s"] == pytest.approx(found["published"]["m_s"], abs=0.02)
    assert found["through_store"]["slowdown"] == found["slowdown"]
    assert found["ratio_to_origin"] == pytest.approx(5.0 / found["seconds"], rel=0.1)
    assert found["costliest"][0] == {"part": "stage", "name": "3", "recovered": pytest.approx(1.22, abs=0.01)}
