"""Many attempts together: a host that is slow in most of them is an offender, one accused by chance is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.reading.store import Store
from megascope.heatmap.fleet.analysis import find_offenders, fleet_of
from megascope.heatmap.fleet.chance import FALSE_RATE, at_least, usual_rate, wilson
from megascope.heatmap.fleet.history import week_of
from megascope.heatmap.fleet.lost import LostBy, lost_to_machines
from megascope.heatmap.fleet.report import render
from megascope.heatmap.fleet.result import Fleet, to_json
from megascope.heatmap.mfu.steps import StepSeries
from megascope.heatmap.verdict import CulpritKind, Outcome, StragglerVerdict
from megascope.heatmap.whatif.result import Contribution, Part, WhatIf
from megascope.profiler.errors import MegascopeError
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.writing import simulate
from support.fleet_histories import START_NS, WEEK_NS, culprit, history, hosts_of
from support.small_job import job_of
from support.span_store import meeting, write_spans


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Four runs in four weeks, on the same eight hosts; one host is slow in three of them."""
    root = tmp_path_factory.mktemp("fleet")
    for number in range(4):
        settings = {"layout": {"pp": 2, "dp": 4, "tp": 2}, "chunks": 1, "steps": 120, "seed": number}
        job = job_of(**settings, run=f"r{number}", start_ns=START_NS + number * WEEK_NS)
        faults = [] if number == 2 else [parse_fault("slow-host:host=3:factor=1.4:steps=20-")]
        simulate(job, root, faults=faults)
    with Store(root) as store:
        yield find_offenders([store])


def test_a_host_slow_in_three_of_four_runs_is_the_offender(fleet: Fleet) -> None:
    (host,) = fleet.hosts
    assert (host.host, host.offender) == ("node0003", True)
    assert (host.accused, host.present, host.runs_accused, host.runs_present) == (3, 4, 3, 4)
    assert host.low < 0.75 < host.high
    assert host.causes == {"slow-compute": 3}
    assert {one.run for one in host.accusations} == {"r0", "r1", "r3"}
    assert fleet.host_count == 8
    assert fleet.sentence.startswith("Host node0003 was accused in 3 of 4 attempts")


def test_weeks_add_up_to_the_whole(fleet: Fleet) -> None:
    assert [one.week for one in fleet.weeks] == ["2026-W39", "2026-W40", "2026-W41", "2026-W42"]
    assert sum(one.gpu_hours for one in fleet.weeks) == pytest.approx(fleet.gpu_hours)
    assert sum(one.lost_gpu_hours for one in fleet.weeks) == pytest.approx(fleet.lost_gpu_hours)
    lost = [one.lost_gpu_hours > 0 for one in fleet.weeks]
    assert lost == [True, True, False, True]
    for one in fleet.weeks:
        assert one.mfu is not None
        assert one.mfu_without is not None
        assert (one.mfu_without > one.mfu) == (one.lost_gpu_hours > 0)


def test_mfu_without_the_slow_host_comes_near_that_of_the_run_without_it(fleet: Fleet) -> None:
    healthy = next(one.mfu for one in fleet.attempts if one.run == "r2")
    assert healthy is not None
    assert fleet.mfu is not None
    assert fleet.mfu_without is not None
    assert fleet.mfu < healthy
    assert fleet.mfu_without == pytest.approx(healthy, rel=0.02)
    assert {one.lost_by for one in fleet.attempts if one.run != "r2"} == {"step-time"}


def test_one_accusation_in_a_hundred_attempts_is_chance() -> None:
    everyone = hosts_of(16)
    found = [history(n, everyone, *([culprit(everyone[n % 16], 0.02)] if n < 16 else [])) for n in range(100)]
    result = fleet_of(found)
    assert len(result.hosts) == 16
    assert not any(one.offender for one in result.hosts)
    assert result.sentence.startswith("No host was accused again and again in 100 of 100 attempts")


def test_two_of_three_among_many_hosts_is_an_offender_once_is_not() -> None:
    everyone = hosts_of(64)
    found = [
        history(n, everyone, *([culprit("node0007", 0.05)] if n < 2 else [culprit("node0009", 0.05)])) for n in range(3)
    ]
    offenders = {one.host: one.offender for one in fleet_of(found).hosts}
    assert offenders == {"node0007": True, "node0009": False}


