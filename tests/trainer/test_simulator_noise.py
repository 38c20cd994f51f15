"""Noise: the built-in tables are those of the real traces, and what is drawn has their distribution."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megascope.profiler.errors import MegascopeError
from megascope.trainer.simulator.costs import Costs
from megascope.trainer.simulator.draws import draw
from megascope.trainer.simulator.effects import FloatArray, IntArray
from megascope.trainer.simulator.engine import Engine, simulate_lengths
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise import MeasuredNoise, Silence, load_noise
from megascope.trainer.simulator.noise_fit import COMPLETION, LEVELS, fit_noise
from megascope.trainer.simulator.noise_tables import BUILTIN
from megascope.trainer.simulator.spans import Spans, shape_of


def test_the_built_in_tables_are_those_of_the_traces(traces: Path) -> None:
    found = fit_noise([pq.read_table(traces / "bytedance_whatif" / f"trace-{name}.parquet") for name in ("AR", "ST")])
    assert found.keys() == BUILTIN.keys()
    for kind, table in found.items():
        for level in ("rank", "rank_step", "span"):
            assert getattr(table, level) == pytest.approx(getattr(BUILTIN[kind], level), abs=2e-4), (kind, level)


def test_tables_rise_and_have_their_middle_at_one() -> None:
    for kind, table in BUILTIN.items():
        for quantiles in (table.rank, table.rank_step, table.span):
            assert list(quantiles) == sorted(quantiles)
            if quantiles and kind != COMPLETION:
                assert quantiles[len(quantiles) // 2] == pytest.approx(1.0, abs=0.01)
    assert 0 < BUILTIN[COMPLETION].span[0] < BUILTIN[COMPLETION].span[-1] < 100


def test_transfers_have_a_heavy_tail() -> None:
    values = MeasuredNoise().values("p2p", "span")
    assert values is not None
    assert np.quantile(values, 0.99) > 3
    assert np.quantile(values, 0.9) < 1.5


class _Own:
    """A sink that keeps the own time of forwards, [T, S, G, micro-batch], of one stage."""

    def __init__(self) -> None:
        self.parts: list[FloatArray] = []

    def add(self, spans: Spans) -> None:
        if spans.segment == "forward":
            own = spans.duration if spans.own is None else spans.own
            self.parts.append(np.broadcast_to(own, shape_of(spans, 1)))

    def end_block(self) -> None:
        """Blocks do not matter here."""

    def end_piece(self, index: IntArray, begin: FloatArray, end: FloatArray) -> None:
        """Pieces do not matter here."""


def test_what_is_simulated_has_the_measured_distribution() -> None:
    job = SimulatedJob(layout={"dp": 200}, steps=50, microbatches=8, noise=load_noise("builtin"))
    sink = _Own()
    Engine(job, [sink]).run(np.arange(50))
    values = np.stack(sink.parts, axis=-1).reshape(50, 200, 8) / 10e6
    in_step = np.median(values, axis=2, keepdims=True)
    spans = (values / in_step).reshape(-1)
    levels = np.array([0.01, 0.1, 0.5, 0.9, 0.99])
    expected = np.interp(levels, LEVELS, BUILTIN["forward"].span)
    assert np.quantile(spans, levels) == pytest.approx(expected, abs=0.008)
    # What a rank keeps within a step makes its spans alike: their means scatter more than those of mixed spans.
    scatter = values.mean(axis=2).std()
    mixed = np.random.default_rng(0).permutation(values.reshape(-1)).reshape(values.shape).mean(axis=2).std()
    assert scatter > 1.15 * mixed
    chronic = np.median(in_step, axis=0)
    assert 0.99 < chronic.min() < 0.997
    assert 1.003 < chronic.max() < 1.01


def test_draws_depend_on_seed_step_and_purpose_alone() -> None:
    job, other = (SimulatedJob(layout={"dp": 2}, seed=seed) for seed in (1, 2))
    whole = draw(job, np.arange(10), (5, 0), (7,))
    assert np.array_equal(draw(job, np.array([4]), (5, 0), (7,))[0], whole[4])
    assert not np.array_equal(draw(job, np.arange(10), (5, 1), (7,)), whole)
    assert not np.array_equal(draw(other, np.arange(10), (5, 0), (7,)), whole)


def test_each_kind_of_noise_may_stand_alone() -> None:
    for kind in BUILTIN:
        noise = MeasuredNoise({kind: BUILTIN[kind]}, kind)
        costs = Costs(p2p_host_ns=1e5, reduce_scatter_ns=1e5, optimizer_ns=1e6, tp_pairs=1, tp_ns=1e4)
        job = SimulatedJob(layout={"pp": 2, "dp": 2, "tp": 2}, steps=20, noise=noise, costs=costs)
        assert len(set(simulate_lengths(job).tolist())) > 10, kind


def test_silence_is_exact() -> None:
    assert isinstance(load_noise("none"), Silence)
    job = SimulatedJob(layout={"pp": 2}, steps=2, costs=Costs(optimizer_ns=3e6))
    assert SimulatedJob(layout={"pp": 2}, steps=2, costs=Costs(optimizer_ns=3e6)) == job


def test_a_trace_of_ones_own_can_be_drawn_from(tmp_path: Path) -> None:
    workers, steps, spans = 4, 6, 5
    shape = (workers, steps, spans)
    random = np.random.default_rng(0)
    worker, step, number = (part.reshape(-1) for part in np.indices(shape))
    duration = 0.1 * random.choice([0.9, 1.0, 1.1], len(worker))
    table = pa.table(
        {
            "dp_rank": worker, "stage": np.zeros(len(worker), np.int64), "step": step,
            "optype": ["forward-compute"] * len(worker), "start_ts": number.astype(float), "duration": duration,
            "seq_id": number,
        }
    )  # fmt: skip
    path = tmp_path / "own.parquet"
    pq.write_table(table, path)
    noise = load_noise(str(path))
    values = noise.values("forward", "span")
    assert values is not None
    assert 0.8 < values.min() < values.max() < 1.25
    assert noise.values("p2p", "span") is None


def test_a_noise_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MegascopeError, match="no noise file"):
        load_noise(str(tmp_path / "missing.parquet"))
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(MegascopeError, match="cannot be read"):
        load_noise(str(tmp_path / "text.parquet"))
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(MegascopeError, match="lacks the column dp_rank"):
        load_noise(str(tmp_path / "other.parquet"))


def table_of(**columns: object) -> pa.Table:
    """A trace of six forwards, with some columns replaced."""
    zero = [0] * 6
    usual: dict[str, object] = {
        "dp_rank": [0, 1] * 3, "stage": zero, "step": zero, "optype": ["forward-compute"] * 6,
        "start_ts": [0.0] * 6, "duration": [0.1] * 6, "seq_id": [0, 0, 1, 1, 2, 2],
    }  # fmt: skip
    return pa.table({**usual, **columns})


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (table_of().slice(0, 0), "no rows"),
        (table_of(duration=[0.1, None, 0.1, 0.1, 0.1, 0.1]), "duration is not all numbers .* 1 of 6 missing"),
        (table_of(step=["one"] * 6), "step is not all numbers"),
        (table_of(start_ts=[float("nan")] * 6), "start_ts has values that cannot be"),
        (table_of(duration=[0.0] * 6), "a step in which work took no time"),
        (table_of(optype=["nap"] * 6), "no operation that noise is known of"),
        (table_of(optype=pa.nulls(6, pa.string())), "no operation that noise is known of"),
    ],
)
def test_a_trace_with_gaps_is_refused(table: pa.Table, told: str) -> None:
    with pytest.raises(MegascopeError, match=told):
        fit_noise([table])


def test_the_smallest_trace_is_enough() -> None:
    assert fit_noise([table_of()])["forward"].rank_step
