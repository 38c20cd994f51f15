"""The engine's clock: analytic step times, an independent longest path, waiting where it belongs, determinism."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.profiler.errors import UsageError
from megascope.profiler.vocabulary import ActionKind
from megascope.trainer.schedule import walk
from megascope.trainer.simulator.costs import Costs
from megascope.trainer.simulator.effects import Effect, FloatArray, IntArray, Transfer
from megascope.trainer.simulator.engine import Engine, pieces, simulate_lengths
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise import load_noise
from megascope.trainer.simulator.spans import Spans, shape_of

MS = 1e6


@dataclass
class Collected:
    """A sink that keeps all spans."""

    spans: list[Spans] = field(default_factory=list)

    def add(self, spans: Spans) -> None:
        self.spans.append(spans)

    def end_block(self) -> None:
        """Blocks do not matter here."""

    def end_piece(self, index: IntArray, begin: FloatArray, end: FloatArray) -> None:
        """Pieces do not matter here."""

    def times(self, job: SimulatedJob, segment: str, what: str = "duration") -> FloatArray:
        """Sums by rank of one time of a segment, [world]; what is not told counts as the duration."""
        result = np.zeros(job.world_size)
        for spans in self.spans:
            if spans.segment == segment:
                value = getattr(spans, what)
                value = spans.duration if value is None else value
                ranks = job.grid.rank[spans.stage][:, spans.replicas]
                whole = np.broadcast_to(value, shape_of(spans, job.grid.width)) * spans.repeat
                np.add.at(result, ranks, whole.sum(axis=1))
        return result


def run(job: SimulatedJob) -> Collected:
    sink = Collected()
    engine = Engine(job, [sink])
    for piece in pieces(job):
        engine.run(piece)
    return sink


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int]:
    """(stages, chunks, micro-batches) that have a schedule and fill the pipeline."""
    stages = draw(st.integers(1, 6))
    chunks = draw(st.integers(1, 4)) if stages > 1 else 1
    microbatches = draw(st.integers(stages, 14)) if chunks == 1 else stages * draw(st.integers(1, 3))
    return stages, chunks, microbatches


@given(shapes(), st.integers(1, 50), st.integers(1, 50), st.integers(1, 2), st.integers(1, 2))
@settings(max_examples=40, deadline=None)
def test_the_step_time_is_the_formula_of_1f1b(
    shape: tuple[int, int, int], forward: int, backward: int, tp: int, dp: int
) -> None:
    """(m + (p - 1) / v) (tf + tb), Narayanan et al. 2021, where tf and tb are those of all chunks of a rank."""
    stages, chunks, microbatches = shape
    layout = {"pp": stages, "dp": dp, "tp": tp}
    costs = Costs(forward_ns=(forward * MS,), backward_ns=(backward * MS,))
    job = SimulatedJob(layout=layout, steps=3, microbatches=microbatches, chunks=chunks, costs=costs)
    expected = (microbatches * chunks + stages - 1) * (forward + backward) * MS
    assert simulate_lengths(job).tolist() == [expected] * 3


@pytest.mark.parametrize("transfer_ms", [0.5, 7, 30])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (2, 8), (3, 6), (4, 4), (4, 12), (8, 8), (8, 32)])
def test_transfers_between_stages_lengthen_1f1b(stages: int, microbatches: int, transfer_ms: float) -> None:
    """With micro-batches in groups of p, the longest path has 2 (p - 2) + 2 m (p - 1) / p transfers.

    That holds as long as none takes longer than a forward and a backward.
    """
    costs = Costs(forward_ns=(10 * MS,), backward_ns=(20 * MS,), p2p_host_ns=transfer_ms * MS)
    job = SimulatedJob(layout={"pp": stages}, steps=1, microbatches=microbatches, costs=costs)
    transfers = 2 * (stages - 2) + 2 * microbatches * (stages - 1) / stages
    assert simulate_lengths(job)[0] == pytest.approx(((microbatches + stages - 1) * 30 + transfers * transfer_ms) * MS)


def longest_path(job: SimulatedJob, forward: float, backward: float, transfer: float) -> float:
    """End of the last action, from the schedule's dependencies alone: written out one action at a time."""
    ends: dict[tuple[int, int], float] = {}
    free: dict[int, float] = {}
    links: dict[tuple[ActionKind, int], float] = {}
    took = {ActionKind.FORWARD: forward, ActionKind.BACKWARD: backward}
    for stage, position in walk(job.schedule):
        action = job.schedule[stage][position]
        needed = [ends[place] for place in action.depends_on if place in ends]
        if action.kind in took:
            free[stage] = ends[stage, position] = max([free.get(stage, 0.0), *needed]) + took[action.kind]
        elif action.kind in (ActionKind.RECV_FORWARD, ActionKind.RECV_BACKWARD):
            (sender,) = {other for other, _ in action.depends_on}
            began = max([*needed, links.get((action.kind, sender), 0.0)])
            links[action.kind, sender] = ends[stage, position] = began + transfer
        else:
            ends[stage, position] = max(needed, default=0.0)
    return max(free.values())


