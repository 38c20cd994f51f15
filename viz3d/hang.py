"""`diagnose`: from a store to the hang verdict: who is at the root, who only waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ..collectors.reading.store import Attempt, Store
from .collector import without_collector
from .crash import Crash, judge_deaths
from .deaths import gone_processes, load_deaths
from .evidence import gather_evidence
from .graph import WaitGraph
from .hardware import with_hardware
from .history import StoreHistory
from .looks import Diagnosis, compare_looks
from .mismatch import Root
from .pace import StorePace
from .roots import group_name
from .snapshot import take_looks
from .stack_evidence import with_stacks
from .stall import all_exited_ns, stalled_before, still_before
from .states import Snapshot
from .verdict import Abstention, CulpritKind, Evidence, HangCulprit, HangVerdict, State, plain_age, to_json

MIN_APART_NS = 5 * 10**9
MAX_APART_NS = 60 * 10**9
"""Between the two looks: three of the job's steps, within these bounds. Only what is unchanged in both is stuck."""

OLD_DATA_S = 60.0
"""Data older than this tells nothing of what the job does now."""

MAX_CULPRITS = 20

_ENDINGS = {
    "interrupted": "it was interrupted before it said that it was done",
    "exited": "its processes ended in order, without saying whether the job was done",
}

_RECORDED = Abstention("exit", "the recording of an imported run ended, and nothing tells how the job went on")


LooksAt = Callable[[int | None], tuple[Snapshot, Snapshot]]


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, and what it was read from: the look at the ranks and the graph of their waits.

    ``snapshot`` is None where none was needed (a job that has ended). For a picture: `figure.build_scene`.
    """

    verdict: HangVerdict
    snapshot: Snapshot | None = None
    graph: WaitGraph | None = None


def diagnose(store: Store, attempt: Attempt, *, now_ns: int | None = None) -> HangVerdict:
    """What holds an attempt up, as its newest heartbeats show it (or those not after ``now_ns``).

    Two looks, some steps apart, tell stuck from slow; the graph of waits leads from the victims to the root.
    """
    return diagnose_with_graph(store, attempt, now_ns=now_ns).verdict


@without_collector()
def diagnose_with_graph(
    store: Store, attempt: Attempt, *, now_ns: int | None = None, looks: LooksAt | None = None
) -> Judged:
    """`diagnose`, with the look and the graph that the verdict was read from.

    ``looks`` is asked for `looks_at` a moment, for who has them already.
    """
    judged = _judge(store, attempt, now_ns, looks or partial(looks_at, store, attempt))
    verdict = with_stacks(store, attempt, judged.verdict)
    return replace(judged, verdict=with_hardware(store, attempt, verdict, now_ns))


def looks_at(store: Store, attempt: Attempt, moment_ns: int | None = None) -> tuple[Snapshot, Snapshot]:
    """The two looks that a verdict is read from, the earlier one first: at a moment (UTC ns), or the newest."""
    return take_looks(store, attempt, _apart_ns(store, attempt), moment_ns)


def _judge(store: Store, attempt: Attempt, now_ns: int | None, looks: LooksAt) -> Judged:
    """What an attempt's end, its deaths or two looks at it come to."""
    if now_ns is not None:
        return _judge_looks(store, attempt, looks(now_ns), is_past=True)
    deaths = load_deaths(store, attempt)
    said_why = any(one.is_exception and not one.is_aftermath for one in deaths.all)
    if not said_why and (deaths.all or attempt.exit_reason not in {None, "finished"}):
        stalled = _of_stall(store, attempt, deaths.all[0].moment_ns if deaths.all else attempt.end_ns or 0, looks)
        if stalled is not None:
            return stalled
    if not deaths.all and attempt.exit_reason == "crashed":
        deaths = gone_processes(store, attempt)
        if not deaths.all:
            reason = "the attempt crashed, and neither an incident nor a heartbeat says who died"
            diagnosis = Diagnosis(State.CRASHED, abstained=(Abstention("incidents", reason),))
            return Judged(_verdict(store, attempt, diagnosis, (), ()))
    if deaths.all:
        return _of_crash(store, attempt, judge_deaths(store, attempt, deaths, StoreHistory(store, attempt)))
    if attempt.exit_reason is not None or "imported" in attempt.configuration:
        return Judged(_verdict(store, attempt, _of_end(attempt.exit_reason), (), ()))
    return _judge_unfinished(store, attempt, looks)


def _judge_unfinished(store: Store, attempt: Attempt, looks: LooksAt) -> Judged:
    """A job of which nobody wrote that it ended; its ranks may have, with the launcher that would have said so."""
    exited_ns = all_exited_ns(store, attempt)
    if exited_ns is None:
        return _judge_looks(store, attempt, looks(None), is_past=False)
    stalled = _of_stall(store, attempt, exited_ns, looks)
    return stalled or Judged(_verdict(store, attempt, _of_end("exited"), (), ()))


