"""What must not change a verdict of dumps: numbers of ranks, names and order of groups, more victims."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.viz3d.dumps.judging import judge_dumps
from megascope.viz3d.dumps.reading import read_folder
from megascope.viz3d.verdict import CulpritKind, HangVerdict, State
from support.dumps import Call, GlooJob, Job, Message, absent_member

WORLD = 8
TP, DP = ([(0, 1), (2, 3), (4, 5), (6, 7)], [(0, 2), (1, 3), (4, 6), (5, 7)])
GROUPS = {
    "world": ("default_pg", tuple(range(WORLD))),
    **{f"tp{first}": ("tp", (first, second)) for first, second in TP},
    **{f"dp{first}": ("dp", (first, second)) for first, second in DP},
    **{f"pp{rank}": ("pp", (rank, rank + 4)) for rank in range(4)},
}


def of(axis: str, rank: int) -> str:
    """Name of the group of a rank."""
    return next(name for name, (kind, members) in GROUPS.items() if kind == axis and rank in members)


def new_job(library: type[Job] = Job) -> Job:
    """All ranks have completed number 3 of each of their groups."""
    job = library(GROUPS)
    for rank in range(WORLD):
        own = [name for name, (kind, members) in GROUPS.items() if rank in members and kind != "pp"]
        job.calls[rank] = [Call(name, number) for number in range(1, 4) for name in own]
    return job


def cascade(library: type[Job] = Job) -> Job:
    """Rank 5 has not come to its next operation over tp; the others wait there, over dp, or in the world."""
    job = new_job(library)
    for rank in range(WORLD):
        if rank != 5:
            group = of("tp", rank) if rank == 4 else of("dp", rank) if rank in (6, 7) else "world"
            if rank != 4:
                job.calls[rank].append(Call(of("tp", rank), 4))
            job.calls[rank].append(Call(group, 4, done=False))
    return job


def together(*, unlike: int | None = None, **other: object) -> Job:
    """All ranks are in number 4 of the world; one of them differs."""
    job = new_job()
    for rank in range(WORLD):
        call = Call("world", 4, done=False)
        job.calls[rank].append(replace(call, **other) if rank == unlike else call)  # type: ignore[arg-type]
    return job


def held_device() -> Job:
    """Rank 1 does not complete what all others have; those wait for it in the next one."""
    job = together(unlike=1, elements=1024)
    for rank in range(WORLD):
        if rank != 1:
            job.calls[rank][-1:] = [Call("world", 4), Call("world", 5, done=False)]
    return job


def circle() -> Job:
    """Ranks 0 and 3 have issued dp before tp, ranks 1 and 2 the other way round; the others wait for them."""
    job = new_job()
    for rank in range(WORLD):
        axes = ("dp", "tp") if rank in (0, 3) else ("tp", "dp")
        job.calls[rank] += [
            Call(of(axis, rank) if rank < 4 else "world", 4, done=False) for axis in axes[: 1 + (rank < 4)]
        ]
    return job


def apart(library: type[Job] = Job) -> Job:
    """Replica 1 over dp has come to the group of all, and replica 0 to dp: the one may be a step behind the other."""
    job = new_job(library)
    for rank in range(WORLD):
        job.calls[rank].append(Call("world" if rank % 4 > 1 else of("dp", rank), 4, done=False))
    return job


def messages() -> Job:
    """The ranks of each pair over pp wait for a message of each other."""
    job = new_job()
    for rank in range(WORLD):
        job.calls[rank].append(Message(of("pp", rank), "recv", (rank + 4) % WORLD))
    return job


@dataclass(frozen=True, slots=True)
class Case:
    """A job, who left no dump, and who is to be named for what."""

    job: Callable[[], Job]
    told: set[tuple[tuple[int, ...], CulpritKind]]
    state: State = State.HANG
    silent: int | None = None


CASES = {
    "idle": Case(cascade, {((5,), CulpritKind.HOST_STUCK)}),
    "no dump": Case(cascade, {((5,), CulpritKind.DEAD)}, silent=5),
    "no dump of a victim": Case(cascade, {((5,), CulpritKind.HOST_STUCK)}, silent=2),
    "name": Case(lambda: together(unlike=3, name="all_gather"), {((3,), CulpritKind.MISMATCH)}),
    "size": Case(lambda: together(unlike=6, elements=512), {((6,), CulpritKind.MISMATCH)}),
    "type": Case(lambda: together(unlike=2, dtype="Half"), {((2,), CulpritKind.MISMATCH)}),
    "device": Case(held_device, {((1,), CulpritKind.DEVICE_STUCK)}),
    "joined": Case(together, {(tuple(range(WORLD)), CulpritKind.NETWORK)}, State.INCONCLUSIVE),
    "order": Case(circle, {((0, 1, 2, 3), CulpritKind.ORDER_INVERSION)}),
    "steps": Case(apart, {(tuple(range(WORLD)), CulpritKind.ORDER_INVERSION)}, State.INCONCLUSIVE),
    "steps of gloo": Case(
        lambda: apart(GlooJob), {(tuple(range(WORLD)), CulpritKind.ORDER_INVERSION)}, State.INCONCLUSIVE
    ),
    "messages": Case(messages, {((rank, rank + 4), CulpritKind.P2P_CYCLE) for rank in range(4)}),
    "gloo": Case(lambda: cascade(GlooJob), {((5,), CulpritKind.HOST_STUCK)}, State.INCONCLUSIVE),
}


def judged(job: Job, silent: int | None) -> HangVerdict:
    everyone = sorted({rank for _, members in job.groups.values() for rank in members})
    with tempfile.TemporaryDirectory() as folder:
        return judge_dumps([read_folder(job.write(Path(folder), [one for one in everyone if one != silent]))]).verdict


def told(verdict: HangVerdict) -> set[tuple[tuple[int, ...], CulpritKind]]:
    return {(tuple(sorted(one.ranks)), one.kind) for one in verdict.culprits}


def relabelled(job: Job, ranks: Mapping[int, int], random: Random) -> Job:
    """The same job with other numbers of ranks, and its groups in any order under any names."""
    names = dict(zip(job.groups, random.sample([str(number) for number in range(99)], len(job.groups)), strict=True))
    order = random.sample(list(job.groups), len(job.groups))
    changed = replace(
        job,
        calls={},
        groups={
            names[one]: (job.groups[one][0], tuple(sorted(ranks[rank] for rank in job.groups[one][1]))) for one in order
        },
    )

    def call(one: Call | Message) -> Call | Message:
        other = replace(one, group=names[one.group])
        return replace(other, peer=ranks[other.peer]) if isinstance(other, Message) else other

    changed.calls = {ranks[rank]: [call(one) for one in calls] for rank, calls in job.calls.items()}
    return changed


def with_victims(job: Job, targets: Sequence[int]) -> Job:
    """With one more rank for each target, which waits for it in a group of the two."""
    groups, calls = dict(job.groups), {rank: list(own) for rank, own in job.calls.items()}
    for rank, target in enumerate(targets, WORLD):
        groups[f"beside{rank}"] = ("beside", (target, rank))
        calls[rank] = [Call(f"beside{rank}", 1), Call(f"beside{rank}", 2, done=False)]
        calls[target].insert(0, Call(f"beside{rank}", 1))
    return replace(job, groups=groups, calls=calls)


@pytest.mark.parametrize("name", CASES)
def test_each_is_judged_as_it_was_built(name: str) -> None:
    case = CASES[name]
    verdict = judged(case.job(), case.silent)
    assert (verdict.verdict, told(verdict)) == (case.state, case.told)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.integers(1, 2**32))
def test_other_numbers_and_groups_give_the_same_verdict(name: str, seed: int) -> None:
    case, random = CASES[name], Random(seed)
    ranks = dict(enumerate(random.sample(range(WORLD), WORLD)))
    plain = judged(case.job(), case.silent)
    verdict = judged(relabelled(case.job(), ranks, random), None if case.silent is None else ranks[case.silent])
    assert verdict.verdict == plain.verdict
    assert told(verdict) == {(tuple(sorted(ranks[rank] for rank in own)), kind) for own, kind in case.told}
    assert (verdict.victims, verdict.explained) == (plain.victims, plain.explained)
    assert set(verdict.unexplained) == {ranks[rank] for rank in plain.unexplained}
    assert sorted(one.confidence for one in verdict.culprits) == sorted(one.confidence for one in plain.culprits)
    assert sorted(one.waiters for one in verdict.culprits) == sorted(one.waiters for one in plain.culprits)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.lists(st.integers(0, WORLD - 1), min_size=1, max_size=12))
def test_more_that_wait_for_those_who_wait_change_no_culprit(name: str, targets: list[int]) -> None:
    """All ranks of these jobs wait, or hold the others up."""
    case = CASES[name]
    plain, more = judged(case.job(), case.silent), judged(with_victims(case.job(), targets), case.silent)
    assert (more.verdict, told(more)) == (case.state, case.told)
    assert more.victims == plain.victims + len(targets)
    assert more.explained == plain.explained + len(targets)


def verdict_of(members: list[int], absent: int, name: str = "0") -> HangVerdict:
    return judged(absent_member(members, absent, name=name), None)


@settings(max_examples=40, deadline=None)
@given(members=st.lists(st.integers(0, 500), min_size=3, max_size=10, unique=True), data=st.data())
def test_new_numbers_and_names_give_the_same_verdict(members: list[int], data: st.DataObject) -> None:
    absent = data.draw(st.sampled_from(members))
    name = data.draw(st.sampled_from(["0", "7", "dp_group", "undefined"]))
    verdict = verdict_of(members, absent, name)
    plain = verdict_of(list(range(len(members))), sorted(members).index(absent))
    assert verdict.verdict == plain.verdict == State.HANG
    assert [one.ranks for one in verdict.culprits] == [(absent,)]
    assert [one.kind for one in verdict.culprits] == [one.kind for one in plain.culprits]
    assert verdict.victims == verdict.explained == len(members) - 1


@settings(max_examples=20, deadline=None)
@given(more=st.integers(1, 30))
def test_more_victims_change_no_culprit(more: int) -> None:
    few, many = verdict_of([0, 1, 2], 1), verdict_of(list(range(3 + more)), 1)
    assert [(one.ranks, one.kind) for one in few.culprits] == [(one.ranks, one.kind) for one in many.culprits]
    assert many.victims == few.victims + more
