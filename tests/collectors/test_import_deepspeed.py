"""Importing DeepSpeed's own logs, of several versions: durations and numbers of steps are told or stay empty."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.importers.deepspeed_lines import read_deepspeed
from megascope.collectors.importers.deepspeed_steps import Steps, steps_of
from megascope.collectors.importers.imported import Format
from megascope.collectors.importers.log_lines import moment_ns
from megascope.collectors.importers.recognise import recognise
from megascope.profiler.errors import FormatError
from support.imports import Taken, imported, rows, taken

BEGIN = datetime(2024, 4, 21, 2, 45, tzinfo=UTC)
SECOND = 10**9


def at(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]


def config(batch: int = 16, accumulation: int = 1, world: int = 8) -> str:
    head = f"[{at(-9)}] [INFO] [config.py:1003:print]  "
    return (
        f"[{at(-10)}] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version=0.14.1, git-hash=unknown\n"
        f"{head} gradient_accumulation_steps .. {accumulation}\n{head} steps_per_print .............. 10\n"
        f"{head} train_batch_size ............. {batch}\n{head} train_micro_batch_size_per_gpu  2\n"
        f"{head} world_size ................... {world}\n"
    )


WORLD = f"[{at(-20)}] [INFO] [launch.py:163:main] dist_world_size=8\n"


def end(step: int, seconds: float, *, skipped: int = 0, rank: int = 0, rates: str = "0.0003, 0.0003") -> str:
    return (
        f"[{at(seconds)}] [INFO] [logging.py:96:log_dist] [Rank {rank}] step={step}, skipped={skipped}, "
        f"lr=[{rates}], mom=[(0.9, 0.95), (0.9, 0.95)]\n"
    )


def speed(step: int, seconds: float, now: float, *, micro: int | None = None, epoch: int = 0) -> str:
    return (
        f"[{at(seconds)}] [INFO] [timer.py:260:stop] epoch={epoch}/micro_step={micro or step}/global_step={step}, "
        f"RunningAvgSamplesPerSec=25.02, CurrSamplesPerSec={now}, MemAllocated=4.32GB, MaxMemAllocated=38.49GB\n"
    )


def timers(seconds: float, *, ms: float = 100.0, rank: int = 0, head: str | None = None) -> str:
    """Both lines of a step of one micro-step, as since 0.10: forward, backward twice as long, and step."""
    told = head if head is not None else f"[{at(seconds)}] [INFO] [logging.py:96:log_dist] [Rank {rank}] "
    values = {"fwd": ms, "bwd": 2 * ms, "bwd_inner": 1.5 * ms, "bwd_allreduce": 0.5 * ms, "step": ms / 2}
    return "".join(
        f"{told}time (ms) | " + " | ".join(f"{name}{kind}: {value:.2f}" for name, value in values.items()) + "\n"
        for kind in ("_microstep", "")
    )


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def read(text: str, batch: tuple[int, int] | None = None, rank: int = 0) -> Steps:
    told = read_deepspeed(text.splitlines(keepends=True))
    return steps_of(told.events[rank], batch or next(iter(told.batches), None))


def durations(steps: Steps) -> dict[int, float | None]:
    return {one.step: None if one.duration_ns is None else one.duration_ns / SECOND for one in steps.iterations}


def spans(found: Taken, step: int) -> dict[str, dict[str, Any]]:
    told = found.rows(f"SELECT * FROM spans WHERE step = {step}")
    return {row["segment_name"]: row for row in told}


def test_a_log_becomes_steps_of_rank_0(tmp_path: Path) -> None:
    """Two steps of 2 s by their throughput; 10 others lie between them, which nobody printed."""
    text = WORLD + config() + end(0, -5) + end(10, 30) + speed(10, 30, 8.0)
    text += "an epoch of 8 samples | loss 3\n" + end(20, 60, skipped=1) + speed(20, 60.001, 8.0)
    path = write(tmp_path / "job.log", text + f"[{at(70)}] [INFO] [launch.py:350:main] Process 7 exits successfully.\n")
    report, store = imported(tmp_path, path)
    assert (report.run, report.format, report.ranks, report.world_size) == ("job", "deepspeed-log", 1, 8)
    attempt = store.attempt()
    assert (attempt.layout, attempt.exit_reason) == ({"dp": 8}, "finished")
    steps = rows(store, "SELECT rank, step, start_ns, duration_ns, loss, learning_rate FROM steps ORDER BY step")
    first = moment_ns(at(28))
    assert steps == [
        {"rank": 0, "step": step, "start_ns": begin, "duration_ns": 2 * SECOND, "loss": None, "learning_rate": 3e-4}
        for step, begin in ((10, first), (20, first + 30 * SECOND))
    ]
    assert taken(path).done.versions == {"deepspeed": "0.14.1"}
    assert "1 steps of the job were skipped for their loss scale" in report.notes
    assert "the log is of 1 of 8 ranks" in report.notes


def test_parts_of_timers_count_once(tmp_path: Path) -> None:
    """The lines of the micro-steps tell the same time again, and two timers run inside of the backward pass."""
    parts = "[Rank 0] time (ms) | optimizer_allgather: 20.00 | optimizer_gradients: 2.00 | optimizer_step: 8.00\n"
    text = config() + "".join(parts + end(step, step) + timers(step + 0.001) for step in (1, 2))
    found = taken(write(tmp_path / "job.log", text))
    two = spans(found, 2)
    told = {name: (row["kind"], row["duration_ns"], row["self_ns"]) for name, row in two.items()}
    assert told == {
        "forward": ("compute", 100_000_000, 100_000_000),
        "backward": ("compute", 200_000_000, 0),
        "backward-inner": ("compute", 150_000_000, 150_000_000),
        "backward-all-reduce": ("collective", 50_000_000, 50_000_000),
        "optimizer": ("optimizer", 50_000_000, 20_000_000),
        "optimizer-all-gather": ("collective", 20_000_000, 20_000_000),
        "optimizer-gradients": ("optimizer", 2_000_000, 2_000_000),
        "optimizer-step": ("optimizer", 8_000_000, 8_000_000),
    }
    assert two["backward-inner"]["parent"] == two["backward"]["segment"]
    assert sum(own for *_, own in told.values()) == 350_000_000
    assert any("2 lines of micro-steps" in note for note in found.done.notes)
    assert found.rows("SELECT step, duration_ns FROM steps ORDER BY step") == [
        {"step": 1, "duration_ns": None}, {"step": 2, "duration_ns": SECOND},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("head", "old"),
    [
        ("[2023-02-25 17:42:38,678] [INFO] [logging.py:75:log_dist] [Rank 0] rank=0 ", True),
        ("", True),
        ("[Rank 0] ", False),
        ("worker-0: [2024-04-21 02:45:40,723] [INFO] [logging.py:96:log_dist] [Rank 0] ", False),
        ("  3%|#  | 12/345 [00:07<06:50,  1.23s/it][Rank 0] ", False),
        ("0: > [2024-04-21 02:45:40,723] [INFO] [logging.py:96:log_dist] [Rank 0] step=1 ", False),
    ],
)
def test_timers_of_all_versions(tmp_path: Path, head: str, old: bool) -> None:
    text = timers(0, head=head)
    if old:
        text = text.replace("fwd", "forward").replace("bwd", "backward")
    path = write(tmp_path / "job.log", text)
    assert recognise([path]) is Format.DEEPSPEED_LOG
    found = taken(path)
    assert {name: row["duration_ns"] for name, row in spans(found, 1).items()} == {
        "forward": 100_000_000, "backward": 200_000_000, "backward-inner": 150_000_000,
        "backward-all-reduce": 50_000_000, "optimizer": 50_000_000,
    }  # fmt: skip
    assert any("steps are counted" in note for note in found.done.notes)


def test_steps_without_dates_stand_behind_each_other(tmp_path: Path) -> None:
    """The newest version prints timers alone: the step is at least as long as they are, and its duration unknown."""
    found = taken(write(tmp_path / "job.log", timers(0, head="[Rank 0] ") * 3))
    assert found.rows("SELECT step, start_ns, duration_ns FROM steps ORDER BY step") == [
        {"step": step, "start_ns": (step - 1) * 350_000_000, "duration_ns": None} for step in (1, 2, 3)
    ]
    assert any("tells no date" in note for note in found.done.notes)


def test_timers_between_numbers_get_those_between() -> None:
    text = "".join((end(step, step) if step % 10 == 0 else "") + timers(step + 0.1, ms=step) for step in range(1, 24))
    steps = read(text)
    assert {one.step: one.timers["forward"] for one in steps.iterations} == {
        step: step * 1_000_000 for step in range(1, 24)
    }
    assert durations(steps) == {1: None} | dict.fromkeys(range(2, 24), 1.0)


def test_timers_of_a_step_that_cannot_be_told_are_left_out() -> None:
    """One of ten lines is gone: nobody knows which."""
    lines = [(end(step, step) if step % 10 == 0 else "") + timers(step + 0.1) for step in range(1, 31)]
    steps = read("".join(lines[:14] + lines[15:]))
    assert [one.step for one in steps.iterations if one.timers] == [*range(1, 10), *range(20, 31)]
    assert steps.lost_timers == 9


def test_a_job_that_was_resumed_counts_anew_in_its_throughput() -> None:
    """Step 510 is the tenth of the process, and its timers begin with 501."""
    text = config() + end(0, -1) + "".join(timers(step) for step in range(1, 10))
    text += end(510, 10) + speed(10, 10.002, 16.0) + timers(10.003)
    steps = read(text)
    assert [one.step for one in steps.iterations] == list(range(501, 511))
    assert durations(steps)[510] == 1.0
    unlike = config() + end(510, 5) + speed(10, 10, 16.0)
    assert (durations(read(unlike)), read(unlike).lost_speeds) == ({510: None}, 1)


@pytest.mark.parametrize(
    ("accumulation", "micro", "took"),
    [(1, 1, 2.0), (4, 4, 2.0), (4, 1, 10.0), (2, 4, 10.0)],
)
def test_throughput_counts_only_if_it_is_of_whole_steps(accumulation: int, micro: int, took: float) -> None:
    """16 samples at 8 a second; steps are 10 s apart. Megatron-DeepSpeed's timer is of the last micro-step alone."""
    text = config(accumulation=accumulation)
    text += "".join(end(n, 10 * n) + speed(n, 10 * n, 8.0, micro=micro * n) for n in (3, 4, 5))
    assert durations(read(text)) == {3: 2.0 if took == 2.0 else None, 4: took, 5: took}


