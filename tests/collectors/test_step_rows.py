"""Rows of steps: handed out once a later step began, completed by late metrics, never lost over a restart."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.spool.step_rows import StepRows

BASE_NS = 1000


def _newest(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["step"]: row for row in rows}


def test_a_row_waits_for_the_next_step() -> None:
    steps = StepRows(BASE_NS)
    steps.add_metrics({"step": 0, "loss": 2.0})
    steps.add_step({"step": 0, "start_ns": 5, "duration_ns": 7})
    assert steps.take(0, ended=False) == []
    steps.add_metrics({"step": 0, "eval_loss": 3.0})
    assert steps.take(1, ended=False) == [
        {"step": 0, "loss": 2.0, "start_ns": BASE_NS + 5, "duration_ns": 7, "eval_loss": 3.0}
    ]
    assert steps.take(1, ended=False) == []


def test_the_time_worked_is_kept_where_it_is_known() -> None:
    steps = StepRows(BASE_NS)
    steps.add_step({"step": 0, "start_ns": 5, "duration_ns": 7, "worked_ns": 3})
    steps.add_step({"step": 1, "start_ns": 12, "duration_ns": 7, "worked_ns": "long"})
    known, unknown = steps.take(1, ended=True)
    assert known["worked_ns"] == 3
    assert "worked_ns" not in unknown, "not known is not none"


def test_a_rank_s_own_tokens_are_kept_where_they_are_told() -> None:
    steps = StepRows(BASE_NS)
    for step, tokens in enumerate((4096, None, 0.5, 512.0)):
        steps.add_step({"step": step, "start_ns": 5 + step, "duration_ns": 1})
        steps.add_metrics({"step": step, "loss": 1.0} | ({} if tokens is None else {"rank_tokens": tokens}))
    found = _newest(steps.take(3, ended=True))
    assert [row.get("rank_tokens") for row in found.values()] == [4096, None, None, 512]
    assert steps.rejected == 1, "half a token is none"


def test_the_last_step_comes_with_the_end() -> None:
    steps = StepRows(BASE_NS)
    steps.add_step({"step": 4, "start_ns": 5, "duration_ns": 7})
    assert [row["step"] for row in steps.take(4, ended=True)] == [4]


def test_an_unfinished_step_with_metrics_has_no_duration() -> None:
    steps = StepRows(BASE_NS)
    steps.add_metrics({"step": 9, "loss": 1.5})
    (row,) = steps.take(9, 50, ended=True)
    assert row == {"step": 9, "loss": 1.5, "start_ns": BASE_NS + 50}


def test_late_metrics_bring_the_row_again_complete() -> None:
    steps = StepRows(BASE_NS)
    for step in range(3):
        steps.add_step({"step": step, "start_ns": step, "duration_ns": 1})
    assert [row["step"] for row in steps.take(3, ended=False)] == [0, 1, 2]
    steps.add_metrics({"step": 1, "loss": 0.5})
    (row,) = steps.take(3, ended=False)
    assert row == {"step": 1, "start_ns": BASE_NS + 1, "duration_ns": 1, "loss": 0.5}


def test_unknown_keys_are_no_metrics() -> None:
    steps = StepRows(BASE_NS)
    steps.add_metrics({"kind": "metrics", "step": 0, "loss": 1.0, "nonsense": 3})
    steps.add_step({"kind": "step", "step": 0, "start_ns": 0, "duration_ns": 1})
    assert set(steps.take(1, ended=True)[0]) == {"step", "loss", "start_ns", "duration_ns"}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12),
    st.sets(st.integers(0, 60)),
)
def test_every_step_ends_complete_whatever_the_lateness_and_the_restarts(
    plan: list[tuple[int, bool]], restarts: set[int]
) -> None:
    """Metrics of step n come up to 3 steps late; the agent is replaced at any line: the newest rows have it all."""
    lines: list[tuple[float, str, dict[str, Any]]] = []
    for step, (late, has_loss) in enumerate(plan):
        lines.append((step + 1.0, "step", {"step": step, "start_ns": step * 10, "duration_ns": 10}))
        if has_loss:
            lines.append((step + late + 0.5, "metrics", {"step": step, "loss": float(step)}))
    steps, rows = StepRows(BASE_NS), []
    for index, (moment, kind, line) in enumerate(sorted(lines, key=lambda entry: entry[0])):
        (steps.add_step if kind == "step" else steps.add_metrics)(line)
        rows += steps.take(int(moment), ended=False)
        if index in restarts:
            steps = StepRows(BASE_NS, json.loads(json.dumps(steps.state())))
    rows += steps.take(None, ended=True)
    expected = {
        step: {"step": step, "start_ns": BASE_NS + step * 10, "duration_ns": 10}
        | ({"loss": float(step)} if loss else {})
        for step, (_, loss) in enumerate(plan)
    }
    assert _newest(rows) == expected


def test_values_that_are_no_numbers_are_rejected_and_counted() -> None:
    steps = StepRows(BASE_NS)
    steps.add_metrics({"step": 0, "loss": "tensor(2.5)", "grad_norm": "1.5", "tokens": 2**63, "mfu": True})
    steps.add_metrics({"step": 0, "tokens": 12.0, "learning_rate": None})
    steps.add_step({"step": 0, "start_ns": 0, "duration_ns": 1})
    row = {"step": 0, "start_ns": BASE_NS, "duration_ns": 1, "grad_norm": 1.5, "tokens": 12, "mfu": 1.0}
    assert StepRows(BASE_NS, json.loads(json.dumps(steps.state()))).rejected == steps.rejected == 3
    assert steps.take(1, ended=False) == [row]
