"""Links that have nobody to be compared with: what became slow is told by their own past, and never called healthy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.heatmap.network.past import against_own_past, find_changes
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import Cause, CulpritKind, Outcome, describe
from megascope.trainer.simulator.session import Recording
from support.faulty_job import check_evidence
from support.network_scenes import ROLLUPS, SPANS, channels_of, placed, simulated

ONE_REPLICA_A_HOST = {"dp": 4, "tp": 8}
"""On hosts of eight: every group between hosts has a member on each host."""

RECORDINGS = pytest.mark.parametrize("recording", [SPANS, ROLLUPS], ids=["spans", "rollups"])


@RECORDINGS
@pytest.mark.parametrize("layout", [ONE_REPLICA_A_HOST, {"dp": 2, "tp": 8}], ids=["four hosts", "two hosts"])
def test_a_network_that_became_slow_is_found_and_nobody_is_accused(
    tmp_path: Path, recording: Recording, layout: dict[str, int]
) -> None:
    fault = "degraded-nic:host=1:bandwidth=0.25:steps=50-"
    with simulated(tmp_path / "s", fault, recording=recording, layout=layout, gpus_per_host=8, steps=120) as store:
        verdict = find_stragglers(store, store.attempt())
        [found] = verdict.culprits
        assert (found.kind, found.cause, found.ranks, found.hosts) == (CulpritKind.JOB, Cause.NETWORK, (), ())
        assert found.steps == (50, 119)
        assert found.ratio == pytest.approx(4, rel=0.15)
        assert 0.02 < found.lost_share < 0.7
        check_evidence(store, found.evidence)
        assert "whose cannot be told" in describe(found)


@RECORDINGS
def test_a_network_that_was_always_slow_is_not_called_healthy(tmp_path: Path, recording: Recording) -> None:
    fault = "degraded-nic:host=1:bandwidth=0.25"
    where = {"layout": ONE_REPLICA_A_HOST, "gpus_per_host": 8, "steps": 120}
    with simulated(tmp_path / "s", fault, recording=recording, **where) as store:  # type: ignore[arg-type]
        verdict = find_stragglers(store, store.attempt())
        assert (verdict.verdict, verdict.culprits) == (Outcome.INSUFFICIENT, ())
        assert verdict.sentence().startswith(f"No straggler of x{verdict.visible_ratio:.2f} or more in the ranks' own")
        assert "slow from the first step on would not show" in verdict.sentence()


@pytest.mark.parametrize(("share", "is_healthy"), [(0.019, True), (0.021, False), (0.5, False)])
def test_from_two_percent_of_the_step_on_such_transfers_forbid_the_word_healthy(share: float, is_healthy: bool) -> None:
    channels = channels_of([("reduce", (0, 2)), ("reduce", (1, 3))], {}, steps=60)
    took_ms = float(np.median(channels.transfer_ms))
    seen: Any = SimpleNamespace(placement=placed(["a", "a", "b", "b"]), step_ms=np.full(60, took_ms / share))
    store: Any = None  # nothing became longer, so that there is nothing to ask for
    found = against_own_past(store, store, channels, ["a", "b"], seen)
    assert found.culprits == ()
    assert [one.signal for one in found.blocking] == ([] if is_healthy else ["network"])


@RECORDINGS
def test_one_slow_nic_is_no_healthy_job_where_every_group_has_it(tmp_path: Path, recording: Recording) -> None:
    fault = "degraded-nic:host=2:bandwidth=0.5"
    where = {"layout": ONE_REPLICA_A_HOST, "gpus_per_host": 8, "steps": 60}
    with simulated(tmp_path / "s", fault, recording=recording, **where) as store:  # type: ignore[arg-type]
        verdict = find_stragglers(store, store.attempt())
        assert (verdict.verdict, verdict.culprits) == (Outcome.INSUFFICIENT, ())
        reasons = [one.reason for one in verdict.abstained if one.signal == "network"]
        assert any("have no like to be compared with take" in reason for reason in reasons)


def test_a_network_that_was_slow_for_most_of_a_long_job_was_fast_before() -> None:
    channels = channels_of([("reduce", (0, 1)), ("reduce", (2, 3))], {}, steps=240)
    channels.transfer_ms[:, 24:] *= 20
    longer = np.where(np.arange(240) < 24, 100.0, 100.0 + 20 * float(channels.transfer_ms[:, 0].max()))
    (found,) = find_changes(channels, np.arange(2), longer)
    assert (found.first, found.last, found.to_the_end) == (24, 239, True)
    assert found.own_ms / found.before_ms == pytest.approx(20, rel=0.1)


@pytest.mark.parametrize("first", [0, 6], ids=["from the start", "after a few steps"])
def test_what_has_no_past_is_no_change(first: int) -> None:
    channels = channels_of([("reduce", (0, 1)), ("reduce", (2, 3))], {}, steps=60)
    raised = channels.transfer_ms.copy()
    raised[:, first:] *= 3.0
    longer = np.where(np.arange(60) >= first, 130.0, 110.0)
    assert find_changes(replace(channels, transfer_ms=raised), np.arange(2), longer) == []


def test_transfers_that_the_steps_do_not_feel_are_hidden_behind_work() -> None:
    channels = channels_of([("reduce", (0, 1)), ("reduce", (2, 3))], {0: 3.0, 1: 3.0}, steps=60)
    rows, felt = np.arange(2), np.where(np.arange(60) >= 30, 120.0, 100.0)
    [change] = find_changes(channels, rows, felt)
    assert (change.first, change.last) == (30, 59)
    assert change.a_step_ms == pytest.approx(20, rel=0.1)
    assert find_changes(channels, rows, np.full(60, 100.0)) == []
    assert find_changes(channels, rows, 100 * felt) == []  # twenty milliseconds of ten seconds are nothing


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), sigma=st.floats(0.01, 0.5), memory=st.floats(0, 0.8), steps=st.integers(8, 150))
def test_noise_is_no_change_however_it_lasts(seed: int, sigma: float, memory: float, steps: int) -> None:
    random = np.random.default_rng(seed)
    noise = np.zeros(steps)
    for step in range(1, steps):
        noise[step] = memory * noise[step - 1] + random.normal(0, sigma)
    channels = channels_of([("reduce", (0, 1)), ("reduce", (2, 3))], {}, steps=steps)
    times = 10 * np.exp(noise)
    drawn = replace(channels, transfer_ms=np.stack([times, times]))
    assert find_changes(drawn, np.arange(2), 100 + 2 * times) == []
