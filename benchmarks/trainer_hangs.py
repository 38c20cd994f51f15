"""Whether the hang verdict is right on real trainings here, and how soon: each fault of the trainer, and none.

Eight processes at tp2 pp2 dp2 and at pp4 dp2. A trial is right once the verdict on the store, which is asked again and
again while the job hangs, is of the right kind and names exactly the ranks that the fault was put into; the seconds
count from the moment at which the fault acted. One without a fault, or with a rank that is only slow, is right if it
never says hang and its agents open no incident. Beside that stand the delays of the agents' incident and of the
verdict that they wrote, and the verdict from the Flight Recorder's dumps alone; ``--table`` prints the seconds of all
as Markdown.

``--cases`` runs the trials whose name has one of the given words. With ``--results FILE`` each result is kept in that
file as a line, and trials that have one are not run again, so that a campaign can be cut and taken up.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from .hang_jobs import Job, preload
from .hang_keeping import Keeper
from .hang_looks import look_until_right
from .hang_table import summary, table
from .hang_trials import Trial, plan
from .machine import report

LONGEST_S = 110.0
"""Of one trial, with its start and its end, about."""


def run(trial: Trial, folder: Path, limit_s: float, kept: Path | None) -> dict[str, Any]:
    """Train with the fault until the verdict is right, or for ``limit_s`` after it acted."""
    job, keeper = Job(trial, folder), Keeper(kept)
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    looker = context.Process(target=look_until_right, args=(trial, job.store, limit_s, keeper, writer))
    try:
        job.start()
        looker.start()
        writer.close()
        found = _answer(reader, limit_s + 180)
        looker.join(10)
    finally:
        if looker.pid is not None:
            looker.kill()
        job.end()
    keeper.keep(job.store, "ended")
    return _result(trial, found)


def _result(trial: Trial, found: dict[str, Any]) -> dict[str, Any]:
    expected = {"kinds": trial.kinds, "ranks": [sorted(each) for each in trial.culprits]}
    load = round(os.getloadavg()[0], 1)
    return {"case": trial.case, "fault": trial.fault, "expected": expected, **found, "load_1min": load}


def _answer(reader: Connection, patience_s: float) -> dict[str, Any]:
    try:
        found: dict[str, Any] = reader.recv() if reader.poll(patience_s) else {"right": False, "error": "no answer"}
    except EOFError:
        found = {"right": False, "error": "the process that asks has failed"}
    return found


def chosen(words: Iterable[str]) -> list[Trial]:
    """The trials whose layout and name have one of the words; all without any word."""
    wanted = list(words)
    return [one for one in plan() if not wanted or any(word in one.case for word in wanted)]


@dataclass(slots=True)
class Campaign:
    """Trials, some at a time, each in a process of its own that ends its job also when it is told to end itself."""

    given: argparse.Namespace
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    running: dict[Connection, tuple[Trial, BaseProcess]] = field(default_factory=dict)

    def go(self, trials: Iterable[Trial]) -> list[dict[str, Any]]:
        """The results of the trials, those of an earlier pass among them; as many as there is time for."""
        path: Path | None = self.given.results
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.known = {str(one["case"]): one for one in map(json.loads, lines)}
        deadline = float("inf") if self.given.seconds is None else time.monotonic() + self.given.seconds - LONGEST_S
        todo = [trial for trial in trials if trial.case not in self.known]
        try:
            while self.running or (todo and time.monotonic() < deadline):
                if todo and len(self.running) < self.given.jobs and time.monotonic() < deadline:
                    self._begin(todo.pop(0))
                else:
                    self._take(path)
        finally:
            for _, process in self.running.values():
                process.terminate()
        return [self.known[trial.case] for trial in trials if trial.case in self.known]

    def _begin(self, trial: Trial) -> None:
        context = multiprocessing.get_context("fork")  # this process, from which trainings are forked, runs no threads
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=_once, args=(trial, self.given, writer))
        process.start()
        writer.close()
        self.running[reader] = trial, process

    def _take(self, path: Path | None) -> None:
        """Wait until a trial is over, and keep its result."""
        for reader in wait(list(self.running)):
            assert isinstance(reader, Connection)
            trial, process = self.running.pop(reader)
            try:
                self.known[trial.case] = reader.recv()
            except EOFError:
                self.known[trial.case] = _result(trial, {"right": False, "error": "the trial has failed"})
            process.join()
            line = json.dumps(self.known[trial.case])
            sys.stderr.write(f"{line}\n")
            if path is not None:
                with path.open("a") as file:
                    file.write(f"{line}\n")


def _once(trial: Trial, given: argparse.Namespace, answer: Connection) -> None:
    end_in_order()
    folder = Path(tempfile.mkdtemp(prefix="megascope-hangs-"))
    kept = None if given.keep is None else given.keep / trial.case.replace(" ", "-")
    try:
        answer.send(run(trial, folder, given.limit, kept))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def end_in_order() -> None:
    """Let a request to end run all that stands under ``finally``: else the trainings would go on without anybody."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def main() -> None:
    """Run the trials one after another and print one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=[])
    parser.add_argument("--list", action="store_true", help="Name the trials and run none.")
    parser.add_argument("--limit", type=float, default=45.0, help="Seconds after the fault.")
    parser.add_argument("--keep", type=Path, help="Keep the stores in this folder.")
    parser.add_argument("--results", type=Path, help="Results as lines; trials that have one are not run again.")
    parser.add_argument("--jobs", type=int, default=1, help="Trials at a time: one that stands still needs no core.")
    parser.add_argument("--seconds", type=float, help="Begin no trial that may not end in so many seconds.")
    parser.add_argument("--table", action="store_true", help="Print the seconds as a table instead of the object.")
    given = parser.parse_args()
    trials = chosen(given.cases)
    if given.list:
        sys.stdout.writelines(f"{trial.case}: {trial.fault or 'no fault'}\n" for trial in trials)
        return
    end_in_order()
    preload()
    results = Campaign(given).go(trials)
    if given.table:
        sys.stdout.write(f"{table(results)}\n")
        return
    left = len(trials) - len(results)
    report("trainer_hangs", {"left": left, **summary(results), "results": results})


if __name__ == "__main__":
    main()
