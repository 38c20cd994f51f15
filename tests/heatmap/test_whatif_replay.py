"""The replay of what-if: against a plain one, and laws that hold for any job."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.heatmap.peers import FloatArray
from megascope.heatmap.whatif.accumulator import Accumulator
from megascope.heatmap.whatif.measured import Measured, ideal_of
from megascope.heatmap.whatif.program import CircularWaitError, Node, Program
from megascope.heatmap.whatif.result import Part, WhatIf
from megascope.heatmap.whatif.scenarios import Sets, all_ideal, as_measured, fixed, put_back, replicas_put_back
from support.replays import jobs, measured_of, plain_step_time, program_of

FEW = settings(max_examples=40, deadline=None)


@FEW
@given(jobs())
def test_replay_agrees_with_a_plain_one(job: Measured) -> None:
    plain = [plain_step_time(job, step) for step in range(len(job.steps))]
    np.testing.assert_allclose(as_measured(job), plain)


@FEW
@given(jobs(), st.randoms(use_true_random=False))
def test_a_slower_operation_never_makes_a_step_shorter(job: Measured, random: Random) -> None:
    own = job.own.copy()
    place = tuple(random.randrange(size) for size in own.shape)
    own[place] *= 3
    slower = as_measured(_with(job, own))
    assert (slower >= as_measured(job) - 1e-9).all()


@FEW
@given(jobs())
def test_a_step_takes_as_long_as_its_busiest_rank_and_no_longer_than_all_work_one_by_one(job: Measured) -> None:
    length = as_measured(job)
    work = np.array([not node.is_transfer for node in job.program.nodes])
    stage = np.array([node.stage for node in job.program.nodes])
    for one in range(job.program.stages):
        assert (length >= job.own[work & (stage == one)].sum(axis=0).max(axis=(0, 1)) - 1e-9).all()
    everything = job.own.max(axis=(1, 2)).sum(axis=0)
    if job.shared is not None:
        everything = everything + job.shared.max(axis=(1, 2)).sum(axis=0)
    assert (length <= everything + 1e-9).all()


@FEW
@given(jobs(), st.randoms(use_true_random=False))
def test_order_of_replicas_members_and_steps_does_not_matter(job: Measured, random: Random) -> None:
    orders = [list(range(size)) for size in job.own.shape[1:]]
    for order in orders:
        random.shuffle(order)
    members, replicas, steps = orders
    shared = None if job.shared is None else job.shared[:, :, replicas][..., steps]
    other = measured_of(job.program, job.own[:, members][:, :, replicas][..., steps], shared)
    np.testing.assert_allclose(as_measured(other), as_measured(job)[steps])
    one, two = _result(job), _result(other)
    assert one.slowdown == pytest.approx(two.slowdown)


@FEW
@given(jobs(), st.floats(0.01, 100))
def test_the_unit_of_time_does_not_matter(job: Measured, factor: float) -> None:
    shared = None if job.shared is None else job.shared * factor
    scaled = measured_of(job.program, job.own * factor, shared)
    np.testing.assert_allclose(as_measured(scaled), as_measured(job) * factor)
    assert _result(scaled).slowdown == pytest.approx(_result(job).slowdown)


@FEW
@given(jobs())
def test_everything_put_back_is_as_measured_and_everything_fixed_is_ideal(job: Measured) -> None:
    ideal, every = ideal_of(job), _sets(job, np.ones((1, *job.ranks.shape), bool))
    none = _sets(job, np.zeros((1, *job.ranks.shape), bool))
    np.testing.assert_allclose(put_back(job, ideal, every)[0], as_measured(job))
    np.testing.assert_allclose(fixed(job, ideal, none)[0], as_measured(job))
    np.testing.assert_allclose(fixed(job, ideal, every)[0], all_ideal(job, ideal))
    np.testing.assert_allclose(put_back(job, ideal, none)[0], all_ideal(job, ideal))


@FEW
@given(jobs())
def test_two_lanes_stand_for_all_replicas(job: Measured) -> None:
    ideal, replicas = ideal_of(job), job.ranks.shape[2]
    alone = np.zeros((replicas, *job.ranks.shape), bool)
    for replica in range(replicas):
        alone[replica, :, :, replica] = True
    np.testing.assert_allclose(replicas_put_back(job, ideal), put_back(job, ideal, _sets(job, alone)))


@FEW
@given(jobs(), st.integers(1, 2))
def test_steps_added_one_after_another_give_what_all_at_once_give(job: Measured, size: int) -> None:
    grown = Accumulator()
    for first in range(0, len(job.steps), size):
        part = slice(first, first + size)
        shared = None if job.shared is None else job.shared[..., part]
        grown.add(measured_of(job.program, job.own[..., part], shared, first_step=first))
    assert grown.steps.tolist() == job.steps.tolist()
    whole = _result(job)
    found = grown.result()
    assert found.slowdown == pytest.approx(whole.slowdown)
    assert (found.m_w is None) == (whole.m_w is None)
    assert found.m_w == pytest.approx(whole.m_w, abs=1e-9)
    assert [one.name for one in found.contributions] == [one.name for one in whole.contributions]


@FEW
@given(jobs())
def test_a_job_of_equal_operations_is_its_own_ideal(job: Measured) -> None:
    even = np.empty_like(job.own)
    for number, node in enumerate(job.program.nodes):
        even[number] = 5.0 if node.is_transfer else 100.0
    found = _result(measured_of(job.program, even, None if job.shared is None else np.full_like(job.shared, 7.0)))
    assert found.slowdown == pytest.approx(1)
    assert (found.m_w, found.m_s, found.contributions) == (None, None, ())
    assert "no excess" in found.notes[0]


def test_adding_steps_does_not_replay_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    replayed: list[int] = []

    def counted(steps: Measured) -> FloatArray:
        replayed.append(len(steps.steps))
        return as_measured(steps)

    monkeypatch.setattr("megascope.heatmap.whatif.accumulator.as_measured", counted)
    accumulator, program = Accumulator(), program_of(2, 1, 2, 1, 2)
    for first, count in ((0, 5), (5, 1), (6, 2)):
        accumulator.add(measured_of(program, np.ones((len(program.nodes), 1, 2, count)), None, first_step=first))
    assert replayed == [5, 1, 2]
    with pytest.raises(ValueError, match="added before"):
        accumulator.add(measured_of(program, np.ones((len(program.nodes), 1, 2, 1)), None, first_step=6))
    other = program_of(2, 1, 2, 1, 3)
    with pytest.raises(ValueError, match="another program"):
        accumulator.add(measured_of(other, np.ones((len(other.nodes), 1, 3, 1)), None, first_step=9))
    with pytest.raises(ValueError, match="no steps"):
        Accumulator().result()


def test_one_slow_rank_of_a_pipeline_is_what_is_recovered() -> None:
    program = program_of(4, 1, 8, 1, 4)
    own = np.full((len(program.nodes), 1, 4, 3), 1.0)
    own[[node.is_transfer for node in program.nodes]] = 0.01
    slow = [number for number, node in enumerate(program.nodes) if node.stage == 2 and not node.is_transfer]
    own[slow, :, 1] = 2.0
    accumulator = Accumulator({rank: f"node{rank // 4}" for rank in range(16)})
    accumulator.add(measured_of(program, own, None))
    found = accumulator.result()
    assert found.slowdown > 1.5
    assert found.m_w == pytest.approx(1, abs=0.05)
    assert found.m_s == pytest.approx(0, abs=0.05)
    ranks, hosts, stages = (found.of(part) for part in (Part.RANK, Part.HOST, Part.STAGE))
    assert (ranks[0].name, hosts[0].name, stages[0].name) == ("9", "node2", "2")
    assert ranks[0].recovered == pytest.approx(1, abs=0.05)
    assert ranks[0].saved == pytest.approx(1 - 1 / found.slowdown, abs=0.02)
    assert ranks[0].alone == pytest.approx(found.slowdown, rel=0.02)
    assert all(abs(one.recovered) < 0.05 for one in ranks[1:])
    assert {one.name for one in found.of(Part.SEGMENT)} == set(program.names)


def test_members_of_a_group_wait_for_their_slowest_and_for_what_they_share() -> None:
    program = program_of(1, 1, 1, 2, 1)
    own = np.zeros((len(program.nodes), 2, 1, 1))
    own[:, 0], own[:, 1] = 10.0, 30.0
    job = measured_of(program, own, np.full((len(program.nodes), 1, 1, 1), 5.0))
    work = sum(not node.is_transfer for node in program.nodes)
    assert as_measured(job)[0] == pytest.approx(35 * work)
    assert all_ideal(job, ideal_of(job)) == pytest.approx(25 * work)


def test_a_circle_of_waits_is_refused() -> None:
    nodes = [Node(0, "forward", 0, number, is_transfer=False) for number in range(2)]
    with pytest.raises(CircularWaitError):
        Program.of(nodes, {0: [1], 1: [0]}, [])


def _with(job: Measured, own: FloatArray) -> Measured:
    return measured_of(job.program, own, job.shared)


def _sets(job: Measured, ranks: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Sets:
    return Sets(ranks, np.ones((len(ranks), len(job.program.nodes)), bool))


def _result(job: Measured) -> WhatIf:
    accumulator = Accumulator()
    accumulator.add(job)
    return accumulator.result()
