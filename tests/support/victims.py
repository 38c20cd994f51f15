"""More ranks that only wait: for ranks of a job that wait themselves, or that hold it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from megascope.profiler.topology import group_id
from megascope.profiler.vocabulary import SegmentKind
from megascope.viz3d.states import Flight, RankState, Snapshot
from megascope.viz3d.verdict import GroupName


def with_victims(
    looks: tuple[Snapshot, Snapshot], targets: Sequence[int], host: str = "more"
) -> tuple[Snapshot, Snapshot]:
    """Looks at a job with one more rank for each of the ``targets``, in a collective with it that the target has not
    joined, begun after all else. They count the step that most ranks do."""
    earlier, later = looks
    return _with_victims(earlier, targets, host), _with_victims(later, targets, host)


def _with_victims(look: Snapshot, targets: Sequence[int], host: str) -> Snapshot:
    first = 1 + max(look.coordinates)
    states, groups, hosts = dict(look.states), dict(look.groups), dict(look.hosts)
    steps = [state.step for state in look.states.values()]
    step = max(steps, key=steps.count)
    begun_ns = max(one.begun_ns or 0 for state in look.states.values() for one in state.flights)
    setup = () if step is not None else (Flight("setup", SegmentKind.INIT, begun_ns=begun_ns),)
    for rank, target in enumerate(targets, first):
        name = GroupName("beside", tuple(sorted((rank, target))))
        number = group_id(name.kind, name.ranks)
        flight = Flight("beside_all_reduce", "collective", number, 1, begun_ns=begun_ns, waiting=True)
        states[rank] = RankState(rank, look.moment_ns, step, (*setup, flight), {number: (1, 0)}, "sleeping", 1000)
        groups[number], hosts[rank] = name, host
    return replace(look, states=states, groups=groups, hosts=hosts)
