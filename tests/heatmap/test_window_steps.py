"""How many steps of each window were timed is the same for all segments: it is read once for a version of the store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.matrix import segment_matrix
from megascope.heatmap.window_cells import load_steps
from support.faulty_job import faulty_job


def test_steps_are_read_once_for_all_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    query = Store.query

    def counted(self: Store, sql: str, *rest: object, **more: object) -> object:
        asked.append(sql)
        return query(self, sql, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "query", counted)
    with faulty_job(tmp_path / "store", rollups=True) as store:
        attempt = store.attempt()
        whole = segment_matrix(store, attempt, "forward")
        part = segment_matrix(store, attempt, "backward", steps=(20, 39))
        assert sum("FROM steps" in sql for sql in asked) == 1
        inside = np.isin(whole.steps, part.steps)
        assert part.steps.tolist() == [20, 30]
        again = segment_matrix(store, attempt, "forward", steps=(20, 39))
        np.testing.assert_array_equal(again.values, whole.values[:, inside])


def test_windows_of_other_lengths_are_not_taken_for_these(tmp_path: Path) -> None:
    with faulty_job(tmp_path / "store", rollups=True) as store:
        attempt = store.attempt()
        short = load_steps(store, attempt, np.arange(0, 60, 10), 0, 10)
        long = load_steps(store, attempt, np.array([0]), 0, 100)
        assert (short.timed.tolist(), long.timed.tolist()) == ([10.0] * 6, [60.0])
        assert long.mean_ms[0] == pytest.approx(short.mean_ms.mean())
        assert (short.last_step, long.last_step) == (59, 59)
