"""The campaign of faults: what counts as made, as recovered and as right, and where it goes on after a break."""

from __future__ import annotations

import contextlib
import inspect
import json
import shlex
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from benchmarks import fault_jobs
from benchmarks.fault_draws import AT, FIRST, LAST
from benchmarks.fault_jobs import LOST, Ran, config_of
from benchmarks.fault_prods import Prod
from benchmarks.fault_settings import PRODUCT, SHORT
from benchmarks.fault_summary import PARTS, summary
from benchmarks.fault_trials import EVERY, FILL, LONG, LONGER, MIXED, RANKS_PER_HOST, STEPS, Trial, plan
from benchmarks.faults import _read, chosen, judged, left_of, main, tried
from megascope.collectors.hardware.kernel_lines import event_of
from megascope.commands.supervise import supervise
from megascope.trainer.faults.kinds import parse_fault
from megascope.trainer.supervisor.attempt import AttemptState
from megascope.trainer.supervisor.job import check_job

LOSSES = {step: 3.0 - step / 100 for step in range(STEPS[MIXED])}


def incident(**more: Any) -> dict[str, Any]:
    culprits = [{"kind": "dead", "ranks": [3], "hosts": ["node-1"], "confidence": 0.95}]
    told: dict[str, Any] = {"kind": "exited", "decision": "replace", "why": "node-1: dead", "culprits": culprits}
    return {**told, "ranks": [3], "recovery_s": 12.0, **more}


def ran(*incidents: dict[str, Any], fault_ns: int | None = 1, **more: Any) -> Ran:
    told = {"outcome": "finished", "reason": "", "fenced": ["node-1"], "goodput": None, "incidents": list(incidents)}
    return Ran({**told, **more}, LOSSES, fault_ns, {"spans": 0, "steps": 0})


def named(name: str) -> Trial:
    return next(trial for trial in plan() if trial.name == name)


def test_every_trial_can_be_told_from_the_others_and_its_fault_is_one() -> None:
    trials = list(plan())
    assert len({trial.name for trial in trials}) == len(trials) == 28
    assert [trial.name for trial in trials if trial.fault and trial.prod] == ["kill-in-restart"]
    for trial in trials:
        assert trial.fault or trial.prod
        if trial.fault:
            parse_fault(trial.fault)
        else:
            assert trial.layout in {LONG, LONGER}  # how far it is shows from outside only after a while


def test_a_culprit_is_right_by_its_ranks_and_by_its_kind() -> None:
    result = judged(named("kill"), ran(incident()), LOSSES)
    assert (result["recovered"], result["culprit_right"], result["kind_right"]) == (True, True, True)
    assert (result["false_fences"], result["loss_identical"], result["recovery_s"]) == (0, True, 12.0)
    stuck = incident(culprits=[{"kind": "host-stuck", "ranks": [3]}])
    result = judged(named("kill"), ran(stuck, fenced=["node-0"]), LOSSES)
    assert (result["culprit_right"], result["kind_right"], result["false_fences"]) == (True, False, 1)
    assert not judged(named("kill"), ran(incident()), {**LOSSES, 7: 0.0})["loss_identical"]


def test_what_disturbs_nobody_is_held_against_the_signs() -> None:
    trial = replace(named("slow-link"), layout=MIXED)
    sign: dict[str, Any] = {"kind": "sign-slow-network", "decision": None, "why": None, "culprits": [], "ranks": []}
    quiet = ran(fenced=[])
    assert judged(trial, ran(sign, fenced=[]), LOSSES)["kind_right"] is True
    assert judged(trial, quiet, LOSSES)["kind_right"] is False
    assert judged(named("storage-full"), quiet, LOSSES)["kind_right"] is None


@pytest.mark.parametrize("acted", [True, False])
def test_a_fault_that_did_not_act_is_no_trial(acted: bool) -> None:
    result = judged(named("kill"), ran(incident(), fault_ns=1 if acted else None), LOSSES)
    found = summary([result])
    assert (found["injected"], found["not_injected"], found["recovered"]) == ((1, 0, 1) if acted else (0, 1, 0))
    left = left_of([named("kill")] * 2, [result])
    assert len(left) == (1 if acted else 2)


def test_a_lost_host_takes_the_record_of_its_fault_with_it() -> None:
    gone = incident(kind="host-lost", why="node-1 has not answered", culprits=[])
    result = judged(named("host-loss"), ran(gone, fault_ns=None, fenced=[]), LOSSES)
    assert (result["acted"], result["culprit_right"]) == (True, True)
    assert not judged(named("host-loss"), ran(fault_ns=None, fenced=[]), LOSSES)["acted"]


