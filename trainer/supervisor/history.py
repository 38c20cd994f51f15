"""What a supervisor has done so far: kept in a file beside the store, so that a supervisor that restarts goes on."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...collectors.manifests.manifest import quote_name
from ...collectors.storage.durable import make_folders, write_durably
from ...collectors.upkeep.retention_beside import SUPERVISOR
from ...profiler.errors import MegascopeError

VERSION = 1


@dataclass(frozen=True, slots=True)
class Restart:
    """One restart: when it was decided (UTC, s), the last step completed before it, and whether it was planned.

    ``outside``: what failed was storage, and not the step.
    """

    moment_s: float
    step: int | None
    planned: bool = False
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Fence:
    """One host that is not used any more, since when (UTC, s), and why."""

    host: str
    moment_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A host that a verdict named and that was not fenced for it: when (UTC, s), and with which confidence.

    ``step``: the last one that was completed before the failure.
    """

    host: str
    moment_s: float
    confidence: float
    step: int | None = None


@dataclass(frozen=True, slots=True)
class RollBack:
    """One return to the checkpoint of step ``to``, when (UTC, s), and the batches ``first`` to ``last`` passed over."""

    moment_s: float
    to: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class History:
    """Restarts and fences in the order in which they were made; ``skipped``: batches passed over one by one.

    ``next_attempt``: the number of the first attempt that was not started. ``began_s``: when the first supervisor of
    the run began (UTC); None before.
    """

    restarts: tuple[Restart, ...] = ()
    fences: tuple[Fence, ...] = ()
    skipped: tuple[int, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    next_attempt: int = 0
    began_s: float | None = None
    roll_backs: tuple[RollBack, ...] = ()

    @property
    def passed_over(self) -> tuple[int, ...]:
        """All batches that the ranks have to pass over."""
        back = (batch for one in self.roll_backs for batch in range(one.first, one.last + 1))
        return tuple(sorted({*self.skipped, *back}))

    def restarts_since(self, moment_s: float) -> list[Restart]:
        """Restarts decided at or after a moment."""
        return [one for one in self.restarts if one.moment_s >= moment_s]

    def fences_since(self, moment_s: float) -> list[Fence]:
        """Fences made at or after a moment."""
        return [one for one in self.fences if one.moment_s >= moment_s]

    @property
    def fenced(self) -> frozenset[str]:
        """Hosts that must not be used."""
        return frozenset(one.host for one in self.fences)

    def confidence_in(self, host: str, confidence: float, since_s: float, step: int | None) -> float:
        """Confidence in a host's guilt with earlier suspicions: 1 - (1 - a)(1 - b)..., as of independent verdicts.

        Failures after the same step are one: what a program does there it does again, and they add up to nothing.
        """
        by_step = {step: confidence}
        for one in self.suspicions:
            if one.host == host and one.moment_s >= since_s:
                by_step[one.step] = max(by_step.get(one.step, 0.0), one.confidence)
        return 1.0 - math.prod(1.0 - best for best in by_step.values())

    def with_suspicion(self, suspicion: Suspicion) -> History:
        """With one more host that was suspected."""
        return replace(self, suspicions=(*self.suspicions, suspicion))

    def failures_in_a_row_at(self, step: int | None) -> int:
        """How many of the last restarts followed a failure with the same last completed step."""
        count = 0
        for one in reversed(self.restarts):
            if one.planned or one.outside or one.step != step:
                break
            count += 1
        return count

    def restarts_without_progress(self, step: int | None) -> int:
        """How many restarts in a row came at or before the last completed ``step`` of the one before: 0 after progress.

        Resuming goes back to a checkpoint, so that only a step beyond the furthest one before counts as progress.
        """
        count, later = 0, _number(step)
        for one in reversed(self.restarts):
            if one.planned or _number(one.step) < later:
                break
            count += 1
            later = min(later, _number(one.step))
        return count

    def with_restart(self, restart: Restart, skip_batch: int | None = None) -> History:
        """With one more restart."""
        skipped = self.skipped if skip_batch is None else (*self.skipped, skip_batch)
        return replace(self, restarts=(*self.restarts, restart), skipped=skipped)

    def with_fence(self, fence: Fence) -> History:
        """With one more host fenced; a host is fenced once."""
        return self if fence.host in self.fenced else replace(self, fences=(*self.fences, fence))


def _number(step: int | None) -> int:
    return -1 if step is None else step


def run_folder(store: Path, run: str) -> Path:
    """Where the supervisor of a run keeps its state."""
    return store / SUPERVISOR / f"run={quote_name(run)}"


def attempt_logs(store: Path, run: str, attempt: int) -> Path:
    """Where the ranks of an attempt leave their logs, a file a host; deleted within the limits of the raw data."""
    return run_folder(store, run) / f"attempt={attempt}"


def first_attempt(store: Path, run: str, history: History, unused: int) -> int:
    """The number of the first attempt that a supervisor may start: no earlier one has left anything under it.

    ``unused``: the first one that ranks have recorded nothing of. Those that refused their configuration never do.
    """
    folders = run_folder(store, run).glob("attempt=*")
    started = [int(found[1]) + 1 for path in folders if (found := re.fullmatch(r"attempt=(\d+)", path.name))]
    return max(unused, history.next_attempt, *started, 0)


def save_history(path: Path, history: History) -> None:
    """Write the history as a whole, or not at all. OSError where that cannot be done."""
    make_folders(path.parent)
    content = json.dumps({"version": VERSION, **asdict(history)}).encode()
    write_durably(path, lambda file: _fill(file, content))


def _fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def load_history(path: Path) -> History:
    """The history of a run; an empty one where there is none.

    MegascopeError for a file that cannot be read: without it, fenced hosts would be used again.
    """
    if not path.exists():
        return History()
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']}")
        return History(
            tuple(Restart(**one) for one in value["restarts"]),
            tuple(Fence(**one) for one in value["fences"]),
            tuple(int(step) for step in value["skipped"]),
            tuple(Suspicion(**one) for one in value["suspicions"]),
            int(value.get("next_attempt", 0)),
            None if value.get("began_s") is None else float(value["began_s"]),
            tuple(RollBack(**one) for one in value.get("roll_backs", ())),
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise MegascopeError(
            f"The supervisor's history {path} cannot be read ({error}): repair it, or remove it to forget which hosts "
            "were fenced."
        ) from error
