"""Asks for the hang verdict on a store that is being written, until it is right or time is up."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .hang_jobs import RUN, acted_ns
from .hang_keeping import Keeper
from .hang_trials import Trial

POLL_S = 0.5
HARMLESS_S = 20.0
"""So long a job in which nothing is wrong is looked at after its first steps."""

START_S = 90.0
WITHIN_S = 10.0
AGENT_S = 15.0
"""The agent judges, and asks for dumps, when it notices the stall: some seconds after the verdict may be right."""

CLAIMS = ("hang", "crashed")


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a store: the verdict's JSON; UTC ns at which the fault acted, None before it has; steps completed."""

    verdict: dict[str, Any] | None = None
    fault_ns: int | None = None
    steps: int = 0


@dataclass(slots=True)
class Looks:
    """What the looks at one job came to. ``named_s``: until exactly the culprits were named, be it as suspects only;
    ``seconds``: until the verdict was right. Both count from the moment at which the fault acted."""

    trial: Trial
    fault_ns: int | None = None
    named_s: float | None = None
    seconds: float | None = None
    last: dict[str, Any] = field(default_factory=dict)
    in_time: dict[str, Any] | None = None
    wrong_claims: list[str] = field(default_factory=list)

    def take(self, verdict: dict[str, Any], now_ns: int) -> bool:
        """Take one verdict; whether it is right. A hang or crash that is blamed on others is a wrong claim."""
        told = summary(verdict)
        self.last = {**told, "explained": [verdict["explained"], verdict["victims"]], "abstained": verdict["abstained"]}
        claims = verdict["verdict"] in CLAIMS
        named = is_right(self.trial, verdict)
        right = not claims if self.trial.is_harmless else claims and named
        if self.fault_ns is not None:
            self._date(round((now_ns - self.fault_ns) / 1e9, 1), told, named, right)
        line = json.dumps(told)
        if claims and not right and verdict["culprits"] and line not in self.wrong_claims:
            self.wrong_claims.append(line)
        return right

    def _date(self, seconds: float, told: dict[str, Any], named: bool, right: bool) -> None:
        if named and self.named_s is None:
            self.named_s = seconds
        if right and self.seconds is None:
            self.seconds = seconds
        if seconds <= WITHIN_S:
            self.in_time = told

    def told(self) -> dict[str, Any]:
        """What goes into the campaign's result."""
        harmless = self.trial.is_harmless
        return {
            "seconds_to_named": None if harmless else self.named_s,
            "seconds_to_verdict": None if harmless else self.seconds,
            f"last_within_{WITHIN_S:.0f}_s": self.in_time,
            "got": self.last,
            "wrong_claims": self.wrong_claims,
        }


def summary(verdict: dict[str, Any]) -> dict[str, Any]:
    """The verdict with kind and ranks of its culprits."""
    culprits = [[one["kind"], one["ranks"], one["segment"]] for one in verdict["culprits"]]
    return {"verdict": verdict["verdict"], "culprits": culprits}


def is_right(trial: Trial, verdict: dict[str, Any]) -> bool:
    """Whether the culprits are exactly those of the trial, each of a kind that is right."""
    named = frozenset(rank for one in verdict["culprits"] for rank in one["ranks"])
    return named in trial.culprits and all(one["kind"] in trial.kinds for one in verdict["culprits"])


def is_disturbed(looks: Looks, noticed: dict[str, Any]) -> bool:
    """Whether somebody was accused in a job in which nothing is wrong, or its agents opened an incident."""
    return bool(looks.wrong_claims) or noticed["incident"] is not None


def look_until_right(trial: Trial, root: Path, limit_s: float, keeper: Keeper, answer: Connection) -> None:
    """Look until the verdict is right, or ``limit_s`` after the fault; of a job without one, for a fixed time.

    Where stores are kept, looks go on until the first copy that is due has been made. A look takes at most half of the
    time, so that trials that run side by side do not starve each other.
    """
    looks = Looks(trial)
    right = False
    begun, looks.fault_ns = _await_beginning(trial, root)
    if not begun:
        answer.send({"right": False, "error": f"no fault within {START_S:.0f} s: {_last_words(root.parent)}"})
        keeper.keep(root, "end")
        return
    since_s = 0.0 if looks.fault_ns is None else (time.time_ns() - looks.fault_ns) / 1e9
    deadline = time.monotonic() + (HARMLESS_S if trial.is_harmless else limit_s - since_s)
    while time.monotonic() < deadline:
        asked = time.monotonic()
        look = ask(root)
        right = look.verdict is not None and looks.take(look.verdict, time.time_ns())
        keeper.look(root, looks.fault_ns)
        if right and not trial.is_harmless and not keeper.wants_more():
            break
        time.sleep(max(POLL_S, time.monotonic() - asked))
    dumps = None if trial.is_harmless else judge_dumps(trial, _wait_for_agent(root, AGENT_S))
    noticed = incident(root, None if trial.is_harmless else looks.fault_ns)
    answer.send(
        {
            "right": right and not (trial.is_harmless and is_disturbed(looks, noticed)),
            **noticed,
            **looks.told(),
            "dumps": dumps,
        }
    )
    keeper.keep(root, "end")