def test_a_step_takes_no_longer_than_the_time_between_its_lines() -> None:
    """16 samples at 0.8 a second would be 20 s."""
    text = config() + "".join(end(n, 10 * n) + speed(n, 10 * n, 0.8) for n in (3, 4))
    assert durations(read(text)) == {3: 20.0, 4: 10.0}


def test_without_a_batch_the_dates_tell() -> None:
    text = "".join(end(n, n) + speed(n, n, 8.0) for n in (10, 20, 40))
    assert durations(read(text)) == {10: None, 20: 1.0, 40: 1.0}
    two = config(batch=8) + config(batch=16) + text
    assert len(read_deepspeed(two.splitlines()).batches) == 2


def test_older_throughput_is_of_a_micro_step() -> None:
    text = "".join(
        end(n, 10 * n) + f"[{at(10 * n)}] [INFO] [timer.py:198:stop] 0/{n}, RunningAvgSamplesPerSec=7.0, "
        "CurrSamplesPerSec=8.0, MemAllocated=0.36GB, MaxMemAllocated=15.06GB\n"
        for n in (10, 20)
    )  # fmt: skip
    assert durations(read(config() + text)) == {10: 2.0, 20: 2.0}
    assert durations(read(config(accumulation=4) + text)) == {10: None, 20: 10.0}


