"""Hangs and crashes of real trainings of four processes: the verdict names exactly who is to blame.

`benchmarks.trainer_hangs` is the long form. The trainings run side by side: one that stands still needs no processor.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks.hang_jobs import Job, preload
from benchmarks.hang_looks import Looks, ask
from benchmarks.hang_trials import Trial

pytestmark = pytest.mark.alone

LIMIT_S = 75.0
STEP = 6


def trial(layout: str, fault: str, kinds: str, *culprits: tuple[int, ...]) -> Trial:
    name = fault.partition(" ")[0]
    return Trial(layout, name, fault, tuple(kinds.split()), tuple(map(frozenset, culprits)), eval_every=STEP + 1)


TRIALS = (
    trial("pp2 dp2", f"stop rank=1 segment=forward step={STEP}", "host-stuck", (1,)),
    trial("tp2 dp2", f"freeze rank=3 segment=backward step={STEP}", "host-stuck", (3,)),
    trial("pp2 dp2", f"kill rank=2 segment=backward step={STEP}", "dead", (2,)),
    trial("tp2 dp2", f"raise rank=2 segment=optimizer step={STEP}", "exception", (2,)),
    trial("pp2 dp2", f"receive-first rank=0 step={STEP}", "p2p-cycle", (0, 2)),
    trial("pp2 dp2", f"skip-send rank=0 segment=send_forward step={STEP}", "missing-call", (0,)),
    trial("tp2 dp2", f"swap-order rank=0,3 step={STEP}", "order-inversion", (0, 3), (0, 1, 2, 3)),
    # The step before ends with an evaluation, so that it has more operations than the one that it is held against.
    trial("tp2 dp2", f"skip-collective rank=1 segment=tp_all_gather step={STEP + 1}", "missing-call", (1,)),
)


def look(jobs: Mapping[str, Job]) -> dict[str, Looks]:
    """Look at all jobs by turns, until each verdict is right or time is up."""
    looks = {name: Looks(job.trial) for name, job in jobs.items()}
    left, deadline = set(jobs), time.monotonic() + LIMIT_S
    while left and time.monotonic() < deadline:
        for name in sorted(left):
            now = ask(jobs[name].store)
            if now.verdict is not None and looks[name].take(now.verdict, time.time_ns()) and now.fault_ns is not None:
                left.discard(name)
        time.sleep(0.5)
    return looks


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Looks]]:
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
def test_the_verdict_names_exactly_who_is_to_blame(looks: dict[str, Looks], each: Trial) -> None:
    found = looks[each.name]
    named = {rank for _, ranks, _ in found.last["culprits"] for rank in ranks}
    assert found.last["verdict"] in ("hang", "crashed"), found.last
    assert named in each.culprits, found.last
    assert {kind for kind, _, _ in found.last["culprits"]} <= set(each.kinds)
    assert found.wrong_claims == []