def _last_words(folder: Path) -> str:
    """The end of what a training said."""
    return " ".join(path.read_text(errors="replace")[-400:] for path in sorted(folder.glob("training*.log")))


def _await_beginning(trial: Trial, root: Path) -> tuple[bool, int | None]:
    """Wait for the fault, or for the first steps where there is none; whether they came, and when the fault acted."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        time.sleep(2 * POLL_S)
        look = ask(root, judge=False)
        fault_ns = look.fault_ns or acted_ns(root.parent)
        if fault_ns is not None or (not trial.fault and look.steps > 0):
            return True, fault_ns
    return False, None


def ask(root: Path, *, judge: bool = True) -> Look:
    """What a store tells now, with the verdict if it is to be judged."""
    from megascope.collectors.reading.store import Store
    from megascope.profiler.errors import MegascopeError
    from megascope.viz3d.hang import diagnose, to_json

    try:
        store = Store(root)
        attempt = store.attempt(RUN, 0)
    except MegascopeError:
        return Look()
    faults = store.query("SELECT min(first_ns) AS first_ns FROM faults", attempt=attempt)
    steps = store.query("SELECT count(*) AS steps FROM steps", attempt=attempt)
    verdict = to_json(diagnose(store, attempt)) if judge else None
    return Look(verdict, faults["first_ns"][0].as_py(), steps["steps"][0].as_py())


def incident(root: Path, fault_ns: int | None) -> dict[str, Any]:
    """What the agents made of it: the first incident after the fault (of a job without one, ``fault_ns`` None, the
    first of all), how long a rest they were patient with, and the verdict that they wrote, with delays."""
    from megascope.collectors.reading.store import Store
    from megascope.viz3d.actions import parse_actions

    store = Store(root)
    rows = store.query(
        """SELECT kind, opened_ns, verdict, actions FROM incidents
           WHERE opened_ns >= ? AND kind IN ('stalled', 'rank-died') ORDER BY opened_ns""",
        [fault_ns or 0],
        attempt=store.attempt(RUN, 0),
    ).to_pylist()
    if not rows or fault_ns is None:
        return {"incident": rows[0]["kind"] if rows else None, "seconds_to_incident": None}
    first = parse_actions(rows[0]["actions"])
    written = [json.loads(row["verdict"]) for row in rows if row["verdict"]]
    actions = [one for row in rows for one in parse_actions(row["actions"]) if one.get("action") == "diagnosed"]
    told_ns = max((int(one["moment_ns"]) for one in actions), default=None)
    return {
        "incident": rows[0]["kind"],
        "seconds_to_incident": round((rows[0]["opened_ns"] - fault_ns) / 1e9, 1),
        "patience_s": next((one["patience_s"] for one in first if "patience_s" in one), None),
        "told_by_agent": summary(written[-1]) if written else None,
        "seconds_to_agent_verdict": None if told_ns is None else round((told_ns - fault_ns) / 1e9, 1),
    }


def _wait_for_agent(root: Path, patience_s: float) -> Path | None:
    """Wait for the agent's verdict and for the ranks' dumps; the folder of the dumps, None where there are none."""
    folder = root / "_dumps" / f"run={RUN}" / "attempt=0"
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if any(folder.glob("_dump_*")) and incident(root, 0).get("told_by_agent") is not None:
            break
        time.sleep(POLL_S)
    return folder if any(folder.glob("_dump_*")) else None


def judge_dumps(trial: Trial, folder: Path | None) -> dict[str, Any] | None:
    """The verdict from the Flight Recorder's dumps alone, where there are any."""
    if folder is None:
        return None
    from megascope.viz3d.hang import to_json
    from megascope.viz3d.paths import Sources, diagnose_paths

    try:
        verdict = to_json(diagnose_paths(Sources(dumps=(folder,))).verdict)
    except Exception as error:  # the campaign goes on, and says what went wrong
        return {"right": False, "error": f"{type(error).__name__}: {error}"}
    return {
        "files": len(list(folder.glob("_dump_*"))),
        "right": verdict["verdict"] in CLAIMS and is_right(trial, verdict),
        "suspected": is_right(trial, verdict),
        **summary(verdict),
    }
