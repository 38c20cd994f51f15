"""Kills of agents, writers, compactors and pruners by the hundred: no row is lost or doubled, and no reader fails.

Four campaigns. `points`: a process that prunes and compacts dies in each of its durable writes, behind each, and
before every sixth deletion. `large_points`: a writer dies before and behind the rename of a merge of large files.
`churn`: writers, a compactor and a pruner at work, killed at random moments or points, while a reader polls. `agents`:
agents that drain real ranks are killed at random moments or in a durable write, while a compactor takes over what they
leave and a reader polls; at the end the rollups are compared with the spans. The exit code is 1 where anything was lost
or doubled, or a reader failed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from megascope.collectors.reading.store import Store
from megascope.profiler.errors import MegascopeError

from .machine import report

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.churn import Actor, LeftOverError, fill, look, survive
from support.dying import EXIT_CODE, Point
from support.processes import Processes
from support.rollup_checks import check_rollups

POINT_KINDS = ("before-rename", "after-rename", "deletion")
LARGE_KINDS = ("large-before-rename", "large-after-rename")
DELETIONS_APART = 6
SPANS, RANKS = 3000, 2


@dataclass(slots=True)
class Tally:
    """What was done and seen; ``failures`` are the first few things that went wrong, in words."""

    kills: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    doubled: int = 0
    reader_polls: int = 0
    reader_failures: int = 0
    left_over: int = 0
    wrong_rollups: int = 0
    failures: list[str] = field(default_factory=list)

    def say(self, what: object) -> None:
        """Keep the first few."""
        if len(self.failures) < 5:
            self.failures.append(" ".join(str(what).split())[:300])

    def poll(self, root: Path, store: Store | None) -> Store | None:
        """Look at a store of `support.churn` once; a store that is not there yet is no failure."""
        try:
            store = store or Store(root)
            found = look(store)
        except (MegascopeError, AssertionError) as error:
            if store is not None:
                self.reader_failures += 1
                self.say(error)
            return store
        self.reader_polls += 1
        self.lost += max(0, found.lost)
        self.doubled += max(0, found.doubled)
        self.reader_failures += bool(found.wrong)
        if not found.is_right:
            self.say(asdict(found))
        return store


def points(folder: Path, tally: Tally) -> None:
    """Every durable write of two rounds of pruning and compaction, and some of the many deletions."""
    crowded = folder / "crowded"
    fill(crowded)
    for what in POINT_KINDS:
        number, code = 0, EXIT_CODE
        while code == EXIT_CODE:
            number += DELETIONS_APART if what == "deletion" else 1
            root = folder / "points"
            shutil.copytree(crowded, root)
            actor = Actor("pruner", root, rounds=2, pause_s=0.0, grace_s=0.0, quiet_s=0.0, point=Point(what, number))
            process = actor.start()
            process.join(timeout=120)
            code = process.exitcode if process.exitcode is not None else -1
            tally.kills[what] += code == EXIT_CODE
            _check_survival(root, tally, f"{what} {number}")
            shutil.rmtree(root)


def large_points(folder: Path, tally: Tally) -> None:
    """The rename of a merge of a writer's large files."""
    for what in LARGE_KINDS:
        root = folder / "large"
        point = Point(what, 1)
        process = Actor("writer", root, 1, rounds=200, pause_s=0.0, seal_after_s=60.0, point=point).start()
        process.join(timeout=120)
        tally.kills[what] += process.exitcode == EXIT_CODE
        _check_survival(root, tally, what)
        shutil.rmtree(root)


def _check_survival(root: Path, tally: Tally, where: str) -> None:
    try:
        survive(root)
    except AssertionError as error:
        tally.lost += not isinstance(error, LeftOverError)
        tally.left_over += isinstance(error, LeftOverError)
        tally.say(f"{where}: {error}")
    tally.reader_polls += 2


def churn(folder: Path, seconds: float, chance: random.Random, tally: Tally) -> None:
    """All at work, and killed."""
    root = folder / "churn"
    roles = [Actor("writer", root, rank) for rank in range(3)]
    roles += [Actor("compactor", root), Actor("pruner", root, pause_s=0.3)]
    started: list[BaseProcess] = [role.start() for role in roles]
    store: Store | None = None
    end, kill_at = time.monotonic() + seconds, time.monotonic() + 3
    try:
        while time.monotonic() < end:
            store = tally.poll(root, store)
            for number, role in enumerate(roles):
                if started[number].exitcode is not None:  # it died at its point
                    tally.kills[role.role] += 1
                    started[number] = _restarted(role, chance)
            if time.monotonic() > kill_at:
                number = chance.randrange(len(roles))
                started[number].kill()
                started[number].join(timeout=10)
                kill_at = time.monotonic() + chance.uniform(0.2, 1.5)
    finally:
        for process in started:
            process.kill()
            process.join(timeout=10)
    if store is not None:
        tally.poll(root, store)
        store.close()


