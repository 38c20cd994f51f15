"""`judge_logs`: from logs alone to the hang verdict: who ended first, or who is behind the others in a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..ends import Waiters
from ..graph import WaitGraph, build_graph
from ..hang import Judged
from ..history import NoHistory
from ..mismatch import Root, deviants, find_mismatches
from ..roots import group_name, name_roots
from ..verdict import Abstention, CulpritKind, Evidence, HangCulprit, HangVerdict, State, listed
from .causes import Cause, Causes, find_causes
from .clocks import not_compared
from .device_errors import first_device_error
from .facts import Desync, DesyncReport, LogEvidence, Timeout, Watermark
from .quiet import SILENCE, Found, line_evidence, without_alarm
from .scene import Scene, build_scene

MAX_CULPRITS = 20
UNCERTAIN = frozenset({CulpritKind.NETWORK, CulpritKind.LIBRARY})


def judge_logs(evidence: LogEvidence, run: str = "logs", attempt: int = 0, now_ns: int | None = None) -> Judged:
    """The verdict from logs alone. ``now_ns``: the moment against which the age of the newest line is told.

    The first exceptions and deaths are the roots of a crash. Where none came before the first alarm, the numbers that
    the watchdogs told are compared group by group: a rank that is behind, and waits nowhere, holds the others up. A
    rank is never accused for having alarmed first, and silence alone makes a suspicion at most.
    """
    causes = find_causes(evidence)
    named = {rank for cause in causes.first for rank in cause.ranks}
    scene = build_scene(evidence, frozenset(named))
    mismatches = [] if named else find_mismatches(scene.snapshot, NoHistory())
    graph = build_graph(scene.snapshot, (), deviants(mismatches))
    if causes.first:
        found = _crash(evidence, causes, scene, graph)
    elif graph.waits or graph.joined or scene.lonely or evidence.desyncs:
        found = _hang(evidence, causes, scene, graph, mismatches)
    else:
        found = without_alarm(evidence, causes)
    age_s = None if now_ns is None or evidence.last_ns is None else max(0.0, (now_ns - evidence.last_ns) / 1e9)
    verdict = HangVerdict(
        run, attempt, age_s, found.state,
        victims=len(found.waiting), explained=len(found.explained & found.waiting),
        unexplained=tuple(sorted(found.waiting - found.explained)),
        missing=tuple(rank for rank in scene.snapshot.missing if rank not in evidence.heard),
        culprits=found.culprits[:MAX_CULPRITS],
        abstained=(*found.notes, *_notes(evidence, causes, scene)),
    )  # fmt: skip
    return Judged(verdict, scene.snapshot, graph)


def _crash(evidence: LogEvidence, causes: Causes, scene: Scene, graph: WaitGraph) -> Found:
    """Ranks that ended before anybody complained."""
    named = {rank for cause in causes.first for rank in cause.ranks}
    waiting = (scene.waiting() | causes.following) - named
    explained = (frozenset(Waiters.of(graph).waiting_for(named)) | causes.following) - named if named else frozenset()
    culprits = tuple(_culprit_of(cause, evidence, len(explained)) for cause in causes.first if cause.ranks)
    unnamed = [cause for cause in causes.first if not cause.ranks]
    notes = tuple(
        Abstention("exceptions", f"{cause.statement}{_on(cause)} ({cause.place}); no line tells which rank it was")
        for cause in unnamed[:8]
    )
    only_devices = bool(culprits) and all(one.kind == CulpritKind.DEVICE_STUCK for one in culprits)
    state = State.HANG if only_devices and waiting else State.CRASHED
    if all(cause.is_of_fabric for cause in causes.first):
        state = State.INCONCLUSIVE
        reason = "the first trouble is a fault of NVLink, which has two ends: nothing tells at which device it is"
        notes += (Abstention("devices", reason),)
    return Found(state, culprits, waiting, explained, notes)


def _on(cause: Cause) -> str:
    return "" if cause.host is None else f" on {cause.host}"


def _culprit_of(cause: Cause, evidence: LogEvidence, waiters: int) -> HangCulprit:
    hosts = dict.fromkeys(evidence.hosts[rank] for rank in cause.ranks if rank in evidence.hosts)
    if not hosts and cause.host is not None and len(cause.ranks) == 1:
        hosts = {cause.host: None}
    more = f"; ranks {listed(cause.ranks)} met the same" if len(cause.ranks) > 1 else ""
    return HangCulprit(
        cause.ranks, tuple(hosts), cause.confidence, "high", cause.kind, cause.where, None, waiters,
        (line_evidence(f"{cause.statement}{more} ({cause.place})", cause.place),),
    )  # fmt: skip


def _hang(evidence: LogEvidence, causes: Causes, scene: Scene, graph: WaitGraph, mismatches: Sequence[Root]) -> Found:
    """Nobody ended first: who is behind, who differs, or nobody."""
    waiting = scene.waiting() | causes.following
    told = _of_desync(evidence, scene)
    roots = told or name_roots(scene.snapshot, graph, NoHistory(), mismatches)
    silent = {rank for ranks in scene.silent.values() for rank in ranks}
    firm, suspected = [], []
    for root in roots:
        on_silence = not told and (set(root.ranks) <= silent or _lacks_members(root, scene))
        if on_silence and not set(root.ranks) <= silent:
            continue  # who has completed it is not known of all members
        if root.kind in UNCERTAIN or root.is_suspicion or on_silence:
            suspected.append(_on_silence(root, evidence) if on_silence else root)
        elif not set(root.ranks) & silent or told:
            firm.append(_as_logged(root, evidence))
    suspected = [root for root in suspected if _is_few(root, scene)]
    chosen = firm or suspected
    state = State.HANG if firm else State.INCONCLUSIVE
    accused = {rank for root in chosen for rank in root.ranks}
    reach = frozenset(Waiters.of(graph).waiting_for(accused)) if accused else frozenset()
    if told:
        reach |= waiting
    victims = waiting - accused
    culprits = tuple(_hang_culprit(root, evidence, scene, state) for root in chosen)
    return Found(state, culprits, victims, reach & victims, () if firm else (_what_is_known(scene, graph),))


def _lacks_members(root: Root, scene: Scene) -> bool:
    """Whether a judgement of who completed an operation rests on a group whose other members are not known."""
    needs_all = root.kind in UNCERTAIN | {CulpritKind.DEVICE_STUCK}
    return needs_all and root.group is not None and (
        root.group in scene.silent or scene.groups[root.group].members is None
    )  # fmt: skip


def _is_few(root: Root, scene: Scene) -> bool:
    """Whether silence is worth a suspicion: most members of the group complained, and only few did not."""
    if root.kind in UNCERTAIN:
        return True
    for number, ranks in scene.silent.items():
        if set(root.ranks) & set(ranks) and 2 * len(ranks) > len(scene.snapshot.groups[number].ranks):
            return False
    return True


def _on_silence(root: Root, evidence: LogEvidence) -> Root:
    heard = "wrote other lines" if set(root.ranks) <= evidence.heard else "wrote nothing in these logs"
    why = f"all others that told anything wait, and it {heard}: it may be what they wait for, or was only ended first"
    return replace(root, kind=CulpritKind.MISSING_CALL, confidence=SILENCE, why=why)


def _as_logged(root: Root, evidence: LogEvidence) -> Root:
    """A root in the words of what a log can tell: nothing of processes."""
    if root.kind != CulpritKind.HOST_STUCK:
        return root
    if set(root.ranks) <= {one.rank for one in evidence.stuck}:
        return replace(root, confidence=0.75, why="its watchdog did not come back: the process is held up as a whole")
    return replace(root, why="it has not enqueued what the others wait in, and it waits nowhere itself")


def _of_desync(evidence: LogEvidence, scene: Scene) -> list[Root]:
    """What torch's own desync report says, where it names ranks that did not join."""
    absent = [one for one in evidence.desyncs if one.kind != Desync.NOT_FINISHED]
    if not absent:
        return []
    first = min(absent, key=lambda one: one.sequence if one.sequence is not None else 0)
    world = next((number for number, group in scene.groups.items() if group.label.is_world), None)
    at = f" number {first.sequence}" if first.sequence is not None else ""
    why = f"torch says that it {first.kind}{at} ({first.place})"
    return [Root(first.ranks, CulpritKind.MISSING_CALL, 0.7, None, world, first.sequence, why=why)]


