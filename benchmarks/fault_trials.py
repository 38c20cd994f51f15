"""The trials of `faults`: what is broken in a training on two hosts and a spare, and what has to come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from .fault_draws import AT, WITH_BASELINE, Draw

EVERY = 5

HALT = "halt"

FILL = "fill-storage"
STORAGE = (FILL, "break-storage")
KILL_AS_IT_STARTS = "kill-as-it-starts"

MIXED, LONG, LONGER, REPLICAS, RING = "pp2 dp2", "pp2 dp2 long", "pp2 dp2 longer", "dp4", "pp5 in a ring"
REPLICAS_LONG = "dp4 long"
"""Layouts of the ranks. A rank with a single peer is never accused of being slow with confidence enough, and a
link with a single one like it is not named. In the ring, of two chunks a rank, each host has two links, and there are
three more to hold them against: the fewest hosts on which a slow network card can be told from a slow link."""

LAYOUTS = {
    **{name: {"pp": 2, "dp": 2} for name in (MIXED, LONG, LONGER)},
    **{name: {"dp": 4} for name in (REPLICAS, REPLICAS_LONG)},
    RING: {"pp": 5, "chunks": 2},
}
RANKS_PER_HOST = {MIXED: 2, LONG: 2, LONGER: 2, REPLICAS: 2, REPLICAS_LONG: 2, RING: 1}
STEPS = {MIXED: 70, LONG: 240, LONGER: 480, REPLICAS: 500, REPLICAS_LONG: 2000, RING: 300}
"""Steps of the trainings: to find what is slow, to save ahead, and to see from outside how far they are takes time.
Hardware is looked at every five seconds, and who is slow without a sign a minute after the first step."""

RANKS = (0, 1, 2, 3)
FIRST_HOST, SECOND_HOST = (0, 1), (2, 3)
"""The ranks of each; where there are stages, also those of each stage."""

LINKS = ("3>1", "1>3", "2>0", "0>2")
"""What goes from host to host with two stages: both ways between the stages of each replica."""

WORK = ("data_read", "forward", "backward", "optimizer")
"""Segments that every rank has in every step."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One training. ``fault`` is what `megascope train --fault` takes, ``prod`` what is done to it from outside, once
    step ``at`` is reached, to rank ``victim`` or its host; with both, that comes on top.

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
    at: int = AT
    victim: int = 3

    @property
    def host(self) -> str:
        """The host of ``victim``."""
        return f"node-{self.victim // RANKS_PER_HOST[self.layout]}"

    @property
    def put_in(self) -> str:
        """The fault in words: what, in which step, to which rank or host."""
        to_whom = "" if self.prod in STORAGE else f" rank={self.victim} host={self.host}"
        outside = f"{self.prod} step={self.at}{to_whom}" if self.prod else ""
        return " and ".join(part for part in (self.fault, outside) if part)


def plan(seed: int | None = None, repetition: int = 0) -> Iterator[Trial]:
    """One trial of each kind. Ranks 0 and 1 are on node-0, 2 and 3 on node-1; node-2 is the spare. In the ring every
    rank has a host of its own, and node-5 is the spare.

    Without a seed those of the first repetition are always the same; else the step, the rank and, where it may be any,
    the segment are drawn anew for each trial.
    """
    for name, make in _TRIALS.items():
        yield make(name, Draw(name, seed, repetition))


def host_of(rank: int, layout: str = MIXED) -> frozenset[str]:
    """The host on which a rank is at first."""
    return frozenset({f"node-{rank // RANKS_PER_HOST[layout]}"})


def _in_work(
    name: str, draw: Draw, *, does: str, kind: str, rank: int, segment: str, segments: Sequence[str] = WORK,
    fences: bool = True,
) -> Trial:  # fmt: skip
    """A fault of one rank in one segment; ``fences``: whether it speaks against the host rather than the program."""
    step, rank, segment = draw.step(), draw.of(rank, RANKS), draw.of(segment, segments)
    fault, fenced = f"{does} rank={rank} segment={segment} step={step} attempt=0", frozenset[str]()
    return Trial(name, fault, "", frozenset({rank}), frozenset({kind}), "", host_of(rank) if fences else fenced)


