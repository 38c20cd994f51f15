"""`megascope score`: trials that are planned fairly, claims that are judged right, and a campaign that adds up."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from megascope.cli import main
from megascope.collectors.clocks.clocks import load_clocks
from megascope.collectors.reading.store import Attempt, Store
from megascope.heatmap.stragglers import find_stragglers
from megascope.heatmap.verdict import StragglerVerdict
from megascope.profiler.errors import UsageError
from megascope.scoring import runs as score_runs
from megascope.scoring.claims import Answer, Claim, Comparison, Truth, answer_of_hang, compare_claims
from megascope.scoring.kinds import (
    FLEET_MAGNITUDES,
    FROM_SPANS,
    GC_UNRECORDED,
    HEALTHY,
    JOB_DATA,
    KINDS,
    MAGNITUDES,
    VARIANTS,
    SeedSet,
)
from megascope.scoring.runs import Outcome, run_trial, run_trials
from megascope.scoring.scoring import Score, add_up, as_json
from megascope.scoring.trials import FLEET_RANKS, MOST_SLOW_GPUS, STEPS, Trial, plan_trials
from megascope.trainer.simulator.fault_effects import check_fault
from megascope.trainer.simulator.faults import SLOW_KINDS, FaultKind, parse_fault
from megascope.trainer.simulator.hangs.hangs import hang_scene
from megascope.trainer.simulator.noise import Silence
from megascope.viz3d.verdict import CulpritKind, HangCulprit, HangVerdict, State
from support.deadly_noise import DeadlyNoise


@pytest.mark.parametrize("ranks", [64, 512, 12288])
@pytest.mark.parametrize("seeds", SeedSet)
def test_each_kind_has_its_turn_and_fits_its_job(ranks: int, seeds: SeedSet) -> None:
    kinds = [str(kind) for kind in KINDS if ranks < FLEET_RANKS or kind not in FROM_SPANS]
    trials = plan_trials(ranks=ranks, trials=(6 if ranks == 64 else 1) * len(kinds), seeds=seeds)
    assert [trial.kind for trial in trials[: len(kinds)]] == kinds
    for trial in trials:
        job = trial.job()
        assert job.world_size == ranks
        if trial.fault:
            fault = parse_fault(trial.fault)
            assert fault.kind == VARIANTS.get(trial.kind, trial.kind)
            check_fault(fault, job)
            if fault.is_hang and ranks < 12288:
                hang_scene(job, fault)


def test_healthy_jobs_are_shown_to_both_analysers() -> None:
    trials = plan_trials(ranks=64, trials=4, kinds=[HEALTHY])
    assert [trial.looks_at_hangs for trial in trials] == [False, True, False, True]


def test_what_is_tuned_on_is_not_reported_on() -> None:
    tuned, reported = (plan_trials(ranks=64, trials=500, seeds=one) for one in (SeedSet.TUNE, SeedSet.REPORT))
    assert {trial.seed for trial in tuned}.isdisjoint(trial.seed for trial in reported)
    for kind, choices in [*MAGNITUDES.items(), *FLEET_MAGNITUDES.items()]:
        if kind is not FaultKind.INIT:  # which has no magnitude
            assert set(choices[SeedSet.TUNE]).isdisjoint(choices[SeedSet.REPORT])


def test_trials_differ_in_all_that_could_make_them_easy() -> None:
    """Hosts are not tensor-parallel groups, faults begin late and end early, and some stores hold no spans."""
    trials = plan_trials(ranks=512, trials=600)
    widths = [dict(trial.layout)["tp"] for trial in trials]
    assert all(widths.count(width) > 0.15 * len(trials) for width in (1, 2, 4, 8))
    slow = [parse_fault(one.fault) for one in trials if one.kind in SLOW_KINDS]
    late = [one for one in slow if one.first_step >= STEPS * 2 // 3]
    ended = [one for one in slow if one.last_step is not None and one.last_step < STEPS - 1]
    assert min(len(late), len(ended)) > 0.1 * len(slow)
    assert all((STEPS - 1 if one.last_step is None else one.last_step) - one.first_step >= 14 for one in slow)
    asked = [one.on_rollups for one in trials if not one.looks_at_hangs]
    assert 0.25 < sum(asked) / len(asked) < 0.42
    assert not any(one.on_rollups for one in trials if one.looks_at_hangs)
    fleet = plan_trials(ranks=12_288, trials=30)
    assert all(one.on_rollups != one.looks_at_hangs for one in fleet)


def test_a_fleet_has_one_to_sixty_slow_devices_of_ten_percent() -> None:
    trials = plan_trials(ranks=12_288, trials=200, kinds=[FaultKind.SLOW_GPU])
    faults = [parse_fault(one.fault) for one in trials]
    counts = [len(one.ranks) for one in faults]
    assert {one.factor for one in faults} == {1.1}
    assert counts[:2] == [1, MOST_SLOW_GPUS]
    assert (min(counts[2:]), max(counts[2:])) == (1, MOST_SLOW_GPUS)
    assert 0.25 < sum(count < 8 for count in counts) / len(counts) < 0.75
    assert all(len(parse_fault(one.fault).ranks) == 1 for one in plan_trials(ranks=512, trials=30, kinds=["slow-gpu"]))


@pytest.mark.parametrize("on_rollups", [False, True])
def test_no_trial_is_told_how_the_clocks_stand(on_rollups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are spans the store finds it by itself; where there are none nobody knows."""
    seen: list[tuple[int, int]] = []

    def looked(store: Store, attempt: Attempt) -> StragglerVerdict:
        written = store.query("SELECT count(*) AS n FROM clock_offsets", attempt=attempt)["n"].to_pylist()[0]
        seen.append((written, len(load_clocks(store, attempt).known)))
        return find_stragglers(store, attempt)

    monkeypatch.setattr(score_runs, "find_stragglers", looked)
    [trial] = plan_trials(ranks=64, trials=1, kinds=[FaultKind.SLOW_HOST], seeds=SeedSet.TUNE)
    assert run_trial(replace(trial, on_rollups=on_rollups), Silence()).failure is None
    assert seen == [(0, 0 if on_rollups else 8)]


