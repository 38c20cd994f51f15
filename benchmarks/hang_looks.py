"""Asks for the hang verdict on a store that is being written, until it is right or time is up."""

from __future__ import annotations

import importlib
import json
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .hang_jobs import RUN
from .hang_trials import Trial

POLL_S = 0.5
HARMLESS_S = 20.0
"""So long a job in which nothing is wrong is looked at after its first steps."""

START_S = 90.0
DUMPS_S = 15.0
"""The agent asks for dumps when it notices the stall, some seconds after the verdict may be right."""

CLAIMS = ("hang", "crashed")


@dataclass(slots=True)
class Looks:
    """What the looks at one job came to."""

    trial: Trial
    fault_ns: int | None = None
    seconds: float | None = None
    last: dict[str, Any] = field(default_factory=dict)
    wrong_claims: list[str] = field(default_factory=list)

    def take(self, verdict: dict[str, Any], now_ns: int) -> bool:
        """Take one verdict; whether it is right. A hang or crash that is blamed on others is a wrong claim."""
        told = summary(verdict)
        self.last = {**told, "explained": [verdict["explained"], verdict["victims"]], "abstained": verdict["abstained"]}
        claims = verdict["verdict"] in CLAIMS
        right = not claims if self.trial.is_harmless else claims and is_right(self.trial, verdict)
        if right and self.fault_ns is not None and self.seconds is None:
            self.seconds = round((now_ns - self.fault_ns) / 1e9, 1)
        line = json.dumps(told)
        if claims and not right and verdict["culprits"] and line not in self.wrong_claims:
            self.wrong_claims.append(line)
        return right


def summary(verdict: dict[str, Any]) -> dict[str, Any]:
    """The verdict with kind and ranks of its culprits."""
    culprits = [[one["kind"], one["ranks"], one["segment"]] for one in verdict["culprits"]]
    return {"verdict": verdict["verdict"], "culprits": culprits}


def is_right(trial: Trial, verdict: dict[str, Any]) -> bool:
    """Whether the culprits are exactly those of the trial, each of a kind that is right."""
    named = frozenset(rank for one in verdict["culprits"] for rank in one["ranks"])
    return named in trial.culprits and all(one["kind"] in trial.kinds for one in verdict["culprits"])


def look_until_right(trial: Trial, root: Path, limit_s: float, answer: Connection) -> None:
    """Look until the verdict is right, or ``limit_s`` after the fault; of a job without one, for a fixed time."""
    looks = Looks(trial)
    deadline = time.monotonic() + START_S
    right, is_dated = False, False
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        verdict, fault_ns, steps = ask(root)
        if verdict is None:
            continue
        if not is_dated and (fault_ns is not None or (not trial.fault and steps > 0)):
            is_dated, looks.fault_ns = True, fault_ns
            deadline = time.monotonic() + (HARMLESS_S if trial.is_harmless else limit_s)
        right = looks.take(verdict, time.time_ns())
        if right and is_dated and not trial.is_harmless:
            break
    answer.send(
        {
            "right": right and is_dated and not (trial.is_harmless and looks.wrong_claims),
            "seconds": None if trial.is_harmless else looks.seconds,
            **looks.last,
            "wrong_claims": looks.wrong_claims,
            "dumps": None if trial.is_harmless else _from_dumps(trial, root),
        }
    )


def ask(root: Path) -> tuple[dict[str, Any] | None, int | None, int]:
    """The verdict, the moment at which the fault acted, and the steps that were completed; None for no attempt yet."""
    from megascope.collectors.store import Store
    from megascope.profiler.errors import MegascopeError
    from megascope.viz3d.hang import diagnose, to_json

    try:
        store = Store(root)
        attempt = store.attempt(RUN, 0)
    except MegascopeError:
        return None, None, 0
    faults = store.query("SELECT min(first_ns) AS first_ns FROM faults", attempt=attempt)
    steps = store.query("SELECT count(*) AS steps FROM steps", attempt=attempt)
    return to_json(diagnose(store, attempt)), faults["first_ns"][0].as_py(), steps["steps"][0].as_py()


def _from_dumps(trial: Trial, root: Path) -> dict[str, Any] | None:
    """The verdict from the Flight Recorder's dumps alone, where there are any."""
    folder = root / "_dumps" / f"run={RUN}" / "attempt=0"
    deadline = time.monotonic() + DUMPS_S
    while not any(folder.glob("_dump_*")):
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_S)
    time.sleep(2 * POLL_S)
    from megascope.viz3d.hang import to_json

    try:
        diagnose_paths = importlib.import_module("megascope.viz3d.paths").diagnose_paths
        verdict = to_json(diagnose_paths([folder], None, None).verdict)
    except Exception as error:  # the campaign goes on, and says what went wrong
        return {"right": False, "error": f"{type(error).__name__}: {error}"}
    return {"files": len(list(folder.glob("_dump_*"))), "right": is_right(trial, verdict), **summary(verdict)}
