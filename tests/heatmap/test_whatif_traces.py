"""What-if of two production jobs, imported, against what the analyser that was published with them found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megascope.collectors.importers.importing import import_run
from megascope.collectors.reading.store import Store
from megascope.heatmap.matrix import load_placement
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import CulpritKind, StragglerVerdict
from megascope.heatmap.whatif.kept import hosts_of
from megascope.heatmap.whatif.live import LiveWhatIf
from megascope.heatmap.whatif.recording import load_recording
from megascope.heatmap.whatif.result import Part, WhatIf
from megascope.heatmap.whatif.scenarios import as_measured
from megascope.heatmap.whatif.schedule import load_schedule, scheduled_names


@dataclass(frozen=True, slots=True)
class Job:
    """An imported job: its verdict, its what-if, its steps as replayed by number (s), and what was published."""

    verdict: StragglerVerdict
    whatif: WhatIf
    step_s: dict[int, float]
    published: dict[str, Any]


@pytest.fixture(scope="module", params=["AR", "ST"])
def job(request: pytest.FixtureRequest, traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Each of the two traces, imported into a store."""
    folder, name = traces / "bytedance_whatif", str(request.param)
    root = tmp_path_factory.mktemp("imported") / name
    import_run([folder / f"trace-{name}.parquet"], root)
    with Store(root) as store:
        attempt = store.attempt()
        verdict = find_stragglers(store, attempt)
        steps = store.query("SELECT DISTINCT step FROM events ORDER BY 1", attempt=attempt)["step"].to_pylist()
        actions, placement = load_schedule(store, attempt), load_placement(store, attempt)
        live = LiveWhatIf(actions, hosts_of(placement))
        live.add(load_recording(store, attempt, placement, steps, scheduled_names(actions)))
        measured = live.measured
    assert verdict.whatif is not None
    assert measured is not None
    lengths = dict(zip(measured.steps.tolist(), (as_measured(measured) / 1e9).tolist(), strict=True))
    published = {kind: json.loads((folder / f"{kind}-{name}.json").read_text()) for kind in ("result", "mw", "ms")}
    return Job(verdict, verdict.whatif, lengths, published)


def test_ratios_are_the_published_ones(job: Job) -> None:
    published, verdict = job.published, job.verdict
    assert verdict.slowdown == pytest.approx(published["result"]["blocking_slowdown"], rel=0.001)
    assert verdict.m_w == pytest.approx(published["mw"]["Mw"], abs=0.001)
    assert verdict.m_s == pytest.approx(published["ms"]["Ms"], abs=0.001)


def test_every_step_takes_as_long_as_published(job: Job) -> None:
    published = {int(step): length for step, length in job.published["result"]["step_t_nodelay"].items()}
    assert job.step_s.keys() == published.keys()
    np.testing.assert_allclose([job.step_s[step] for step in published], list(published.values()), rtol=0.002)


def test_recorded_steps_take_as_long_as_published(job: Job) -> None:
    published = np.mean(list(job.published["result"]["step_t_base"].values()))
    assert job.whatif.recorded_s == pytest.approx(published, rel=0.005)


def test_the_ideal_step_is_the_published_one(job: Job) -> None:
    (published,) = set(job.published["result"]["step_t_noblk"].values())
    assert job.whatif.ideal_s == pytest.approx(published, rel=0.001)


def test_stages_and_kinds_put_back_alone_cost_what_was_published(job: Job) -> None:
    found = {(one.part, one.name): one.alone for one in job.whatif.contributions}
    for stage, slowdown in job.published["result"]["blocking_decompose_by_stage"].items():
        assert found[Part.STAGE, stage] == pytest.approx(slowdown, abs=0.001)
    kinds = job.published["result"]["blocking_decompose_by_optype"]
    for segment, kind in (
        ("forward", "forward-compute"),
        ("backward", "backward-compute"),
        ("dp_reduce_scatter", "grads-reduce-scatter"),
        ("dp_all_gather", "params-all-gather"),
        ("embedding_all_reduce", "embedding-grads-all-reduce"),
        ("clip_grad_norm", "optimizer-clip-main-grad"),
        ("optimizer", "optimizer"),
    ):
        assert found[Part.SEGMENT, segment] == pytest.approx(kinds[kind], abs=0.001)


def test_who_is_accused(job: Job) -> None:
    accused = {rank for culprit in job.verdict.culprits for rank in culprit.ranks}
    first = job.whatif.of(Part.RANK)[0]
    if job.verdict.run == "AR":
        assert accused == {0}
        assert first.name == "0"
        assert first.recovered == pytest.approx(1, abs=0.01)
        assert any("one rank of each tp group" in note for note in job.whatif.notes)
    else:
        assert not accused
        assert first.recovered < 0.05
        stages = [culprit.stage for culprit in job.verdict.culprits if culprit.kind == CulpritKind.STAGE]
        assert stages == [3]
        assert job.whatif.of(Part.STAGE)[0].name == "3"