@given(shapes(), st.integers(1, 20), st.integers(1, 20), st.integers(0, 30))
@settings(max_examples=40, deadline=None)
def test_any_schedule_takes_its_longest_path(
    shape: tuple[int, int, int], forward: int, backward: int, transfer: int
) -> None:
    """Receives are posted early enough here not to matter."""
    stages, chunks, microbatches = shape
    costs = Costs(forward_ns=(forward * MS,), backward_ns=(backward * MS,), p2p_host_ns=transfer * MS)
    job = SimulatedJob(
        layout={"pp": stages}, steps=1, microbatches=microbatches, chunks=chunks, costs=costs, recv_ahead=10**6
    )
    assert simulate_lengths(job)[0] == longest_path(job, forward * MS, backward * MS, transfer * MS)


def test_the_end_of_a_step_adds_up() -> None:
    """Reduce-scatter, norm, then optimizer and all-gather before the next step's first forward, data beside it."""
    costs = Costs(
        forward_ns=(10 * MS,), backward_ns=(20 * MS,), reduce_scatter_ns=7 * MS, all_gather_ns=3 * MS,
        norm_ns=MS, optimizer_ns=2 * MS, data_ns=2 * MS,
    )  # fmt: skip
    job = SimulatedJob(layout={"pp": 2, "dp": 2}, steps=3, microbatches=4, costs=costs)
    body = 2 + 5 * 30 + 7 + 1
    assert simulate_lengths(job).tolist() == [body * MS, (body + 2 + 1) * MS, (body + 2 + 1) * MS]
    gathers = run(job).times(job, "dp_all_gather", "duration")
    assert gathers.tolist() == [3 * 3 * MS] * 4  # also after the last step


@dataclass(frozen=True)
class SlowRank(Effect):
    """One rank takes twice as long."""

    rank: int

    def compute_factor(self, job: SimulatedJob, steps: IntArray, segment: str) -> FloatArray | None:
        factor = np.ones((job.world_size, 1))
        factor[self.rank] = 2.0
        return factor if segment == "forward" else None


def test_a_slow_rank_makes_its_partners_wait() -> None:
    costs = Costs(forward_ns=(12 * MS,), backward_ns=(24 * MS,), tp_pairs=2, tp_ns=MS, norm_ns=MS)
    job = SimulatedJob(layout={"pp": 2, "dp": 2, "tp": 2}, steps=2, microbatches=4, costs=costs, effects=(SlowRank(3),))
    sink = run(job)
    own, whole = sink.times(job, "forward", "own"), sink.times(job, "forward")
    assert own.tolist() == [8 * 12 * MS] * 3 + [8 * 24 * MS] + [8 * 12 * MS] * 4
    inside = sink.times(job, "tp_all_gather") + sink.times(job, "tp_reduce_scatter")
    backward = sink.times(job, "backward")
    assert np.array_equal(inside, whole - own + backward - sink.times(job, "backward", "own"))
    partner, others = 2, [0, 1]
    assert whole[partner] == whole[3] == 8 * (24 + 4) * MS
    assert (whole[others] == 8 * (12 + 4) * MS).all()
    waits = sink.times(job, "dp_reduce_scatter", "exposed")
    assert waits[:2].min() > waits[2:4].max()


