"""Slow hosts: where all ranks of a machine are slow at the same, the machine is, not each of its ranks."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from .judge import Finding
from .observations import Observations


def by_host(
    findings: Sequence[Finding], slow: Set[tuple[int, str]], seen: Observations
) -> list[tuple[Finding, tuple[int, ...]]]:
    """Findings with the ranks that they stand for: one rank, or all ranks of a slow host.

    ``slow`` holds every (rank, segment) that is slow. A host is one if it has several ranks, all are slow at the
    finding's segment, and the stage of each has ranks on other hosts too: else the stage may be what is slow.
    """
    members, stages = _members(seen), hosts_of_stages(seen)
    alone = {stage for stage, hosts in stages.items() if len(hosts) < 2}
    result: list[tuple[Finding, tuple[int, ...]]] = []
    taken: set[int] = set()
    for finding in findings:
        if finding.rank in taken:
            continue
        ranks = members.get(seen.placement.host_of(finding.rank), ())
        is_host = (
            len(ranks) > 1
            and all((rank, finding.segment) in slow for rank in ranks)
            and alone.isdisjoint(seen.placement.roles(np.array(ranks, np.int64)).tolist())
        )
        stands_for = ranks if is_host else (finding.rank,)
        taken.update(stands_for)
        result.append((finding, stands_for))
    return result


def _members(seen: Observations) -> dict[str | None, tuple[int, ...]]:
    """Ranks of each host."""
    members: dict[str | None, list[int]] = {}
    for rank, host in zip(seen.placement.ranks, seen.placement.hosts, strict=True):
        members.setdefault(host, []).append(int(rank))
    return {host: tuple(ranks) for host, ranks in members.items()}


def hosts_of_stages(seen: Observations) -> dict[int, set[str]]:
    """The hosts on which each stage runs; stage -1 holds the ranks whose stage is not known."""
    hosts: dict[int, set[str]] = {}
    roles, chosen = seen.placement.roles(seen.placement.ranks), set(seen.ranks.tolist())
    for rank, role, host in zip(seen.placement.ranks, roles, seen.placement.hosts, strict=True):
        if int(rank) in chosen:
            hosts.setdefault(int(role), set()).add(host)
    return hosts
