"""Whether the hang verdict is right on real trainings here, and how soon: each fault of the trainer, and none.

Eight processes at tp2 pp2 dp2 and at pp4 dp2. A trial is right once the verdict on the store, which is asked again and
again while the job hangs, is of the right kind and names exactly the ranks that the fault was put into; the seconds
count from the moment at which the fault acted. One without a fault, or with a rank that is only slow, is right if it
never says hang. ``--only`` runs the trials whose name has one of the given words.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .hang_jobs import Job, preload
from .hang_looks import look_until_right
from .hang_trials import Trial, plan
from .machine import report

WITHIN_S = 10.0


def run(trial: Trial, folder: Path, limit_s: float) -> dict[str, Any]:
    """Train with the fault until the verdict is right, or for ``limit_s`` after it acted."""
    job = Job(trial, folder)
    job.start()
    try:
        context = multiprocessing.get_context("fork")  # the parent, which forks trainings, is to run no threads
        reader, writer = context.Pipe(duplex=False)
        looker = context.Process(target=look_until_right, args=(trial, job.store, limit_s, writer))
        looker.start()
        writer.close()
        found = _answer(reader, limit_s + 120)
        looker.join(10)
        if looker.is_alive():
            looker.kill()
    finally:
        job.end()
    return {
        "layout": trial.layout,
        "name": trial.name,
        "fault": trial.fault,
        **found,
        "load_1min": round(os.getloadavg()[0], 1),
    }


def _answer(reader: Connection, patience_s: float) -> dict[str, Any]:
    try:
        found: dict[str, Any] = reader.recv() if reader.poll(patience_s) else {"right": False, "error": "no answer"}
    except EOFError:
        found = {"right": False, "error": "the process that asks has failed"}
    return found


def chosen(words: Iterable[str]) -> list[Trial]:
    """The trials whose layout and name have one of the words; all without any word."""
    wanted = list(words)
    return [one for one in plan() if not wanted or any(word in f"{one.layout} {one.name}" for word in wanted)]


def main() -> None:
    """Run the trials one after another and print one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--limit", type=float, default=45.0, help="Seconds after the fault.")
    parser.add_argument("--keep", type=Path, help="Keep the stores in this folder.")
    given = parser.parse_args()
    preload()
    results = []
    for trial in chosen(given.only):
        folder = Path(tempfile.mkdtemp(prefix="megascope-hangs-"))
        try:
            results.append(run(trial, folder, given.limit))
            if given.keep is not None:
                kept = given.keep / f"{trial.layout} {trial.name}".replace(" ", "-")
                shutil.copytree(folder / "store", kept, dirs_exist_ok=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        sys.stderr.write(f"{json.dumps(results[-1])}\n")
    faulty = [one for one in results if one.get("seconds") is not None]
    report(
        "trainer_hangs",
        {
            "trials": len(results),
            "right": sum(one["right"] for one in results),
            f"right_within_{WITHIN_S:.0f}_s": sum(one["right"] and one["seconds"] <= WITHIN_S for one in faulty),
            "with_fault": sum(bool(one["fault"]) for one in results),
            "claimed_wrongly": [f"{one['layout']} {one['name']}" for one in results if one.get("wrong_claims")],
            "right_from_dumps": sum(bool((one.get("dumps") or {}).get("right")) for one in results),
            "results": results,
        },
    )


if __name__ == "__main__":
    main()
