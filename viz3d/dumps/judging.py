"""`judge_dumps`: from Flight Recorder dumps to the hang verdict, alone or with what logs say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..graph import WaitGraph, build_graph
from ..hang import MAX_CULPRITS, Judged
from ..history import NoHistory
from ..looks import explained_by, find_roots
from ..mismatch import Root, deviants, find_mismatches
from ..operations import synchronises
from ..roots import group_name
from ..states import Flight, Snapshot
from ..verdict import Abstention, Evidence, HangCulprit, HangVerdict, State, listed, plain_utc
from .facts import Dump, DumpFolder
from .given_up import GLOO
from .scene import mixed_groups, snapshot_of
from .weighing import weigh

EVIDENCE_RANKS = 4


def judge_dumps(folders: Sequence[DumpFolder], run: str = "dumps", attempt: int = 0) -> Judged:
    """The verdict of one set of dumps, or of two of the same job: the earlier first; only what is in both is stuck.

    ``folders`` are what `read_folder` gave. Dumps are written when an operation timed out, so that one set is taken
    for a job that stands still. An empty, cut or absent dump is evidence: its rank is `missing`.
    """
    folder = folders[-1]
    return judge_snapshot(folder, snapshot_of(folder), folders[:-1], run, attempt)


def judge_snapshot(
    folder: DumpFolder, snapshot: Snapshot, earlier: Sequence[DumpFolder] = (), run: str = "dumps", attempt: int = 0
) -> Judged:
    """`judge_dumps` of a look that was made of the folder's dumps, to which other evidence may have been added."""
    mismatches = find_mismatches(snapshot, NoHistory())
    graph, roots = find_roots(snapshot, NoHistory(), mismatches)
    moved = _moved(earlier[-1], folder) if earlier else frozenset()
    found = weigh(folder, snapshot, roots, moved, compared=bool(earlier))
    accused = {rank for root in found.roots for rank in root.ranks}
    whole = build_graph(snapshot, deviants=deviants(mismatches)) if graph.unheard else graph
    waiting = frozenset(whole.waiting()) | _joined(found.roots, graph)
    explained = explained_by(whole, accused, frozenset(snapshot.missing) - accused) | _joined(found.roots, graph)
    victims = waiting - accused
    culprits = tuple(_culprit(root, folder, snapshot, found.state) for root in found.roots[:MAX_CULPRITS])
    verdict = HangVerdict(
        run, attempt, None, found.state,
        victims=len(victims), explained=len(explained & victims),
        unexplained=tuple(sorted(victims - explained)), missing=snapshot.missing, culprits=culprits,
        abstained=(*_absences(folder), *found.notes, *_limits(folder, single=not earlier)),
    )  # fmt: skip
    return Judged(verdict, snapshot, graph)


def _moved(earlier: DumpFolder, later: DumpFolder) -> frozenset[int]:
    """Ranks whose operations in flight or numbers differ between two sets of dumps."""
    return frozenset(
        rank for rank, dump in later.dumps.items()
        if rank in earlier.dumps and _done(earlier.dumps[rank]) != _done(dump)
    )  # fmt: skip


def _done(dump: Dump) -> tuple[object, ...]:
    flying = tuple((one.name, one.group, one.sequence, one.begun_ns) for one in dump.operations)
    return flying, dict(dump.enqueued), dict(dump.completed)


def _joined(roots: Sequence[Root], graph: WaitGraph) -> frozenset[int]:
    """Members of operations that a root is held up in together with others."""
    found: set[int] = set()
    for root in roots:
        operation = graph.joined.get((root.group or 0, root.sequence or 0))
        if operation is not None:
            found |= set(operation.members)
    return frozenset(found)


def _culprit(root: Root, folder: DumpFolder, snapshot: Snapshot, state: State) -> HangCulprit:
    hosts = dict.fromkeys(snapshot.hosts[rank] for rank in root.ranks if rank in snapshot.hosts)
    severity = "high" if state == State.HANG else "medium"
    return HangCulprit(
        root.ranks, tuple(hosts), root.confidence, severity, root.kind, root.segment,
        group_name(snapshot, root.group), root.waiters, tuple(_evidence(root, folder, snapshot)),
    )  # fmt: skip


