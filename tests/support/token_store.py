"""Stores of a job of one stage whose ranks have unequally many tokens, and tell them in the steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from megascope.collectors.reading.store import Store
from megascope.heatmap.peers import FloatArray
from support.span_store import FIRST_NS, MS, Span, write_spans

RANKS, STEPS, STEP_MS, TOKENS = 6, 60, 600.0, 4000
SEGMENTS = {"forward": 30.0, "backward": 60.0}


@dataclass(frozen=True)
class Job:
    """Ranks of one stage with so many times the usual ``tokens``, each in two micro-batches or in ``batches``, that
    work ``slow`` times as long for them; ``drawn`` is how much more or less they have from step to step.

    ``attention`` is the share of a span that grows with the square of its tokens, ``fixed`` the share that is there
    whatever they are. ``told`` is the share of steps in which a rank tells its tokens; if not ``tells_last``, nobody
    does in the last step. If not ``waits_apart``, all meet at the end of ``backward``, which nobody timed. Ranks have
    their ``tokens`` from step ``since`` on, and are ``slow`` from ``slow_since``. Of ``unmeasured`` ranks one of the
    micro-batches has no time.
    """

    tokens: tuple[float, ...] = (1.0,) * RANKS
    slow: tuple[float, ...] = (1.0,) * RANKS
    batches: tuple[int, ...] = (2,) * RANKS
    drawn: float = 0.0
    attention: float = 0.0
    fixed: float = 0.0
    told: tuple[float, ...] = (1.0,) * RANKS
    waits_apart: bool = True
    steps: int = STEPS
    tells_last: bool = True
    since: int = 0
    slow_since: int = 0
    unmeasured: tuple[int, ...] = ()


def tokens_of(job: Job) -> FloatArray:
    """Tokens of a rank in a step, over the usual, [R, S]."""
    drawn = np.random.default_rng(1).lognormal(0, job.drawn, (len(job.tokens), job.steps))
    result: FloatArray = np.where(np.arange(job.steps) < job.since, 1.0, np.array(job.tokens)[:, None]) * drawn
    return result


def store_of(root: Path, job: Job, told: bool = True) -> Store:
    """The store of such a job, whose ranks meet in a collective at the end of every step."""
    random, spans, tokens = np.random.default_rng(4), list[Span](), tokens_of(job)
    for step in range(job.steps):
        ends, last = np.zeros(len(job.tokens)), []
        for rank, batches in enumerate(job.batches):
            share = tokens[rank, step]
            linear = 1 - job.attention - job.fixed
            cost = linear * share + job.attention * share**2 + job.fixed
            for name, usual in SEGMENTS.items():
                for batch in range(batches):
                    slow = job.slow[rank] if step >= job.slow_since else 1.0
                    took = usual * cost * slow * 2 / batches * random.lognormal(0, 0.02)
                    at = step * STEP_MS + ends[rank]
                    status = "unmeasured" if rank in job.unmeasured and batch == 0 else "ok"
                    spans.append(Span(rank, step, name, at, took, microbatch=batch, status=status))
                    ends[rank] += took
            last.append(spans.pop())
        for rank, span in enumerate(last):
            waits, at = float(ends.max() - ends[rank]) + 1.0, step * STEP_MS + ends[rank]
            inside = 0.0 if job.waits_apart else waits
            spans.append(replace(span, duration_ms=span.duration_ms + inside))
            left = waits if job.waits_apart else random.lognormal(0, 0.1)
            spans.append(Span(rank, step, "all_reduce", at + inside, left, exposed_ms=left, kind="collective"))
    return write_spans(root, spans, layout={"dp": len(job.tokens)}, more={"steps": _steps(job, tokens, told)})


def _steps(job: Job, tokens: FloatArray, told: bool) -> dict[str, Any]:
    rank, step = np.divmod(np.arange(tokens.size), job.steps)
    tells = np.random.default_rng(2).random(tokens.size) < np.array(job.told)[rank]
    tells &= job.tells_last | (step < job.steps - 1)
    rows: dict[str, Any] = {
        "rank": rank,
        "step": step,
        "start_ns": FIRST_NS + (step * STEP_MS * MS).astype(np.int64),
        "duration_ns": np.full(rank.size, round(STEP_MS * MS / 3)),
    }
    if told:
        counts = np.round(tokens.ravel() * TOKENS).astype(int).tolist()
        rows["rank_tokens"] = [count if tell else None for count, tell in zip(counts, tells.tolist(), strict=True)]
    return rows


def one_of(value: float, rank: int = 2) -> tuple[float, ...]:
    """``value`` for one rank, 1 for the others."""
    return tuple(value if each == rank else 1.0 for each in range(RANKS))
