"""Checkpoints: a host whose storage stalls, told apart from pauses that all hosts have alike.

Checkpoints are sparse, and a storage that stalls does so in steps of its own. So the hosts are compared over blocks of
steps, by what the ranks of a stage spend in checkpoints there, spans or none.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import literal
from ...profiler.vocabulary import SegmentKind
from ..asking import ask
from ..cells import SegmentCells
from ..detect import MAD_TO_SIGMA
from ..observations import Observations
from ..peers import FloatArray, IntArray, others_median, row_median
from ..verdict import Abstention, Cause, Culprit, CulpritKind, Evidence, Explained, Findings, Pattern, severity
from .blocks import Blocks, StalledHost, blocks_of
from .evidence import table_of, total_sql
from .pauses import job_pauses
from .saving_place import is_place_in_mesh, place_note, saving_note, saving_rank
from .stretch import steps_of

SIGNAL = "checkpoint"

MIN_SIGMAS = 6.0
MIN_RATIO = 1.5
MIN_BLOCK_SHARE = 0.02
"""Excess of a block in which a host is raised, as a share of the block's time."""

MIN_LOST = 0.005
MIN_SINGLE_PEERS = 3
"""Other hosts of one rank each, beside which a single rank's checkpoints may tell of its host."""

MIN_ALIKE = 0.9
"""Share of the host's ranks that are raised by half: fewer are ranks of their own, not the machine's storage."""

MOST_HOSTS = 1 / 3
"""Where more of the hosts are raised, it is none of theirs."""


def checkpoint_cells(seen: Observations) -> list[SegmentCells]:
    """The segments that are checkpoints."""
    return [one for one in seen.cells if one.kind == SegmentKind.CHECKPOINT]


def find_checkpoints(store: Store, attempt: Attempt, seen: Observations) -> Findings:
    """Hosts whose checkpoints take longer than the others' (an accusation), or long pauses of all hosts (none)."""
    cells = checkpoint_cells(seen)
    if not cells:
        return Findings()
    blocks = blocks_of(cells, seen)
    stalled, notes = stalled_hosts(blocks, seen), list[Abstention]()
    names = frozenset(one.name for one in cells)
    culprits, explains, pauses = [], [], Findings()
    for one in stalled:
        if is_place_in_mesh(one, stalled, blocks, seen):
            notes.append(place_note(one))
            explains.append(Explained(frozenset(one.ranks), names))
        else:
            culprits.append(_culprit(store, attempt, seen, one, blocks, cells))
    if not stalled:
        pauses = job_pauses(store, attempt, seen, cells)
        if (rank := saving_rank(blocks, seen)) is not None:
            notes.append(saving_note(rank))
            explains.append(Explained(frozenset({rank}), names))
    return Findings((*culprits, *pauses.culprits), (*notes, *pauses.abstained), pauses.blocking, tuple(explains))


def stalled_hosts(blocks: Blocks, seen: Observations) -> list[StalledHost]:
    """Hosts that stand out, the costliest first; none where too many do."""
    names = np.array([seen.placement.host_of(int(rank)) or "" for rank in seen.ranks], dtype=object)
    roles = seen.placement.roles(seen.ranks)
    excess, usual = _excess(blocks, names, roles)
    if len(excess) < 2:
        return []
    strays = np.concatenate(list(excess.values()))
    strays = strays[np.isfinite(strays)]
    typical = float(np.median(np.concatenate(list(usual.values()))))
    sigma = max(MAD_TO_SIGMA * float(np.median(np.abs(strays))), 0.05 * typical, 1e-6) if len(strays) else np.inf
    found = []
    for host, above in excess.items():
        raised = np.flatnonzero(above > np.maximum(MIN_SIGMAS * sigma, MIN_BLOCK_SHARE * blocks.step_ms))
        one = _stalled(host, raised, above, usual[host], blocks, np.flatnonzero((names == host) & blocks.active), seen)
        if one is not None:
            found.append((one, float(above[raised].max()) / sigma))
    if len(found) > max(MOST_HOSTS * len(excess), 1):
        return []
    return sorted((one for one, _ in found), key=lambda one: -one.lost_share)


def _excess(blocks: Blocks, names: np.ndarray, roles: IntArray) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """By host: what its ranks spend above the ranks of the same stage on other hosts, and what those spend, [B].

    Of a host with several stages, in the stage where it is least above.
    """
    excess: dict[str, FloatArray] = {}
    usual: dict[str, FloatArray] = {}
    for role in np.unique(roles[roles >= 0]):
        here = np.flatnonzero((roles == role) & blocks.active)
        hosts, inverse = np.unique(names[here].astype(str), return_inverse=True)
        if len(hosts) < 2:
            continue
        order = np.argsort(inverse, kind="stable")
        parts = np.split(blocks.spent[here[order]], np.cumsum(np.bincount(inverse))[:-1])
        levels = np.stack([row_median(part.T) for part in parts])
        others = others_median(levels)
        for host, own, peers in zip(hosts.tolist(), levels, others, strict=True):
            above = own - peers
            if host not in excess or above.sum() < excess[host].sum():
                excess[host], usual[host] = above, peers
    return excess, usual


