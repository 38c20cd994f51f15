"""Logs beside other evidence: what they add to a look at the ranks, and to the verdict of a store or of dumps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..ends import Waiters
from ..hang import Judged
from ..states import RankState, Snapshot
from ..verdict import Abstention, CulpritKind, HangCulprit, HangVerdict, State, listed
from .causes import Cause, find_causes
from .device_errors import first_device_error
from .facts import LogEvidence
from .quiet import line_evidence
from .scene import build_scene
from .verdict import clock_notes

CONFIRMABLE = frozenset(
    {
        CulpritKind.DEAD,
        CulpritKind.EXCEPTION,
        CulpritKind.HOST_STUCK,
        CulpritKind.INIT,
        CulpritKind.MISSING_CALL,
        CulpritKind.DEVICE_STUCK,
    }
)
"""Kinds of absence that a line of a log may explain: the rank is not there, and the log says why."""

WORLD_KINDS = frozenset({"default_pg", "world", "default"})
"""Names of the group of all ranks."""

GOES_ON = frozenset({State.RUNNING, State.SLOW, State.FINISHED})
"""States of a job that is proven to go on, or that ended well: no line of a log turns them into a hang."""

WEAK = 0.5
"""Up to this confidence a rank was accused for having no data; a line that names others outweighs it."""


def add_to_snapshot(snapshot: Snapshot, evidence: LogEvidence) -> Snapshot:
    """A look with the ranks filled in of which only logs tell: those that ended, and how far others are.

    A rank that has a state keeps it. Groups are matched by their members; numbers of the watchdog are those of the
    group's collectives in a Flight Recorder dump. Hosts are filled in too.
    """
    ended = frozenset(rank for cause in find_causes(evidence).first for rank in cause.ranks if _ends(cause))
    told = build_scene(evidence, ended).snapshot
    alike = _same_groups(told, snapshot)
    known = set(snapshot.missing) | {rank for name in snapshot.groups.values() for rank in name.ranks}
    added = {
        rank: _moved(state, alike, snapshot.moment_ns)
        for rank, state in told.states.items()
        if rank not in snapshot.states and rank in known and (state.is_dead or state.progress)
    }
    states = {**snapshot.states, **added}
    return replace(
        snapshot,
        states=states,
        hosts={**evidence.hosts, **snapshot.hosts},
        missing=tuple(rank for rank in snapshot.missing if rank not in added),
    )


def _same_groups(told: Snapshot, snapshot: Snapshot) -> dict[int, int]:
    """Ids of groups in two looks: of the same members, and of the same kind where several have those."""
    alike: dict[int, int] = {}
    for number, name in told.groups.items():
        same = {other: theirs.kind for other, theirs in snapshot.groups.items() if theirs.ranks == name.ranks}
        kinds = WORLD_KINDS if name.kind in WORLD_KINDS else {name.kind}
        fitting = [other for other, kind in same.items() if kind in kinds] or list(same)
        if len(fitting) == 1:
            alike[number] = fitting[0]
    return alike


def _ends(cause: Cause) -> bool:
    return cause.kind in (CulpritKind.DEAD, CulpritKind.EXCEPTION)


def _moved(state: RankState, alike: dict[int, int], moment_ns: int) -> RankState:
    """A rank's state with the groups' ids of another look."""
    return replace(
        state,
        moment_ns=moment_ns,
        flights=tuple(replace(one, group=alike[one.group]) for one in state.flights if one.group in alike),
        progress={alike[group]: done for group, done in state.progress.items() if group in alike},
    )


def add_to_verdict(judged: Judged, evidence: LogEvidence) -> Judged:
    """The verdict of other evidence with what logs say of the same ranks: why they are gone, their hosts, their lines.

    A rank that others wait for and that raised first is named for its exception. Ranks that were accused only because
    nothing is known of them give way to those that a line names. What contradicts is said, not hidden.
    """
    causes = [cause for cause in find_causes(evidence).first if cause.ranks]
    verdict = judged.verdict
    culprits = [_with_host(one, evidence) for one in verdict.culprits]
    notes: list[Abstention] = []
    if causes and verdict.verdict in GOES_ON:
        told = "; ".join(f"{cause.statement} ({cause.place})" for cause in causes[:4])
        notes = [Abstention("logs", f"the logs tell of a trouble, but the job went on: {told}")]
        causes = []
    elif causes and not culprits:
        waiters = None if judged.graph is None else Waiters.of(judged.graph)
        culprits = [
            _of_cause(cause, evidence, len(waiters.waiting_for(cause.ranks)) if waiters else 0) for cause in causes
        ]
        state = State.CRASHED if any(_ends(cause) for cause in causes) else State.HANG
        verdict = replace(verdict, verdict=state)
    elif causes:
        culprits, notes = _confirmed(culprits, causes)
        if notes == [] and any(_ends(cause) for cause in causes) and verdict.verdict == State.INCONCLUSIVE:
            verdict = replace(verdict, verdict=State.CRASHED)
    notes += [*first_device_error(evidence), *clock_notes(evidence)]
    verdict = replace(verdict, culprits=tuple(culprits), abstained=(*notes, *verdict.abstained))
    verdict = _counted_again(verdict, judged)
    return replace(judged, verdict=_without_missing(verdict, causes))


def _counted_again(verdict: HangVerdict, judged: Judged) -> HangVerdict:
    """With those who wait, and whose waits lead to a culprit, counted for the culprits that there are now."""
    accused, before = ({rank for one in each.culprits for rank in one.ranks} for each in (verdict, judged.verdict))
    if accused == before or judged.graph is None:
        return verdict
    reached = Waiters.of(judged.graph).waiting_for(accused) - accused
    waiting = (set(judged.graph.waiting()) | reached | set(verdict.unexplained)) - accused
    unexplained = tuple(sorted(waiting - reached))
    return replace(verdict, victims=len(waiting), explained=len(reached), unexplained=unexplained)


def _with_host(culprit: HangCulprit, evidence: LogEvidence) -> HangCulprit:
    if culprit.hosts:
        return culprit
    return replace(culprit, hosts=tuple(dict.fromkeys(evidence.hosts[r] for r in culprit.ranks if r in evidence.hosts)))


def _of_cause(cause: Cause, evidence: LogEvidence, waiters: int) -> HangCulprit:
    evident = line_evidence(f"{cause.statement} ({cause.place})", cause.place)
    culprit = HangCulprit(
        cause.ranks, (), cause.confidence, "high", cause.kind, cause.where, None, waiters, (evident,)
    )  # fmt: skip
    return _with_host(culprit, evidence)


def _confirmed(culprits: Sequence[HangCulprit], causes: Sequence[Cause]) -> tuple[list[HangCulprit], list[Abstention]]:
    """The accused with the lines that explain them; those accused for silence alone give way to them."""
    by_rank = {rank: cause for cause in causes for rank in cause.ranks}
    explained, others = [], []
    for one in culprits:
        cause = next((by_rank[rank] for rank in one.ranks if rank in by_rank), None)
        if cause is None or one.kind not in CONFIRMABLE:
            others.append(one)
            continue
        evident = line_evidence(f"{cause.statement} ({cause.place})", cause.place)
        sure = max(one.confidence, cause.confidence)
        explained.append(
            replace(one, kind=cause.kind, confidence=sure, segment=one.segment or cause.where,
                    evidence=(evident, *one.evidence))
        )  # fmt: skip
    notes = []
    if explained:
        weak = [one for one in others if one.confidence <= WEAK and one.kind in CONFIRMABLE]
        others = [one for one in others if one not in weak]
        if weak:
            ranks = listed(sorted({rank for one in weak for rank in one.ranks}))
            notes.append(Abstention("logs", f"ranks {ranks} left no data either, and no line says that they failed"))
    else:
        told = "; ".join(f"{cause.statement} ({cause.place})" for cause in causes[:4])
        notes.append(Abstention("logs", f"the logs tell of a trouble that the waits do not lead to: {told}"))
    return [*explained, *others], notes


def _without_missing(verdict: HangVerdict, causes: Sequence[Cause]) -> HangVerdict:
    """Ranks that a log says the end of are not without data."""
    told = {rank for cause in causes for rank in cause.ranks}
    return replace(verdict, missing=tuple(rank for rank in verdict.missing if rank not in told))
