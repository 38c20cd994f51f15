"""Importing logs of Megatron and DeepSpeed, and Megatron's curves: what is not told stays empty."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.importers.log_lines import moment_ns, number, read_log
from megascope.collectors.importers.recognise import recognise
from megascope.profiler.errors import FormatError, UsageError
from support.imports import imported, rows, taken

ARGUMENTS = """\
using world size: 16, data-parallel-size: 2, tensor-model-parallel size: 2, pipeline-model-parallel size: 4
------------------------ arguments ------------------------
  global_batch_size ............................... 8
  pipeline_model_parallel_size .................... 4
  seq_length ...................................... 1024
  tensor_model_parallel_size ...................... 2
  world_size ...................................... 16
-------------------- end of arguments ---------------------
  world_size ................... 1
[before the start of training step] datetime: 2024-05-27 21:42:48
"""


def line(step: int, ms: float = 100.0, *, more: str = "lm loss: 1.5E+00 | grad norm: 0.5 |", skipped: int = 0) -> str:
    return (
        f" iteration {step:8d}/     100 | consumed samples: {8 * step:8d} | elapsed time per iteration (ms): {ms} | "
        f"learning rate: 1.0E-05 | global batch size:     8 | {more} number of skipped iterations: {skipped:3d} | "
        "number of nan iterations:   0 |\n"
    )


TIMERS = "time (ms) | forward-compute: 40.00 | backward-compute: 50.00 | forward-recv: 0.00 | optimizer: 10.00 | "
TIMERS += "optimizer-unscale: 3.00 | batch-generator: 2.00\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_iterations_become_steps_of_the_rank_that_logs(tmp_path: Path) -> None:
    text = ARGUMENTS + "".join(line(step) + TIMERS for step in (1, 2, 3))
    report, store = imported(tmp_path, write(tmp_path / "job.out", text))
    assert (report.run, report.format, report.ranks, report.world_size) == ("job", "megatron-log", 1, 16)
    attempt = store.attempt()
    assert attempt.layout == {"pp": 4, "dp": 2, "tp": 2}
    assert attempt.exit_reason is None
    steps = rows(store, "SELECT * FROM steps ORDER BY step")
    assert [row["step"] for row in steps] == [1, 2, 3]
    begin = moment_ns("2024-05-27 21:42:48")
    assert [row["start_ns"] - begin for row in steps] == [0, 100_000_000, 200_000_000]
    told = {
        name: steps[0][name] for name in ("rank", "duration_ns", "loss", "grad_norm", "tokens", "learning_rate", "mfu")
    }
    assert told == {
        "rank": 15, "duration_ns": 100_000_000, "loss": 1.5, "grad_norm": 0.5, "tokens": 8192, "learning_rate": 1e-5,
        "mfu": None,
    }  # fmt: skip


def test_timers_become_spans_and_what_is_zero_was_not_measured(tmp_path: Path) -> None:
    found = taken(write(tmp_path / "job.out", ARGUMENTS + line(1) + TIMERS))
    spans = {row["segment_name"]: row for row in found.rows("SELECT * FROM spans")}
    assert (spans["forward"]["kind"], spans["forward"]["duration_ns"], spans["forward"]["self_ns"]) == (
        "compute",
        40_000_000,
        38_000_000,
    )
    assert (spans["forward-recv"]["kind"], spans["forward-recv"]["status"]) == ("p2p", "unmeasured")
    assert spans["forward-recv"]["duration_ns"] is None
    assert spans["optimizer"]["self_ns"] == 7_000_000
    assert spans["optimizer-unscale"]["parent"] == spans["optimizer"]["segment"]
    assert spans["batch-generator"]["start_ns"] == spans["forward"]["start_ns"]
    assert spans["backward"]["start_ns"] == spans["forward"]["start_ns"] + 40_000_000


def test_skipped_and_nan_iterations_have_no_loss(tmp_path: Path) -> None:
    text = line(1, more="", skipped=1) + line(2, more="lm loss: nan | grad norm: inf |") + line(3)
    found = taken(write(tmp_path / "job.out", text))
    assert found.rows("SELECT loss, grad_norm FROM steps ORDER BY step")[:2] == [{"loss": None, "grad_norm": None}] * 2
    assert found.done.configuration["skipped_steps"] == [1]
    assert any("1 iterations were skipped" in note for note in found.done.notes)


def test_of_what_ran_again_the_last_pass_counts(tmp_path: Path) -> None:
    """Steps 1 to 6, back to 4 an hour later, and on to 5: step 6 was lost, 4 and 5 ran again."""
    mark = "[before the start of training step] datetime: 2024-05-27 22:42:48\n"
    text = ARGUMENTS + "".join(line(step) + TIMERS for step in range(1, 7))
    text += mark + line(4, 200.0) + TIMERS + line(5, 200.0) + TIMERS
    report, store = imported(tmp_path, write(tmp_path / "job.out", text))
    steps = rows(store, "SELECT step, start_ns, duration_ns FROM steps ORDER BY start_ns")
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5]
    assert [row["duration_ns"] for row in steps[2:]] == [10**8, 2 * 10**8, 2 * 10**8]
    assert steps[3]["start_ns"] == moment_ns("2024-05-27 22:42:48")
    found = rows(store, "SELECT step, count(*) AS n FROM spans WHERE segment_name = 'forward' GROUP BY 1 ORDER BY 1")
    assert found == [{"step": step, "n": 1} for step in (1, 2, 3, 4, 5)]
    assert any("go back once: 3 of them" in note for note in report.notes)


def test_a_log_of_steps_alone_has_a_span_a_step(tmp_path: Path) -> None:
    found = taken(write(tmp_path / "job.out", line(1) + line(2)))
    spans = found.rows("SELECT step, segment_name, start_ns, duration_ns FROM spans ORDER BY step")
    assert spans == [
        {"step": step, "segment_name": "iteration", "start_ns": (step - 1) * 10**8, "duration_ns": 10**8}
        for step in (1, 2)
    ]


def test_several_iterations_a_line(tmp_path: Path) -> None:
    found = taken(write(tmp_path / "job.out", line(10) + line(20)))
    steps = found.rows("SELECT step, start_ns FROM steps ORDER BY step")
    assert steps == [{"step": 10, "start_ns": 0}, {"step": 20, "start_ns": 1_000_000_000}]


def test_dates_of_newer_logs_place_the_steps(tmp_path: Path) -> None:
    text = " [2025-01-02 03:04:05]" + line(1) + " [2025-01-02 04:04:05.5]" + line(2)
    found = taken(write(tmp_path / "job.out", text))
    starts = [row["start_ns"] for row in found.rows("SELECT start_ns FROM steps ORDER BY step")]
    assert starts == [moment_ns("2025-01-02 03:04:05") - 10**8, moment_ns("2025-01-02 04:04:05.500") - 10**8]


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        ("", None),
        ("saving checkpoint\nMain process received SIGTERM, exiting\nTraceback (most recent call last):\n", "crashed"),
        ("Main process received SIGTERM, exiting\n", "interrupted"),
        ("Traceback (most recent call last):\n", "crashed"),
    ],
)
def test_how_the_job_ended(tmp_path: Path, tail: str, reason: str | None) -> None:
    assert taken(write(tmp_path / "job.out", tail + line(1))).done.exit_reason is None
    assert taken(write(tmp_path / "job.out", line(1) + tail)).done.exit_reason == reason
    assert taken(write(tmp_path / "job.out", line(100) + tail)).done.exit_reason == "finished"


def test_a_deepspeed_log(tmp_path: Path) -> None:
    text = "steps: 2 loss: 12.8004 iter time (s): 145.206 samples/sec: 7.052\n"
    found = taken(write(tmp_path / "ds.log", "[Rank 0]\n" + text))
    assert found.rows("SELECT rank, step, duration_ns, loss FROM steps") == [
        {"rank": 0, "step": 2, "duration_ns": 145_206_000_000, "loss": 12.8004}
    ]


def test_a_log_without_iterations_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not known"):
        recognise([write(tmp_path / "a.out", "hello\n")])
    with pytest.raises(FormatError, match="no line of an iteration"):
        imported(tmp_path, write(tmp_path / "b.out", ARGUMENTS))
    assert not (tmp_path / "imported").exists()


def test_a_packed_log_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "job.out.gz"
    text = "".join(line(step, ms=100 + step * 0.37) for step in range(1, 400))
    path.write_bytes(gzip.compress(text.encode())[:-40])
    found = taken(path)
    assert any("was cut" in note for note in found.done.notes)
    assert found.rows("SELECT count(*) AS n FROM steps")[0]["n"] > 300


@given(st.lists(st.text(), max_size=20))
def test_no_line_breaks_the_reader(lines: list[str]) -> None:
    read_log(lines)


@given(st.one_of(st.none(), st.text(), st.floats().map(str)))
def test_a_number_is_finite_or_none(text: str | None) -> None:
    value = number(text)
    assert value is None or value - value == 0


def test_a_real_log_that_ended_in_sigterm(tmp_path: Path, traces: Path) -> None:
    """TP4 x PP16 on 64 ranks; all four iterations were skipped for the loss scale."""
    report, store = imported(tmp_path, traces / "logs" / "meg_gpt2_perf_n16-1999618.out.gz")
    assert (report.world_size, report.steps) == (64, 4)
    attempt = store.attempt()
    assert (attempt.layout, attempt.exit_reason) == ({"pp": 16, "dp": 1, "tp": 4}, "interrupted")
    steps = rows(store, "SELECT rank, duration_ns, loss, tokens FROM steps ORDER BY step")
    assert steps[0] == {"rank": 63, "duration_ns": 150_891_700_000, "loss": None, "tokens": 1024 * 1024}
    assert attempt.configuration["skipped_steps"] == [1, 2, 3, 4]
    (forward,) = rows(store, "SELECT sum(duration_ns) AS ns FROM spans WHERE segment_name = 'forward'")
    assert forward["ns"] == 115_831_720_000


def test_a_real_log_whose_timers_measured_nothing(traces: Path) -> None:
    found = taken(traces / "logs" / "meg_ds_3d_gpt2_perf_n16.out.gz")
    assert found.done.layout == {"pp": 16, "dp": 1, "tp": 4}
    assert [row["loss"] for row in found.rows("SELECT loss FROM steps ORDER BY step")] == [12.79022, 12.80042]
    states = found.rows(
        "SELECT status, count(duration_ns) AS known, count(*) AS n FROM events WHERE step > 0 GROUP BY 1"
    )
    whole = {"status": "ok", "known": 2, "n": 2}  # the iterations as such
    assert sorted(states, key=str) == [whole, {"status": "unmeasured", "known": 0, "n": 8}]


def test_curves_whose_text_nan_means_the_end(traces: Path) -> None:
    """86 to 88 s at steps 9870, 11285, 14145 and 19855 look like restarts; from 22690 on there is nothing."""
    found = taken(traces / "megatron" / "mixtral_8x7b_tp2pp4ep4_h100.json")
    steps = found.rows("SELECT step, start_ns, duration_ns, loss FROM steps ORDER BY step")
    assert (steps[0]["step"], steps[-1]["step"], found.done.exit_reason) == (1, 22_685, None)
    assert all(row["loss"] is not None for row in steps)
    long = [row["step"] for row in steps if row["duration_ns"] > 80e9]
    assert long == [1, 9870, 11285, 14145, 19855]
    ends = [row["start_ns"] + row["duration_ns"] for row in steps]
    assert all(end <= row["start_ns"] for end, row in zip(ends, steps[1:], strict=False))
    assert found.done.configuration["parallel_sizes"] == {"pp": 4, "ep": 4, "tp": 2}


def test_curves_without_times_are_none(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", json.dumps({"iteration-time": {"values": {"1": "nan"}}}))
    with pytest.raises(FormatError, match="missing"):
        imported(tmp_path, path)
    with pytest.raises(FormatError, match="no curve"):
        imported(tmp_path, write(path, json.dumps({"lm loss": {"values": {"1": 1.0}}})), format="megatron-json")
    with pytest.raises(FormatError, match="cannot be read"):
        imported(tmp_path, write(path, '{"iteration-time": '))
