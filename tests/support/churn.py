"""A store in which writers, a compactor and a pruner are at work, and die: and a look that finds a lost or doubled row.

Every span of a writer has a number, and every commit says how many there are: readers can tell that all are there that
were not pruned, each once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import time
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from megascope.collectors.manifests.manifest import is_compactor_folder
from megascope.collectors.reading.store import Attempt, Store
from megascope.collectors.upkeep.compaction_plan import Limits
from megascope.collectors.upkeep.retention_plan import Retention
from megascope.collectors.upkeep.sweeping import sweep
from megascope.collectors.upkeep.upkeep import upkeep
from megascope.collectors.writing import manifest_writer, merging
from megascope.collectors.writing.writer import TableWriter, WriterHeldError
from support.dying import Point, die_at

RUN = "run"
GRACE_S, QUIET_S, SEAL_AFTER_S = 4.0, 0.3, 0.4
LIMITS = Limits(min_files=3, target_bytes=40_000)
STORE_BYTES = 100_000
LOOK_S = 40.0
LENGTHS = (10, 100, 1000)


@dataclass(frozen=True, slots=True)
class Actor:
    """What one process does until it is killed, dies at its point, or has done ``rounds``.

    Roles: "writer" (of one rank), "compactor", "pruner" (which compacts as well).
    """

    role: str
    root: Path
    rank: int = 0
    rounds: int = 10**9
    pause_s: float = 0.02
    grace_s: float = GRACE_S
    quiet_s: float = QUIET_S
    seal_after_s: float = SEAL_AFTER_S
    point: Point | None = None
    min_files: int = 3

    def start(self) -> BaseProcess:
        """Start the process."""
        process = CONTEXT.Process(target=_act, args=(self,), daemon=True)
        process.start()
        return process


CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["support.churn"])


def _act(actor: Actor) -> None:
    merging.MERGE_ABOVE_FILES, merging.SMALL_FILE_BYTES, merging.LARGE_FILE_BYTES = 3, 15_000, 200_000
    manifest_writer.LOOK_EVERY_S = 0.1
    if actor.point is not None:
        die_at(actor.point)
    if actor.role == "writer":
        _write(actor)
    else:
        _tidy(actor)


def _write(actor: Actor) -> None:
    while True:
        with contextlib.suppress(WriterHeldError):
            writer = open_writer(actor.root, actor.rank, actor.seal_after_s)
            break
        time.sleep(0.02)
    with writer:
        for _ in range(actor.rounds):
            write_spans(writer, actor.rank)
            time.sleep(actor.pause_s)


def open_writer(root: Path, rank: int, seal_after_s: float = SEAL_AFTER_S) -> TableWriter:
    """The writer of a rank, from where the last one was."""
    return TableWriter(root, f"writer-{rank}", grace_s=GRACE_S, seal_after_s=seal_after_s)


def write_spans(writer: TableWriter, rank: int, count: int = 200) -> None:
    """One commit: the next spans of a rank, the row of a step of their own, and step 0 once more."""
    done, commits = writer.state.get("spans", 0), writer.state.get("commits", 0) + 1
    numbers = range(done + 1, done + count + 1)
    chance = random.Random(done)
    columns: dict[str, list[Any]] = {
        "rank": [rank] * count,
        "step": [commits] * count,
        "segment": [7] * count,
        "start_ns": [1000 * number for number in numbers],
        "duration_ns": [chance.getrandbits(40) for _ in numbers],
        "sequence": list(numbers),
        "clock": ["host"] * count,
        "status": ["ok"] * count,
    }
    writer.write("events", RUN, 0, columns)
    steps = {"rank": [rank] * 2, "step": [0, commits], "start_ns": [0, commits], "loss": [float(commits)] * 2}
    writer.write("steps", RUN, 0, steps)
    windows = {"window_steps": list(LENGTHS), "first_step": [commits // each * each for each in LENGTHS]}
    sums = {"duration_count": [count] * 3, "duration_sum_ns": [sum(columns["duration_ns"])] * 3}
    bins = {"duration_bins": [[7]] * 3, "duration_bin_counts": [[count]] * 3}
    writer.write("rank_windows", RUN, 0, {"rank": [rank] * 3, "segment": [7] * 3, **windows, **sums, **bins})
    writer.write("ranks", RUN, 0, {"rank": [rank], "host": [f"host{rank}"], "pid": [commits]}, replace=True)
    writer.commit({"spans": done + count, "commits": commits})


def fill(root: Path, writers: int = 3, commits: int = 8) -> None:
    """A store of writers that are gone, with many small files."""
    for rank in range(writers):
        with open_writer(root, rank) as writer:
            for _ in range(commits):
                write_spans(writer, rank)


class LeftOverError(AssertionError):
    """Files that belong to nobody."""


def survive(root: Path) -> None:
    """Check a store in which a process died, let a writer come back, tidy up, and check that nothing is left over.

    Raises AssertionError where a row is lost or doubled, LeftOverError where a file belongs to nobody.
    """
    with Store(root) as store:
        found = look(store)
        assert found.is_right, found
        with open_writer(root, 1) as writer:  # the next incarnation of a writer whose files were taken
            write_spans(writer, 1)
        upkeep(root, Retention(), LIMITS, grace_s=0.0, quiet_s=0.0)
        for _ in range(2):
            sweep(root, 0.0)
        found = look(store)
        assert found.is_right, found
        listed = {path for table in store.tables() for path in store.files(table)}
    left_over = set(root.rglob("*.parquet")) - listed | set(root.rglob("*.tmp"))
    if left_over:
        raise LeftOverError(", ".join(str(path.relative_to(root)) for path in sorted(left_over)))


def _tidy(actor: Actor) -> None:
    while not list(actor.root.glob("_manifests/*/*.json")):
        time.sleep(0.05)
    retention = Retention(size_bytes=STORE_BYTES if actor.role == "pruner" else None)
    limits = replace(LIMITS, min_files=actor.min_files)
    for _ in range(actor.rounds):
        upkeep(actor.root, retention, limits, grace_s=actor.grace_s, quiet_s=actor.quiet_s)
        time.sleep(actor.pause_s)


@dataclass(slots=True)
class Look:
    """What a reader saw at one moment: spans and steps twice, spans and steps missing, and what is wrong besides."""

    spans: int = 0
    pruned: int = 0
    doubled: int = 0
    lost: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether each row is there once."""
        return not (self.doubled or self.lost or self.wrong)


