"""Clocks of simulated hosts are as wrong as told, and the store's alignment finds by how much."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.clocks.clocks import load_clocks
from megascope.collectors.reading.store import Attempt, Store
from megascope.trainer.simulator.clocks import HostClocks
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise_fit import COMPLETION
from megascope.trainer.simulator.noise_tables import BUILTIN
from megascope.trainer.simulator.writing import Recording
from support.small_job import ALL, MS, job_of, open_simulated


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Attempt, SimulatedJob]:
    """A job with right clocks, all of whose spans are kept."""
    job = job_of()
    return *open_simulated(tmp_path_factory.mktemp("whole"), job, ALL), job


def test_clocks_are_wrong_as_told_and_nothing_else_changes(
    whole: tuple[Store, Attempt, SimulatedJob], tmp_path: Path
) -> None:
    store, attempt, right = whole
    job = job_of(skew_ms=2000.0, drift_ppm=50.0, run="skewed")
    skewed, other = open_simulated(tmp_path, job, ALL)
    sql = """SELECT rank, host, start_ns, duration_ns FROM spans
             ORDER BY rank, segment, step, chunk, microbatch, sequence"""
    true, shown = store.query(sql, attempt=attempt), skewed.query(sql, attempt=other)
    clocks = HostClocks.of(job)
    assert not clocks.are_right
    assert HostClocks.of(right).are_right
    host = job.grid.host[true["rank"].to_numpy()]
    difference = shown["start_ns"].to_numpy() - true["start_ns"].to_numpy()
    assert np.abs(difference[host > 0]).max() > 100 * MS
    assert (difference[host == 0] == 0).all()
    assert np.array_equal(clocks.recorded_ns(true["start_ns"].to_numpy(), host), shown["start_ns"].to_numpy())
    assert np.abs(shown["duration_ns"].to_numpy() - true["duration_ns"].to_numpy()).max() < 1000 * MS * 60e-6
    assert skewed.query("SELECT * FROM clock_offsets", attempt=other).num_rows == 0
    told = other.configuration["simulation"]["clocks"]
    assert [told[f"node{number:04d}"][0] for number in range(4)] == clocks.skew_ns.tolist()
    assert "clock" not in json.dumps({k: v for k, v in attempt.configuration["simulation"].items() if k != "clocks"})


def test_alignment_finds_the_true_clocks_within_its_uncertainty(tmp_path: Path) -> None:
    job = job_of(layout={"pp": 2, "dp": 4, "tp": 2}, gpus_per_host=4, skew_ms=1500.0, drift_ppm=50.0, chunks=1)
    store, attempt = open_simulated(tmp_path, job, ALL)
    clocks, found = HostClocks.of(job), load_clocks(store, attempt)
    for true_ns in np.linspace(job.start_ns, attempt.end_ns or 0, 5).astype(np.int64)[1:-1].tolist():
        for host in range(1, job.grid.hosts):
            name = job.host_name(host)
            shown = int(clocks.recorded_ns(np.array([true_ns]), np.array([host]))[0])
            uncertainty = found.uncertainty_ns(job.host_name(0), name, shown)
            assert uncertainty is not None
            assert abs(found.aligned_ns(name, shown) - true_ns) <= uncertainty < MS


def test_true_offsets_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    job = job_of(skew_ms=1500.0, drift_ppm=20.0, steps=3)
    store, attempt = open_simulated(tmp_path, job, Recording(span_ranks=None, clock_offsets=True))
    ends = """SELECT max(start_ns + duration_ns) - min(start_ns + duration_ns) AS spread FROM {view}
              WHERE "group" IS NOT NULL GROUP BY "group", sequence"""
    raw = store.query(ends.format(view="events"), attempt=attempt)["spread"].to_numpy()
    aligned = store.query(ends.format(view="events_aligned"), attempt=attempt)["spread"].to_numpy()
    assert raw.max() > 100 * MS
    latest = 1e3 * BUILTIN[COMPLETION].span[-1]
    assert aligned.max() <= latest + 40_000  # a duration is the host clock's too, and drifts