@dataclass(frozen=True)
class SlowNetwork(Effect):
    """All that one host sends or receives over the network takes ten times as long."""

    host: int

    def transfer_factor(self, job: SimulatedJob, steps: IntArray, transfer: Transfer) -> FloatArray | None:
        touches = job.grid.host[transfer.sources] == self.host
        if transfer.destinations is not None:
            touches = touches | (job.grid.host[transfer.destinations] == self.host)
        return np.where(touches & transfer.crosses_hosts, 10.0, 1.0)[:, np.newaxis]


def test_a_slow_link_slows_what_crosses_it_and_no_work() -> None:
    costs = Costs(p2p_network_ns=MS, p2p_host_ns=MS / 2, tp_pairs=1, tp_ns=MS, reduce_scatter_ns=MS)
    job = SimulatedJob(
        layout={"pp": 2, "dp": 4, "tp": 2}, steps=1, microbatches=4, gpus_per_host=4, costs=costs,
        effects=(SlowNetwork(0),),
    )  # fmt: skip
    sink = run(job)
    assert len(set(sink.times(job, "forward", "own").tolist())) == 1
    sends = sink.times(job, "send_forward")
    assert sends[:4].min() > 3 * sends[4:8].max()
    assert (sink.times(job, "dp_reduce_scatter")[:8] >= 10 * MS).all()
    assert set(sink.times(job, "tp_all_gather")[4:8].tolist()) == {8 * MS}


def test_sizes_of_pieces_change_nothing() -> None:
    job = SimulatedJob(
        layout={"pp": 2, "dp": 3, "tp": 2}, steps=230, microbatches=2, noise=load_noise("builtin"), seed=3,
        costs=Costs(tp_pairs=1, tp_ns=1000.0, optimizer_ns=MS, all_gather_ns=MS, norm_ns=1000.0),
    )  # fmt: skip
    lengths = simulate_lengths(job)
    assert np.array_equal(Engine(job, []).run(np.arange(97, 104)), lengths[97:104])
    assert np.array_equal(simulate_lengths(job), lengths)
    other = SimulatedJob(**{name: getattr(job, name) for name in ("layout", "microbatches", "noise", "costs")}, seed=4)
    assert not np.array_equal(simulate_lengths(other)[:100], lengths[:100])


def test_further_axes_multiply_the_replicas() -> None:
    job = SimulatedJob(layout={"pp": 2, "dp": 2, "cp": 3, "tp": 2}, steps=1, microbatches=2)
    grid = job.grid
    assert (grid.stages, grid.width, grid.replicas, grid.dp_size) == (2, 2, 6, 2)
    for line in grid.dp_groups().tolist():
        assert tuple(line) == job.topology.group("dp", line[0])
    for line in grid.tp_groups().tolist():
        assert tuple(line) == job.topology.group("tp", line[0])
    for line in grid.pipelines().tolist():
        assert tuple(line) == job.topology.group("pp", line[0])
    places = [job.topology.coordinates(rank) for rank in range(job.world_size)]
    assert grid.stage.tolist() == [place["pp"] for place in places]
    assert run(job).times(job, "forward").tolist() == [20 * MS] * 24


def test_a_single_rank_is_a_job_too() -> None:
    job = SimulatedJob(layout={"dp": 1}, steps=2, microbatches=3)
    assert simulate_lengths(job).tolist() == [90 * MS] * 2
    assert {spans.segment for spans in run(job).spans} == {"data", "forward", "backward", "optimizer"}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"steps": 0}, "steps 0"),
        ({"chunks": 2, "layout": {"dp": 2}}, "one pipeline stage"),
        ({"chunks": 2, "microbatches": 3}, "no multiple of 2"),
        ({"layout": {"dp": 2_000_000}}, "2000000 ranks"),
        ({"layout": {"rank": 2}}, "cannot be an axis name"),
        ({"costs": Costs(forward_ns=(1.0, 2.0, 3.0))}, "3 forward costs"),
        ({"skew_ms": -1.0}, "magnitude"),
    ],
)
def test_jobs_that_cannot_be_are_refused(wrong: dict[str, object], sentence: str) -> None:
    arguments: dict[str, object] = {"layout": {"pp": 2, "dp": 2}, **wrong}
    with pytest.raises(UsageError, match=sentence):
        SimulatedJob(**arguments)  # type: ignore[arg-type]
