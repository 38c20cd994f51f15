"""The Overview's numbers: loss, throughput, MFU, gradient norm and step time of an attempt, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..collectors.reading.store import Attempt, Store

MAX_POINTS = 4000

MANY_RANKS = 2048
SAMPLED_RANKS = 256
"""Of a job of more than `MANY_RANKS`, steps are read of so many first and as many last ranks: one end of the mesh has
the loss, whatever its order, and a step in which all meet is as long for all."""

_PER_STEP = """
    SELECT step, avg(loss) AS loss, avg(eval_loss) AS eval_loss, avg(grad_norm) AS grad_norm, max(mfu) AS mfu,
        median(duration_ns) AS step_ns, max(duration_ns) AS longest_ns,
        max(tokens) / (nullif(max(duration_ns), 0) / 1e9) AS tokens_per_second
    FROM steps WHERE {} GROUP BY step ORDER BY step
"""


@dataclass(frozen=True, slots=True)
class Headline:
    """The newest value of each number; None where the store has none. Durations in ns, MFU 0 to 1."""

    last_step: int | None
    loss: float | None
    loss_step: int | None
    tokens_per_second: float | None
    mfu: float | None
    grad_norm: float | None
    step_ns: float | None
    ranks: int
    hosts: int


def ranks_read(attempt: Attempt) -> str:
    """SQL condition on ``rank``: all ranks, or those that a large job is known by."""
    size = attempt.world_size or 0
    if size <= MANY_RANKS:
        return "true"
    return f"(rank < {SAMPLED_RANKS} OR rank >= {size - SAMPLED_RANKS})"


def headline(store: Store, attempt: Attempt) -> Headline:
    """Newest values; throughput, MFU and step time are medians over the last 20 complete steps."""
    condition = ranks_read(attempt)
    recent = f"(SELECT * FROM ({_PER_STEP.format(condition)}) ORDER BY step DESC LIMIT 20)"
    row = store.query(
        f"""SELECT max(step) AS last_step, median(tokens_per_second) AS tokens_per_second, median(mfu) AS mfu,
               median(step_ns) AS step_ns FROM {recent}""",
        attempt=attempt,
    ).to_pylist()[0]
    newest = store.query(
        f"""SELECT arg_max(loss, step) AS loss, max(step) FILTER (loss IS NOT NULL) AS loss_step,
               arg_max(grad_norm, step) AS grad_norm FROM steps WHERE {condition}""",
        attempt=attempt,
    ).to_pylist()[0]
    places = store.query("SELECT count(*) AS ranks, count(DISTINCT host) AS hosts FROM ranks", attempt=attempt)
    return Headline(**row, **newest, **places.to_pylist()[0])


def curve_panels(store: Store, attempt: Attempt) -> dict[str, Any]:
    """The curves as JSON: panels with a unit and series of (steps, values), and the steps with faults.

    Beyond `MAX_POINTS` steps a panel gets evenly chosen ones; a panel without any value is left out.
    """
    table = store.query(_PER_STEP.format(ranks_read(attempt)), attempt=attempt).to_pydict()
    steps: list[int] = table["step"]
    chosen = range(0, len(steps), max(1, -(-len(steps) // MAX_POINTS)))
    x = [steps[at] for at in chosen]

    def series(name: str, column: str, factor: float = 1.0) -> dict[str, Any]:
        values = table[column]
        picked = [None if values[at] is None else values[at] * factor for at in chosen]
        return {"name": name, "y": picked}

    panels = [
        ("Loss", "", [series("training", "loss"), series("held-out", "eval_loss")]),
        ("Throughput", "tokens/s", [series("tokens/s", "tokens_per_second")]),
        ("Step time", "ms", [series("median rank", "step_ns", 1e-6), series("slowest rank", "longest_ns", 1e-6)]),
        ("Gradient norm", "", [series("before clipping", "grad_norm")]),
        ("MFU", "%", [series("MFU", "mfu", 100)]),
    ]
    described = [
        {"title": title, "unit": unit, "series": [one for one in many if any(v is not None for v in one["y"])]}
        for title, unit, many in panels
    ]
    faults = store.query("SELECT first_step, last_step FROM faults WHERE first_step IS NOT NULL", attempt=attempt)
    return {
        "x": x,
        "panels": [panel for panel in described if panel["series"]],
        "missing": [panel["title"] for panel in described if not panel["series"]],
        "faults": [[row["first_step"], row["last_step"]] for row in faults.to_pylist()],
    }