def _hang_culprit(root: Root, evidence: LogEvidence, scene: Scene, state: State) -> HangCulprit:
    hosts = dict.fromkeys(evidence.hosts[rank] for rank in root.ranks if rank in evidence.hosts)
    return HangCulprit(
        root.ranks, tuple(hosts), root.confidence, "high" if state == State.HANG else "medium", root.kind,
        root.segment, group_name(scene.snapshot, root.group), root.waiters, _evidence(root, evidence, scene),
    )  # fmt: skip


def _evidence(root: Root, evidence: LogEvidence, scene: Scene) -> tuple[Evidence, ...]:
    """How far the accused are in their groups beside the others, each with the line that tells it."""
    found = []
    for rank in root.ranks[:4]:
        for number, own in scene.positions.items():
            mark = own[rank].mark if rank in own else None
            others = [one.waits_in for other, one in own.items() if other != rank and one.waits_in is not None]
            if mark is None or not others or mark.enqueued >= max(others):
                continue
            name = scene.snapshot.groups[number]
            line = (
                f"rank {rank} has enqueued {mark.enqueued} operations of {name} and completed {mark.completed}, "
                f"{len(others)} others wait in number {min(others)} ({mark.place})"
            )
            one = line_evidence(line, mark.place)
            found.append(replace(one, value=float(mark.enqueued), peers=float(min(others))))
    told: list[DesyncReport | Timeout | Watermark] = [*evidence.desyncs, *evidence.timeouts, *evidence.watermarks]
    if root.why and told and not found:
        found.append(line_evidence(root.why, told[0].place))
    return tuple(found)