def test_throughput_alone_tells_the_steps() -> None:
    text = config() + "".join(speed(n, 10 * n, 8.0) for n in (10, 20))
    assert durations(read(text)) == {10: 2.0, 20: 2.0}


def test_each_rank_that_logs_has_its_steps(tmp_path: Path) -> None:
    text = WORLD + config()
    for step in (1, 2, 3):
        for rank in (0, 3):
            text += end(step, step, rank=rank) + timers(step + 0.1, ms=100 + rank, rank=rank)
    found = taken(write(tmp_path / "job.log", text))
    told = found.rows("SELECT rank, step, duration_ns FROM spans WHERE segment_name = 'forward' ORDER BY rank, step")
    assert told == [
        {"rank": rank, "step": step, "duration_ns": (100 + rank) * 1_000_000} for rank in (0, 3) for step in (1, 2, 3)
    ]
    assert found.rows("SELECT count(*) AS n FROM steps") == [{"n": 6}]
    assert found.done.world_size == 8


def test_a_job_that_went_back(tmp_path: Path) -> None:
    """Steps 1 to 6, and after a start 4 and 5 again."""
    text = config() + "".join(end(n, n) for n in range(1, 7))
    text += config() + end(0, 100) + "".join(end(n, 100 + n) for n in (4, 5))
    found = taken(write(tmp_path / "job.log", text))
    steps = found.rows("SELECT step, start_ns, duration_ns FROM steps ORDER BY step")
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5]
    assert [row["duration_ns"] for row in steps] == [None, SECOND, SECOND, None, SECOND]
    assert steps[4]["start_ns"] == moment_ns(at(104))
    assert any("3 steps were lost or ran again" in note for note in found.done.notes)


