"""One verdict of several analyses: what is explained goes, the costliest comes first, healthy may be forbidden."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megascope.heatmap.merge import merge, outcome
from megascope.heatmap.verdict import (
    Abstention,
    Cause,
    Culprit,
    CulpritKind,
    Evidence,
    Explained,
    Findings,
    Outcome,
    Pattern,
    severity,
)


def culprit(*ranks: int, segment: str = "forward", lost: float = 0.1, kind: CulpritKind = CulpritKind.RANK) -> Culprit:
    return Culprit(
        ranks, (), 0.9, severity(lost), kind, Cause.SLOW_COMPUTE, segment, 1.5, (0, 9), Pattern.CHRONIC, lost, ()
    )


def test_the_costliest_comes_first_whoever_found_it() -> None:
    extra = Findings(culprits=(culprit(3, segment="send", lost=0.2),))
    assert [one.ranks for one in merge([culprit(1), culprit(2, lost=0.3)], [extra])] == [(2,), (3,), (1,)]


@pytest.mark.parametrize(
    ("explained", "left"),
    [
        (Explained(), []),
        (Explained(ranks=frozenset({1, 2})), [(7,)]),
        (Explained(segments=frozenset({"backward"})), [(1, 2), (7,)]),
        (Explained(frozenset({1, 2, 7}), frozenset({"forward"})), []),
        (Explained(ranks=frozenset({1})), [(1, 2), (7,)]),
    ],
)
def test_what_another_analysis_explains_accuses_nobody(explained: Explained, left: list[tuple[int, ...]]) -> None:
    own = [culprit(1, 2, kind=CulpritKind.HOST), culprit(7)]
    assert [one.ranks for one in merge(own, [Findings(explains=(explained,))])] == left


def test_nobody_is_accused_twice_of_the_same() -> None:
    host = Findings(culprits=(culprit(0, 1, 2, 3, segment="checkpoint", kind=CulpritKind.HOST),))
    own = [culprit(2, segment="checkpoint"), culprit(2, segment="forward")]
    assert {(one.ranks, one.segment) for one in merge(own, [host])} == {((0, 1, 2, 3), "checkpoint"), ((2,), "forward")}


def test_a_finding_of_the_job_stays_beside_one_of_ranks() -> None:
    job = culprit(segment="gc", kind=CulpritKind.JOB)
    assert len(merge([job], [Findings(culprits=(culprit(1, segment="gc"),))])) == 2


def test_healthy_only_where_nothing_forbids_it() -> None:
    note = Abstention("network", "no transfer was timed")
    assert outcome([], []) == Outcome.HEALTHY
    assert outcome([], [note]) == Outcome.INSUFFICIENT
    assert outcome([culprit(1)], [note]) == Outcome.FINDINGS


def network(*ranks: int, lost: float, steps: tuple[int, int] = (0, 9)) -> Culprit:
    return replace(culprit(*ranks, segment="send_forward", lost=lost), cause=Cause.NETWORK, steps=steps)


def test_slow_transfers_of_a_slow_machine_are_further_evidence_of_it() -> None:
    said = Evidence("transfers are slow", 3.0, 1.0, "events", "SELECT 3")
    slow = replace(network(1, lost=0.1), evidence=(said,))
    (found,) = merge([culprit(1, lost=0.3)], [Findings(culprits=(slow,))])
    assert (found.cause, found.ranks, found.evidence) == (Cause.SLOW_COMPUTE, (1,), (said,))


@pytest.mark.parametrize(
    "slow", [network(1, lost=0.4), network(2, lost=0.1), network(1, 2, lost=0.1), network(1, lost=0.1, steps=(20, 29))]
)
def test_a_slow_network_of_its_own_stays_a_finding(slow: Culprit) -> None:
    assert len(merge([culprit(1, lost=0.3)], [Findings(culprits=(slow,))])) == 2
