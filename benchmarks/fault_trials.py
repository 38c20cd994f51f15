"""The trials of `faults`: what is broken in a training on two hosts and a spare, and what has to come of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

EVERY = 5
AT = 24
"""Step in which faults act: by then there is a baseline."""

HALT = "halt"

FILL = "fill-storage"
KILL_AS_IT_STARTS = "kill-as-it-starts"

MIXED, LONG, LONGER, REPLICAS, RING = "pp2 dp2", "pp2 dp2 long", "pp2 dp2 longer", "dp4", "pp5 in a ring"
"""Layouts of the ranks. A rank with a single peer is never accused of being slow with confidence enough, and a
link with a single one like it is not named. In the ring, of two chunks a rank, each host has two links, and there are
three more to hold them against: the fewest hosts on which a slow network card can be told from a slow link."""

LAYOUTS = {
    **{name: {"pp": 2, "dp": 2} for name in (MIXED, LONG, LONGER)},
    REPLICAS: {"dp": 4},
    RING: {"pp": 5, "chunks": 2},
}
RANKS_PER_HOST = {MIXED: 2, LONG: 2, LONGER: 2, REPLICAS: 2, RING: 1}
STEPS = {MIXED: 70, LONG: 240, LONGER: 480, REPLICAS: 500, RING: 300}
"""Steps of the trainings: to find what is slow, to save ahead, and to see from outside how far they are takes time.
Hardware is looked at every five seconds."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One training. ``fault`` is what `megascope train --fault` takes, ``prod`` what is done to it from outside; with
    both, that comes on top.

    ``ranks``: the culprits that the verdict has to name, ``also``: those that it may name, since they may have died
    before they recorded anything, ``kinds``: what it may say they are, ``fenced``: hosts that may be fenced, ``lost``:
    the host that goes. ``ends``: "finish", or "halt" where the supervisor has to stop the run.
    ``disturbs``: whether there is anything to recover from; otherwise signs have to tell of it, where it has ranks.
    ``rolls_back``: the supervisor has leave to go back from a loss that diverges, and has to; ``skip``: batches that
    the training passes over from the beginning.
    """

    name: str
    fault: str = ""
    prod: str = ""
    ranks: frozenset[int] = frozenset()
    kinds: frozenset[str] = frozenset()
    lost: str = ""
    fenced: frozenset[str] = frozenset()
    ends: str = "finish"
    layout: str = MIXED
    disturbs: bool = True
    rolls_back: bool = False
    skip: tuple[int, ...] = ()
    spares: int = 1
    also: frozenset[int] = frozenset()


def plan() -> Iterator[Trial]:
    """One trial of each kind. Ranks 0 and 1 are on node-0, 2 and 3 on node-1; node-2 is the spare. In the ring every
    rank has a host of its own, and node-5 is the spare."""
    host, dead, exception = frozenset({"node-1"}), frozenset({"dead"}), frozenset({"exception"})
    slow = f"slow rank=3 factor=5 from={AT} attempt=0"
    skipped = f"skip-collective rank=1 segment=world_all_reduce step={AT}"
    link = f"slow-link link=3>1 delay_ms=60 from={AT} attempt=0"
    card, own_host = f"slow-nic rank=4 delay_ms=30 from={AT} attempt=0", frozenset({"node-4"})
    yield _host("kill", f"kill rank=3 segment=backward step={AT}", "dead", 3)
    yield _host("sigstop", f"freeze rank=3 segment=forward step={AT}", "host-stuck", 3)
    yield _host("hold-gil", f"hold-gil rank=1 segment=forward step={AT}", "host-stuck", 1)
    yield _host("stop-in-optimizer", f"stop rank=2 segment=optimizer step={AT}", "host-stuck", 2)
    yield _program("exception", f"raise rank=2 segment=forward step={AT}", "exception", 2)
    yield Trial("host-loss", f"kill-host rank=2 step={AT} attempt=0", lost="node-1")
    yield Trial("slow-rank", slow, "", frozenset({3}), frozenset({"rank"}), "", host, layout=REPLICAS)
    yield Trial("nan", f"nan rank=3 step={AT} attempt=0", "", frozenset({3}), exception, ends=HALT)
    yield _program("out-of-memory", f"out-of-memory rank=3 segment=forward step={AT}", "exception", 3)
    yield Trial("storage-full", prod=FILL, layout=LONG, disturbs=False)
    yield _program("collective-size", f"wrong-size rank=3 segment=dp_all_gather step={AT}", "mismatch", 3)
    yield Trial("collector-killed", prod="kill-collector", layout=LONG, disturbs=False)
    yield Trial("host-silent", prod="freeze-host", layout=LONG, lost="node-1")
    yield _host("data-loader-stall", f"stop rank=0 segment=data_read step={AT}", "host-stuck", 0)
    yield Trial("storage-failing", prod="break-storage", layout=LONG, disturbs=False)
    yield Trial("damaged-checkpoint", "", "damage-and-kill", frozenset({3}), dead, "", host, layout=LONG)
    yield Trial("slow-link", link, kinds=frozenset({"slow-network"}), layout=LONG, disturbs=False)
    yield Trial("slow-nic", card, "", frozenset({4}), frozenset({"rank"}), "", own_host, layout=RING)
    yield _host("checkpoint-stall", f"stop rank=3 segment=checkpoint_write step={AT + 1}", "host-stuck", 3)
    yield Trial("xid", prod="gpu-falls-off", fenced=host, layout=LONGER)
    yield Trial("node-agent-killed", prod="kill-node-agent", layout=LONG, lost="node-1")
    yield _program("collective-skipped", skipped, "missing-call", 1)
    # Of two that differ, the steps before say which one is right.
    yield _program("collective-type", f"wrong-collective rank=3 segment=dp_all_gather step={AT}", "mismatch", 3)
    yield Trial("rendezvous-host-lost", f"kill-host rank=0 step={AT} attempt=0", lost="node-0")
    yield _killed_again()
    rise = f"diverge factor=1000 from={AT} attempt=0"
    yield Trial("divergence", rise, kinds=frozenset({"loss-divergence"}), layout=LONG, rolls_back=True)


def _killed_again() -> Trial:
    """A second rank, on the other host, dies while the job starts again without the first."""
    fault, both = f"kill rank=3 segment=backward step={AT} attempt=0", frozenset({"node-0", "node-1"})
    kinds, first, second = frozenset({"dead", "init"}), frozenset({3}), frozenset({0})
    return Trial("kill-in-restart", fault, KILL_AS_IT_STARTS, first, kinds, "", both, spares=2, also=second)


def _host(name: str, fault: str, kinds: str, rank: int) -> Trial:
    host = frozenset({f"node-{rank // 2}"})
    return Trial(name, f"{fault} attempt=0", "", frozenset({rank}), frozenset(kinds.split()), "", host)


def _program(name: str, fault: str, kind: str, rank: int) -> Trial:
    return Trial(name, f"{fault} attempt=0", "", frozenset({rank}), frozenset({kind}))