def test_what_was_told_of_and_not_stored_is_counted_as_lost() -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE heartbeats AS SELECT * FROM (VALUES (0, 0, 4, 0), (0, 0, 9, 2), (0, 1, 5, 0), "
                       "(0, 2, 3, 0)) AS t(attempt, rank, spans, lost_spans)")  # fmt: skip
    connection.execute("CREATE TABLE events AS SELECT 0 AS attempt, 0 AS rank, range AS step FROM range(8) "
                       "UNION ALL SELECT 0, 2, range FROM range(5)")  # fmt: skip
    assert connection.execute(LOST).fetchone() == (1 + 2 + 5, 7 - 4 - 1)


def test_a_file_of_results_may_end_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_text(json.dumps({"name": "kill"}) + '\n{"name": "na')
    assert _read(path) == [{"name": "kill"}]
    assert _read(tmp_path / "none") == _read(None) == []


@pytest.mark.parametrize("trial", list(plan()), ids=lambda trial: trial.name)
def test_every_trial_is_a_job_whose_fault_can_act(trial: Trial, tmp_path: Path) -> None:
    config = config_of(trial, tmp_path)
    assert config.fault == ((trial.fault,) if trial.fault else ())
    world_size = config.topology().world_size
    config.validate(world_size)
    check_job(config, world_size // RANKS_PER_HOST[trial.layout])


def test_a_trial_without_culprits_among_ranks_is_right_where_its_host_is_fenced() -> None:
    broken = incident(kind="device-error", decision="checkpoint-and-replace", culprits=[])
    trial = replace(named("xid"), layout=MIXED)
    assert judged(trial, ran(broken), LOSSES)["culprit_right"] is True
    assert judged(trial, ran(broken, fenced=[]), LOSSES)["culprit_right"] is False
    wrong = judged(trial, ran(broken, fenced=["node-0"]), LOSSES)
    assert (wrong["culprit_right"], wrong["false_fences"]) == (False, 1)


def test_the_settings_are_those_of_the_verb_without_flags() -> None:
    flags = inspect.signature(supervise).parameters
    assert PRODUCT.self_check == tuple(shlex.split(flags["self_check"].default))
    for name in ("max_restarts", "max_fences", "min_confidence", "skip_data", "roll_back"):
        assert getattr(PRODUCT.limits, name) == flags[name].default
    assert PRODUCT.patience.start_s == flags["first_step_within"].default
    assert PRODUCT.patience.stall_s == flags["stalled_after"].default
    assert PRODUCT.as_json()["self_check"].endswith("preflight --quick --json")
    assert SHORT.self_check == ()


def test_a_run_that_was_to_go_back_has_recovered_only_where_it_did() -> None:
    trial = replace(named("divergence"), layout=MIXED)
    sign: dict[str, Any] = {"kind": "sign-loss-divergence", "decision": None, "why": None, "culprits": [], "ranks": []}
    back = incident(kind="diverged", decision="roll-back", why="The loss diverges", culprits=[])
    done = ran(sign, back, fenced=[], skipped_batches=[20, 21, 22])
    result = judged(trial, done, LOSSES)
    assert (result["recovered"], result["kind_right"], result["culprit_right"]) == (True, True, None)
    assert (result["passed_over"], result["loss_identical"], result["recovery_s"]) == ([20, 22], True, 12.0)
    only_told = judged(trial, ran(sign, fenced=[], skipped_batches=[]), LOSSES)
    assert (only_told["recovered"], only_told["passed_over"]) == (False, None)
    assert not judged(named("kill"), ran(incident(), skipped_batches=[20]), LOSSES)["recovered"]


def test_a_run_that_went_back_is_held_against_one_that_passes_over_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Trial] = []
    whole = dict.fromkeys(range(STEPS[LONG]), 2.0)

    def trained(trial: Trial, *_: object) -> Ran:
        made.append(trial)
        report: dict[str, Any] = {"attempts": 1, "skipped_batches": [20, 21, 22] if trial.rolls_back else []}
        return replace(ran(**report), losses=whole)

    monkeypatch.setattr("benchmarks.faults.run_trial", trained)
    result, _ = tried(named("divergence"), {}, tmp_path, SHORT)
    assert [(one.name, one.skip) for one in made] == [
        ("divergence", ()), ("undisturbed-pp2-dp2-long-without-20-to-22", (20, 21, 22)),
    ]  # fmt: skip
    assert result["loss_identical"]
    assert config_of(made[1], tmp_path).data.skip == (20, 21, 22)
    keeps = {trial.name: config_of(trial, tmp_path).checkpoint.keep for trial in plan()}
    assert keeps["divergence"] * EVERY == STEPS[LONG]
    assert {keep for name, keep in keeps.items() if name != "divergence"} == {2}


