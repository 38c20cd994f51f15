"""Meshes whose axes have the names of other stacks: stages are no peers, and a step is replayed, as on pp and dp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.against.sides import load_side, other_work
from megascope.heatmap.jobwide.extra_collectives import extra_collective
from megascope.heatmap.observations import observe
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import CulpritKind, StragglerVerdict
from megascope.profiler.topology import segment_id
from megascope.profiler.vocabulary import stage_axis
from support.pipeline_spans import Planted, SmallPipeline
from support.span_store import FIRST_NS, MS, meeting, write_spans

JOB = SmallPipeline(stages=3, replicas=4, steps=40)


def verdict(root: Path, layout: Mapping[str, int], stretched: set[int], factor: float) -> tuple[StragglerVerdict, Any]:
    """The verdict on the job, and its spans of the last stage; the compute of some ranks takes longer."""
    spans = [
        replace(one, duration_ms=factor * one.duration_ms) if one.rank in stretched and one.kind == "compute" else one
        for one in JOB.spans()
    ]
    with write_spans(root, spans, layout=layout, more={"schedule": JOB.schedule_rows()}) as store:
        attempt = store.attempt()
        return find_stragglers(store, attempt), stage_spans(store)


def stage_spans(store: Store) -> Any:
    return store.query("SELECT stage, count(*) AS n FROM spans GROUP BY stage ORDER BY stage").to_pylist()


@pytest.mark.parametrize("names", [("pipe", "data"), ("pipeline", "data")], ids=str)
@pytest.mark.parametrize(("stretched", "factor"), [({6}, 1.4), ({8, 9, 10, 11}, 1.5)], ids=["a rank", "a stage"])
def test_verdicts_are_those_on_pp_and_dp(
    tmp_path: Path, names: tuple[str, str], stretched: set[int], factor: float
) -> None:
    ours, stages = verdict(tmp_path / "ours", {"pp": 3, "dp": 4}, stretched, factor)
    theirs, others = verdict(tmp_path / "theirs", dict(zip(names, (3, 4), strict=True)), stretched, factor)
    assert [one["stage"] for one in stages] == [0, 1, 2]
    assert others == stages
    assert theirs.verdict == ours.verdict
    kinds = [(one.kind, one.cause, one.ranks, one.stage, one.ratio, len(one.evidence)) for one in ours.culprits]
    assert [
        (one.kind, one.cause, one.ranks, one.stage, one.ratio, len(one.evidence)) for one in theirs.culprits
    ] == kinds
    assert [one.kind for one in ours.culprits] == [CulpritKind.RANK if len(stretched) == 1 else CulpritKind.STAGE]
    assert (theirs.slowdown, theirs.m_w, theirs.m_s) == (ours.slowdown, ours.m_w, ours.m_s)
    assert ours.slowdown is not None


def test_which_axis_has_the_stages() -> None:
    assert stage_axis(["dp", "pipe", "pp"]) == "pp"
    assert stage_axis(["data", "pipe", "model"]) == "pipe"
    assert stage_axis(["dp", "tp"]) is None


def with_axis(root: Path, axis: str | None) -> Store:
    """A pipeline that meets in a collective over an axis between its forwards and backwards."""
    spans = SmallPipeline(stages=2, replicas=4, planted=Planted.RECORDED).spans()
    names = sorted({(one.segment, one.kind) for one in spans})
    segments: dict[str, list[Any]] = {
        "segment": [segment_id(*name, None) for name in names],
        "name": [name for name, _ in names],
        "kind": [kind for _, kind in names],
        "axis": [axis if name == "barrier" else None for name, _ in names],
    }
    return write_spans(root, spans, layout={"pipe": 2, "data": 4}, more={"segments": segments})


@pytest.mark.parametrize(("axis", "is_extra"), [("pp", 0), ("pipe", 0), ("pipeline", 0), ("data", 1), (None, 1)])
def test_a_collective_between_the_stages_belongs_to_the_schedule(
    tmp_path: Path, axis: str | None, is_extra: int
) -> None:
    with with_axis(tmp_path, axis) as store:
        attempt = store.attempt()
        found = extra_collective(store, attempt, observe(store, attempt))
    assert (found is not None) == bool(is_extra)


@pytest.mark.parametrize(("axis", "cuts"), [("dp", False), ("data", False), ("pipe", True), ("tp", True)])
def test_more_replicas_by_either_name_do_the_same_work(tmp_path: Path, axis: str, cuts: bool) -> None:
    sides = []
    for ranks in (4, 8):
        spans = meeting(ranks, 6, lambda rank, step: 20.0)
        steps = {
            "rank": [rank for rank in range(ranks) for _ in range(6)],
            "step": list(range(6)) * ranks,
            "start_ns": [FIRST_NS + 200 * MS * step for step in range(6)] * ranks,
            "duration_ns": [200 * MS] * (6 * ranks),
            "tokens": [1000 * ranks] * (6 * ranks),
        }
        with write_spans(tmp_path / str(ranks), spans, layout={axis: ranks}, more={"steps": steps}) as store:
            sides.append(load_side(store, store.attempt(), None))
    reasons = other_work(*sides)
    assert any("cut the model" in reason for reason in reasons) == cuts
    if not cuts:
        assert [side.tokens_per_span() for side in sides] == [1000.0, 1000.0]
        assert reasons == []
