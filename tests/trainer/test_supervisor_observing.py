"""What a supervisor sees of a store: every look reads what is new, and a row that is lost hides nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.collectors.hardware.metrics import ECC_ERRORS
from megascope.collectors.reading.duck import connect
from megascope.collectors.reading.store import Store
from megascope.collectors.spool import step_rows
from megascope.collectors.writing.writer import TableWriter
from megascope.trainer.supervisor.detectors import missed_heartbeats, not_finite
from megascope.trainer.supervisor.observing import Observer
from megascope.trainer.supervisor.signs import Beat
from megascope.trainer.supervisor.steps_seen import LATE_STEPS, MOST_BEHIND, StepsSeen
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


def test_metrics_that_come_after_their_row_are_taken_over(fleet: Fleet) -> None:
    """As of a device: when the row of a step is handed out, its results have not been read yet."""
    for step in range(4):
        late = [(rank, step - 1) for rank in range(WORLD)] if step else []
        bare, full = rows_of([(rank, step) for rank in range(WORLD)], None), rows_of(late)
        fleet.write("steps", {name: bare[name] + full[name] for name in bare})
        assert fleet.look() == list(range(step + 1))
        seen = fleet.observer.seen
        assert [one.loss for one in seen.steps] == [3.0] * step + [None]
        assert (seen.last_step, seen.furthest) == (step, step - 1 if step else None)
    fleet.write("steps", rows_of([(0, 3), (1, 3)], math.nan))
    fleet.look()
    (sign,) = not_finite(fleet.observer.seen.steps)
    assert (sign.step, sign.ranks, fleet.observer.seen.furthest) == (3, (0,), 3)
    assert step_rows._MOST_RECENT <= LATE_STEPS


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_on_one_rank_alone_is_seen(fleet: Fleet, name: str, value: float) -> None:
    rows = rows_of([(rank, step) for step in range(3) for rank in range(WORLD)])
    rows["grad_norm"] = [1.0] * len(rows["rank"])
    rows[name][3] = value  # of rank 1 in step 1
    fleet.write("steps", rows)
    fleet.look()
    (sign,) = not_finite(fleet.observer.seen.steps)
    assert (sign.step, sign.ranks, str(sign.value)) == (1, (1,), str(value))
    assert [(one.loss, one.grad_norm) for one in fleet.observer.seen.steps[::2]] == [(3.0, 1.0)] * 2


def test_a_rank_s_newest_beat_is_kept(fleet: Fleet) -> None:
    fleet.write("ranks", {"rank": [0, 1], "host": ["a", "b"], "pid": [1, 2]}, axes=())
    reading = [{"segment": "data_read", "kind": "data", "begun_ns": BEGAN}]
    for moment in (5, 9, 7):
        flight = reading if moment == 9 else []
        fleet.write("heartbeats", {"rank": [0], "moment_ns": [BEGAN + moment * SECOND], "in_flight": [flight]})
        fleet.look()
    (beat,) = fleet.observer.seen.beats
    assert replace(beat, behind_ns=0) == Beat(0, "a", BEGAN + 9 * SECOND, "data_read", 9.0)


def test_a_host_whose_clock_differs_has_missed_no_heartbeat(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of b is a minute behind; both beat every second, until b falls silent."""
    fleet.write("ranks", {"rank": [0, 1], "host": ["a", "b"], "pid": [1, 2]}, axes=())
    for second in range(0, 40, 4):
        monkeypatch.setattr(fleet.observer, "_clock_ns", lambda second=second: BEGAN + second * SECOND)
        beats = {"rank": [0], "moment_ns": [BEGAN + second * SECOND]}
        if second < 20:
            beats = {"rank": [0, 1], "moment_ns": [*beats["moment_ns"], BEGAN + (second - 60) * SECOND]}
        fleet.write("heartbeats", beats)
        fleet.look()
        signs = missed_heartbeats(fleet.observer.seen.beats)
        assert [sign.ranks for sign in signs] == ([(1,)] if second > 31 else [])
    assert signs[0].value == 20


def test_an_xid_is_dated_by_the_clock_that_is_the_same_for_all_hosts(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of b is an hour behind; the log is read a second after each beat of its rank."""
    fleet.write("ranks", {"rank": [0, 1], "host": ["a", "b"], "pid": [1, 2]}, axes=())
    monkeypatch.setattr(fleet.observer, "_clock_ns", lambda: BEGAN)
    fleet.write("heartbeats", {"rank": [0, 1], "moment_ns": [BEGAN, BEGAN - 3600 * SECOND]})
    columns: dict[str, list[Any]] = {"host": ["a", "b"], "device": ["gpu"] * 2, "metric": ["xid"] * 2}
    fleet.write("health", {**columns, "value": [79.0] * 2, "moment_ns": [BEGAN + 5, BEGAN - 3600 * SECOND + 7]})
    fleet.look()
    fleet.look()
    assert [one.moment_ns - BEGAN for one in fleet.observer.seen.readings] == [7, 5]


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


def test_what_is_not_there_yet_is_not_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observer, told = Observer(tmp_path / "store", "run"), list[tuple[bool, str]]()

    def look() -> None:
        assert not observer.look()
        told.append((observer.is_blind, str(observer.problem)))

    look()
    (tmp_path / "store").mkdir()
    look()
    with TableWriter(tmp_path / "store", "agent") as writer:
        writer.write("runs", "other", 0, {"world_size": [WORLD], "start_ns": [BEGAN]}, replace=True)
        writer.commit()
    look()
    with monkeypatch.context() as patch:
        patch.setattr(Store, "refresh", lambda _: (_ for _ in ()).throw(OSError(116, "Stale file handle")))
        look()
    observer.close()
    assert [blind for blind, _ in told] == [False, False, False, True], told


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
