"""Micro-batches of unequal cost in a job without pipeline stages, where no other machine works on the same ones.

What agrees there is the forward and the backward of one micro-batch: a long sequence is long in both, on a rank whose
other micro-batches of that step are not. What holds for a whole step may as well be a busy machine, so that steps alone
prove nothing; they only forbid the word healthy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...collectors.reading.store import Attempt, Store
from ...collectors.reading.views import literal
from ...collectors.verdicts import Evidence
from ...profiler.vocabulary import SegmentKind
from ..asking import ask
from ..cells import NS_PER_MS, SegmentCells, total_work
from ..observations import Observations
from ..peers import FloatArray, IntArray, column_median, row_median
from ..source import Source
from .microbatches import MIN_GROUPS
from .replicas import ReplicaWork, replicas_of
from .work import compute_cells

SEGMENTS = 2
"""Segments of compute that have to agree: the two that cost most."""


@dataclass(frozen=True, slots=True)
class AloneWork:
    """Work without stages: ``contrast`` is what the agreement is told by, ``whole`` what it costs.

    Both hold log-ratios [2, G, C] of the two segments in the place of stages; G counts replicas, or micro-batches
    replica by replica. Of the first, a replica's own mean over its micro-batches of a step is taken out.
    """

    names: tuple[str, str]
    contrast: ReplicaWork
    whole: ReplicaWork


def is_without_stages(seen: Observations) -> bool:
    """Whether all ranks do the same work, in at least two replicas."""
    replica = replicas_of(seen)
    one_stage = len(np.unique(seen.placement.roles(seen.ranks))) == 1
    return one_stage and len(np.unique(replica[replica >= 0])) >= 2


def microbatch_contrasts(store: Store, attempt: Attempt, seen: Observations) -> AloneWork | None:
    """Work by micro-batch; None where spans do not say theirs, or a rank has a single one in a step."""
    cells = _costliest(seen)
    if seen.source.source == Source.ROLLUPS or len(cells) < SEGMENTS:
        return None
    replica, stage = replicas_of(seen), seen.placement.roles(seen.ranks)
    groups = np.unique(replica[replica >= 0])
    whole = []
    for one in cells:
        loaded = _load(store, attempt, seen, one.name)
        if loaded is None or loaded.shape[1] < 2 or len(groups) * loaded.shape[1] < MIN_GROUPS:
            return None
        own = np.stack([_typical(loaded[replica == group]) for group in groups])  # [G, M, C]
        whole.append(_beside(own.reshape(-1, own.shape[2])))
    if whole[0].shape != whole[1].shape:
        return None
    logs, batches = np.stack(whole), whole[0].shape[0] // len(groups)
    split = logs.reshape(SEGMENTS, len(groups), batches, -1)
    contrast = (split - split.mean(axis=2, keepdims=True)).reshape(logs.shape)
    contrast -= row_median(contrast)[:, :, None]
    work = ReplicaWork(logs, 1.0, 1, replica, stage, batches)
    return AloneWork((cells[0].name, cells[1].name), replace(work, logs=contrast), work)


def step_work(seen: Observations) -> ReplicaWork | None:
    """Work of whole steps or windows, [2, G, C]: what sequences and busy machines change alike."""
    cells = _costliest(seen)
    if len(cells) < SEGMENTS:
        return None
    replica, stage = replicas_of(seen), seen.placement.roles(seen.ranks)
    parts = []
    for one in cells:
        own = total_work([one], stage)
        parts.append(_beside(np.stack([_typical(own[replica == group]) for group in np.unique(replica[replica >= 0])])))
    logs = np.stack(parts)
    return ReplicaWork(logs - row_median(logs)[:, :, None], float(seen.source.step_width), 1, replica, stage)


def _costliest(seen: Observations) -> list[SegmentCells]:
    return sorted(compute_cells(seen), key=lambda one: -float(np.nansum(one.total_ms)))[:SEGMENTS]


def _typical(own: FloatArray) -> FloatArray:
    """Median over the ranks of a replica, [R, ...] -> [...]."""
    result: FloatArray = column_median(own.reshape(len(own), -1)).reshape(own.shape[1:])
    return result


def _beside(own: FloatArray) -> FloatArray:
    """log(own / median of the column), [G, C]; NaN where either is missing."""
    usual = np.broadcast_to(column_median(own), own.shape)
    ratio = np.divide(own, usual, out=np.full(own.shape, np.nan), where=(own > 0) & (usual > 0))
    logs: FloatArray = np.log(ratio)
    return logs


def _load(store: Store, attempt: Attempt, seen: Observations, name: str) -> FloatArray | None:
    """Own time in a segment of compute by rank, micro-batch and step in ms, [R, M, C]; None where spans say none."""
    table = store.query(
        f"""SELECT rank, step, microbatch, sum(self_ns)::DOUBLE AS own_ns FROM spans
            WHERE kind = '{SegmentKind.COMPUTE}' AND segment_name = ? AND status = 'ok' AND self_ns IS NOT NULL
            AND microbatch >= 0 AND step IS NOT NULL GROUP BY rank, step, microbatch""",
        [name],
        attempt=attempt,
    )
    rank, step, own_ns = (table[column].to_numpy(zero_copy_only=False) for column in ("rank", "step", "own_ns"))
    keep = np.isin(rank, seen.ranks) & np.isin(step, seen.steps)
    if not keep.any():
        return None
    batch = table["microbatch"].to_numpy()[keep].astype(np.int64)
    numbers: IntArray = np.arange(int(batch.max()) + 1)
    work = np.full((len(seen.ranks), len(numbers), len(seen.steps)), np.nan)
    work[np.searchsorted(seen.ranks, rank[keep]), batch, np.searchsorted(seen.steps, step[keep])] = (
        own_ns[keep] / NS_PER_MS
    )
    return work


def alone_evidence(
    store: Store, attempt: Attempt, seen: Observations, work: AloneWork, columns: slice, remark: str
) -> tuple[Evidence, ...]:
    """The micro-batch that stands out most in both segments, beside all others of its step in the job."""
    both = np.nan_to_num(work.contrast.logs[:, :, columns].min(axis=0), nan=-np.inf)
    group, column = np.unravel_index(int(np.argmax(both)), both.shape)
    batches, groups = work.whole.microbatches, np.unique(work.whole.replica[work.whole.replica >= 0])
    rank = int(seen.ranks[work.whole.replica == groups[group // batches]][0])
    step, batch = int(seen.steps[columns.start + int(column)]), int(group % batches)
    found = []
    for name in work.names:

        def sql(condition: str, name: str = name) -> str:
            return (
                f"SELECT median(ms) FROM (SELECT x.rank, x.microbatch, sum(x.self_ns) / 1e6 AS ms FROM events x "
                f"JOIN segments s USING (run, attempt, segment) WHERE x.run = {literal(attempt.run)} "
                f"AND x.attempt = {attempt.attempt} AND x.status = 'ok' AND x.step = {step} "
                f"AND s.kind = '{SegmentKind.COMPUTE}' AND s.name = {literal(name)} AND {condition} "
                f"GROUP BY x.rank, x.microbatch)"
            )

        own = ask(store, sql(f"x.rank = {rank} AND x.microbatch = {batch}"), attempt)
        others = ask(store, sql(f"NOT (x.rank = {rank} AND x.microbatch = {batch})"), attempt)
        if own is not None and others is not None:
            statement = (
                f"in step {step} micro-batch {batch} takes rank {rank} {own:.2f} ms in {name}, the median one of the "
                f"job {others:.2f} ms; {remark}"
            )
            mine = sql(f"x.rank = {rank} AND x.microbatch = {batch}")
            found.append(Evidence(statement, own, others, "events", mine))
    return tuple(found)
