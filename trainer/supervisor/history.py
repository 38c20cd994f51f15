"""What a supervisor has done so far: kept in a file beside the store, so that a supervisor that restarts goes on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...collectors.durable import make_folders, write_durably
from ...profiler.errors import MegascopeError

VERSION = 1
FOLDER = "_supervisor"
"""Folder of the store that holds a folder for every supervised run."""


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
    """A host that a verdict named and that was not fenced for it: when (UTC, s), and with which confidence."""

    host: str
    moment_s: float
    confidence: float


@dataclass(frozen=True, slots=True)
class History:
    """Restarts and fences in the order in which they were made; ``skipped``: batches passed over."""

    restarts: tuple[Restart, ...] = ()
    fences: tuple[Fence, ...] = ()
    skipped: tuple[int, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()

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

    def confidence_in(self, host: str, confidence: float, since_s: float) -> float:
        """Confidence in a host's guilt with earlier suspicions: 1 - (1 - a)(1 - b)..., as of independent verdicts."""
        doubt = 1.0 - confidence
        for one in self.suspicions:
            if one.host == host and one.moment_s >= since_s:
                doubt *= 1.0 - one.confidence
        return 1.0 - doubt

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
    """Where the supervisor of a run keeps its state and the logs of the ranks."""
    return store / FOLDER / f"run={run}"


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
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise MegascopeError(
            f"The supervisor's history {path} cannot be read ({error}): repair it, or remove it to forget which hosts "
            "were fenced."
        ) from error
