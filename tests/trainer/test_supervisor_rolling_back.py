"""Going back from a loss that diverges, where that is allowed: to before it rose, never to nowhere, not for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.writing.writer import TableWriter
from megascope.trainer.checkpoints.files import remove_all_but
from megascope.trainer.supervisor.detectors import loss_divergence
from megascope.trainer.supervisor.diagnosis import end_ranks
from megascope.trainer.supervisor.history import History, Restart, RollBack, load_history, run_folder, save_history
from megascope.trainer.supervisor.limits import Limits
from megascope.trainer.supervisor.observing import Seen
from megascope.trainer.supervisor.policy import Action, Case, Trigger, applied, decide
from megascope.trainer.supervisor.rolling_back import last_good_step, way_back, way_still_there
from megascope.trainer.supervisor.signs import StepRecord
from megascope.trainer.supervisor.supervisor import Supervisor
from support.supervised import Host, World, finish
from support.watching import EndlessError, job, watcher

BACK = RollBack(5.0, 20, 20, 39)
ALLOWED = Limits(roll_back=True)


def losing(low: int, high: int) -> list[StepRecord]:
    """Steps whose loss falls until ``low``, and is far higher in the ``high`` steps after."""
    losses = [3.0 - step / 100 for step in range(low)] + [9.0] * high
    return [StepRecord(step, 1e8, loss=loss) for step, loss in enumerate(losses)]


def committed(folder: Path, *steps: int) -> Path:
    for step in steps:
        (folder / f"step-{step:08d}").mkdir(parents=True)
        (folder / f"step-{step:08d}" / "commit.json").write_text("{}")
    return folder


def test_the_last_good_step_is_that_before_the_rise() -> None:
    assert last_good_step(losing(40, 10)) == 39
    assert loss_divergence(losing(40, 10))
    assert last_good_step(losing(5, 5)) is None


@pytest.mark.parametrize("low", [31, 33, 34, 40])
def test_a_step_whose_loss_has_risen_is_none_of_the_good_ones(tmp_path: Path, low: int) -> None:
    """Of ten steps four may have risen, and their median be as low as ever."""
    steps = losing(low, 14)
    assert last_good_step(steps) == low - 1
    here = replace(job(), checkpoints=committed(tmp_path, *range(5, 50)))
    back = way_back(here, Seen(0, steps, last_step=low + 13, furthest=low + 13), History())
    assert back is not None
    assert back.to == low - 1  # what that step's update has made may be what let the loss rise


@given(st.lists(st.floats(0, 10), min_size=20, max_size=60))
def test_what_is_held_against_the_newest_losses_lies_before_them(losses: list[float]) -> None:
    good = last_good_step([StepRecord(step, 1e8, loss=loss) for step, loss in enumerate(losses)])
    assert good is not None
    assert 4 <= good <= len(losses) - 11


def test_the_way_back_is_to_the_newest_checkpoint_from_before(tmp_path: Path) -> None:
    seen = Seen(0, losing(42, 12), last_step=53, furthest=53)
    here = replace(job(), checkpoints=committed(tmp_path, 10, 30, 40, 50), skip=(3,))
    back = way_back(here, seen, History())
    assert back is not None
    assert (back.to, back.first, back.last) == (40, 41, 54)  # a batch was passed over before
    again = way_back(here, seen, History(roll_backs=(BACK,)))
    assert again is not None
    assert (again.first, again.last) == (61, 74)
    near = replace(here, limits=Limits(most_steps_back=13))
    assert way_back(near, seen, History()) is None
    for nothing in (replace(here, checkpoints=None), replace(here, checkpoints=tmp_path / "none")):
        assert way_back(nothing, seen, History()) is None
    assert way_back(here, replace_steps(seen, losing(5, 5)), History()) is None


def test_once_the_ranks_have_ended_the_way_back_stays_or_leads_further_back_or_is_gone(tmp_path: Path) -> None:
    seen, here = Seen(0, losing(42, 12), furthest=57), replace(job(), checkpoints=committed(tmp_path, 20, 40, 50, 58))
    found = RollBack(5.0, 40, 40, 53)
    assert way_still_there(found, here, seen, History()) == RollBack(5.0, 40, 40, 57)  # and what was trained meanwhile
    assert way_still_there(found, here, Seen(0), History()) == found
    near = replace(here, limits=Limits(most_steps_back=14))
    assert way_still_there(found, near, seen, History()) is not None  # it was near enough when it was chosen
    remove_all_but(tmp_path, (20, 50, 58))
    assert way_still_there(found, here, seen, History()) == RollBack(5.0, 20, 20, 57)
    assert way_still_there(found, near, seen, History()) is None
    remove_all_but(tmp_path, (50, 58))
    assert way_still_there(found, here, seen, History()) is None


def replace_steps(seen: Seen, steps: list[StepRecord]) -> Seen:
    return Seen(0, steps, last_step=seen.last_step, furthest=seen.furthest)


def case(back: RollBack | None = BACK) -> Case:
    return Case(trigger=Trigger.DIVERGED, moment_s=1000.0, step=39, back=back)


def test_it_is_done_only_where_it_is_allowed_and_helps() -> None:
    decision = decide(case(), History(), ALLOWED)
    assert (decision.action, decision.back, decision.fence) == (Action.ROLL_BACK, BACK, ())
    assert "back to the checkpoint of step 20, and batches 20 to 39 are passed over" in decision.reason
    assert decide(case(), History(), Limits()).action is Action.WATCH
    assert decide(case(None), History(), ALLOWED).action is Action.WATCH
    twice = History(roll_backs=(BACK, BACK))
    assert decide(case(), twice, ALLOWED).action is Action.WATCH
    used = History(restarts=tuple(Restart(999.0, step) for step in range(20)))
    assert decide(case(), used, ALLOWED).action is Action.WATCH


def test_a_host_that_is_lost_meanwhile_is_replaced_and_the_way_back_is_kept() -> None:
    lost = replace(case(), lost=frozenset({"node-1"}), spares=1)
    decision = decide(lost, History(), ALLOWED)
    assert (decision.action, decision.back) == (Action.REPLACE, BACK)
    assert decision.reason.startswith("node-1 is gone: replaced by a spare. The loss diverges: back to the checkpoint")
    assert applied(decision, lost, History()).roll_backs == (BACK,)
    none_left = replace(lost, spares=0)
    stop = decide(none_left, History(), ALLOWED)
    assert (stop.action, stop.back) == (Action.STOP, BACK)
    assert applied(stop, none_left, History()).passed_over == tuple(range(20, 40))  # whoever starts it again goes back


def test_the_batches_are_passed_over_from_then_on(tmp_path: Path) -> None:
    history = applied(decide(case(), History(skipped=(7,)), ALLOWED), case(), History(skipped=(7,)))
    assert history.passed_over == (7, *range(20, 40))
    assert history.skipped == (7,)  # which have a limit of their own
    assert history.restarts_without_progress(39) == 0
    save_history(tmp_path / "history.json", history)
    assert load_history(tmp_path / "history.json") == history


@pytest.mark.parametrize("worth", [True, False])
def test_a_loss_that_diverges_ends_the_watch_where_something_is_done(worth: bool) -> None:
    seen = Seen(0, losing(40, 12), last_step=51, furthest=51)
    watch = watcher(seen=seen, worth=worth)
    if worth:
        alert = watch.watch()
        assert (alert.trigger, alert.accused) == (Trigger.DIVERGED, ())
    else:
        with pytest.raises(EndlessError):
            watch.watch()


def write(root: Path, losses: Sequence[float]) -> None:
    with TableWriter(root, "steps") as writer:
        places = [(rank, step) for rank in range(4) for step in range(len(losses))]
        columns = {
            "rank": [rank for rank, _ in places],
            "step": [step for _, step in places],
            "start_ns": [10**18 + step * 10**8 for _, step in places],
            "duration_ns": [10**8 for _ in places],
            "loss": [losses[step] for _, step in places],
        }
        writer.write("steps", "run", 0, columns)
        writer.write("runs", "run", 0, {"world_size": [4], "start_ns": [10**18]}, replace=True)
        writer.commit()


def train(host: Host, attempt: int, ranks: Sequence[int]) -> None:
    """The first attempt goes on until it is told to stop."""
    if attempt > 0:
        finish(host, attempt, ranks)


@pytest.mark.timeout(60)
def test_a_run_goes_back_and_on_with_other_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, folder = World(tmp_path / "store", monkeypatch), committed(tmp_path / "checkpoints", 10, 30, 50)
    write(world.root, [one.loss or 0.0 for one in losing(42, 12)])
    outcome = world.run(train, checkpoints=folder, roll_back=True)
    assert (outcome.finished, outcome.attempts) == (True, 2)
    assert sorted(path.name for path in folder.iterdir()) == [
        "step-00000010", "step-00000030", "step-00000050.refused-1",
    ]  # fmt: skip
    before, after = world.hosts["node-0"].overrides
    assert before == []
    assert after == [part for batch in range(30, 54) for part in ("--data.skip", str(batch))]
    assert {"noticed", "rolled-back", "decided", "restarting"} <= set(world.actions())
    assert "asked-hang" not in set(world.actions())
    assert load_history(run_folder(world.root, "run") / "history.json").passed_over == tuple(range(30, 54))


@pytest.mark.timeout(60)
def test_checkpoints_that_cannot_be_set_aside_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("megascope.trainer.supervisor.responding.set_aside", refuse)
    world, folder = World(tmp_path / "store", monkeypatch), committed(tmp_path / "checkpoints", 10, 30, 50)
    write(world.root, [one.loss or 0.0 for one in losing(42, 12)])
    outcome = world.run(train, checkpoints=folder, roll_back=True)
    assert not outcome.finished
    assert "the checkpoints after step 30 cannot be set aside ([Errno 13] Permission denied)" in outcome.reason
    assert outcome.history.roll_backs == ()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_unreadable", [False, True])
def test_a_checkpoint_that_goes_while_the_ranks_end_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_unreadable: bool
) -> None:
    world, folder = World(tmp_path / "store", monkeypatch), committed(tmp_path / "checkpoints", 30, 50)
    write(world.root, [one.loss or 0.0 for one in losing(42, 12)])

    def end(*arguments: Any) -> bool:
        assert [path.name for path in folder.glob("*refused*")] == ["step-00000050.refused-1"]  # nothing prunes for it
        committed(folder, 60)
        remove_all_but(folder, [60])
        if is_unreadable:
            monkeypatch.setattr("megascope.trainer.supervisor.rolling_back.committed_steps", refused)
        return end_ranks(*arguments)

    monkeypatch.setattr("megascope.trainer.supervisor.responding.end_ranks", end)
    outcome = world.run(train, checkpoints=folder, roll_back=True)
    assert (outcome.finished, outcome.attempts) == (False, 1)
    why = "cannot be read ([Errno 13] Permission denied)" if is_unreadable else "is not there any more"
    assert f"The loss diverges, and the checkpoint of step 30 {why}" in outcome.reason
    assert str(folder) in outcome.reason
    assert (outcome.history.roll_backs, outcome.history.restarts) == ((), ())
    assert (folder / "step-00000060").exists()
    assert "no-way-back" in set(world.actions())


def refused(*_: object) -> list[int]:
    raise PermissionError(13, "Permission denied")


@pytest.mark.timeout(60)
def test_a_host_that_is_lost_as_the_ranks_end_does_not_keep_the_run_from_going_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, folder = World(tmp_path / "store", monkeypatch), committed(tmp_path / "checkpoints", 10, 30, 50)
    write(world.root, [one.loss or 0.0 for one in losing(42, 12)])
    outcome = world.run(train, holds="node-1", patience={"stop_s": 0.3}, checkpoints=folder, roll_back=True)
    assert (outcome.finished, outcome.attempts) == (True, 2)
    assert [(one.to, one.first, one.last) for one in outcome.history.roll_backs] == [(30, 30, 53)]
    assert (folder / "step-00000050.refused-1").exists()
    assert any(line.startswith("replace: node-1 is gone") for line in world.lines)
    assert world.hosts["node-2"].overrides[0][:2] == ["--data.skip", "30"]


@pytest.mark.timeout(60)
def test_where_there_is_no_way_back_once_it_is_looked_for_again_the_ranks_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, folder = World(tmp_path / "store", monkeypatch), committed(tmp_path / "checkpoints", 10, 30, 50)
    write(world.root, [one.loss or 0.0 for one in losing(42, 12)])
    monkeypatch.setattr(Supervisor, "_is_worth", lambda *_: True)
    world.end_at = "the ranks go on"
    outcome = world.run(train, checkpoints=folder, roll_back=True, most_steps_back=5)
    assert outcome.attempts == 1
    assert outcome.history.restarts == ()
    assert any(line.endswith("the ranks go on") for line in world.lines)


@pytest.mark.timeout(60)
def test_checkpoints_are_not_looked_for_once_nothing_would_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("megascope.trainer.supervisor.shared.way_back", search)
    world, folder = World(tmp_path / "store", monkeypatch), committed(tmp_path / "checkpoints", 10, 30, 50)
    write(world.root, [one.loss or 0.0 for one in losing(42, 12)])
    world.end_at = "sign loss-divergence"
    outcome = world.run(train, checkpoints=folder, roll_back=True, max_roll_backs=0)
    assert outcome.attempts == 1


@pytest.mark.timeout(60)
def test_without_leave_a_divergence_is_only_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, folder = World(tmp_path / "store", monkeypatch), committed(tmp_path / "checkpoints", 10, 30, 50)
    write(world.root, [one.loss or 0.0 for one in losing(42, 12)])
    world.end_at = "sign loss-divergence"
    outcome = world.run(train, checkpoints=folder)
    assert outcome.attempts == 1
    assert len(list(folder.glob("step-*/commit.json"))) == 3
    assert not list(folder.glob("*refused*"))