def _of_stall(store: Store, attempt: Attempt, end_ns: int, looks: LooksAt) -> Judged | None:
    """What held a job up that stood still when it was ended, or ranks died; None if it went on until then."""
    for moment_ns in (stalled_before(store, attempt, end_ns), still_before(store, attempt, end_ns)):
        judged = None if moment_ns is None else _judge_looks(store, attempt, looks(moment_ns), is_past=True)
        if judged is not None and judged.verdict.verdict == State.HANG:
            return judged
    return None


def _of_end(exit_reason: str | None) -> Diagnosis:
    """What an end without a death tells, of which an imported run need not tell the reason."""
    if exit_reason is None:
        return Diagnosis(State.INCONCLUSIVE, abstained=(_RECORDED,))
    ending = _ENDINGS.get(exit_reason)
    return Diagnosis(State.FINISHED, abstained=() if ending is None else (Abstention("exit", ending),))


def _judge_looks(store: Store, attempt: Attempt, looks: tuple[Snapshot, Snapshot], *, is_past: bool) -> Judged:
    """Judge two looks: the newest ones, or those at a moment of the past."""
    earlier, later = looks
    pace = StorePace(store, attempt, later.moment_ns)
    diagnosis = compare_looks(earlier, later, StoreHistory(store, attempt), pace)
    if not is_past:
        diagnosis = _if_fresh(store, attempt, diagnosis)
    evidence = (gather_evidence(store, attempt, later, root) for root in diagnosis.roots[:MAX_CULPRITS])
    culprits = tuple(
        _culprit(root, later, diagnosis.state, found)
        for root, found in zip(diagnosis.roots[:MAX_CULPRITS], evidence, strict=True)
    )
    return Judged(_verdict(store, attempt, diagnosis, culprits, later.missing), later, diagnosis.graph)


def _if_fresh(store: Store, attempt: Attempt, diagnosis: Diagnosis) -> Diagnosis:
    """What old data may still say of a job that has not ended: that it hung then, not that it runs now."""
    age_s = store.data_age_s(attempt)
    if age_s is None or age_s <= OLD_DATA_S:
        return diagnosis
    told = f"the newest data is {plain_age(age_s)} old"
    note = Abstention("heartbeats", f"{told}: this is the job as it was then, its agent may be gone")
    state = diagnosis.state
    if state in (State.RUNNING, State.SLOW):
        note = Abstention("heartbeats", f"{told}: the job was {state} then, and whether it still runs is not known")
        state = State.INCONCLUSIVE
    return replace(diagnosis, state=state, abstained=(note, *diagnosis.abstained))


def _of_crash(store: Store, attempt: Attempt, crash: Crash) -> Judged:
    roots = crash.diagnosis.roots[:MAX_CULPRITS]
    culprits = tuple(
        _culprit(root, crash.snapshot, State.CRASHED, found)
        for root, found in zip(roots, crash.evidence[:MAX_CULPRITS], strict=True)
    )
    verdict = _verdict(store, attempt, crash.diagnosis, culprits, crash.snapshot.missing)
    return Judged(verdict, crash.snapshot, crash.diagnosis.graph)


def _apart_ns(store: Store, attempt: Attempt) -> int:
    table = store.query("SELECT median(duration_ns) AS usual FROM steps", attempt=attempt)
    usual = table["usual"][0].as_py()
    return min(max(3 * int(usual or 0), MIN_APART_NS), MAX_APART_NS)


def _culprit(root: Root, snapshot: Snapshot, state: State, evidence: tuple[Evidence, ...]) -> HangCulprit:
    hosts = dict.fromkeys(snapshot.hosts[rank] for rank in root.ranks if rank in snapshot.hosts)
    return HangCulprit(
        ranks=root.ranks,
        hosts=tuple(hosts),
        confidence=root.confidence,
        severity="medium" if state in (State.SLOW, State.INCONCLUSIVE) else "high",
        kind=root.kind,
        segment=root.segment,
        group=group_name(snapshot, root.group),
        waiters=root.waiters,
        evidence=evidence,
        exit_code=root.exit_code,
    )


def _verdict(
    store: Store,
    attempt: Attempt,
    diagnosis: Diagnosis,
    culprits: tuple[HangCulprit, ...],
    missing: tuple[int, ...],
) -> HangVerdict:
    notes = list(diagnosis.abstained)
    more = len(diagnosis.roots) - len(culprits)
    if more > 0:
        notes.append(Abstention("culprits", f"{more} more roots were found and are not listed"))
    return HangVerdict(
        run=attempt.run,
        attempt=attempt.attempt,
        data_age_s=store.data_age_s(attempt),
        verdict=diagnosis.state,
        victims=len(diagnosis.waiting),
        explained=len(diagnosis.explained),
        unexplained=tuple(sorted(diagnosis.waiting - diagnosis.explained)),
        missing=missing,
        culprits=culprits,
        abstained=tuple(notes),
    )


__all__ = ["CulpritKind", "HangVerdict", "Judged", "diagnose", "diagnose_with_graph", "looks_at", "to_json"]