def test_a_process_that_dies_costs_its_own_trial_alone() -> None:
    """A job that hangs at its first step draws no noise; of the others' this one is the end."""
    trials = plan_trials(ranks=64, trials=4, kinds=[FaultKind.INIT, FaultKind.DEAD], seeds=SeedSet.TUNE)
    outcomes = {one.trial.seed: one for one in run_trials(trials, noise=DeadlyNoise(), processes=2)}
    assert [outcomes[trial.seed].failure is None for trial in trials] == [True, False, True, False]
    assert "process died" in (outcomes[trials[1].seed].failure or "")


def test_a_campaign_whose_trials_all_failed_is_none() -> None:
    failed = Outcome(Trial("dead", "", (("dp", 8),), 0, True), "", Comparison(), 1.0, "OSError: no room")
    found = outcome("dead", "crashed", Comparison(right=("dead",), found=True, placed=True))
    for outcomes, expected in (([failed], True), ([failed, found], False), ([], False)):
        result = add_up(outcomes, ranks=8, seeds=SeedSet.TUNE, noise="none", seconds=1.0)
        assert result.has_failed is expected


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--noise", "nosuch"], 1, "There is no noise file nosuch"),
        (["--trials", "0"], 2, "--trials"),
        (["--ranks", "0"], 2, "--ranks"),
        (["--minutes", "0"], 2, "--minutes"),
        (["--minutes", "-1"], 2, "--minutes"),
        (["--processes", "0"], 2, "--processes"),
    ],
)
def test_a_campaign_that_shows_nothing_is_not_begun(
    arguments: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["score", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert told in captured.err
    assert captured.err.count("\n") == 1


def test_equal_seeds_are_equal_trials() -> None:
    assert plan_trials(ranks=64, trials=30) == plan_trials(ranks=64, trials=30)


@pytest.mark.parametrize(
    ("ranks", "kinds", "told"), [(7, [], "cannot be laid out"), (64, ["slow"], "no kind of fault slow")]
)
def test_a_campaign_that_cannot_be_is_refused(ranks: int, kinds: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        plan_trials(ranks=ranks, trials=1, kinds=kinds)


def claim(kind: str, *ranks: int, covers: bool = False, hosts: tuple[str, ...] = ()) -> Claim:
    return Claim(kind, frozenset(ranks), frozenset(hosts), covers)


RANK_5 = Truth("slow-gpu", frozenset({5}))
HOST = Truth("slow-host", frozenset({8, 9}), "node0001")
NIC = Truth("degraded-nic", frozenset({8}), "node0001")
JOB = Truth("gc-drift", frozenset(range(16)))
DATA = Truth("data-stall", frozenset(range(16)), of_all=True)
CIRCLE = Truth("p2p-cycle", frozenset({4, 5}))


@pytest.mark.parametrize(
    ("truth", "claims", "expected"),
    [
        (RANK_5, [], Comparison()),
        (RANK_5, [claim("slow-gpu", 5)], Comparison(right=("slow-gpu",), found=True, placed=True)),
        (RANK_5, [claim("throttling", 5)], Comparison(misnamed=("throttling",), placed=True)),
        (replace(RANK_5, also=frozenset({"throttling"})), [claim("throttling", 5)],
         Comparison(right=("throttling",), found=True, placed=True)),
        (RANK_5, [claim("slow-gpu", 4)], Comparison(wrong=("slow-gpu",))),
        (RANK_5, [claim("slow-gpu", 4, 5)], Comparison(wrong=("slow-gpu",))),
        (None, [claim("slow-gpu", 4)], Comparison(wrong=("slow-gpu",))),
        (HOST, [claim("slow-gpu", 8)], Comparison(misnamed=("slow-gpu",))),
        (HOST, [claim("slow-gpu", 8), claim("slow-gpu", 9)], Comparison(misnamed=("slow-gpu",) * 2, placed=True)),
        (HOST, [claim("slow-host", 8, 9)], Comparison(right=("slow-host",), found=True, placed=True)),
        (NIC, [claim("degraded-nic", 8, 9, hosts=("node0001",))],
         Comparison(right=("degraded-nic",), found=True, placed=True)),
        (NIC, [claim("degraded-nic", 3, 8, covers=True)],
         Comparison(right=("degraded-nic",), found=True, placed=True)),
        (NIC, [claim("degraded-nic", *range(64), covers=True)], Comparison(wrong=("degraded-nic",))),
        (NIC, [claim("degraded-nic", 3, 4, 8, covers=True)], Comparison(wrong=("degraded-nic",))),
        (NIC, [claim("degraded-nic", 3, 4, covers=True)], Comparison(wrong=("degraded-nic",))),
        (NIC, [claim("slow-gpu", 9)], Comparison(wrong=("slow-gpu",))),
        (JOB, [claim("gc-drift")], Comparison(right=("gc-drift",), found=True, placed=True)),
        (JOB, [claim("gc-drift", 3)], Comparison(misnamed=("gc-drift",))),
        (JOB, [claim("gc-drift", *range(16))], Comparison(right=("gc-drift",), found=True, placed=True)),
        (JOB, [claim("slow-gpu", 3)], Comparison(wrong=("slow-gpu",))),
        (DATA, [claim("data-stall")], Comparison(right=("data-stall",), found=True, placed=True)),
        (DATA, [claim("data-stall", 3)], Comparison(misnamed=("data-stall",))),
        (Truth("data-stall", frozenset({3})), [claim("data-stall")], Comparison(wrong=("data-stall",))),
        (CIRCLE, [claim("p2p-cycle", 4, 8), claim("p2p-cycle", 5, 9)],
         Comparison(right=("p2p-cycle",) * 2, found=True, placed=True)),
        (CIRCLE, [claim("p2p-cycle", 4, 8)], Comparison(right=("p2p-cycle",))),
        (CIRCLE, [claim("p2p-cycle", 1, 8)], Comparison(wrong=("p2p-cycle",))),
    ],
)  # fmt: skip
def test_claims_against_the_truth(truth: Truth | None, claims: list[Claim], expected: Comparison) -> None:
    assert compare_claims(claims, truth) == expected


def told(state: State, *ranks: int) -> HangVerdict:
    culprit = HangCulprit(ranks, (), 0.9, "high", CulpritKind.HOST_STUCK, None, None, 1, ())
    return HangVerdict("run", 0, 1.0, state, culprits=(culprit,) if ranks else ())


STUCK_PAIR = Truth("host-stuck", frozenset({5, 6}))


@pytest.mark.parametrize(
    ("verdict", "truth", "heard", "expected"),
    [
        (told(State.HANG, 5, 6), STUCK_PAIR, range(8), Answer.EXACT),
        (told(State.HANG, 5), STUCK_PAIR, range(8), Answer.WRONG),
        (told(State.HANG, 5), STUCK_PAIR, range(6), Answer.EXACT),
        (told(State.HANG, 5, 6), STUCK_PAIR, range(6), Answer.EXACT),
        (told(State.HANG, 4, 5, 6), STUCK_PAIR, range(8), Answer.WRONG),
        (told(State.HANG, 5), STUCK_PAIR, range(5), Answer.WRONG),
        (told(State.HANG), STUCK_PAIR, range(8), Answer.WRONG),
        (told(State.INCONCLUSIVE, 5, 6), STUCK_PAIR, range(8), Answer.INCONCLUSIVE),
        (told(State.SLOW, 1), STUCK_PAIR, range(8), Answer.WRONG),
        (told(State.RUNNING), STUCK_PAIR, range(8), Answer.WRONG),
        (told(State.CRASHED, 5), Truth("dead", frozenset({5})), range(8), Answer.EXACT),
        (told(State.INCONCLUSIVE, 5, 6), Truth("network", frozenset({5, 6})), range(8), Answer.EXACT),
        (told(State.INCONCLUSIVE, 5, 6, 7), Truth("network", frozenset({5, 6})), range(8), Answer.WRONG),
        (told(State.SLOW), Truth("crawling", frozenset({5})), range(8), Answer.EXACT),
        (told(State.HANG, 1, 4, 5, 8), CIRCLE, range(9), Answer.EXACT),
        (told(State.HANG, 1, 2, 4, 5, 8), CIRCLE, range(9), Answer.WRONG),
        (told(State.RUNNING), None, range(8), Answer.EXACT),
        (told(State.INCONCLUSIVE), None, range(8), Answer.INCONCLUSIVE),
        (told(State.HANG, 5), None, range(8), Answer.WRONG),
        (told(State.SLOW, 1), Truth("crawling", frozenset({5})), range(8), Answer.WRONG),
        (told(State.HANG, 5), Truth("crawling", frozenset({5})), range(8), Answer.WRONG),
        (told(State.INCONCLUSIVE), Truth("long-phase", frozenset({5})), range(8), Answer.EXACT),
        (told(State.INCONCLUSIVE, 5), Truth("long-phase", frozenset({5})), range(8), Answer.WRONG),
    ],
)  # fmt: skip
def test_how_exact_a_hang_verdict_is(verdict: HangVerdict, truth: Truth | None, heard: range, expected: Answer) -> None:
    assert answer_of_hang(verdict, truth, frozenset(heard)) == expected


def outcome(kind: str, verdict: str, compared: Comparison) -> Outcome:
    return Outcome(Trial(kind, "", (("dp", 8),), 0, False), verdict, compared, 1.0)


def test_wrong_claims_lower_precision_and_abstentions_lower_recall() -> None:
    outcomes = [
        outcome("slow-gpu", "findings", Comparison(right=("slow-gpu",), found=True, placed=True)),
        outcome("slow-gpu", "insufficient-evidence", Comparison()),
        outcome("slow-gpu", "healthy", Comparison()),
        outcome("throttling", "findings", Comparison(misnamed=("slow-gpu",), placed=True)),
        outcome(HEALTHY, "findings", Comparison(wrong=("slow-gpu", "slow-gpu"))),
        outcome(HEALTHY, "healthy", Comparison()),
    ]
    result = add_up(outcomes, ranks=8, seeds=SeedSet.TUNE, noise="none", seconds=1.0)
    assert isinstance(result, Score)
    gpu, throttled = result.kinds
    assert (gpu.recall, gpu.precision, gpu.precision_of_place) == (0.3333, 0.25, 0.5)
    assert (gpu.trials, gpu.called_fine, gpu.claims) == (3, 1, 4)
    assert (throttled.recall, throttled.recall_of_place, throttled.precision) == (0.0, 1.0, None)
    assert (result.false_alarms, result.healthy_trials) == (1, 2)


def test_each_verb_has_its_own_healthy_jobs_and_its_own_time() -> None:
    hang = Trial(HEALTHY, "", (("dp", 8),), 0, True)
    outcomes = [
        replace(outcome(HEALTHY, "findings", Comparison(wrong=("slow-gpu",))), verdict_s=1.0),
        replace(outcome(HEALTHY, "healthy", Comparison()), verdict_s=3.0),
        replace(outcome("slow-gpu", "findings", Comparison()), verdict_s=2.0),
        replace(outcome(HEALTHY, "running", Comparison()), trial=hang, verdict_s=0.5),
        Outcome(hang, "", Comparison(), 1.0, "OSError: no room"),
    ]
    result = add_up(outcomes, ranks=8, seeds=SeedSet.TUNE, noise="none", seconds=1.0)
    assert as_json(result)["analysers"] == {
        "stragglers": {
            "trials": 3, "healthy_trials": 2, "false_alarms_in_healthy": 1, "verdict_s": {"median": 2.0, "worst": 3.0},
        },
        "hang": {
            "trials": 2, "healthy_trials": 2, "false_alarms_in_healthy": 0, "verdict_s": {"median": 0.5, "worst": 0.5},
        },
    }  # fmt: skip


@pytest.mark.parametrize("processes", [1, 2])
def test_no_trial_is_begun_when_time_is_over(processes: int) -> None:
    trials = plan_trials(ranks=64, trials=2, kinds=[FaultKind.DEAD], seeds=SeedSet.TUNE)
    assert list(run_trials(trials, noise=Silence(), processes=processes, within_s=0)) == []


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (FaultKind.SLOW_HOST, "findings"),
        (FaultKind.DATA_STALL, "findings"),
        (JOB_DATA, "findings"),
        (FaultKind.DEAD, "crashed"),
        (FaultKind.HOST_STUCK, "hang"),
        (FaultKind.LOST_HEARTBEATS, "running"),
    ],
)
def test_a_fault_that_cannot_be_missed_is_found(kind: FaultKind, word: str) -> None:
    [trial] = plan_trials(ranks=64, trials=1, kinds=[kind], seeds=SeedSet.TUNE, in_flight=1, missing=0)
    found = run_trial(trial, Silence())
    assert (found.failure, found.verdict, found.comparison.found) == (None, word, True)
    assert found.answer == (Answer.EXACT if trial.looks_at_hangs else None)


def test_collections_that_nobody_recorded_are_told_by_spans_of_other_things() -> None:
    trials = plan_trials(ranks=64, trials=40, kinds=[GC_UNRECORDED])
    assert {(one.leaves_out, one.on_rollups) for one in trials} == {(frozenset({"gc"}), False)}
    for one in trials:
        fault = parse_fault(one.fault)
        assert fault.last_step is None
        assert dict(one.layout)["tp"] < fault.every
    with pytest.raises(UsageError, match="gc-unrecorded take spans"):
        plan_trials(ranks=FLEET_RANKS, trials=1, kinds=[GC_UNRECORDED])


def test_collections_that_nobody_recorded_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def looked(store: Store, attempt: Attempt) -> StragglerVerdict:
        collections = store.query("SELECT rank FROM spans WHERE kind = 'gc'", attempt=attempt)
        written.append(collections.num_rows)
        return find_stragglers(store, attempt)

    monkeypatch.setattr(score_runs, "find_stragglers", looked)
    [trial] = plan_trials(ranks=64, trials=1, kinds=[GC_UNRECORDED], seeds=SeedSet.TUNE)
    found = run_trial(trial, Silence())
    assert (found.failure, found.comparison.right, found.comparison.found) == (None, ("gc-drift",), True)
    assert written == [0]


@pytest.mark.parametrize("kind", [FaultKind.CRAWLING, FaultKind.LONG_PHASE])
def test_who_only_holds_the_others_up_for_a_while_is_not_accused(kind: FaultKind) -> None:
    [trial] = plan_trials(ranks=64, trials=1, kinds=[kind], seeds=SeedSet.TUNE)
    found = run_trial(trial, Silence())
    assert (found.failure, found.comparison.wrong, found.answer) == (None, (), Answer.EXACT)


def test_evidence_of_hangs_is_as_hard_as_it_is_asked_for() -> None:
    kinds = [FaultKind.DEAD, FaultKind.SLOW_GPU]
    hard = plan_trials(ranks=64, trials=200, kinds=kinds)
    easy = plan_trials(ranks=64, trials=200, kinds=kinds, in_flight=1, missing=0)
    assert {(one.in_flight, one.missing) for one in hard if one.looks_at_hangs} == {(20, 0.01)}
    assert {one.in_flight for one in [*easy, *(one for one in hard if not one.looks_at_hangs)]} == {1}
    assert 0.3 < np.mean([one.reads_results for one in hard if one.looks_at_hangs]) < 0.7
    assert all(one.reads_results for one in easy)


def test_a_campaign_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["score", "--ranks", "64", "--trials", "3", "--kinds", "healthy,slow-gpu,mismatch", "--seeds", "tune",
         "--processes", "2", "--in-flight", "1", "--missing", "0", "--json"]
    )  # fmt: skip
    assert code == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["ranks"], result["trials"], result["seeds"], result["failures"]) == (64, 3, "tune", [])
    assert set(result["kinds"]) == {"slow-gpu", "mismatch"}
    assert [one["kind"] for one in result["outcomes"]] == ["healthy", "slow-gpu", "mismatch"]
    assert result["kinds"]["mismatch"]["recall"] == 1.0
    assert [result["kinds"]["mismatch"][word] for word in ("exact", "inconclusive", "wrong")] == [1.0, 0.0, 0.0]
    assert result["kinds"]["slow-gpu"]["exact"] is None
    assert [one["answer"] for one in result["outcomes"]] == [None, None, "exact"]
    assert (result["healthy_trials"], result["false_alarms_in_healthy"]) == (1, 0)
    assert result["early_warnings_in_healthy"] == 0
    assert {verb: one["trials"] for verb, one in result["analysers"].items()} == {"stragglers": 2, "hang": 1}
    assert all(0 < one["verdict_s"] < one["seconds"] for one in result["outcomes"])


def test_a_campaign_is_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "--ranks", "64", "--trials", "1", "--kinds", "exception", "--noise", "none"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"exception\s+│\s+1\s+│\s+100%\s+│\s+100%", out)
    assert "False alarms: 0 of 0 healthy jobs." in out
    assert re.search(r"hang: 1 jobs, 0 of them healthy, 0 false alarms; a verdict took \d+\.\d\d s", out)


def test_an_unknown_kind_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "--kinds", "slow"]) == 2
    assert "There is no kind of fault slow" in capsys.readouterr().err
