"""The numbers behind an accusation: the culprit's own yardstick, asked again from the store as anyone may ask it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from megascope.collectors.reading.sql import run_sql
from megascope.collectors.reading.store import Attempt, Store
from megascope.heatmap.peers_sql import ranks_condition
from megascope.heatmap.stragglers import find_stragglers
from megascope.profiler.topology import Topology
from support.noisy_job import placement
from support.span_store import Span, meeting, write_spans

ATTEMPT = Attempt("job", 0)


def jittered(seed: int) -> Callable[[float], float]:
    rng = np.random.default_rng(seed)
    return lambda mean: mean * float(rng.lognormal(0, 0.02))


def ask(store: Store, sql: str) -> float:
    return float(run_sql(store, sql).table.column(0)[0].as_py())


def test_an_older_attempts_evidence_is_there_though_its_steps_were_repeated(tmp_path: Path) -> None:
    """The whole store shows a repeated step of the newest attempt only; evidence is about the attempt it accuses."""
    draw = jittered(1)
    slow = meeting(4, 40, lambda rank, step: draw(30.0 if rank == 1 else 20.0))
    write_spans(tmp_path / "store", slow, layout={"dp": 4}, more=steps(40))
    even = meeting(4, 40, lambda rank, step: draw(20.0))
    write_spans(tmp_path / "store", even, layout={"dp": 4}, attempt=1, more=steps(40))
    store = Store(tmp_path / "store")
    shown = store.query("SELECT count(*) AS spans FROM spans WHERE attempt = 0").to_pylist()
    assert shown == [{"spans": 0}]
    [culprit] = find_stragglers(store, store.attempt("job", 0)).culprits
    assert culprit.ranks == (1,)
    assert len(culprit.evidence) >= 3
    for one in culprit.evidence:
        assert one.value is not None
        assert ask(store, one.sql) == pytest.approx(one.value)


def steps(count: int) -> dict[str, dict[str, list[int]]]:
    rows = [(rank, step) for step in range(count) for rank in range(4)]
    return {
        "steps": {
            "rank": [rank for rank, _ in rows],
            "step": [step for _, step in rows],
            "start_ns": [1_790_000_000 * 10**9 + step * 200 * 10**6 for _, step in rows],
            "duration_ns": [40 * 10**6] * len(rows),
        }
    }


def test_the_ratio_that_is_told_is_the_ratio_of_the_verdict(tmp_path: Path) -> None:
    """Two chunks of unlike length, in unlike numbers; two of the six peers are slow themselves and no yardstick."""
    draw = jittered(2)
    spans = []
    for step in range(40):
        for rank in range(8):
            factor, at = {1: 1.5, 6: 1.9, 7: 1.9}.get(rank, 1.0), step * 500.0
            for chunk, mean, count in ((0, 5.0, 4 - rank % 2), (1, 15.0, 2 + rank % 3)):
                for _ in range(count):
                    spans.append(Span(rank, step, "forward", at, draw(mean * factor), chunk=chunk))
                    at += 40
            waits = draw(200.0 / factor)
            spans.append(Span(rank, step, "all_reduce", at, waits, exposed_ms=waits, kind="collective"))
    store = write_spans(tmp_path / "store", spans, layout={"dp": 8})
    culprits = find_stragglers(store, store.attempt()).culprits
    assert {culprit.ranks for culprit in culprits} == {(1,), (6,), (7,)}
    for culprit in culprits:
        evidence = culprit.evidence[1]
        assert "chunk by chunk" in evidence.statement
        assert evidence.value == pytest.approx(culprit.ratio, abs=1e-4)
        assert ask(store, evidence.sql) == pytest.approx(culprit.ratio, abs=1e-4)
        assert culprit.ratio == pytest.approx({1: 1.5, 6: 1.9, 7: 1.9}[culprit.ranks[0]], rel=0.03)


def test_findings_beyond_the_list_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = jittered(3)
    work = meeting(120, 35, lambda rank, step: draw(20.0 * (1.5 if rank % 5 == 0 else 1.0)))
    store = write_spans(tmp_path / "store", work, layout={"dp": 120})
    monkeypatch.setattr("megascope.heatmap.stragglers.MAX_CULPRITS", 20)
    verdict = find_stragglers(store, store.attempt())
    assert len(verdict.culprits) == 20
    assert any(one.reason == "4 more findings cost less and are not listed" for one in verdict.abstained)


@pytest.mark.parametrize(("ranks", "says"), [([*range(17, 32)], "rank IN (17"), ([*range(16, 50)], "rank IN (16")])
def test_few_peers_and_those_of_no_one_place_are_listed(ranks: list[int], says: str) -> None:
    where = placement(Topology.of(pp=4, dp=16))
    assert ranks_condition("rank", ranks, where, ATTEMPT).startswith(says)


def test_many_peers_are_told_by_their_place_and_those_left_out() -> None:
    where = placement(Topology.of(pp=4, dp=512))
    ranks = [rank for rank in range(512, 1024) if rank not in (600, 700)]
    assert ranks_condition("rank", ranks, where, ATTEMPT) == (
        "rank IN (SELECT rank FROM ranks WHERE run = 'job' AND attempt = 0 AND \"pp\" = 1) AND rank NOT IN (600, 700)"
    )