def test_two_engines_are_not_mixed() -> None:
    """An actor and a critic, as in reinforcement learning: each prints its own steps."""
    text = config() + config(batch=64)
    for n in range(1, 6):
        text += end(n, 10 * n) + speed(n, 10 * n, 8.0) + timers(10 * n)
        text += end(n, 10 * n + 5, rates="0.1") + speed(n, 10 * n + 5, 1.0) + timers(10 * n + 5, ms=7)
    steps = read(text, batch=(16, 1))
    assert durations(steps) == {1: None, 2: 10.0, 3: 10.0, 4: 10.0, 5: 10.0}
    assert {one.learning_rate for one in steps.iterations} == {3e-4}
    assert not any(one.timers for one in steps.iterations)
    assert (steps.has_engines, steps.lost_timers) == (True, 10)


def test_timers_of_a_pipeline_are_sums_over_steps() -> None:
    head = "[Rank 0] rank=0 time (ms) | "
    text = ""
    for n in (10, 20):
        text += end(n, n) + head + "forward_microstep: 2785.00\n" + head + "forward: 2784.00 | backward: 5153.00\n"
        text += f"steps: {n} loss: 4.5 iter time (s): 0.994 samples/sec: 257.601\n"
    steps = read(text)
    assert [(one.step, one.loss, one.timers) for one in steps.iterations] == [(10, 4.5, {}), (20, 4.5, {})]
    assert durations(steps) == {10: 0.994, 20: 0.994}


def test_zero_was_not_measured_but_a_single_micro_step_was(tmp_path: Path) -> None:
    """The FLOPS profiler leaves the timers of whole steps at zero."""
    zero = "[Rank 0] rank=0 time (ms) | forward: 0.00 | backward: 0.00 | step: 0.00\n"
    micro = "[Rank 0] rank=0 time (ms) | forward_microstep: 100.54 | backward_microstep: 237.41\n"
    found = taken(write(tmp_path / "a.log", micro + zero + micro + micro + zero))
    assert spans(found, 1)["forward"]["duration_ns"] == 100_540_000
    assert (spans(found, 2)["forward"]["duration_ns"], spans(found, 2)["forward"]["status"]) == (None, "unmeasured")


