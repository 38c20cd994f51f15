"""Hangs and crashes of real trainings of four processes: the verdict names exactly who is to blame.

`benchmarks.trainer_hangs` is the long form. The trainings run side by side: one that stands still needs no processor.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hang_jobs import Job, preload
from benchmarks.hang_looks import Looks, ask, incident
from benchmarks.hang_trials import Trial
from megascope.collectors.patience import PATIENCE_S

pytestmark = pytest.mark.alone

LIMIT_S = 75.0
STEP = 6


def trial(layout: str, fault: str, kinds: str, *culprits: tuple[int, ...]) -> Trial:
    kind, *settings = fault.split()
    name = "-".join([kind, *(one.partition("=")[2] for one in settings if one.startswith("segment="))])
    return Trial(layout, name, fault, tuple(kinds.split()), tuple(map(frozenset, culprits)), eval_every=STEP + 1)


TRIALS = (
    trial("pp2 dp2", f"stop rank=1 segment=forward step={STEP}", "host-stuck", (1,)),
    # The others are in the evaluation when they come to a stand; one waits there for weights that it asked for before.
    trial("pp2 dp2", f"stop rank=3 segment=optimizer step={STEP}", "host-stuck", (3,)),
    trial("tp2 dp2", f"freeze rank=3 segment=backward step={STEP}", "host-stuck", (3,)),
    trial("pp2 dp2", f"kill rank=2 segment=backward step={STEP}", "dead", (2,)),
    trial("tp2 dp2", f"raise rank=2 segment=optimizer step={STEP}", "exception", (2,)),
    trial("pp2 dp2", f"receive-first rank=0 step={STEP}", "p2p-cycle", (0, 2)),
    trial("pp2 dp2", f"skip-send rank=0 segment=send_forward step={STEP}", "missing-call", (0,)),
    trial("tp2 dp2", f"swap-order rank=0,3 step={STEP}", "order-inversion", (0, 3), (0, 1, 2, 3)),
    # The step before ends with an evaluation, so that it has more operations than the one that it is held against.
    trial("tp2 dp2", f"skip-collective rank=1 segment=tp_all_gather step={STEP + 1}", "missing-call", (1,)),
)


ENDS = ("kill", "raise")
"""Faults that end the job; with any other it stands still until it is ended."""


@dataclass(slots=True)
class Found:
    """What the looks at one job came to, and what its agent made of it."""

    looks: Looks
    noticed: dict[str, Any] = field(default_factory=lambda: {"incident": None})


def look(jobs: Mapping[str, Job]) -> dict[str, Found]:
    """Look at all jobs by turns, until each verdict is right and its agent has noticed it, or time is up."""
    found = {name: Found(Looks(job.trial)) for name, job in jobs.items()}
    left, deadline = set(jobs), time.monotonic() + LIMIT_S
    while left and time.monotonic() < deadline:
        for name in sorted(left):
            own, now = found[name], ask(jobs[name].store)
            if now.verdict is None or not own.looks.take(now.verdict, time.time_ns()) or now.fault_ns is None:
                continue
            own.noticed = incident(jobs[name].store, now.fault_ns)
            if own.noticed["incident"] is not None:
                left.discard(name)
        time.sleep(0.5)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Found]]:
    preload()
    jobs: dict[str, Job] = {}
    try:
        for each in TRIALS:
            folder: Path = tmp_path_factory.mktemp(each.name)
            jobs[each.name] = Job(each, folder)
            jobs[each.name].start()
        yield look(jobs)
    finally:
        for job in jobs.values():
            job.tell()
        for job in jobs.values():
            job.end()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("each", TRIALS, ids=[one.name for one in TRIALS])
def test_the_verdict_names_exactly_who_is_to_blame(found: dict[str, Found], each: Trial) -> None:
    looks = found[each.name].looks
    named = {rank for _, ranks, _ in looks.last["culprits"] for rank in ranks}
    assert looks.last["verdict"] in ("hang", "crashed"), looks.last
    assert named in each.culprits, looks.last
    assert {kind for kind, _, _ in looks.last["culprits"]} <= set(each.kinds)
    assert looks.wrong_claims == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize("each", TRIALS, ids=[one.name for one in TRIALS])
def test_the_agent_opens_an_incident_and_is_not_more_patient_than_with_slow_work(
    found: dict[str, Found], each: Trial
) -> None:
    noticed = found[each.name].noticed
    if each.fault.startswith(ENDS):
        assert noticed["incident"] == "rank-died"
    else:
        assert noticed["incident"] == "stalled"
        assert noticed["patience_s"] < PATIENCE_S
