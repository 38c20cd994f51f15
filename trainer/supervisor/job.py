"""What a supervisor runs: the job, how many hosts it needs, and how patient to be with it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...profiler.errors import UsageError
from ..checkpoints.files import committed_steps
from ..config import TrainConfig
from .limits import Limits
from .thresholds import Thresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for what, in seconds."""

    join_s: float = 600.0
    "For as many hosts as the job needs, at the beginning and after a loss."
    spare_s: float = 60.0
    "For spares, at the beginning, once there are hosts enough."
    start_s: float = 300.0
    "For the first step of an attempt."
    stall_s: float = 120.0
    "For the next step, where no agent has noticed a stall (20 times the median step if that is longer)."
    settle_s: float = 2.0
    "After the first rank has ended, for those that follow it and for what they leave in the store."
    verdict_s: float = 30.0
    "For a firm verdict on a job that failed."
    stop_s: float = 30.0
    "For ranks to end once they are told to."
    check_s: float = 90.0
    "For a host's self-check."
    ask_every_s: float = 15.0
    "Between two questions for stragglers while a sign of slowness stands."
    stragglers_s: float = 600.0
    "Between two questions for stragglers without a sign; 0: none."
    unasked_s: float = 60.0
    "After the first step of an attempt, for the first question without a sign."
    save_s: float = 10.0
    "For a request to save and stop to have come to a rank, from the last step that is in the store on."
    look_s: float = 1.0
    "Between two looks at the store."


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job and its supervision. ``config``: the resolved configuration, ``skip`` the batches that it passes over,
    ``checkpoints`` the folder that it resumes from.

    ``hosts``: hosts that it trains on, with ``world_size / hosts`` ranks each; ``spares`` more are waited for at first.
    ``self_check``: a command that is run on a suspected host (exit code 0: sound, 1: not); empty for none.
    """

    config: Path
    run: str
    store: Path
    hosts: int
    world_size: int
    steps: int
    spares: int = 0
    skip: tuple[int, ...] = ()
    checkpoints: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    self_check: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    thresholds: Thresholds = field(default_factory=Thresholds)
    patience: Patience = field(default_factory=Patience)

    @property
    def ranks_per_host(self) -> int:
        """Ranks on each host."""
        return self.world_size // self.hosts

    def resumed_step(self) -> int:
        """The step with which an attempt begins: that of the newest checkpoint; 0 without any, or where it hides."""
        with contextlib.suppress(OSError):
            return max(() if self.checkpoints is None else committed_steps(self.checkpoints), default=0)
        return 0


def check_job(config: TrainConfig, hosts: int) -> None:
    """Raise UsageError for a job that cannot be supervised on so many hosts."""
    world = config.topology().world_size
    if hosts < 1 or world % hosts:
        raise UsageError(f"{world} ranks cannot be spread over {hosts} hosts: choose --hosts so that it divides them.")
    if config.checkpoint.folder is None or not config.checkpoint.every:
        raise UsageError(
            "A supervised job needs checkpoints to restart from: set checkpoint.folder, on a file system that all "
            "hosts share, and checkpoint.every."
        )
    if not config.checkpoint.resume:
        raise UsageError("checkpoint.resume is false: a supervised job resumes by itself, so leave it out.")
    if not config.record.enabled:
        raise UsageError("record.enabled is false: a supervisor sees the job through what it records.")
    if config.record.spool is not None:
        raise UsageError(
            "record.spool is set: the nodes of a supervised job serve the spool of their own host, so leave it out, "
            "and set MEGASCOPE_SPOOL for `megascope node` where it is to lie elsewhere."
        )
