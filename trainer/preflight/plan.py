"""Who is checked with whom: the pairs of ranks that will talk, and rounds of teams that do not disturb each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...profiler.topology import Topology
from .measurements import Member

Team = tuple[int, ...]
"""Global ranks that are measured together."""

Round = list[Team]
"""Teams that are measured at the same time."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The ranks with their places, and the job's mesh. ``chunks``: virtual stages of a pipeline rank."""

    members: Mapping[int, Member]
    topology: Topology
    chunks: int = 1

    @property
    def device(self) -> str:
        """What all run on: cuda if any does."""
        return "cuda" if any(one.device == "cuda" for one in self.members.values()) else "cpu"

    def hosts(self) -> dict[str, list[int]]:
        """The ranks of every host, in the order of the hosts' first ranks."""
        found: dict[str, list[int]] = {}
        for rank in sorted(self.members):
            found.setdefault(self.members[rank].host, []).append(rank)
        return found

    def hosts_of(self, team: Team) -> tuple[str, ...]:
        """The hosts of a team's ranks, one entry a rank."""
        return tuple(self.members[rank].host for rank in team)

    def crosses_hosts(self, team: Team) -> bool:
        """Whether a team has ranks on several hosts."""
        return len(set(self.hosts_of(team))) > 1


def talking_pairs(topology: Topology, chunks: int = 1) -> dict[tuple[int, int], str]:
    """Unique pairs (lower rank, higher rank) that will talk, and the axis over which they do.

    Along pp: neighbouring stages, and with several chunks the last with the first. Along any other axis: neighbours in
    the ring of the group, which is what a ring all-reduce, all-gather or reduce-scatter uses. A pair that two axes have
    is told once, under the inner of them.
    """
    pairs: dict[tuple[int, int], str] = {}
    for axis in topology.names:
        for group in topology.groups(axis):
            edges = list(pairwise(group))
            if len(group) > 2 and (axis != "pp" or chunks > 1):
                edges.append((group[-1], group[0]))
            for one, other in edges:
                pairs[min(one, other), max(one, other)] = axis
    return pairs


def in_rounds(teams: Iterable[Team], cluster: Cluster) -> list[Round]:
    """Teams in as few rounds as a greedy colouring finds, with no rank twice in a round.

    On CPUs no host has two teams in a round: its processes share cores, and would measure each other.
    """
    rounds: list[tuple[Round, set[int | str]]] = []
    for team in teams:
        busy: set[int | str] = set(team)
        if cluster.device == "cpu":
            busy |= set(cluster.hosts_of(team))
        for members, taken in rounds:
            if not taken & busy:
                members.append(team)
                taken.update(busy)
                break
        else:
            rounds.append(([team], busy))
    return [members for members, _ in rounds]


def alone(cluster: Cluster) -> list[Round]:
    """Every rank by itself: all at once on GPUs, the ranks of a host in turn on CPUs."""
    return in_rounds(((rank,) for rank in sorted(cluster.members)), cluster)


def host_teams(cluster: Cluster) -> Iterator[Team]:
    """The ranks of each host that has several."""
    for ranks in cluster.hosts().values():
        if len(ranks) > 1:
            yield tuple(ranks)


def neighbour_teams(cluster: Cluster) -> Iterator[Team]:
    """The ranks of every two neighbouring hosts; of the one host where there is no other."""
    hosts = list(cluster.hosts().values())
    if len(hosts) == 1:
        yield from host_teams(cluster)
    for one, other in pairwise(hosts):
        yield tuple(sorted([*one, *other]))


def without(rounds: Sequence[Round], absent: set[int], least: int) -> list[Round]:
    """Rounds without ranks that do not answer any more; teams that are left with fewer than ``least`` are dropped."""
    left = [[tuple(rank for rank in team if rank not in absent) for team in teams] for teams in rounds]
    return [kept for teams in left if (kept := [team for team in teams if len(team) >= least])]