def _what_is_known(scene: Scene, graph: WaitGraph) -> Abstention:
    """Who waits where, and of whom nothing is known: what an inconclusive verdict can still say."""
    told = []
    for number, own in scene.positions.items():
        at: dict[int, list[int]] = {}
        for rank, one in sorted(own.items()):
            if one.waits_in is not None:
                at.setdefault(one.waits_in, []).append(rank)
        where = "; ".join(f"ranks {listed(ranks)} wait in number {sequence}" for sequence, ranks in sorted(at.items()))
        silent = scene.silent.get(number, ())
        quiet = f", nothing is told of ranks {listed(silent)}" if silent else ""
        if scene.groups[number].members is None:
            quiet = ", and who else is in it is not known"
        if where:
            told.append(f"in {scene.snapshot.groups[number].kind}: {where}{quiet}")
    if scene.lonely:
        told.append(f"ranks {listed(sorted(scene.lonely))} wait in operations that tell nothing of the other side")
    if graph.joined and not graph.waits and not scene.silent and all(one.members for one in scene.groups.values()):
        told.append("all members have joined: suspect the links between them, or the library")
    return Abstention("watchdogs", "; ".join(told) or "nobody is seen to be behind")


def _notes(evidence: LogEvidence, causes: Causes, scene: Scene) -> tuple[Abstention, ...]:
    """What limits the verdict: files that were not read whole, ranks nobody heard, links and devices."""
    notes = [Abstention("logs", f"{one.name}: {one.trouble}") for one in evidence.files if one.trouble is not None]
    notes += [Abstention("groups", one) for one in dict.fromkeys(scene.notes)]
    notes += first_device_error(evidence)
    notes += [Abstention("devices", one) for one in causes.notes[:8]]
    for one in evidence.link_errors[:8]:
        on = "" if one.speaker.host is None else f" on {one.speaker.host}"
        notes.append(Abstention("network", f"NCCL{on} complained of a connection: {one.text} ({one.place})"))
    if evidence.signals and not causes.first:
        sources = sorted({one.source for one in evidence.signals if one.source is not None})
        reason = f"rank {listed(sources)} alarmed first, which by itself makes nobody a culprit"
        notes.append(Abstention("alarms", reason))
    notes += clock_notes(evidence)
    if evidence.dropped:
        notes.append(Abstention("logs", f"{sum(evidence.dropped.values())} further lines of interest were passed over"))
    return tuple(notes)


def clock_notes(evidence: LogEvidence) -> list[Abstention]:
    """Which times were not compared, and which files of earlier starts were not read."""
    notes = []
    if (told := not_compared(evidence)) is not None:
        notes.append(Abstention("clocks", told))
    if evidence.earlier:
        names = ", ".join(evidence.earlier[:4]) + (", ..." if len(evidence.earlier) > 4 else "")
        notes.append(Abstention("logs", f"{len(evidence.earlier)} files of earlier starts were not read: {names}"))
    return notes