def test_many_offenders_do_not_clear_each_other() -> None:
    """28 of 128 hosts are accused in 3 of 3 runs, others once: all of the 28 are offenders, the others are not."""
    everyone = hosts_of(128)
    bad = [culprit(host, 0.02) for host in everyone[:28]]
    found = [history(n, everyone, *bad, culprit(everyone[100 + n], 0.02)) for n in range(3)]
    offenders = {one.host: one.offender for one in fleet_of(found).hosts}
    assert [host for host, is_one in offenders.items() if is_one] == everyone[:28]
    assert [host for host, is_one in offenders.items() if not is_one] == everyone[100:103]


def test_accusations_at_a_common_rate_make_no_offender() -> None:
    rng = np.random.default_rng(1)
    everyone = hosts_of(64)
    found = [history(n, everyone, *[culprit(host, 0.01) for host in everyone if rng.random() < 0.2]) for n in range(6)]
    assert not any(one.offender for one in fleet_of(found).hosts)


def test_moments_without_a_date_are_in_no_week_and_unknown_ranks_are_not_none() -> None:
    one = history(0, [])
    undated = replace(one, series=replace(one.series, start_ns=one.series.steps * 10**9))
    result = fleet_of([undated])
    assert result.weeks == ()
    (record,) = result.attempts
    assert (record.ranks, record.hosts, record.gpu_hours, record.start_ns) == (None, None, None, None)
    assert {note.signal for note in result.abstained} >= {"ranks", "weeks", "hosts"}


def test_attempts_that_could_not_be_judged_count_for_nobody() -> None:
    everyone = hosts_of(8)
    blind = [history(n, everyone, verdict=Outcome.INSUFFICIENT) for n in range(5)]
    result = fleet_of([*blind, history(9, everyone, culprit("node0001", 0.1))])
    (host,) = result.hosts
    assert (host.present, host.accused, host.offender) == (1, 1, False)
    assert (result.judged, len(result.attempts)) == (1, 6)
    assert sum("could not be judged" in one.reason for one in result.abstained) == 5
    assert fleet_of(blind).sentence.startswith("None of 5 attempts could be judged")


def test_a_link_accuses_both_ends_and_a_large_group_nobody() -> None:
    everyone = hosts_of(8)
    link = culprit("node0001+node0002", 0.1, kind=CulpritKind.LINK)
    group = culprit("+".join(everyone), 0.1, kind=CulpritKind.GROUP)
    stage = culprit("node0005", 0.1, kind=CulpritKind.STAGE)
    result = fleet_of([history(0, everyone, link, group, stage)])
    assert {one.host for one in result.hosts} == {"node0001", "node0002"}
    assert result.lost_hours == pytest.approx(0.1 * result.hours)  # at once, not one after the other


def test_what_the_accused_ranks_save_in_a_replay_stands_where_there_is_one() -> None:
    one = history(0, hosts_of(4), culprit("node0000", 0.1))
    parts = (Contribution(Part.RANK, "0", 0.3, 0.06, 1.1), Contribution(Part.RANK, "1", 0.9, 0.18, 1.1))
    replayed = WhatIf(1.25, 0.9, None, (0, 99), 100, 1.0, 1.0, 0.8, contributions=parts)
    verdict = replace(one.verdict, slowdown=1.25, m_w=0.9, whatif=replayed)
    lost, lost_by = lost_to_machines(verdict, one.series)
    assert lost_by == LostBy.WHAT_IF
    assert lost == pytest.approx(0.06)  # not what the slowest worker would bring
    other = replace(verdict, whatif=replace(replayed, contributions=parts[1:]))
    assert lost_to_machines(other, one.series)[1] == LostBy.LOST_SHARE


def test_lost_shares_lie_on_the_steps_of_the_culprit() -> None:
    one = history(0, hosts_of(4), culprit("node0000", 0.1, (50, 99)), culprit("node0001", 0.05))
    assert one.lost[:50] == pytest.approx(0.05)
    assert one.lost[50:] == pytest.approx(0.2)