@pytest.mark.parametrize(("also", "is_right"), [((), True), ((0,), True), ((1,), False), ((0, 2), False)])
def test_who_died_before_it_recorded_anything_may_be_named(also: tuple[int, ...], is_right: bool) -> None:
    again = incident(culprits=[{"kind": "init", "ranks": [rank]} for rank in also])
    result = judged(named("kill-in-restart"), ran(incident(), again), LOSSES)
    assert (result["culprit_right"], result["kind_right"]) == (is_right, True)
    assert not judged(named("kill-in-restart"), ran(again), LOSSES)["culprit_right"]


def test_a_second_rank_is_killed_as_soon_as_the_job_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr("benchmarks.fault_prods.os.kill", lambda *call: killed.append(call))
    second, hosts = prod(named("kill-in-restart").prod, tmp_path, victim=0), ("node-0", "node-2")
    second.poll(AttemptState(0, ("node-0", "node-1"), 2, 0, pids={0: 71}), AT)
    second.poll(AttemptState(1, hosts, 2, 0), None)
    second.poll(AttemptState(1, hosts, 2, 0, pids={0: 72}), AT)  # too late: it trains again
    assert killed == []
    second.poll(AttemptState(1, hosts, 2, 0, pids={0: 72}), None)
    second.poll(AttemptState(1, hosts, 2, 0, pids={0: 72}), None)
    assert killed == [(72, signal.SIGKILL)]


def prod(name: str, folder: Path, victim: int = 3) -> Prod:
    return Prod(name, folder, {}, {"node-1": folder / "kernel"}, victim=victim)


def test_a_real_disk_is_never_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filling = prod(FILL, tmp_path)
    with pytest.raises(RuntimeError, match="a real disk would be filled"):
        filling.poll(AttemptState(0, ("node-0", "node-1"), 2, 0), AT)
    assert list(tmp_path.iterdir()) == []


def test_where_no_small_disk_can_be_mounted_the_trial_is_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def refused(folder: Path) -> Iterator[bool]:
        yield False

    monkeypatch.setattr(fault_jobs, "small_disk", refused)
    result, made = tried(named("storage-full"), LOSSES, tmp_path, SHORT)
    assert (made, result["acted"]) == (None, False)
    assert "a real disk is not to be filled" in result["left_out"]
    found = summary([result])
    assert (found["injected"], found["not_injected"], list(found["left_out"])) == (0, 1, ["storage-full"])


def test_the_kernel_tells_of_a_gpu_in_a_line_that_is_understood(tmp_path: Path) -> None:
    prod("gpu-falls-off", tmp_path).poll(AttemptState(0, ("node-0", "node-1"), 2, 0), AT)
    event = event_of((tmp_path / "kernel").read_text().strip())
    assert event is not None
    assert (event.device, event.code) == ("0000:3b:00", 79)


def test_results_under_other_settings_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results"
    path.write_text(json.dumps({"name": "kill", "settings": "short"}) + "\n")
    monkeypatch.setattr("sys.argv", ["faults", "--resume", str(path)])
    with pytest.raises(SystemExit, match="has results under other settings"):
        main()


def test_a_trial_without_its_reference_has_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = dict.fromkeys(range(STEPS[LONG]), 2.0)

    def trained(trial: Trial, *_: object) -> Ran:
        if trial.rolls_back:
            return replace(ran(attempts=1, skipped_batches=[20]), losses=whole)
        return replace(ran(attempts=2, skipped_batches=[]), losses=whole)

    monkeypatch.setattr("benchmarks.faults.run_trial", trained)
    result, _ = tried(named("divergence"), {}, tmp_path, SHORT)
    assert not result["loss_identical"]
    assert "nothing can be compared" in result["error"]


def step_of(trial: Trial) -> int:
    return parse_fault(trial.fault).first_step if trial.fault else trial.at


def test_the_first_repetition_is_always_the_same_and_the_others_are_drawn() -> None:
    assert list(plan()) == list(plan(None, 0))
    assert {step_of(trial) for trial in plan()} - {0} == {AT, AT + 1}  # a checkpoint is written beside the step after
    rounds = [list(plan(None, number)) for number in range(1, 9)]
    assert rounds[0] == list(plan(None, 1))
    for trials in zip(*rounds, strict=True):
        assert len({trial.name for trial in trials}) == 1
        assert len({trial.put_in for trial in trials}) > 2, trials[0].name
        for trial in trials:
            assert step_of(trial) == 0 or FIRST <= step_of(trial) <= LAST + EVERY
    assert list(plan(1, 0)) != list(plan(2, 0))
    assert list(plan(1, 0)) != list(plan(None, 0))


