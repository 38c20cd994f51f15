"""Checkpoints: a host whose storage stalls, told apart from pauses that all hosts have alike.

Checkpoints are sparse, and a storage that stalls does so in steps of its own. So the hosts are compared over blocks of
steps, by what the ranks of a stage spend in checkpoints there, spans or none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...collectors.store import Attempt, Store
from ...collectors.views import literal
from ...collectors.windows import WINDOW_STEPS
from ...profiler.vocabulary import SegmentKind
from ..cells import SegmentCells
from ..detect import MAD_TO_SIGMA, BoolArray
from ..observations import Observations
from ..peers import STAGE_AXIS, FloatArray, IntArray, others_median, row_median
from ..verdict import Abstention, Cause, Culprit, CulpritKind, Evidence, Findings, Pattern, severity
from .evidence import ask, table_of, total_sql
from .pauses import job_pauses

SIGNAL = "checkpoint"
BLOCK_STEPS = WINDOW_STEPS[0]

MIN_SIGMAS = 6.0
MIN_RATIO = 1.5
MIN_BLOCK_SHARE = 0.02
"""Excess of a block in which a host is raised, as a share of the block's time."""

MIN_LOST = 0.005
MIN_ALIKE = 0.9
"""Share of the host's ranks that are raised by half: fewer are ranks of their own, not the machine's storage."""

MOST_HOSTS = 1 / 3
"""Where more of the hosts are raised, it is none of theirs."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """What is spent in checkpoints: ``spent`` [R, B] and ``step_ms`` [B] in ms per step, over blocks of columns.

    ``steps`` [B] is how many steps a block has, ``first`` and ``last`` [B] are its columns; ``active`` [R] are ranks
    that write checkpoints at all.
    """

    spent: FloatArray
    step_ms: FloatArray
    steps: FloatArray
    first: IntArray
    last: IntArray
    active: BoolArray


@dataclass(frozen=True, slots=True)
class StalledHost:
    """A host all of whose ranks spend longer in checkpoints than the ranks of the same stage on other hosts."""

    host: str
    ranks: tuple[int, ...]
    blocks: tuple[int, ...]
    ratio: float
    lost_share: float
    sigmas: float
    alike: float


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
    culprits = []
    for one in stalled:
        if is_place_in_mesh(one, stalled, blocks, seen):
            notes.append(_place_note(one))
        else:
            culprits.append(_culprit(store, attempt, seen, one, blocks, cells))
    if not stalled:
        pauses = job_pauses(store, attempt, seen, cells)
        culprits, notes = [*culprits, *pauses.culprits], [*notes, *pauses.abstained]
    return Findings(culprits=tuple(culprits), abstained=tuple(notes))


def blocks_of(cells: list[SegmentCells], seen: Observations) -> Blocks:
    """Sums over blocks of steps; windows are blocks already. A rank without a span of it spent no time."""
    spent = sum((np.nan_to_num(one.per_step_ms()) for one in cells), np.zeros((len(seen.ranks), len(seen.steps))))
    length = max(seen.source.step_width, BLOCK_STEPS)
    _, first = np.unique(seen.steps // length, return_index=True)
    columns = np.diff(np.append(first, len(seen.steps)))
    width = seen.source.step_width
    usual = float(np.nanmedian(seen.step_ms)) if np.isfinite(seen.step_ms).any() else np.nan
    step_ms = np.where(np.isfinite(seen.step_ms), seen.step_ms, usual)
    return Blocks(
        np.add.reduceat(spent, first, axis=1) / columns,
        np.add.reduceat(step_ms, first) / columns,
        columns.astype(float) * width,
        first.astype(np.int64),
        (first + columns - 1).astype(np.int64),
        np.asarray((spent > 0).any(axis=1), np.bool_),
    )


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
    if not len(raised) or len(rows) < 2:
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


def is_place_in_mesh(one: StalledHost, stalled: list[StalledHost], blocks: Blocks, seen: Observations) -> bool:
    """Whether the host's place may be why it writes more, such as that of the ranks that save the weights for all.

    So it is if its ranks have index 0 on an axis, all others with that index stand out too, and always did.
    """
    if 0 not in one.blocks or len(one.blocks) < 0.6 * len(blocks.steps):
        return False
    out = set().union(*(other.ranks for other in stalled))
    own = np.array(one.ranks, np.int64)
    for axis in seen.placement.coordinates:
        if axis == STAGE_AXIS or not (seen.placement.coordinate(axis, own) == 0).all():
            continue
        index = seen.placement.coordinate(axis, seen.ranks)
        members = set(seen.ranks[(index == 0) & blocks.active].tolist())
        if members <= out and len(np.unique(index[blocks.active])) > 1:
            return True
    return False


def _place_note(one: StalledHost) -> Abstention:
    reason = (
        f"{one.host} takes x{one.ratio:.2f} of the other hosts' time in checkpoints, always, and so do all ranks with "
        f"its place in the mesh: whether they save more or its storage is slow cannot be told"
    )
    return Abstention(SIGNAL, reason)


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
    end = int(seen.steps[last]) + seen.source.step_width - 1
    return int(seen.steps[first]), end if seen.last_step is None else min(end, seen.last_step)


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
        own, others = ask(store, attempt, sql(here, own_of)), ask(store, attempt, sql(elsewhere, others_of))
        if own is not None and others is not None and (own_of == "median" or own > others):
            statement = (
                f"{who} {one.host} spends {own:.1f} ms in checkpoints in steps {steps[0]} to {steps[1]}, {whom} "
                f"{others:.1f} ms"
            )
            result.append(Evidence(statement, own, others, table_of(seen), sql(here, own_of)))
    return tuple(result)
