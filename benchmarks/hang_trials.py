"""The trials of `trainer_hangs`: every fault in both layouts, and what the verdict must say of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

STEP = 12
"""The step in which faults act: the judge holds a step against the two before it, and agents are patient with a job
that has only begun."""

CHECKPOINT_EVERY = 14
"""A checkpoint is written beside training from each such step on; no fault but its own falls into one."""

LAYOUTS = {
    "tp2 pp2 dp2": {"tp": 2, "pp": 2, "dp": 2},
    "pp4 dp2": {"pp": 4, "dp": 2},
    "tp2 dp2": {"tp": 2, "dp": 2},
    "pp2 dp2": {"pp": 2, "dp": 2},
}
"""The first two are those of the campaign, the others of its short form in the tests.

From the outermost axis the order is pp, dp, tp: in the first rank 5 is (pp 1, dp 0, tp 1), in the second (pp 2, dp 1).
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """One training. ``fault`` is what `megascope train --fault` takes, "" for none; ``kinds`` the kinds of culprits
    that are right (none: nobody may be named for a hang), ``culprits`` the sets of ranks that are. An evaluation ends
    every ``eval_every`` steps."""

    layout: str
    name: str
    fault: str
    kinds: tuple[str, ...] = ()
    culprits: tuple[frozenset[int], ...] = field(default=())
    hosts: int = 1
    eval_every: int = STEP + 1

    @property
    def case(self) -> str:
        """What the trial is called, among all."""
        return f"{self.layout} {self.name}"

    @property
    def is_harmless(self) -> bool:
        """Whether the job goes on."""
        return not self.kinds


def plan() -> Iterator[Trial]:
    """All trials; those of the one layout first."""
    for layout in list(LAYOUTS)[:2]:
        yield Trial(layout, "none", "")
        yield Trial(layout, "slow", f"slow rank=5 factor=6 from={STEP}")
        yield from _stops(layout)
        yield from _ends(layout)
        yield from _programs(layout)


def _trial(layout: str, name: str, fault: str, kinds: str, *culprits: tuple[int, ...], hosts: int = 1) -> Trial:
    return Trial(layout, name, fault, tuple(kinds.split()), tuple(map(frozenset, culprits)), hosts)


def _stops(layout: str) -> Iterator[Trial]:
    reader = {"tp2 pp2 dp2": 4, "pp4 dp2": 7}[layout]
    for name, fault, rank in (
        ("stop in forward", "stop segment=forward", 5),
        ("stop in backward", "stop segment=backward", 5),
        ("stop in optimizer", "stop segment=optimizer", 5),
        ("stop in data loader", "stop segment=data_read", reader),
        ("hold GIL", "hold-gil segment=forward", 5),
        ("SIGSTOP", "freeze segment=backward", 5),
    ):
        yield _trial(layout, name, f"{fault} rank={rank} step={STEP}", "host-stuck", (rank,))
    fault = f"stop segment=checkpoint_write rank=5 step={CHECKPOINT_EVERY}"
    yield _trial(layout, "stop in checkpoint", fault, "host-stuck", (5,))
    yield _trial(layout, "rendezvous", "no-rendezvous rank=5", "init", (5,))


def _ends(layout: str) -> Iterator[Trial]:
    yield _trial(layout, "raise", f"raise rank=5 step={STEP} segment=forward", "exception", (5,))
    yield _trial(layout, "out of memory", f"out-of-memory rank=5 step={STEP} segment=forward", "exception", (5,))
    yield _trial(layout, "kill", f"kill rank=5 step={STEP} segment=backward", "dead", (5,))
    last = {"tp2 pp2 dp2": 6, "pp4 dp2": 7}[layout]
    yield _trial(layout, "NaN", f"nan rank={last} step={STEP}", "exception", (last,))
    second_host = (4, 5, 6, 7)
    yield _trial(layout, "kill host", f"kill-host rank=4,5,6,7 step={STEP}", "dead", second_host, hosts=2)


def _programs(layout: str) -> Iterator[Trial]:
    has_tp = layout.startswith("tp")
    skipped = "tp_all_gather" if has_tp else "world_all_reduce"
    yield _trial(layout, "skip", f"skip-collective rank=5 segment={skipped} step={STEP}", "missing-call", (5,))
    # The step before had an evaluation at its end, so that it is not like the steps that it is held against.
    after = f"skip-collective rank=5 segment={skipped} step={STEP + 1}"
    yield _trial(layout, "skip after evaluation", after, "missing-call", (5,))
    # The rest of the buckets meets others of another length, which gloo ends: both names of that are right.
    bucket = f"skip-collective rank=5 segment=dp_reduce_scatter step={STEP}"
    yield _trial(layout, "skip a bucket", bucket, "missing-call mismatch", (5,))
    called = "tp_all_gather" if has_tp else "dp_all_gather"  # gloo makes an all-reduce of a reduce-scatter anyway
    yield _trial(layout, "type", f"wrong-collective rank=5 segment={called} step={STEP}", "mismatch", (5,))
    yield _trial(layout, "size", f"wrong-size rank=5 segment=dp_all_gather step={STEP}", "mismatch", (5,))
    yield _trial(layout, "dtype", f"wrong-dtype rank=5 segment=world_all_reduce step={STEP}", "mismatch", (5,))
    if has_tp:  # ranks 4 and 7 reduce over tp first, 5 and 6 over dp: the four wait for each other
        circle = ((4, 7), (4, 5, 6, 7))
        yield _trial(layout, "order", f"swap-order rank=4,7 step={STEP}", "order-inversion", *circle)
    else:  # one that enters the world's reduction first will never come to what it left out, as seen from outside
        yield _trial(layout, "order", f"swap-order rank=5 step={STEP}", "order-inversion missing-call", (5,))
    first, next_stage = (1, 5) if has_tp else (3, 5)
    yield _trial(layout, "p2p order", f"receive-first rank={first} step={STEP}", "p2p-cycle", (first, next_stage))
    sender, segment = (1, "send_forward") if has_tp else (5, "send_backward")
    yield _trial(layout, "no send", f"skip-send rank={sender} segment={segment} step={STEP}", "missing-call", (sender,))
    replica = (2, 3, 6, 7) if has_tp else (1, 3, 5, 7)
    named = ",".join(map(str, replica))
    yield _trial(layout, "iteration", f"repeat-step rank={named} step={STEP}", "iteration-desync", replica)