@pytest.mark.parametrize("number", range(1, 13))
def test_what_is_drawn_is_a_job_whose_fault_can_act_and_its_culprits_follow(number: int, tmp_path: Path) -> None:
    for trial in plan(7, number):
        config = config_of(trial, tmp_path)
        config.validate(config.topology().world_size)
        hosts = {f"node-{rank // RANKS_PER_HOST[trial.layout]}" for rank in trial.ranks | trial.also}
        assert trial.fenced in (frozenset(), hosts or {trial.host})
        if trial.fault and parse_fault(trial.fault).link is None:
            ranks = parse_fault(trial.fault).ranks
            assert trial.ranks in (frozenset(), frozenset(ranks))
            assert trial.lost in ("", *(f"node-{rank // 2}" for rank in ranks))
        elif trial.prod:
            assert trial.lost in ("", trial.host)
            assert trial.ranks <= {trial.victim}


def test_a_second_rank_that_is_drawn_is_on_the_other_host() -> None:
    for number in range(20):
        trial = next(trial for trial in plan(3, number) if trial.name == "kill-in-restart")
        assert trial.also == {trial.victim}
        assert trial.host not in {f"node-{rank // 2}" for rank in trial.ranks}


def test_what_comes_from_outside_comes_to_the_rank_that_was_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr("benchmarks.fault_prods.os.kill", lambda *call: killed.append(call))
    agent = Prod("kill-node-agent", tmp_path, {"node-0": 70, "node-1": 71}, {}, at=30, victim=0, host="node-0")
    state = AttemptState(0, ("node-0", "node-1"), 2, 0, pids={0: 80, 3: 83})
    agent.poll(state, 29)
    assert killed == []
    agent.poll(state, 30)
    assert killed == [(70, signal.SIGKILL)]


def test_each_repetition_has_a_result_of_its_own() -> None:
    trials = chosen(["kill-in", "nan"], repeats=3)
    assert [trial.name for trial in trials] == ["nan", "kill-in-restart"] * 3
    done = [judged(trials[2], ran(incident()), LOSSES)]
    assert done[0]["fault"] == trials[2].put_in != trials[0].put_in
    assert left_of(trials, done) == trials[:2] + trials[3:]
    assert chosen(["nan"], seed=5) == [trial for trial in plan(5) if trial.name == "nan"]


def test_the_times_are_those_of_the_longest_recovery_and_steps_of_all() -> None:
    first = incident(step=23, detection_s=1.0, diagnosis_s=2.0, check_s=3.0, restart_s=4.0, catch_up_s=5.0)
    second = incident(step=31, recovery_s=20.0, detection_s=6.0, diagnosis_s=7.0, check_s=8.0)
    result = judged(named("kill"), ran(first, second), LOSSES)
    assert [result[name] for name in PARTS] == [6.0, 7.0, 8.0, None, None]
    assert (result["first_step"], result["last_step"], result["recovery_s"]) == (23, 31, 20.0)
    none = judged(named("kill"), ran(), LOSSES)
    assert {none[name] for name in (*PARTS, "first_step", "last_step")} == {None}
    never = judged(named("kill"), ran(incident(recovery_s=None, step=None, detection_s=1.5)), LOSSES)
    assert (never["detection_s"], never["first_step"]) == (1.5, None)


def test_medians_leave_out_what_was_not_told() -> None:
    times = [dict.fromkeys(PARTS, value) for value in (1.0, 4.0)]
    results = [judged(named("kill"), ran(incident(**more)), LOSSES) for more in (*times, {}, {"catch_up_s": 9.0})]
    results.append(judged(named("kill"), ran(incident(recovery_s=None, detection_s=99.0)), LOSSES))
    found = summary(results)
    for one in (found, found["by_trial"]["kill"]):
        assert (one["median_detection_s"], one["median_catch_up_s"], one["median_recovery_s"]) == (2.5, 4.0, 12.0)
    assert (found["injected"], found["different"]) == (5, 1)
    assert summary([])["median_restart_s"] is None


def test_results_of_another_seed_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results"
    path.write_text(json.dumps({"name": "kill", "settings": "product", "seed": 3}) + "\n")
    monkeypatch.setattr("sys.argv", ["faults", "--resume", str(path), "--seed", "4"])
    with pytest.raises(SystemExit, match="has results of another seed"):
        main()