def _stalled(
    host: str,
    raised: IntArray,
    above: FloatArray,
    usual: FloatArray,
    blocks: Blocks,
    rows: IntArray,
    seen: Observations,
) -> StalledHost | None:
    if not len(raised) or (len(rows) < 2 and not _is_single(host, seen)):
        return None
    weight = blocks.steps[raised]
    peers = max(float((usual[raised] * weight).sum() / weight.sum()), float(np.mean(usual)))
    own = peers + float((above[raised] * weight).sum() / weight.sum())
    lost = float((np.minimum(above, blocks.step_ms)[raised] * weight).sum() / (blocks.step_ms * blocks.steps).sum())
    share = blocks.spent[np.ix_(rows, raised)] > (usual + above / 2)[raised]
    alike = float(np.mean(share.mean(axis=1) > 0.5))
    if peers <= 0 or own < MIN_RATIO * peers or lost < MIN_LOST or alike < MIN_ALIKE:
        return None
    ranks = tuple(int(rank) for rank in seen.ranks[rows])
    return StalledHost(
        host, ranks, tuple(raised.tolist()), own / peers, round(lost, 6), float(above[raised].max()), alike
    )


def _is_single(host: str, seen: Observations) -> bool:
    """Whether a host has one rank, and several others have too: no other rank of it need be slow as well."""
    counts = Counter(seen.placement.host_of(int(rank)) or "" for rank in seen.ranks)
    return counts[host] == 1 and sum(count == 1 for count in counts.values()) > MIN_SINGLE_PEERS


def _culprit(
    store: Store, attempt: Attempt, seen: Observations, one: StalledHost, blocks: Blocks, cells: list[SegmentCells]
) -> Culprit:
    steps = _steps(one, blocks, cells, seen)
    sure = 1 - 0.5 * np.exp(-(one.ratio - 1))
    return Culprit(
        ranks=one.ranks,
        hosts=(one.host,),
        confidence=round(float(min(sure, one.alike, 0.99)), 3),
        severity=severity(one.lost_share),
        kind=CulpritKind.HOST,
        cause=Cause.CHECKPOINT,
        segment=max(cells, key=lambda cell: float(np.nansum(cell.total_ms))).name,
        ratio=round(one.ratio, 4),
        steps=steps,
        pattern=Pattern.INTERMITTENT if len(one.blocks) > 1 else Pattern.ONE_OFF,
        lost_share=one.lost_share,
        evidence=_evidence(store, attempt, seen, one, steps),
    )


def _steps(one: StalledHost, blocks: Blocks, cells: list[SegmentCells], seen: Observations) -> tuple[int, int]:
    """First and last step in which the host's ranks spend half of their longest time: of windows, whole ones."""
    first, last = int(blocks.first[one.blocks[0]]), int(blocks.last[one.blocks[-1]])
    if seen.source.step_width == 1:
        rows = np.searchsorted(seen.ranks, np.array(one.ranks, np.int64))
        spent = sum((np.nan_to_num(cell.per_step_ms())[rows] for cell in cells), np.zeros((len(rows), len(seen.steps))))
        typical = row_median(spent.T)[first : last + 1]
        at = first + np.flatnonzero(typical >= 0.5 * typical.max())
        first, last = int(at[0]), int(at[-1])
    return steps_of(first, last, seen)


def _evidence(
    store: Store, attempt: Attempt, seen: Observations, one: StalledHost, steps: tuple[int, int]
) -> tuple[Evidence, ...]:
    def sql(condition: str, pick: str) -> str:
        total = total_sql(attempt, seen, steps, f"s.kind = '{SegmentKind.CHECKPOINT}' AND {condition}")
        return f"SELECT {pick}(ms) FROM ({total})"

    here, elsewhere = f"r.host = {literal(one.host)}", f"r.host <> {literal(one.host)}"
    result = []
    for own_of, others_of, who, whom in (
        ("median", "median", "the median rank of", "that of the other hosts"),
        ("min", "max", "even the fastest rank of", "the slowest of all other hosts"),
    ):
        own, others = ask(store, sql(here, own_of), attempt), ask(store, sql(elsewhere, others_of), attempt)
        if own is not None and others is not None and (own_of == "median" or own > others):
            statement = (
                f"{who} {one.host} spends {own:.1f} ms in checkpoints in steps {steps[0]} to {steps[1]}, {whom} "
                f"{others:.1f} ms"
            )
            result.append(Evidence(statement, own, others, table_of(seen), sql(here, own_of)))
    return tuple(result)