def _checkpoint_stall(name: str, draw: Draw) -> Trial:
    """While a checkpoint is written, which is beside the step after it."""
    step, rank = draw.step(), draw.of(3, RANKS)
    fault = f"stop rank={rank} segment=checkpoint_write step={step + EVERY - step % EVERY} attempt=0"
    return Trial(name, fault, "", frozenset({rank}), frozenset({"host-stuck"}), "", host_of(rank))


def _host_loss(name: str, draw: Draw, *, rank: int, ranks: Sequence[int]) -> Trial:
    step, rank = draw.step(), draw.of(rank, ranks)
    return Trial(name, f"kill-host rank={rank} step={step} attempt=0", lost=min(host_of(rank)))


def _skipped(name: str, draw: Draw) -> Trial:
    """A call left out. The rest of the buckets meets others of another length: both names of that are right."""
    step, rank = draw.step(), draw.of(1, RANKS)
    segment = draw.of("world_all_reduce", ("world_all_reduce", "dp_reduce_scatter"))
    kinds = frozenset({"missing-call"} | ({"mismatch"} if segment == "dp_reduce_scatter" else set()))
    return Trial(
        name, f"skip-collective rank={rank} segment={segment} step={step} attempt=0", "", frozenset({rank}), kinds
    )


def _nan(name: str, draw: Draw) -> Trial:
    step, rank = draw.step(), draw.of(3, SECOND_HOST)  # the last stage has the loss
    kinds = frozenset({"exception"})
    return Trial(name, f"nan rank={rank} step={step} attempt=0", "", frozenset({rank}), kinds, ends=HALT)


def _slow_rank(name: str, draw: Draw) -> Trial:
    step, rank = draw.step(WITH_BASELINE), draw.of(3, RANKS)
    fault = f"slow rank={rank} factor=5 from={step} attempt=0"
    named, kinds = frozenset({rank}), frozenset({"rank"})
    return Trial(name, fault, "", named, kinds, "", host_of(rank, REPLICAS), layout=REPLICAS)


def _slow_host(name: str, draw: Draw) -> Trial:
    """All ranks of a host at once, as where it is hot or something else runs on it."""
    step, ranks = draw.step(WITH_BASELINE), draw.of(SECOND_HOST, (FIRST_HOST, SECOND_HOST))
    fault = f"slow rank={','.join(map(str, ranks))} factor=5 from={step} attempt=0"
    named, kinds = frozenset(ranks), frozenset({"host"})
    return Trial(name, fault, "", named, kinds, "", host_of(ranks[0], REPLICAS), layout=REPLICAS)


def _slow_from_start(name: str, draw: Draw) -> Trial:
    rank = draw.of(3, RANKS)
    fault, named, kinds = f"slow rank={rank} factor=2 attempt=0", frozenset({rank}), frozenset({"rank"})
    return Trial(name, fault, "", named, kinds, "", host_of(rank, REPLICAS_LONG), layout=REPLICAS_LONG)


def _slow_link(name: str, draw: Draw) -> Trial:
    step, link = draw.step(WITH_BASELINE), draw.of("3>1", LINKS)
    fault = f"slow-link link={link} delay_ms=60 from={step} attempt=0"
    return Trial(name, fault, kinds=frozenset({"slow-network"}), layout=LONG, disturbs=False)


def _slow_nic(name: str, draw: Draw) -> Trial:
    step, rank = draw.step(WITH_BASELINE), draw.of(4, range(LAYOUTS[RING]["pp"]))
    fault = f"slow-nic rank={rank} delay_ms=30 from={step} attempt=0"
    return Trial(name, fault, "", frozenset({rank}), frozenset({"rank"}), "", host_of(rank, RING), layout=RING)


def _divergence(name: str, draw: Draw) -> Trial:
    fault = f"diverge factor=1000 from={draw.step(WITH_BASELINE)} attempt=0"
    return Trial(name, fault, kinds=frozenset({"loss-divergence"}), layout=LONG, rolls_back=True)


