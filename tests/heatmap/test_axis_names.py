"""Meshes whose axes have the names of other stacks: stages are no peers, and a step is replayed, as on pp and dp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.reading.store import Store
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import CulpritKind, StragglerVerdict
from megascope.profiler.vocabulary import stage_axis
from support.pipeline_spans import SmallPipeline
from support.span_store import write_spans

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
