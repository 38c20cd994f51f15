"""What real gloo processes that stand still write down, and whom it accuses: their dumps alone are judged.

Every rank's program is an all-reduce of its pair in tp, then one of its pair in dp; each case says what comes instead.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from megascope.viz3d.paths import Sources, diagnose_paths
from megascope.viz3d.verdict import HangVerdict, State
from support.gloo_hangs import Rank, dies, dumps_of

pytestmark = pytest.mark.timeout(120)

IN_TP, IN_DP, IN_WORLD = (1, 1), (2, 1), (3, 1)
"""How a rank stands that is in its first, second or third collective."""


def verdict_of(folder: Path) -> HangVerdict:
    return diagnose_paths(Sources(dumps=(folder,))).verdict


def accused(verdict: HangVerdict) -> dict[tuple[int, ...], str]:
    return {one.ranks: str(one.kind) for one in verdict.culprits}


def program(own: Rank) -> None:
    own.all_reduce("tp")
    own.all_reduce("dp")


def test_a_rank_that_sleeps_holds_up_all_others(tmp_path: Path) -> None:
    def work(own: Rank) -> None:
        if own.rank != 3:
            program(own)

    verdict = verdict_of(dumps_of(tmp_path, work, {0: IN_DP, 1: IN_DP, 2: IN_TP, 3: (0, 0)}))
    assert verdict.verdict == State.HANG
    assert accused(verdict) == {(3,): "host-stuck"}
    assert (verdict.victims, verdict.explained) == (3, 3)


def test_a_rank_that_left_out_a_collective_made_the_circle(tmp_path: Path) -> None:
    """Rank 3 goes on without its all-reduce of tp: 2 waits for it there, 0 waits for 2, and 3 for both."""

    def work(own: Rank) -> None:
        if own.rank != 3:
            own.all_reduce("tp")
        own.all_reduce("dp")
        own.all_reduce("world")

    verdict = verdict_of(dumps_of(tmp_path, work, {0: IN_DP, 1: IN_WORLD, 2: IN_TP, 3: (2, 1)}))
    assert verdict.verdict == State.HANG
    assert accused(verdict) == {(3,): "missing-call"}
    assert (verdict.victims, verdict.explained) == (3, 3)


def test_two_orders_of_groups_make_a_circle(tmp_path: Path) -> None:
    def work(own: Rank) -> None:
        for kind in ("tp", "dp") if own.rank in (0, 3) else ("dp", "tp"):
            own.all_reduce(kind)

    verdict = verdict_of(dumps_of(tmp_path, work, dict.fromkeys(range(4), IN_TP)))
    assert verdict.verdict == State.HANG
    assert accused(verdict) == {(0, 1, 2, 3): "order-inversion"}


def test_another_operation_than_its_partner_makes_suspects_of_both(tmp_path: Path) -> None:
    def work(own: Rank) -> None:
        if own.rank == 2:
            own.broadcast("tp", 3)
        program(own)

    verdict = verdict_of(dumps_of(tmp_path, work, {0: IN_DP, 1: IN_DP, 2: IN_TP, 3: IN_TP}))
    assert verdict.verdict == State.INCONCLUSIVE
    assert accused(verdict) == {(2, 3): "mismatch"}
    assert "dumps of gloo do not tell which" in " ".join(one.reason for one in verdict.abstained)


def test_a_rank_that_waits_in_a_message_is_not_accused(tmp_path: Path) -> None:
    """Rank 3 has sent before, so that messages are seen to be used, and now waits for one that never comes."""

    def work(own: Rank) -> None:
        if own.rank == 3:
            own.send(1)
        elif own.rank == 1:
            own.receive(3)
        own.all_reduce("world")
        if own.rank == 3:
            own.receive(1)
        program(own)

    verdict = verdict_of(dumps_of(tmp_path, work, {0: IN_WORLD, 1: IN_WORLD, 2: IN_DP, 3: (1, 0)}))
    assert verdict.verdict == State.INCONCLUSIVE
    assert "gloo does not record sends and receives" in " ".join(one.reason for one in verdict.abstained)


def test_who_gave_an_operation_up_is_a_victim(tmp_path: Path) -> None:
    """Rank 3 sleeps; 2 and 1, which have waited for it, give up and go on to nothing: gloo calls that over."""

    def work(own: Rank) -> None:
        if own.rank == 2:
            own.gives_up("tp")
        elif own.rank != 3:
            own.all_reduce("tp")
            if own.rank == 0:
                own.all_reduce("world")
            own.gives_up("dp")

    verdict = verdict_of(dumps_of(tmp_path, work, {0: IN_DP, 1: (2, 0), 2: (1, 0), 3: (0, 0)}, limit_s=6))
    assert verdict.verdict == State.HANG
    assert accused(verdict) == {(3,): "host-stuck"}
    assert (verdict.victims, verdict.explained) == (3, 3)


def test_the_partner_of_a_rank_that_died_is_not_accused(tmp_path: Path) -> None:
    """Rank 3 is gone, without a dump. 2 and 1 failed with it and look idle, and 0 waits for 2."""

    def work(own: Rank) -> None:
        if own.rank == 3:
            dies()
        if own.rank == 2:
            own.gives_up("tp")
            return
        own.all_reduce("tp")
        if own.rank == 1:
            own.gives_up("dp")
            return
        own.all_reduce("dp")

    verdict = verdict_of(dumps_of(tmp_path, work, {0: IN_DP, 1: (2, 0), 2: (1, 0)}))
    assert verdict.verdict == State.INCONCLUSIVE
    assert verdict.missing == (3,)
    first, second = verdict.culprits
    assert (first.ranks, second.ranks) == ((3,), (2,))
    assert second.confidence < first.confidence < 0.5
    told = " ".join(one.reason for one in verdict.abstained)
    assert "the last of rank 2, all_reduce #2 of tp [2, 3], may have failed: nothing shows that rank 3 came" in told
