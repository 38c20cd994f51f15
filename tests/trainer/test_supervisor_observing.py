"""What a supervisor sees of a store: every look reads what is new, and a row that is lost hides nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.collectors.duck import connect
from megascope.collectors.hardware.metrics import ECC_ERRORS
from megascope.collectors.writer import TableWriter
from megascope.trainer.supervisor.observing import Observer
from megascope.trainer.supervisor.signs import Beat
from megascope.trainer.supervisor.steps_seen import MOST_BEHIND, StepsSeen
from megascope.trainer.supervisor.tail import Tail

WORLD = 2
SECOND = 10**9
BEGAN = 10**18


def rows_of(places: Sequence[tuple[int, int]], loss: float | None = 3.0) -> dict[str, list[Any]]:
    """Rows of ``steps`` for pairs of rank and step."""
    return {
        "rank": [rank for rank, _ in places],
        "step": [step for _, step in places],
        "start_ns": [BEGAN + step * SECOND for _, step in places],
        "duration_ns": [SECOND] * len(places),
        "loss": [loss] * len(places),
    }


class Fleet:
    """A store, and an observer of its only attempt."""

    def __init__(self, root: Path) -> None:
        self.writer, self.observer = TableWriter(root, "agent"), Observer(root, "run")
        self.observer.begin(0)
        self.write("runs", {"world_size": [WORLD], "start_ns": [BEGAN]}, replace=True)

    def write(self, table: str, columns: Mapping[str, Sequence[Any]], **more: Any) -> None:
        self.writer.write(table, "run", 0, columns, **more)
        self.writer.commit()

    def steps(self, *places: tuple[int, int]) -> None:
        self.write("steps", rows_of(places))

    def look(self) -> list[int]:
        assert self.observer.look(), self.observer.problem
        return [step.step for step in self.observer.seen.steps]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.writer.close()
    fleet.observer.close()


def test_a_look_reads_only_the_files_that_are_new(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, int]] = []
    query = Tail._query

    def counted(self: Tail, store: Any, entries: Sequence[Any], *more: Any) -> Any:
        read.append((self._table, sum(entry.rows for entry in entries)))
        return query(self, store, entries, *more)

    monkeypatch.setattr(Tail, "_query", counted)
    for step in range(40):  # so many files that the writer merges them now and then
        fleet.steps((0, step), (1, step))
        beats = {"rank": [0, 1], "moment_ns": [BEGAN + step * SECOND] * 2}
        fleet.write("heartbeats", beats)
        assert fleet.look() == list(range(step + 1))
    taken = sum(rows for table, rows in read if table == "steps")
    assert taken < 40 * WORLD * 4  # all rows at every look would be 20 times as many
    read.clear()
    assert len(fleet.look()) == 40
    assert read == []


def test_a_row_that_is_lost_hides_no_later_step(fleet: Fleet) -> None:
    fleet.steps((0, 0), (1, 0), (0, 1))
    assert fleet.look() == [0]
    fleet.steps((0, 2), (1, 2))
    assert fleet.look() == [0, 1, 2]
    seen = fleet.observer.seen
    assert (seen.last_step, seen.end_ns, seen.steps[1].by_rank_ns) == (2, BEGAN + 3 * SECOND, {0: SECOND})


def test_a_rank_that_tells_of_nothing_hides_no_step_for_ever(fleet: Fleet) -> None:
    fleet.steps(*((0, step) for step in range(MOST_BEHIND)))
    assert fleet.look() == []
    assert (fleet.observer.seen.furthest, fleet.observer.seen.moved_ns) == (19, BEGAN + 20 * SECOND)
    fleet.steps((0, MOST_BEHIND))
    assert fleet.look() == [0]


def test_a_rank_s_newest_beat_is_kept(fleet: Fleet) -> None:
    fleet.write("ranks", {"rank": [0, 1], "host": ["a", "b"], "pid": [1, 2]}, axes=())
    reading = [{"segment": "data_read", "kind": "data", "begun_ns": BEGAN}]
    for moment in (5, 9, 7):
        flight = reading if moment == 9 else []
        fleet.write("heartbeats", {"rank": [0], "moment_ns": [BEGAN + moment * SECOND], "in_flight": [flight]})
        fleet.look()
    assert fleet.observer.seen.beats == [Beat(0, "a", BEGAN + 9 * SECOND, "data_read", 9.0)]


def test_of_a_counter_only_its_changes_are_kept(fleet: Fleet) -> None:
    for moment, value in enumerate((4.0, 4.0, 6.0, 6.0)):
        columns: dict[str, list[Any]] = {"host": ["a"], "device": ["gpu"], "moment_ns": [BEGAN + moment]}
        fleet.write("health", {**columns, "metric": [ECC_ERRORS.name], "value": [value]})
        fleet.look()
    assert [one.value for one in fleet.observer.seen.readings] == [4.0, 6.0]


def test_another_attempt_is_looked_at_from_its_beginning(fleet: Fleet) -> None:
    fleet.steps((0, 0), (1, 0))
    assert fleet.look() == [0]
    fleet.observer.begin(1)
    assert not fleet.observer.look()
    assert "has no attempt 1" in str(fleet.observer.problem)
    fleet.observer.begin(0)
    assert fleet.look() == [0]


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = connect()
    yield connection
    connection.close()


places = st.tuples(st.integers(0, 2), st.integers(0, 6))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(places, min_size=1, max_size=6), max_size=6))
def test_every_step_is_over_once_and_in_order(
    connection: duckdb.DuckDBPyConnection, looks: list[list[tuple[int, int]]]
) -> None:
    """However the rows come, twice too: steps ascend, and the last that all have told of is among them."""
    found, over, told = StepsSeen(connection), list[int](), set[tuple[int, int]]()
    for look in looks:
        new = [place for place in look if place[1] > found.after]  # as the query of the new rows does
        columns = {**rows_of(new), "grad_norm": [1.0] * len(new), "tokens": [1] * len(new)}
        schema = pa.schema([
            (name, pa.float64() if name in ("loss", "grad_norm") else pa.int64())
            for name in ("rank", "step", "start_ns", "duration_ns", "loss", "grad_norm", "tokens", "written_ns")
        ])  # fmt: skip
        over += [one.step for one, _ in found.add(pa.table({**columns, "written_ns": [1] * len(new)}, schema), 3)]
        told |= set(new)
    complete = [step for step in range(7) if {(rank, step) for rank in range(3)} <= told]
    assert over == sorted(set(over))
    assert found.last == (over[-1] if over else None)
    assert set(over) >= {step for step in complete if step == max(complete)}
    assert found.furthest == max((step for _, step in told), default=None)
