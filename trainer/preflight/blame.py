"""Who is to blame when a team's check fails or hangs: those that stopped first, not those that waited for them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .measurements import Failure, Status
from .plan import Team

_OF_A_PEER = re.compile(r"gloo|nccl|connection|closed by peer|timed? ?out|broken pipe|DistStoreError", re.IGNORECASE)
"""Errors that a rank gets because another one is gone."""


def blame(told: Mapping[int, Mapping[str, Any]], team: Team) -> tuple[Status, Team, str]:
    """Status, ranks to blame, and what one of them said, of a team in which not everybody ended well.

    ``told``: by rank, its ``status``, ``message`` and ``notes`` (one for each point that it came to). Who failed by an
    error of its own explains all others. Else those that came least far explain those that waited for them; where all
    came equally far, the team as a whole is named.
    """
    bad = {rank: one for rank, one in told.items() if one["status"] != Status.OK}
    failed = [rank for rank, one in bad.items() if one["status"] == Status.FAILED]
    own = [rank for rank in failed if not _OF_A_PEER.search(str(bad[rank]["message"]))]
    if own:
        return Status.FAILED, tuple(sorted(own)), str(bad[own[0]]["message"])
    status = Status.FAILED if len(failed) == len(bad) else Status.HUNG
    reached = {rank: len(one["notes"]) for rank, one in bad.items()}
    behind = tuple(sorted(rank for rank, count in reached.items() if count == min(reached.values())))
    first = behind[0]
    if len(behind) == len(bad):  # those that ended well were not held up, and explain nothing
        behind = tuple(team) if len(bad) > 1 else behind
    return status, behind, str(bad[first]["message"])


def merge_pairs(failures: Sequence[Failure], good: Iterable[Team]) -> list[Failure]:
    """Failures in which several failed pairs that have a rank in common become one of that rank.

    Only where the rank has no pair that did well: else the links are to blame.
    """
    fine = {rank for team in good for rank in team}
    counts = Counter(rank for one in failures if len(one.ranks) == 2 for rank in one.ranks)
    shared = [rank for rank, count in counts.most_common() if count >= 2 and rank not in fine]
    left, merged = list(failures), []
    for rank in shared:
        mine = [one for one in left if len(one.ranks) == 2 and rank in one.ranks]
        if len(mine) >= 2:
            left = [one for one in left if one not in mine]
            host = dict(zip(mine[0].ranks, mine[0].hosts, strict=True))[rank]
            peers = sorted({other for one in mine for other in one.ranks} - {rank})
            merged.append(
                replace(
                    mine[0],
                    ranks=(rank,),
                    hosts=(host,),
                    message=f"{mine[0].message} (with ranks {', '.join(map(str, peers))}, all its pairs)",
                )
            )
    return _once([*merged, *left])


def _once(failures: Sequence[Failure]) -> list[Failure]:
    """One failure for the same ranks and status, with the number of them."""
    found: dict[tuple[Status, Team], list[Failure]] = {}
    for one in failures:
        found.setdefault((one.status, one.ranks), []).append(one)
    return [
        replace(alike[0], message=f"{alike[0].message} (and {len(alike) - 1} more like it)") if alike[1:] else alike[0]
        for alike in found.values()
    ]
