"""What gloo retired may have failed: whoever did that is a victim, or is not judged; built dumps of four ranks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.viz3d.dumps.facts import Dump, DumpedOperation
from megascope.viz3d.dumps.given_up import doubts, with_given_up
from megascope.viz3d.dumps.judging import judge_dumps
from megascope.viz3d.dumps.reading import read_folder
from megascope.viz3d.verdict import GroupName, HangVerdict, State
from support.dumps import Call, GlooJob, Job

WORLD = ("default_pg", (0, 1, 2, 3))


def job(kind: type[Job] = GlooJob, name: str = "all_reduce") -> Job:
    """Ranks 2 and 3 in a group: 2 is done with number 5 there, which 3 has not issued; 0 and 1 wait for 2."""
    found = kind({"0": WORLD, "1": ("tp", (2, 3)), "2": ("dp", (0, 1, 2))})
    for rank in range(4):
        found.calls[rank] = [Call("0", 1)]
    for rank in (0, 1):
        found.calls[rank] += [Call("2", 1), Call("2", 2, done=False)]
    found.calls[2] += [Call("2", 1), Call("1", 4, name=name), Call("1", 5, name=name)]
    found.calls[3] += [Call("1", 4, name=name)]
    return found


def verdict_of(folder: Path, found: Job, ranks: Iterable[int] = range(4)) -> HangVerdict:
    return judge_dumps([read_folder(found.write(folder, list(ranks)))]).verdict


def test_what_cannot_have_completed_was_given_up_for_want_of_the_root(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, job())
    assert verdict.verdict == State.HANG
    assert [(one.ranks, str(one.kind)) for one in verdict.culprits] == [((3,), "host-stuck")]
    assert (verdict.victims, verdict.explained) == (3, 3)


def test_what_a_source_may_be_done_with_alone_is_not_judged(tmp_path: Path) -> None:
    """A broadcast is over for its source before the others come: rank 2 may be stuck after it, or have failed in it."""
    verdict = verdict_of(tmp_path, job(name="broadcast"))
    assert verdict.verdict == State.INCONCLUSIVE
    assert [one.ranks for one in verdict.culprits] == [(2,)]
    assert "gloo does not tell the two apart" in " ".join(one.reason for one in verdict.abstained)


def test_only_who_is_idle_is_said_to_have_no_collective_in_flight(tmp_path: Path) -> None:
    """Rank 2 is idle and may wait; rank 7, of another group, stands in what its peers are done with."""
    found = job(name="broadcast")
    found.groups = {**found.groups, "3": ("tp", (4, 5, 6, 7))}
    for rank in range(4, 8):
        found.calls[rank] = [Call("3", 1), Call("3", 2, done=rank != 7)]
    verdict = verdict_of(tmp_path, found, range(8))
    assert {(one.ranks, str(one.kind)) for one in verdict.culprits} == {((2,), "host-stuck"), ((7,), "library")}
    reasons = " ".join(one.reason for one in verdict.abstained)
    assert "rank 2 has no collective in flight" in reasons


def test_nccl_says_what_failed_so_that_an_idle_rank_is_the_root(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, job(Job, name="broadcast"))
    assert verdict.verdict == State.HANG
    assert [one.ranks for one in verdict.culprits] == [(2,)]


def test_an_absent_dump_leaves_open_whether_its_partner_failed(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, job(), [0, 1, 2])
    assert verdict.verdict == State.INCONCLUSIVE
    assert [one.ranks for one in verdict.culprits] == [(3,), (2,)]
    assert all(one.confidence < 0.5 for one in verdict.culprits)


def test_who_stands_in_what_the_others_are_done_with_has_no_stuck_device(tmp_path: Path) -> None:
    """Three of four gave up number 2 when their time was over; rank 3 came to it later and still waits."""
    found = GlooJob({"0": WORLD})
    for rank in range(4):
        found.calls[rank] = [Call("0", 1), Call("0", 2, done=rank != 3)]
    verdict = verdict_of(tmp_path, found)
    assert verdict.verdict == State.INCONCLUSIVE
    assert [(one.ranks, str(one.kind)) for one in verdict.culprits] == [((3,), "library")]
    assert "or has given it up" in verdict.culprits[0].evidence[0].statement
    as_nccl = Job(found.groups, found.calls)
    assert verdict_of(tmp_path / "nccl", as_nccl).verdict == State.HANG


NUMBERS = st.dictionaries(st.integers(0, 3), st.integers(1, 4), min_size=1)


@settings(max_examples=60, deadline=None)
@given(last=NUMBERS, name=st.sampled_from(["all_reduce", "broadcast"]))
def test_an_idle_rank_failed_is_in_doubt_or_completed_by_what_its_peers_show(last: dict[int, int], name: str) -> None:
    """All ranks idle, each done with its last number: who is not behind anybody, with all there, is in no doubt."""
    group = GroupName("world", (0, 1, 2, 3))
    dumps = {
        rank: Dump(
            rank, Path("_"), "2.10", "gloo", number, groups=(group,), completed={group: number},
            seen_completed={group: number}, newest=DumpedOperation(name, "gloo", group, number, None),
        )
        for rank, number in last.items()
    }  # fmt: skip
    failed = {rank for rank, dump in with_given_up(dumps).items() if dump.operations}
    doubtful = {one.rank for one in doubts(dumps)}
    lowest = min(last.values())
    assert failed == {rank for rank, number in last.items() if number > lowest and name == "all_reduce"}
    assert not failed & doubtful
    is_whole = len(last) == 4
    assert doubtful == {rank for rank, number in last.items() if not is_whole or number > lowest} - failed