def _storage(name: str, draw: Draw, *, prod: str) -> Trial:
    return Trial(name, prod=prod, layout=LONG, disturbs=False, at=draw.step())


def _host_from_outside(name: str, draw: Draw, *, prod: str, layout: str = LONG, comes_to: str) -> Trial:
    """What comes to a host, or its agents: it is lost, fenced or left alone."""
    step, rank = draw.step(), draw.of(3, RANKS)
    lost = min(host_of(rank)) if comes_to == "lost" else ""
    fenced = host_of(rank) if comes_to == "fenced" else frozenset[str]()
    return Trial(
        name, prod=prod, lost=lost, fenced=fenced, layout=layout, disturbs=bool(lost or fenced), at=step, victim=rank
    )


def _damaged_checkpoint(name: str, draw: Draw) -> Trial:
    step, rank = draw.step(), draw.of(3, RANKS)
    named, dead = frozenset({rank}), frozenset({"dead"})
    return Trial(name, "", "damage-and-kill", named, dead, "", host_of(rank), layout=LONG, at=step, victim=rank)


def _killed_again(name: str, draw: Draw) -> Trial:
    """A second rank, on the other host, dies while the job starts again without the first."""
    step, first = draw.step(), draw.of(3, RANKS)
    second = draw.of(0, FIRST_HOST if first in SECOND_HOST else SECOND_HOST)
    return Trial(
        name, f"kill rank={first} segment=backward step={step} attempt=0", KILL_AS_IT_STARTS, frozenset({first}),
        frozenset({"dead", "init"}), "", host_of(first) | host_of(second), spares=2, also=frozenset({second}),
        at=step, victim=second,
    )  # fmt: skip


_stop = partial(_in_work, kind="host-stuck")
_program = partial(_in_work, fences=False)
_TRIALS: dict[str, Callable[[str, Draw], Trial]] = {
    "kill": partial(_in_work, does="kill", kind="dead", rank=3, segment="backward"),
    "sigstop": partial(_stop, does="freeze", rank=3, segment="forward"),
    "hold-gil": partial(_stop, does="hold-gil", rank=1, segment="forward"),
    "stop-in-optimizer": partial(_stop, does="stop", rank=2, segment="optimizer", segments=("optimizer",)),
    "exception": partial(_program, does="raise", kind="exception", rank=2, segment="forward"),
    "host-loss": partial(_host_loss, rank=2, ranks=SECOND_HOST),
    "slow-rank": _slow_rank,
    "slow-from-start": _slow_from_start,
    "slow-host": _slow_host,
    "nan": _nan,
    "out-of-memory": partial(_program, does="out-of-memory", kind="exception", rank=3, segment="forward"),
    "storage-full": partial(_storage, prod=FILL),
    "collective-size": partial(
        _program, does="wrong-size", kind="mismatch", rank=3, segment="dp_all_gather", segments=("dp_all_gather",)
    ),
    "collector-killed": partial(_host_from_outside, prod="kill-collector", comes_to="nothing"),
    "host-silent": partial(_host_from_outside, prod="freeze-host", comes_to="lost"),
    "data-loader-stall": partial(_stop, does="stop", rank=0, segment="data_read", segments=("data_read",)),
    "storage-failing": partial(_storage, prod="break-storage"),
    "damaged-checkpoint": _damaged_checkpoint,
    "slow-link": _slow_link,
    "slow-nic": _slow_nic,
    "checkpoint-stall": _checkpoint_stall,
    "xid": partial(_host_from_outside, prod="gpu-falls-off", layout=LONGER, comes_to="fenced"),
    "node-agent-killed": partial(_host_from_outside, prod="kill-node-agent", comes_to="lost"),
    "collective-skipped": _skipped,
    # Of two that differ, the steps before say which one is right.
    "collective-type": partial(
        _program, does="wrong-collective", kind="mismatch", rank=3, segment="dp_all_gather", segments=("dp_all_gather",)
    ),
    "rendezvous-host-lost": partial(_host_loss, rank=0, ranks=FIRST_HOST),
    "kill-in-restart": _killed_again,
    "divergence": _divergence,
}