def _restarted(role: Actor, chance: random.Random) -> BaseProcess:
    """The next incarnation, half of them with a point at which they die."""
    point = Point(chance.choice(POINT_KINDS), chance.randint(1, 25)) if chance.random() < 0.5 else None
    return replace(role, point=point).start()


def agents(folder: Path, kills: int, chance: random.Random, tally: Tally) -> None:
    """Agents of real ranks are killed until there were enough; each round ends with a count of all spans."""
    done = 0
    while done < kills:
        root, spool = folder / f"agents-{done}", folder / f"spool-{done}"
        processes = Processes(spool, root)
        compactor = Actor("compactor", root, pause_s=0.1).start()
        try:
            ranks = [processes.rank(rank=rank, world_size=RANKS, spans=SPANS, pause_s=0.001) for rank in range(RANKS)]
            for _ in range(5):
                done += _kill_one(processes, chance, tally, partial(_poll_agents, root, tally))
            last = processes.agent(idle_exit_s=0.5)
            while last.poll() is None:
                _poll_agents(root, tally)
            for rank in ranks:
                rank.wait(timeout=60)
            _count_all(root, tally)
        finally:
            compactor.kill()
            compactor.join(timeout=10)
            processes.end()


def _kill_one(processes: Processes, chance: random.Random, tally: Tally, poll: Callable[[], None]) -> int:
    named: dict[str, Any] = {"die_at_write": chance.randint(1, 30), "after_rename": chance.random() < 0.5}
    agent = processes.agent(idle_exit_s=None, free_above_bytes=1, **(named if chance.random() < 0.5 else {}))
    end = time.monotonic() + chance.uniform(1.5, 4.0)
    while time.monotonic() < end and agent.poll() is None:
        poll()
    agent.kill()
    died = agent.wait(timeout=10) in (-signal.SIGKILL, EXIT_CODE)
    tally.kills["agent"] += died
    return int(died)


def _poll_agents(root: Path, tally: Tally) -> None:
    time.sleep(0.05)
    try:
        with Store(root) as store:
            found = _counts(store)
    except MegascopeError as error:
        if "no store" not in str(error) and "empty" not in str(error):
            tally.reader_failures += 1
            tally.say(error)
        return
    tally.reader_polls += 1
    tally.doubled += sum(found.values()) - len(found)


def _counts(store: Store) -> Counter[tuple[int, int]]:
    rows = store.query('SELECT rank, "sequence" FROM events', attempt=store.attempt()).to_pylist()
    return Counter((row["rank"], row["sequence"]) for row in rows)


def _count_all(root: Path, tally: Tally) -> None:
    with Store(root) as store:
        found = _counts(store)
        losses = store.query("SELECT count(*) AS n FROM steps WHERE loss IS NOT NULL").to_pylist()[0]["n"]
        try:
            check_rollups(store, store.attempt())
        except AssertionError as error:
            tally.wrong_rollups += 1
            tally.say(f"{root.name}: the rollups are not those of the spans: {error}")
    tally.reader_polls += 1
    expected = {(rank, number) for rank in range(RANKS) for number in range(1, SPANS + 1)}
    tally.doubled += sum(found.values()) - len(found)
    tally.lost += len(expected - set(found)) + RANKS * SPANS // 10 - losses
    if set(found) != expected:
        tally.say(f"{root.name}: {len(expected - set(found))} spans missing, {len(set(found) - expected)} too many")


def main() -> None:
    """Run the campaigns and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the campaign with a reader")
    parser.add_argument("--agent-kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance, tally, began = random.Random(options.seed), Tally(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="megascope-kills-") as name:
        points(Path(name), tally)
        large_points(Path(name), tally)
        churn(Path(name), options.seconds, chance, tally)
        agents(Path(name), options.agent_kills, chance, tally)
    values = {
        "kills": sum(tally.kills.values()),
        "kills_by_kind": dict(tally.kills),
        "lost": tally.lost,
        "doubled": tally.doubled,
        "reader_polls": tally.reader_polls,
        "reader_failures": tally.reader_failures,
        "left_over": tally.left_over,
        "wrong_rollups": tally.wrong_rollups,
        "failures": tally.failures,
        "seconds": round(time.monotonic() - began, 1),
    }
    report("kills", values)
    if tally.lost or tally.doubled or tally.reader_failures or tally.left_over or tally.wrong_rollups:
        sys.exit(1)


if __name__ == "__main__":
    main()
