"""`whatif`: how much faster each stretch of steps would have been with every operation at its ideal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..collectors.reading.duck import connect, plain_integers
from ..collectors.reading.store import Attempt
from ..heatmap.peers import Placement
from ..heatmap.whatif.finding import find_whatif
from ..heatmap.whatif.reasons import CannotReplayError
from .engines import Engine, Question
from .scope import Scope

PIECE_SPANS = 1_000_000
"""Spans of one stretch, about: what one worker replays at once."""

FAR = 10**9
"""Stretches that an attempt never has."""

SMALL = ("segments", "ranks", "groups", "schedule")

ANSWER = pa.schema(
    [
        ("piece", pa.int64()),
        ("slowdown", pa.float64()),
        ("m_w", pa.float64()),
        ("m_s", pa.float64()),
        ("steps", pa.int64()),
        ("step_s", pa.float64()),
        ("ideal_s", pa.float64()),
        ("reason", pa.string()),
    ]
)
"""One stretch's answer; ``reason`` says why there is none."""

_COLUMNS = (
    "run",
    "attempt",
    "rank",
    "step",
    "microbatch",
    "chunk",
    "segment",
    "parent",
    "start_ns",
    "duration_ns",
    "self_ns",
    '"group"',
    "sequence",
    "peer",
    "status",
)


@dataclass(frozen=True, slots=True)
class _Memory:
    """One attempt's tables, held in memory: answers as a store does."""

    tables: dict[str, pa.Table]

    def query(self, sql: str, parameters: Sequence[object] = (), attempt: Attempt | None = None) -> pa.Table:
        with connect() as connection:
            for name, table in self.tables.items():
                connection.register(name, table)
            connection.register("events_aligned", self.tables["events"])
            return plain_integers(connection.sql(sql, params=list(parameters) or None).to_arrow_table())


@dataclass(frozen=True, slots=True)
class _Replay:
    """The work on one stretch: goes to the workers, so it holds all that a replay needs beside the spans."""

    attempts: dict[int, Attempt]
    small: dict[int, dict[str, pa.Table]]

    def __call__(self, piece: pa.Table) -> pa.Table:
        number, attempt = piece["piece"][0].as_py(), self.attempts[piece["attempt"][0].as_py()]
        small = self.small[attempt.attempt]
        memory = _Memory({**small, "events": piece.rename_columns([name.strip('"') for name in piece.column_names])})
        placement = Placement.from_table(small["ranks"], list(attempt.layout))
        steps = np.unique(piece["step"].to_numpy()).astype(np.int64)
        row: dict[str, Any] = dict.fromkeys(ANSWER.names) | {"piece": number, "steps": 0}
        try:
            found = find_whatif(memory, attempt, placement, steps, max_spans=piece.num_rows)
        except CannotReplayError as error:
            return pa.Table.from_pylist([row | {"reason": str(error)}], ANSWER)
        row |= {name: getattr(found, name) for name in ("slowdown", "m_w", "m_s", "step_s", "ideal_s")}
        return pa.Table.from_pylist([row | {"steps": found.step_count}], ANSWER)


def find_whatif_over(scope: Scope, engine: Engine, stretch: int | None) -> dict[str, Any]:
    """S, M_W and M_S of every stretch of ``stretch`` steps, and S of the whole run: each stretch has its own ideal.

    By default a stretch has about `PIECE_SPANS` spans.
    """
    steps = sum(last - first + 1 for ranges in scope.kept for first, last in ranges)
    length = stretch or max(1, PIECE_SPANS * steps // max(1, scope.about_spans))
    offset = " ".join(f"WHEN events.attempt = {one.attempt} THEN {at * FAR}" for at, one in enumerate(scope.attempts))
    columns = ", ".join(f"events.{name}" for name in _COLUMNS)
    # A whole number divided by another is one in neither engine's own way: taking the rest away first is exact.
    number = f"CASE {offset} END + CAST((events.step - events.step % {length}) / {length} AS BIGINT)"
    question = Question(f"SELECT {columns}, {number} AS piece FROM events WHERE {scope.where()}")
    pieces = {
        at * FAR + place: f"attempt = {one.attempt} AND step BETWEEN {place * length} AND {(place + 1) * length - 1}"
        for at, (one, ranges) in enumerate(zip(scope.attempts, scope.kept, strict=True))
        for place in sorted({step // length for first, last in ranges for step in range(first, last + 1)})
    }
    by_number = {one.attempt: one for one in scope.attempts}
    work = _Replay(by_number, {number: _small(scope, one) for number, one in by_number.items()})
    answers = engine.each_piece(question, pieces, work, ANSWER).sort_by("piece").to_pylist()
    rows = []
    for answer in answers:
        at, place = divmod(answer.pop("piece"), FAR)
        rows.append({"attempt": scope.attempts[at].attempt, "first_step": place * length, **answer})
    replayed = [row for row in rows if row["slowdown"] is not None]
    took, ideal = (sum(row[name] * row["steps"] for row in replayed) for name in ("step_s", "ideal_s"))
    return {
        "steps_per_stretch": length,
        "slowdown": took / ideal if replayed else None,
        "lost_s": took - ideal if replayed else None,
        "replayed_steps": sum(row["steps"] for row in replayed),
        "stretches": rows,
    }


def _small(scope: Scope, attempt: Attempt) -> dict[str, pa.Table]:
    return {name: scope.store.query(f"SELECT * FROM {name}", attempt=attempt) for name in SMALL}
