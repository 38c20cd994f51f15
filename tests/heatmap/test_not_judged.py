"""What could not be judged, in words and in lines: how small a slow-down would have shown, and who was not recorded."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from megascope.heatmap.abstaining import data_missing
from megascope.heatmap.cells import SegmentCells
from megascope.heatmap.report import PRINTED, render
from megascope.heatmap.stragglers import judge
from megascope.heatmap.thresholds import Thresholds
from megascope.heatmap.verdict import Abstention, Outcome, StragglerVerdict
from megascope.profiler.topology import Topology
from support.noisy_job import Job, Noise, observations

CALM = Noise(span_sigma=0.02, tail_share=0.0, drift_sigma=0.005, bias=0.0)


def printed(*abstained: Abstention) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render(StragglerVerdict("job", 0, None, Outcome.HEALTHY, abstained=abstained)))
    return console.export_text()


def test_segments_with_the_same_reason_share_a_line() -> None:
    many = [Abstention(f"kernel_{number}_{'x' * 300}", "too few spans") for number in range(137)]
    text = printed(*many, Abstention("network", "one host"))
    [line] = [line for line in text.splitlines() if "too few spans" in line]
    assert line.startswith("  137 segments, e.g. kernel_0_")
    assert len(line) < 180
    assert "  network: one host" in text


def test_hundreds_of_reasons_are_cut_short() -> None:
    text = printed(*(Abstention("peers", f"reason {number}") for number in range(300)))
    assert f"{300 - PRINTED} more reasons; --json lists them" in text
    assert len(text.splitlines()) < PRINTED + 10


@pytest.mark.parametrize(
    ("missing", "count", "says"),
    [
        ((34,), 300, "1 rank of the job has no timed work (rank 34), 299 more were not recorded at all"),
        ((), 1, "1 rank of the job has no data"),
        ((3, 4), 2, "2 ranks of the job have no timed work (rank 3, 4)"),
    ],
)
def test_ranks_that_were_not_recorded_are_not_mixed_up_with_those_that_were(
    missing: tuple[int, ...], count: int, says: str
) -> None:
    seen = replace(observations(Job(mesh=Topology.of(dp=8)), 1), missing=missing, missing_count=count)
    assert [one.reason for one in data_missing(seen, Thresholds()) if one.signal == "coverage"] == [says]


def test_how_small_a_slow_down_would_have_shown_follows_from_peers_and_cost() -> None:
    pair, many = (judge(observations(Job(mesh=Topology.of(dp=size), noise=CALM), 1)) for size in (2, 32))
    assert pair.visible_ratio == pytest.approx(1.20)
    assert many.visible_ratio == pytest.approx(1.05)
    cheap = Job(mesh=Topology.of(dp=32), noise=CALM, segments={"forward": 2.0, "backward": 20.0})
    of_cheap = judge(observations(cheap, 1)).visible_ratio
    assert of_cheap == pytest.approx(1 + 0.01 / (2 / 22), abs=0.01)


def test_what_noise_hides_is_told_and_forbids_nothing() -> None:
    judged = judge(observations(Job(mesh=Topology.of(dp=8), noise=Noise(drift_sigma=0.2)), 2))
    assert judged.outcome == Outcome.HEALTHY
    assert judged.visible_ratio is not None
    assert judged.visible_ratio > 1.09
    assert any("would not have shown" in one.reason for one in judged.abstained)


def test_checkpoints_that_only_one_host_takes_are_compared_with_nobody() -> None:
    """Its ranks are alike, so none of them stands out; they stop the job all the same."""
    seen = observations(Job(mesh=Topology.of(dp=16), noise=CALM), 1)
    shape = (1, len(seen.ranks), len(seen.steps))
    total, count = np.full(shape, np.nan), np.zeros(shape)
    total[:, :, ::50], count[:, :, ::50] = 100.0, 1
    times = np.zeros(shape[1:])
    even = SegmentCells("save", "checkpoint", seen.ranks, seen.steps, total, count, times, times, 0)
    assert judge(replace(seen, cells=(*seen.cells, even))).outcome == Outcome.HEALTHY
    total, count = total.copy(), count.copy()
    total[:, :8, 5::3], count[:, :8, 5::3] = 100.0, 1
    judged = judge(replace(seen, cells=(*seen.cells, replace(even, total_ms=total, count=count))))
    assert judged.outcome == Outcome.INSUFFICIENT
    assert any("most of their peers take none" in one.reason for one in judged.blocking)
