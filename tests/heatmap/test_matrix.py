"""The matrices of the heatmap page, against numbers worked out from the spans one by one."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.matrix import segment_matrix, segments_available
from megascope.profiler.errors import UsageError
from support.span_store import Span, write_spans
from support.synthetic_store import Slow, SyntheticJob, write_synthetic_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    root = tmp_path_factory.mktemp("store")
    job = SyntheticJob(steps=12, slow=Slow(5, 1.5, 4), missing=[(3, 7), (6, 2)])
    write_synthetic_store(root, job)
    return Store(root)


def test_values_are_means_over_micro_batches_and_missing_is_missing(store: Store) -> None:
    matrix = segment_matrix(store, store.attempt(), "forward")
    rows = store.query("SELECT rank, step, self_ns, stage FROM spans WHERE segment_name = 'forward'").to_pylist()
    spans: dict[tuple[int, int], list[float]] = {}
    stages = {row["rank"]: row["stage"] for row in rows}
    for row in rows:
        spans.setdefault((row["rank"], row["step"]), []).append(row["self_ns"] / 1e6)
    assert matrix.values.shape == (8, 12)
    for i, rank in enumerate(matrix.ranks):
        for j, step in enumerate(matrix.steps):
            own = spans.get((int(rank), int(step)))
            if own is None:
                assert (rank, step) in {(3, 7), (6, 2)}
                assert np.isnan([matrix.values[i, j], matrix.ratio[i, j], matrix.z[i, j]]).all()
                continue
            peers = [
                statistics.fmean(spans[other, int(step)])
                for other, stage in stages.items()
                if stage == stages[rank] and other != rank and (other, step) in spans
            ]
            assert matrix.values[i, j] == pytest.approx(statistics.fmean(own))
            assert matrix.peers_median[i, j] == pytest.approx(statistics.median(peers))
            assert matrix.ratio[i, j] == pytest.approx(statistics.fmean(own) / statistics.median(peers))


def test_the_slow_rank_is_the_hottest(store: Store) -> None:
    matrix = segment_matrix(store, store.attempt(), "forward", steps=(4, 11))
    assert matrix.steps.tolist() == list(range(4, 12))
    hottest = np.nanmedian(matrix.z, axis=1).argmax()
    assert matrix.ranks[hottest] == 5
    assert np.nanmedian(matrix.ratio[hottest]) == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize("metric", ["duration", "exposed", "count"])
def test_other_metrics(store: Store, metric: str) -> None:
    segment = "tp_all_gather" if metric == "exposed" else "forward"
    matrix = segment_matrix(store, store.attempt(), segment, metric)
    column = {"duration": "avg(duration_ns) / 1e6", "exposed": "avg(exposed_ns) / 1e6", "count": "count(*)"}[metric]
    sql = f"SELECT {column} AS v FROM spans WHERE segment_name = '{segment}' AND rank = 2 AND step = 3"
    assert matrix.values[2, 3] == pytest.approx(store.query(sql)["v"][0].as_py())
    assert np.isnan(matrix.values[3, 7])


def test_chunks_are_compared_with_the_same_chunk(tmp_path: Path) -> None:
    """Rank 0 runs only the cheap chunk in step 1: against peers that ran both, it is not fast but equal."""
    spans = [
        Span(rank, step, "forward", step * 100 + chunk * 20, (5.0, 15.0)[chunk], chunk=chunk)
        for rank in range(3)
        for step in range(2)
        for chunk in range(2)
        if (rank, step, chunk) != (0, 1, 1)
    ]
    store = write_spans(tmp_path / "store", spans, layout={"dp": 3})
    matrix = segment_matrix(store, store.attempt(), "forward")
    assert matrix.values[0].tolist() == [10.0, 5.0]
    np.testing.assert_allclose(matrix.ratio, 1.0)


def test_untrusted_times_are_missing_not_zero(tmp_path: Path) -> None:
    spans = [
        Span(rank, step, "forward", step * 100, 5.0, status="unmeasured" if rank == 1 and step == 1 else "ok")
        for rank in range(2)
        for step in range(3)
    ]
    store = write_spans(tmp_path / "store", spans, layout={"dp": 2})
    matrix = segment_matrix(store, store.attempt(), "forward")
    assert np.isnan(matrix.values[1, 1])
    assert np.isnan(matrix.ratio[0, 1])
    assert matrix.ratio[0, 0] == 1.0


def test_unknown_names_are_refused_with_what_there_is(store: Store) -> None:
    with pytest.raises(UsageError, match=r"no segment 'forwards'.*forward"):
        segment_matrix(store, store.attempt(), "forwards")
    with pytest.raises(UsageError, match="self, duration, exposed, count"):
        segment_matrix(store, store.attempt(), "forward", "speed")
    assert segment_matrix(store, store.attempt(), "forward", steps=(500, 600)).values.shape == (8, 0)


def test_segments_available_lists_the_costliest_first(store: Store) -> None:
    table = segments_available(store, store.attempt())
    names = table["segment"].to_pylist()
    assert {"forward", "backward", "optimizer", "data", "tp_all_gather"} <= set(names)
    costs = table["self_ms"].to_pylist()
    assert costs == sorted(costs, reverse=True)