def test_lines_that_were_glued_and_cut() -> None:
    whole = end(10, 10).rstrip("\n") + speed(10, 10.1, 8.0) + end(20, 20) + speed(20, 20.1, 8.0)
    assert durations(read(config() + whole)) == {10: 2.0, 20: 2.0}
    assert durations(read(config() + whole.replace("CurrSamplesPerSec=8.0, ", "CurrSamplesPerSec=8\n"))) == {
        10: None, 20: 1.0,
    }  # fmt: skip
    cut = timers(1).splitlines()[1][:-4]  # "step: 5"
    (one,) = read(cut).iterations
    assert list(one.timers) == ["forward", "backward", "backward-inner", "backward-all-reduce"]


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        ("", None),
        ("[{}] [INFO] [launch.py:350:main] Process 1 exits successfully.\n", "finished"),
        ("[{}] [ERROR] [launch.py:321:sigkill_handler] ['python', '-u'] exits with return code = -9\n", "crashed"),
        ("[{}] [ERROR] [launch.py:321:sigkill_handler] ['python'] exits with return code = -15\n", "interrupted"),
        ("Traceback (most recent call last):\n", "crashed"),
    ],
)  # fmt: skip
def test_how_the_job_ended(tmp_path: Path, tail: str, reason: str | None) -> None:
    tail = tail.format(at(9))
    assert taken(write(tmp_path / "a.log", config() + end(1, 1) + tail)).done.exit_reason == reason
    assert taken(write(tmp_path / "a.log", config() + tail + end(1, 1))).done.exit_reason is None


def test_what_has_no_step_is_refused_and_what_was_cut_is_read(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no step of DeepSpeed"):
        imported(tmp_path, write(tmp_path / "a.log", config() + end(0, 0)))
    path = tmp_path / "b.log.gz"
    path.write_bytes(gzip.compress((config() + "".join(end(n, n * 1.37) for n in range(1, 400))).encode())[:-40])
    found = taken(path)
    assert any("was cut" in note for note in found.done.notes)
    assert found.rows("SELECT count(*) AS n FROM steps")[0]["n"] > 200


def test_logs_of_megatron_stay_logs_of_megatron(tmp_path: Path) -> None:
    iteration = " iteration 1/ 100 | elapsed time per iteration (ms): 16030.6 | lm loss: 1.1E+01 |\n"
    path = write(tmp_path / "a.log", config() + timers(1) + end(1, 1) + iteration)
    assert recognise([path]) is Format.MEGATRON_LOG


LINES = [config(), end(0, 0), end(1, 1), end(2, 2), end(12, 12), speed(1, 1, 8.0), speed(12, 12, 1e-300), timers(2)]
LINES += [timers(3, rank=2), timers(4, head="[Rank 0] "), end(1 << 63, 4), end(3, 5, rank=1 << 40), speed(3, 9, 1e300)]
LINES += ["steps: 2 loss: nan iter time (s): 1e99 samples/sec: 1\n", "[Rank 0] time (ms) | fwd: 9999999999999.99\n"]


@given(st.lists(st.sampled_from(LINES), max_size=12), st.data())
def test_no_log_breaks_the_reader(lines: list[str], data: st.DataObject) -> None:
    """Any order of lines, with one place cut out: steps of a life grow, and what is told is finite and positive."""
    text = "".join(lines)
    first = data.draw(st.integers(0, len(text)))
    text = text[:first] + data.draw(st.text(max_size=5)) + text[first + data.draw(st.integers(0, 200)) :]
    told = read_deepspeed(text.splitlines(keepends=True))
    for events in told.events.values():
        for one in steps_of(events, next(iter(told.batches), None)).iterations:
            assert 0 <= one.step < 1 << 63
            assert one.duration_ns is None or 0 <= one.duration_ns < 1 << 63
            assert all(took is None or took > 0 for took in one.timers.values())


@given(st.lists(st.text(), max_size=20))
def test_no_line_breaks_the_reader(lines: list[str]) -> None:
    read_deepspeed(lines)


def test_a_real_log_whose_throughput_is_of_one_micro_step(tmp_path: Path, traces: Path) -> None:
    """Megatron-DeepSpeed with 64 micro-steps: 2048 samples at 329 a second would be 6 s, and each step took 75 s."""
    path = traces / "superbench" / "megatron_deepspeed.log"
    report, store = imported(tmp_path, path, format=Format.DEEPSPEED_LOG)
    assert (report.world_size, store.attempt().layout, store.attempt().exit_reason) == (16, {"dp": 16}, "crashed")
    steps = rows(store, "SELECT step, duration_ns FROM steps ORDER BY step")
    assert steps[0] == {"step": 1, "duration_ns": None}
    megatron = {2: 75.254, 3: 75.2496, 4: 75.1824, 5: 74.4949}
    assert {row["step"]: row["duration_ns"] / SECOND for row in steps[1:]} == pytest.approx(megatron, rel=0.01)
