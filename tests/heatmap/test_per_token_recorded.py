"""Tokens on their way from `megascope.step` on real ranks over the agent and the store to the verdict."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

import megascope
from megascope.collectors.agent.agent import Agent, AgentSettings
from megascope.collectors.reading.store import Store
from megascope.heatmap.per_token import SIGNAL
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import CulpritKind
from megascope.profiler.recorder import Recorder
from megascope.profiler.vocabulary import SegmentKind
from support.collecting import drain_all, read_table
from support.faulty_job import check_evidence

RANKS, STEPS, TOKENS, ODD = 3, 24, 1000, 1
US_PER_TOKEN = 20.0
LONG_S = 60.0


def run_rank(rank: int, spool: str, tokens: int, factor: float, meets: Barrier) -> None:
    """A rank that spends a time on each of its tokens, twice as long backward, and then meets all others."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)}
    recorder = megascope.init(run="lengths", attempt=0, spool=spool, agent=False, automatic="none", shadow_every=0)
    assert isinstance(recorder, Recorder)
    reduce, group = recorder.segment("dp_all_reduce", SegmentKind.COLLECTIVE, "dp"), recorder.group("dp", range(RANKS))
    for step in range(STEPS):
        megascope.step(step, rank_tokens=tokens if step else None)
        for name, cost in (("forward", 1.0), ("backward", 2.0)):
            with megascope.segment(name):
                time.sleep(tokens * cost * factor * US_PER_TOKEN / 1e6)
        span = recorder.begin_async(reduce, group=group, sequence=step + 1, size_bytes=8)
        recorder.wait_begin(span)
        meets.wait(LONG_S)
        recorder.end_async(span)
        recorder.wait_end(span)
    recorder.step_metrics(STEPS - 1, rank_tokens=tokens)
    megascope.shutdown()


@pytest.mark.alone
@pytest.mark.parametrize(("share", "factor"), [(1.6, 1.0), (0.5, 2.6)], ids=["long sequences", "slow, and short ones"])
def test_from_a_step_to_the_verdict(share: float, factor: float, tmp_path: Path) -> None:
    spool, store_root = tmp_path / "spool", tmp_path / "store"
    own = [round(share * TOKENS) if rank == ODD else TOKENS for rank in range(RANKS)]
    context = multiprocessing.get_context("spawn")
    meets = context.Barrier(RANKS)
    ranks = [
        context.Process(
            target=run_rank, args=(rank, str(spool), own[rank], factor if rank == ODD else 1.0, meets), daemon=True
        )
        for rank in range(RANKS)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(LONG_S)
        if rank.is_alive():
            rank.kill()
    assert [rank.exitcode for rank in ranks] == [0] * RANKS
    agent = Agent(AgentSettings(spool=spool, store=store_root), threading.Event())
    try:
        drain_all(agent)
    finally:
        agent.close()
    told = {(row["rank"], row["step"]): row["rank_tokens"] for row in read_table(store_root, "steps")}
    assert told == {(rank, step): own[rank] for rank in range(RANKS) for step in range(STEPS)}
    with Store(store_root) as store:
        found = find_stragglers(store, store.attempt())
        accused = [one for one in found.culprits if one.kind in {CulpritKind.RANK, CulpritKind.HOST}]
        for one in accused:
            check_evidence(store, one.evidence)
    assert any("compared per token" in one.reason for one in found.abstained if one.signal == SIGNAL)
    assert [one.ranks for one in accused] == ([(ODD,)] if factor > 1 else [])
    assert all(2.0 < one.ratio < 3.2 for one in accused)