def _evidence(root: Root, folder: DumpFolder, snapshot: Snapshot) -> list[Evidence]:
    """Why a root is one, and what the dumps of its ranks show; each names the file that it was read from."""
    damaged = {one.rank: one for one in folder.damaged if one.rank is not None}
    found = [Evidence(root.why, None, None, f"dumps {folder.path.name}", "")] if root.why else []
    for rank in root.ranks[:EVIDENCE_RANKS]:
        dump = folder.dumps.get(rank)
        if dump is not None:
            found.append(Evidence(_of_dump(dump, snapshot), None, None, f"dump {dump.path.name}", ""))
        elif rank in damaged:
            one = damaged[rank]
            found.append(Evidence(f"the dump of rank {rank}: {one.reason}", None, None, f"dump {one.path.name}", ""))
    return found


def _of_dump(dump: Dump, snapshot: Snapshot) -> str:
    state = snapshot.states[dump.rank]
    if not state.flights:
        held = f"{dump.entries:,} operations, all complete" if dump.entries else "no operation at all"
        return f"the dump of rank {dump.rank} holds {held}: nothing that it enqueued is waiting for its device"
    first = next((one for one in state.flights if one.sends is not True), state.flights[0])
    told = f"the first of rank {dump.rank}'s {len(state.flights)} operations in flight is {_flight(first, snapshot)}"
    done = _who_completed(first, snapshot)
    frames = next((one.frames for one in dump.operations if one.begun_ns == first.begun_ns and one.frames), ())
    return told + done + (f", called from {'; '.join(frames)}" if frames else "")


def _flight(flight: Flight, snapshot: Snapshot) -> str:
    name = group_name(snapshot, flight.group)
    peer = "" if flight.peer is None else f" with rank {flight.peer}"
    number = f" #{flight.sequence}" if flight.peer is None else ""
    since = "" if flight.begun_ns is None else f", enqueued at {plain_utc(flight.begun_ns)}"
    return f"{flight.segment}{number}{peer} of {name}{since}"


def _who_completed(flight: Flight, snapshot: Snapshot) -> str:
    group = snapshot.groups.get(flight.group or 0)
    if group is None or flight.kind != "collective" or not synchronises(flight.kind, flight.segment):
        return ""
    done: Mapping[int, int] = {
        rank: snapshot.states[rank].completed(flight.group or 0) for rank in group.ranks if rank in snapshot.states
    }
    ahead = [rank for rank, number in done.items() if number >= (flight.sequence or 0)]
    return f"; rank {listed(ahead)} completed it" if ahead else ""


def _absences(folder: DumpFolder) -> list[Abstention]:
    """Dumps that are absent, empty or damaged: said first, for that a rank left none is evidence."""
    found = [
        Abstention("dumps", f"rank {'?' if one.rank is None else one.rank}: {one.path.name}: {one.reason}")
        for one in folder.damaged[:MAX_CULPRITS]
    ]
    known = set(folder.dumps) | {one.rank for one in folder.damaged}
    absent = sorted(folder.expected - {rank for rank in known if rank is not None})
    if absent:
        found.insert(0, Abstention("dumps", f"there is no dump of rank {listed(absent, 16)} ({len(absent)} in all)"))
    return found + [Abstention("dumps", note) for note in folder.notes]


def _limits(folder: DumpFolder, *, single: bool) -> list[Abstention]:
    """What dumps of this kind cannot tell."""
    found = []
    if single:
        told = "one set of dumps: taken for a job that stands still; a second one, later, would tell slow from stuck"
        found.append(Abstention("dumps", told))
    dumps = folder.dumps.values()
    lost = sum(dump.unplaced for dump in dumps)
    if lost:
        found.append(Abstention("groups", f"of {lost} operations the members are not told: put topology.json beside"))
    if mixed_groups(dumps):
        told = "groups that carry sends and receives too: their counters do not say how far collectives are"
        found.append(Abstention("groups", told))
    if any(dump.library == GLOO for dump in dumps):
        told = "gloo records neither sends and receives nor what failed: own evidence (a store) tells more"
        found.append(Abstention("gloo", told))
    return found