def test_a_loss_is_held_to_what_the_steps_outside_show() -> None:
    steps = np.arange(100)
    ms = np.where(steps < 50, 1000.0, 1100.0)
    nothing = np.full(100, np.nan)
    series = StepSeries(steps, steps, ms, nothing, nothing, steps >= 0)
    late = StragglerVerdict("r", 0, None, Outcome.FINDINGS, (culprit("node0000", 0.2, (50, 99)),))
    lost, lost_by = lost_to_machines(late, series)
    assert lost_by == LostBy.STEP_TIME
    assert lost[:50].max() == 0
    assert lost[50:] == pytest.approx(100 / 1100)
    always = StragglerVerdict("r", 0, None, Outcome.FINDINGS, (culprit("node0000", 0.2, (0, 99)),))
    assert lost_to_machines(always, series)[1] == LostBy.LOST_SHARE
    stage = StragglerVerdict("r", 0, None, Outcome.FINDINGS, (culprit("", 0.2, (50, 99), CulpritKind.STAGE),))
    assert lost_to_machines(stage, series)[0].max() == 0


def test_weeks_are_iso_weeks_in_utc() -> None:
    assert week_of(START_NS) == "2026-W39"
    sunday = START_NS + 6 * 86_400 * 10**9
    assert (week_of(sunday), week_of(0)) == ("2026-W39", "")
    assert week_of(1_798_761_600 * 10**9) == "2026-W53"  # the first of January 2027, a Friday
    steps = history(0, hosts_of(2), ms=4 * 3.6e6)  # sixteen days and a half
    weeks = steps.weeks()
    assert list(weeks) == ["2026-W39", "2026-W40", "2026-W41"]
    assert np.sum(list(weeks.values()), axis=0) == pytest.approx(1)


def test_wilson_and_the_binomial_tail() -> None:
    assert list(wilson(3, 4)) == pytest.approx([0.3006, 0.9544], abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)
    assert at_least(3, 4, 0.5) == pytest.approx(5 / 16)
    assert at_least(0, 4, 0.5) == 1.0
    assert usual_rate([0] * 12, [3] * 12) == FALSE_RATE
    assert usual_rate([3] * 28 + [0] * 100, [3] * 128) == FALSE_RATE
    counts = np.random.default_rng(0).binomial(10, 0.2, 128).tolist()
    assert usual_rate(counts, [10] * 128) == pytest.approx(0.2, abs=0.05)
    assert usual_rate([3] * 7 + [0], [3] * 8) > 0.8  # what happens to most is usual


@given(st.integers(1, 60), st.data())
def test_an_interval_holds_its_rate_and_narrows(present: int, data: st.DataObject) -> None:
    accused = data.draw(st.integers(0, present))
    low, high = wilson(accused, present)
    assert 0 <= low <= accused / present <= high + 1e-12 <= 1 + 1e-9
    wider = wilson(accused, present)
    narrower = wilson(accused * 10, present * 10)
    assert narrower[1] - narrower[0] <= wider[1] - wider[0] + 1e-12
    assert at_least(accused, present, 0.3) >= at_least(min(accused + 1, present), present, 0.3) - 1e-12


def test_several_stores_and_one_without_steps(tmp_path: Path) -> None:
    stores = [
        write_spans(tmp_path / name, meeting(4, 40, lambda rank, step: 20.0), layout={"dp": 4}) for name in ("a", "b")
    ]
    found = find_offenders(stores)
    assert (len(found.stores), found.runs, len(found.attempts)) == (2, 2, 2)
    for store in stores:
        store.close()
    unmarked = [replace(one, step=None) for one in meeting(4, 10, lambda rank, step: 20.0)]
    with (
        write_spans(tmp_path / "c", unmarked, layout={"dp": 4}) as store,
        pytest.raises(MegascopeError, match="timed step"),
    ):
        find_offenders([store])


def test_what_is_printed_and_given_as_json(fleet: Fleet, tmp_path: Path) -> None:
    from rich.console import Console

    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        Console(width=160, file=file).print(render(fleet))
    text = (tmp_path / "out").read_text(encoding="utf-8")
    assert "offender" in text
    assert "2026-W39" in text
    assert to_json(fleet)["hosts"][0]["host"] == "node0003"
