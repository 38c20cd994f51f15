"""Snapshots of imagined jobs: every rank where the schedule has it, and one thing wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from megascope.profiler.topology import Topology, group_id
from megascope.viz3d.graph import WaitGraph
from megascope.viz3d.states import Flight, RankState, Snapshot
from megascope.viz3d.verdict import GroupName

MOMENT_NS = 1_790_000_000 * 10**9
STEP = 12
SECOND = 10**9


class Scene:
    """A job that stands still at ``MOMENT_NS``; ranks are idle until told otherwise."""

    def __init__(self, mesh: Topology) -> None:
        self.mesh = mesh
        self.groups: dict[int, GroupName] = {}
        self.states: dict[int, RankState] = {
            rank: RankState(rank, MOMENT_NS, STEP, process_state="sleeping", spans=1000)
            for rank in range(mesh.world_size)
        }
        self._of: dict[tuple[str, int], int] = {}
        for axis in mesh.names:
            for members in mesh.groups(axis):
                self._of |= dict.fromkeys(((axis, rank) for rank in members), self.group(axis, members))
        self.world = self.group("world", range(mesh.world_size))

    def group(self, kind: str, members: Iterable[int]) -> int:
        """Register a group and return its id."""
        name = GroupName(kind, tuple(sorted(members)))
        number = group_id(kind, name.ranks)
        self.groups[number] = name
        return number

    def of(self, axis: str, rank: int) -> int:
        """The group of a rank along an axis."""
        return self._of[axis, rank]

    def work(self, rank: int, segment: str, since_s: float = 60, kind: str = "compute") -> None:
        """The rank is in a segment of its own work."""
        self._add(rank, Flight(segment, kind, begun_ns=MOMENT_NS - round(since_s * SECOND)))

    def collective(self, rank: int, axis: str, sequence: int, segment: str = "", since_s: float = 50) -> None:
        """The rank is in a collective of its group along an axis (or of the whole job, for ``world``)."""
        group = self.of(axis, rank) if axis != "world" else self.world
        self.in_group(rank, group, sequence, segment or f"{axis}_all_reduce", since_s)

    def in_group(self, rank: int, group: int, sequence: int, segment: str, since_s: float = 50) -> None:
        """The rank is in a collective of any group."""
        begun = MOMENT_NS - round(since_s * SECOND)
        self._add(rank, Flight(segment, "collective", group, sequence, begun_ns=begun))
        self.progress(rank, group, sequence, sequence - 1)

    def message(
        self,
        rank: int,
        verb: str,
        peer: int,
        sequence: int,
        *,
        kind: str = "pp_forward",
        since_s: float = 50,
        waiting: bool | None = None,
    ) -> None:
        """The rank sends to, or receives from, a peer; ``waiting``: whether it waits for that now, if known."""
        group = self.group(kind, (rank, peer))
        begun = MOMENT_NS - round(since_s * SECOND)
        flight = Flight(f"{verb}_forward", "p2p", group, sequence, peer, begun_ns=begun, waiting=waiting)
        self._add(rank, flight)
        self.progress(rank, group, sequence, sequence - 1)

    def progress(self, rank: int, group: int, issued: int, completed: int) -> None:
        """Set how far a rank is in a group."""
        state = self.states[rank]
        self.states[rank] = replace(state, progress={**state.progress, group: (issued, completed)})

    def process(self, rank: int, state: str) -> None:
        """Set the state of a rank's process."""
        self.states[rank] = replace(self.states[rank], process_state=state)

    def lose(self, rank: int) -> None:
        """The rank has no data at all."""
        del self.states[rank]

    def _add(self, rank: int, flight: Flight) -> None:
        state = self.states[rank]
        self.states[rank] = replace(state, flights=(*state.flights, flight))

    def snapshot(self, before_s: float = 0, moved: Iterable[int] = ()) -> Snapshot:
        """The snapshot, or the one ``before_s`` earlier, in which the ``moved`` ranks had done less."""
        states: Mapping[int, RankState] = {
            rank: replace(
                state,
                moment_ns=MOMENT_NS - round(before_s * SECOND),
                spans=None if state.spans is None else state.spans - (rank in set(moved)),
            )
            for rank, state in self.states.items()
        }
        missing = tuple(rank for rank in range(self.mesh.world_size) if rank not in states)
        places = {rank: dict(self.mesh.coordinates(rank)) for rank in range(self.mesh.world_size)}
        hosts = {rank: f"node{rank // 8}" for rank in range(self.mesh.world_size)}
        moment = MOMENT_NS - round(before_s * SECOND)
        return Snapshot(moment, states, self.groups, hosts, places, self.mesh.names, missing)

    def looks(self, moved: Iterable[int] = (), apart_s: float = 40) -> tuple[Snapshot, Snapshot]:
        """Two looks, far enough apart that whoever did not move in between is stuck, whatever it does."""
        return self.snapshot(apart_s, moved), self.snapshot()


def cascade(mesh: Topology, culprit: int) -> Scene:
    """Everyone waits, directly or not, for one rank, which itself is left as it is (idle).

    Every rank's program is number 7 of the innermost axis, number 3 of the second, number 2 of the whole job. The
    culprit has not come to the first, so its partners wait there; theirs wait in the second, all others in the third.
    """
    scene = Scene(mesh)
    inner, *outer = reversed(mesh.names)
    near = set(mesh.group(inner, culprit)) - {culprit}
    far = set().union(*(set(mesh.group(outer[0], rank)) for rank in near | {culprit})) if outer else set()
    far -= near | {culprit}
    for rank in range(mesh.world_size):
        done = 0 if rank == culprit or rank in near else 1 if rank in far else 2
        scene.progress(rank, scene.of(inner, rank), 6 + (done > 0), 6 + (done > 0))
        if outer:
            scene.progress(rank, scene.of(outer[0], rank), 2 + (done > 1), 2 + (done > 1))
        scene.progress(rank, scene.world, 1, 1)
        if rank in near:
            scene.work(rank, "forward")
            scene.collective(rank, inner, 7, since_s=49)
        elif rank in far:
            scene.collective(rank, outer[0], 3, since_s=40)
        elif rank != culprit:
            scene.collective(rank, "world", 2, since_s=30)
    return scene


def edges(graph: WaitGraph) -> dict[int, set[int]]:
    """Rank -> ranks that it waits for."""
    return {
        rank: {absent for wait in waits for absent in wait.operation.absent} - {rank}
        for rank, waits in graph.waits.items()
    }
