"""The estimator: offsets are right within the uncertainty that it states, and what cannot be known is NaN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.collectors.clocks.alignment import Alignment, align_hosts
from megascope.collectors.clocks.pairs import Ends, Side, pair_up
from support.clock_scenes import FIRST_NS, SECOND, Scene, Truth, play

CHAIN = ((0, 1), (1, 2), (2, 3))


def both_ways(*pairs: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
    return tuple(pair for pair in pairs for _ in range(2))


def errors(found: Alignment, truth: Truth) -> tuple[list[float], list[float]]:
    """Errors and stated uncertainties of all hosts but the reference, at both ends of the window."""
    wrong: list[float] = []
    stated: list[float] = []
    for moment_ns, uncertainty in (
        (found.begin_ns, found.begin_uncertainty_ns),
        (found.end_ns, found.end_uncertainty_ns),
    ):
        wrong += np.abs(found.offset_at_ns(moment_ns) - truth.offset_at_ns(moment_ns))[1:].tolist()
        stated += uncertainty[1:].tolist()
    return wrong, stated


@pytest.mark.parametrize(
    "scene",
    [
        Scene(hosts=2, groups=((0, 1),)),
        Scene(hosts=2, groups=((0, 1),), operations=20, length_s=2),
        Scene(hosts=2, groups=((0, 1),), operations=30, length_s=600, late=0.15),
        Scene(hosts=6, groups=((0, 1, 2, 3, 4, 5),), operations=60, lost=0.3),
        Scene(hosts=4, groups=CHAIN, delay_ns=(0.0, 1e6)),
        Scene(hosts=4, groups=both_ways(*CHAIN), kind="p2p", latency_ns=2e5),
        Scene(hosts=2, groups=((0, 1),), kind="p2p", latency_ns=2e5),
    ],
    ids=["two", "short", "sparse", "one-group", "chain", "p2p", "one-way"],
)
def test_offsets_are_right_within_the_stated_uncertainty(scene: Scene) -> None:
    """Seconds of skew, 50 ppm, exponential delays of another mean on each host, late ends and missing ones."""
    wrong: list[float] = []
    stated: list[float] = []
    for seed in range(40):
        ends, truth = play(replace(scene, seed=seed))
        found = align_hosts(ends, scene.hosts)
        assert found is not None
        off, allowed = errors(found, truth)
        wrong, stated = wrong + off, stated + allowed
    assert np.mean(np.array(wrong) <= np.array(stated)) >= 0.95
    assert np.median(stated) < 30 * max(scene.delay_ns[1], scene.latency_ns), "an uncertainty of hours is always right"


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    skew_s=st.floats(0, 3600),
    drift_ppm=st.floats(0, 50),
    hosts=st.integers(2, 6),
    length_s=st.floats(5, 600),
)
def test_ends_without_delays_give_the_clocks_back(
    seed: int, skew_s: float, drift_ppm: float, hosts: int, length_s: float
) -> None:
    scene = Scene(
        hosts=hosts, groups=(tuple(range(hosts)),), operations=40, length_s=length_s, skew_s=skew_s,
        drift_ppm=drift_ppm, delay_ns=(0.0, 0.0), late=0.0, lost=0.0, seed=seed,
    )  # fmt: skip
    ends, truth = play(scene)
    found = align_hosts(ends, hosts)
    assert found is not None
    wrong, stated = errors(found, truth)
    assert max(wrong) < 200
    assert max(stated) < 200


@settings(max_examples=20, deadline=None)
@given(shifts=st.lists(st.integers(-(10**12), 10**12), min_size=3, max_size=3), seed=st.integers(0, 1000))
def test_a_clock_that_is_set_otherwise_changes_its_offset_and_nothing_else(shifts: list[int], seed: int) -> None:
    scene = Scene(hosts=4, groups=((0, 1, 2, 3), (1, 3)), operations=40, drift_ppm=0.0, seed=seed)
    ends, _ = play(scene)
    before = align_hosts(ends, 4)
    shift = np.array([0, *shifts])
    after = align_hosts(replace(ends, end_ns=ends.end_ns + shift[ends.host]), 4)
    assert before is not None
    assert after is not None
    tolerance = 1e-6 * float(np.abs(shift).max()) + 2000  # a fitted drift of the noise runs over the shift
    np.testing.assert_allclose(after.offset_at_ns(FIRST_NS) + shift, before.offset_at_ns(FIRST_NS), atol=tolerance)


def test_the_order_of_the_rows_does_not_matter() -> None:
    ends, _ = play(Scene(hosts=5, groups=((0, 1, 2), (2, 3, 4)), seed=3))
    order = np.random.default_rng(0).permutation(len(ends))
    one, other = align_hosts(ends, 5), align_hosts(ends.chosen(order), 5)
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.offset_ns, other.offset_ns)


def test_hosts_that_share_nothing_with_the_reference_are_not_aligned() -> None:
    ends, truth = play(Scene(hosts=6, groups=((0, 1), (2, 3), (3, 4))))
    found = align_hosts(ends, 6)
    assert found is not None
    assert np.isnan(found.offset_ns).tolist() == [False, False, True, True, True, True]
    assert np.isnan(found.end_uncertainty_ns).tolist() == [False, False, True, True, True, True]
    assert abs(found.offset_ns[1] - truth.offset_at_ns(found.begin_ns)[1]) < found.begin_uncertainty_ns[1]


def test_without_enough_operations_nothing_is_said() -> None:
    assert align_hosts(play(Scene(hosts=2, groups=((0, 1),), operations=5))[0], 2) is None
    nothing = np.zeros(0, np.int64)
    assert align_hosts(Ends(nothing, nothing, nothing, nothing, nothing), 2) is None
    lonely, _ = play(Scene(hosts=3, groups=((0,), (1,), (2,))))
    assert align_hosts(lonely, 3) is None


def test_stragglers_move_nothing() -> None:
    """A host that arrives seconds late makes all others wait: the ends still meet."""
    ends, truth = play(Scene(hosts=2, groups=((0, 1),), late=0.0))
    late = ends.operation % 3 == 0
    moved = replace(ends, end_ns=ends.end_ns + np.where(late, 2 * SECOND, 0))
    found = align_hosts(moved, 2)
    assert found is not None
    wrong, stated = errors(found, truth)
    assert max(wrong) < max(stated) < 10**6


def test_delays_on_one_host_alone_are_within_the_uncertainty() -> None:
    """They look like an offset: nothing in the ends tells them apart."""
    ends, truth = play(Scene(hosts=2, groups=((0, 1),), delay_ns=(0.0, 0.0), late=0.0, operations=190))
    rng = np.random.default_rng(0)
    late = np.where(ends.host == 1, rng.exponential(1e5, len(ends)), 0.0).astype(np.int64)
    found = align_hosts(replace(ends, end_ns=ends.end_ns + late), 2)
    assert found is not None
    wrong, stated = errors(found, truth)
    assert min(wrong) > 5e4
    assert max(wrong) < max(stated) < 1.5e5


def test_a_pair_that_contradicts_the_others_is_outvoted() -> None:
    """Host 3 notes the ends of what it does with host 1 half a millisecond late, always; not with hosts 0 and 2."""
    groups = ((0, 1, 2, 3), (1, 3))
    ends, truth = play(Scene(hosts=4, groups=groups, operations=150, drift_ppm=0.0, seed=5))
    wrong = (ends.operation >= 150) & (ends.host == 3)
    found = align_hosts(replace(ends, end_ns=ends.end_ns + np.where(wrong, 500_000, 0)), 4)
    assert found is not None
    assert abs(found.offset_ns[3] - truth.offset_ns[3]) < found.begin_uncertainty_ns[3]


def test_latency_cancels_between_the_two_directions_and_is_stated_where_there_is_one() -> None:
    there, truth = play(Scene(hosts=2, groups=((0, 1),), kind="p2p", latency_ns=3e5, delay_ns=(1e3, 2e3)))
    both, also = play(Scene(hosts=2, groups=((0, 1), (0, 1)), kind="p2p", latency_ns=3e5, delay_ns=(1e3, 2e3)))
    one_way, two_ways = align_hosts(there, 2), align_hosts(both, 2)
    assert one_way is not None
    assert two_ways is not None
    assert abs(two_ways.offset_ns[1] - also.offset_at_ns(two_ways.begin_ns)[1]) < 5_000
    assert 2.5e5 < abs(one_way.offset_ns[1] - truth.offset_at_ns(one_way.begin_ns)[1]) < one_way.begin_uncertainty_ns[1]
    assert two_ways.begin_uncertainty_ns[1] < one_way.begin_uncertainty_ns[1]


def test_a_clock_that_drifts_beyond_all_measure_is_uncertain_by_as_much() -> None:
    ends, truth = play(Scene(hosts=2, groups=((0, 1),), drift_ppm=5000.0, seed=1))
    assert abs(truth.drift[1]) > 1e-3
    found = align_hosts(ends, 2)
    assert found is not None
    off = np.abs(found.offset_at_ns(FIRST_NS + 30 * SECOND) - truth.offset_at_ns(FIRST_NS + 30 * SECOND))[1]
    assert off < found.end_uncertainty_ns[1]
    assert found.end_uncertainty_ns[1] > 10**7


def test_samples_are_thinned_evenly() -> None:
    ends, _ = play(Scene(hosts=2, groups=((0, 1),), operations=5000, lost=0.0))
    streams = pair_up(ends, FIRST_NS)
    assert streams.at_ns.shape == (1, 192)
    assert streams.side.tolist() == [Side.COLLECTIVE]
    gaps = np.diff(streams.at_ns[0])
    assert gaps.min() > 0
    assert np.ptp(streams.at_ns[0]) > 55 * SECOND
