"""Starting one attempt: waits for hosts, gives them their ranks, and tells each node what to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from ...profiler.errors import MegascopeError
from .attempt import AttemptState
from .fencing import choose_hosts
from .history import attempt_logs
from .hub import Hub
from .job import Job

PORT_S = 10.0

Turn = Callable[[float], None]


class StartError(MegascopeError):
    """The attempt cannot be started."""


def await_hosts(
    job: Job, hub: Hub, before: Sequence[str], barred: Callable[[], Collection[str]], turn: Turn
) -> tuple[str, ...]:
    """The hosts of the next attempt, in the order of their ranks. StartError where too few come in time.

    The first attempt waits a little for the spares too, and then takes hosts in the order of their names.
    """
    began = time.monotonic()
    deadline, spares_by = began + job.patience.join_s, began + job.patience.spare_s
    while True:
        present = [host for host, node in hub.nodes.items() if node.slots >= job.ranks_per_host]
        hosts = choose_hosts(job.hosts, before, present if before else sorted(present), barred())
        is_early = not before and len(present) < job.hosts + job.spares and time.monotonic() < spares_by
        if hosts is not None and not is_early:
            return hosts
        if time.monotonic() > deadline:
            raise StartError(
                f"{len(present)} of {job.hosts} hosts are there after {job.patience.join_s:g} s: start "
                "`megascope node` on more hosts, with --nproc as large as the ranks of a host."
            )
        turn(0.1)


def start_attempt(job: Job, hub: Hub, state: AttemptState, skipped: Sequence[int], turn: Turn) -> None:
    """Have the ranks of an attempt started. A node that fails meanwhile shows as lost, or as ranks that ended."""
    state.untold.update(state.hosts)
    first = hub.nodes.get(state.hosts[0])
    if first is not None:
        first.tell({"do": "port", "attempt": state.number})
    deadline = time.monotonic() + PORT_S
    while state.port is None and not state.lost:
        if time.monotonic() > deadline:
            state.give_up(state.hosts[:1])
        turn(0.05)
    if first is None or state.port is None:
        return
    batches = sorted({*job.skip, *skipped}) if skipped else []
    overrides = [part for batch in batches for part in ("--data.skip", str(batch))]
    logs = attempt_logs(job.store, job.run, state.number)
    for number, host in enumerate(state.hosts):
        node = hub.nodes.get(host)
        if node is None:
            state.lost.add(host)
            continue
        state.untold.discard(host)
        node.tell(
            {
                "do": "start",
                "run": job.run,
                "attempt": state.number,
                "config": str(job.config),
                "overrides": overrides,
                "first_rank": number * job.ranks_per_host,
                "local_ranks": job.ranks_per_host,
                "world_size": job.world_size,
                "master": [first.address, state.port],
                "log": str(logs / f"{host}.log"),
                "store": str(job.store),
                "environment": dict(job.environment),
            }
        )