def look(store: Store) -> Look:
    """Refresh and count everything. Raises MegascopeError where the store cannot be read.

    What was committed and pruned while the manifests were read makes too many pruned, never too few: then it looks
    again, and raises AssertionError where that stays so.
    """
    deadline = time.monotonic() + LOOK_S
    while (found := _look(store, deadline)).lost < 0:
        assert time.monotonic() < deadline, f"more rows than were written, for {LOOK_S} s: {found}"
    return found


def _look(store: Store, deadline: float) -> Look:
    while True:
        assert time.monotonic() < deadline, f"no moment without a commit in {LOOK_S} s"
        store.refresh()
        version = store.version()
        attempt = next((each for each in store.attempts() if each.run == RUN), None)
        if attempt is None:
            return Look(wrong=["no attempt"])
        spans = store.query(
            'SELECT count(*) AS n, count(DISTINCT (rank, "sequence")) AS distinct_n FROM events', attempt=attempt
        ).to_pylist()[0]
        steps = store.query("SELECT rank, step, loss FROM steps", attempt=attempt).to_pylist()
        ranks = store.query("SELECT rank, pid FROM ranks", attempt=attempt).to_pylist()
        pruned = sum(each.rows for each in store.pruned(attempt) if each.table == "events")
        counts, gone = _windows(store, attempt)
        states = _states(store)
        if version == store.version():
            break
    result = Look(spans["n"], pruned, doubled=spans["n"] - spans["distinct_n"])
    result.lost = sum(state["spans"] for state in states) - spans["distinct_n"] - pruned
    result.doubled += len(steps) - len({(row["rank"], row["step"]) for row in steps})
    result.lost += max(0, sum(state["commits"] + 1 for state in states) - len(steps))
    for length in set(LENGTHS) - gone if None not in gone else ():
        if counts.get(length) != sum(state["spans"] for state in states):
            result.wrong.append(f"windows of {length} steps have {counts.get(length)} spans: {states}")
    newest = {row["rank"]: row["loss"] for row in steps if row["step"] == 0}
    if sorted(newest.values()) != sorted(float(state["commits"]) for state in states):
        result.wrong.append(f"an old row is shown: {newest}, {states}")
    if sorted(row["pid"] for row in ranks) != sorted(state["commits"] for state in states):
        result.wrong.append(f"a rank's row is old or missing: {ranks}, {states}")
    result.wrong += [f"{file.path}: {file.reason}" for file in store.damaged]
    return result


def _windows(store: Store, attempt: Attempt) -> tuple[dict[int, int], set[int | None]]:
    """The spans in the windows of each length, by their sums and by their histograms, and the lengths pruned."""
    sql = """SELECT window_steps, sum(duration_count) AS n, sum(list_sum(duration_bin_counts)) AS binned
             FROM rank_windows GROUP BY ALL"""
    rows = store.query(sql, attempt=attempt).to_pylist()
    counts = {row["window_steps"]: row["n"] if row["n"] == row["binned"] else -1 for row in rows}
    return counts, {each.level for each in store.pruned(attempt) if each.table == "rank_windows"}


def _states(store: Store) -> list[dict[str, Any]]:
    """What the writers say of themselves in the manifests that the store shows."""
    manifests = store._listing.manifests()
    states = (dict(each.state) for folder, each in manifests.items() if not is_compactor_folder(folder))
    return [state for state in states if "spans" in state]
