"""Going back from a loss that diverges, where that is allowed: to before it rose, never to nowhere, not for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.writing.writer import TableWriter
from megascope.trainer.supervisor.detectors import loss_divergence
from megascope.trainer.supervisor.history import History, Restart, RollBack, load_history, run_folder, save_history
from megascope.trainer.supervisor.limits import Limits
from megascope.trainer.supervisor.observing import Seen
from megascope.trainer.supervisor.policy import Action, Case, Trigger, applied, decide
from megascope.trainer.supervisor.rolling_back import last_good_step, way_back
from megascope.trainer.supervisor.signs import StepRecord
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


@given(st.lists(st.floats(0, 10), min_size=20, max_size=60))
def test_what_is_held_against_the_newest_losses_lies_before_them(losses: list[float]) -> None:
    good = last_good_step([StepRecord(step, 1e8, loss=loss) for step, loss in enumerate(losses)])
    assert good is not None
    assert 9 <= good <= len(losses) - 11


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
def test_without_leave_a_divergence_is_only_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, folder = World(tmp_path / "store", monkeypatch), committed(tmp_path / "checkpoints", 10, 30, 50)
    write(world.root, [one.loss or 0.0 for one in losing(42, 12)])
    world.end_at = "sign loss-divergence"
    outcome = world.run(train, checkpoints=folder)
    assert outcome.attempts == 1
    assert len(list(folder.glob("step-*/commit.json"))) == 3
    assert not list(folder.glob("*refused*"))
