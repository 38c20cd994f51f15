"""Starts a preflight: on one host with its own processes, or as the rank that torchrun started."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ...profiler.errors import UsageError
from ...profiler.host import host_name
from ...profiler.identity import store_restarts
from ...profiler.topology import Topology
from ..worker import Place, place_from_environment
from .agent import run_agent
from .bounded import end, fork
from .check import Check, Effort
from .clock_skew import ClockSkew
from .compute import DeviceCopies, Matmul, Memory
from .coordinator import Progress, coordinate
from .links import AllReduce, AllToAll, Loopback, Pairs
from .measurements import Member, Report
from .meeting import Connect, Meeting
from .nics import Nics
from .ports import Ports
from .storage import Checkpoints

CPU_RANKS = 4
"""Processes on a host without GPUs, where nobody says how many: as many as can be compared with each other."""

CONNECT_S = 60.0

QUICK_TIMEOUT_S, WHOLE_TIMEOUT_S = 10.0, 120.0


def all_checks() -> tuple[Check, ...]:
    """The checks in their order: a host by itself first, then its links, storage and clocks."""
    return (
        Ports(), Matmul(), Memory(), DeviceCopies(), Loopback(), Nics(), AllToAll(), AllReduce(), Pairs(),
        Checkpoints(), ClockSkew(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to check.

    ``topology`` None: all ranks are data-parallel. ``floors``: by "check.metric" the least value, or the most where
    less is better. ``device``: auto, cpu or cuda.
    """

    topology: Topology | None = None
    chunks: int = 1
    nproc: int | None = None
    quick: bool = False
    timeout_s: float | None = None
    folder: Path | None = None
    device: str = "auto"
    floors: Mapping[str, float] = field(default_factory=dict)

    def effort(self) -> Effort:
        """Time limit and sizes."""
        limit = self.timeout_s or (QUICK_TIMEOUT_S if self.quick else WHOLE_TIMEOUT_S)
        return Effort(quick=self.quick, timeout_s=limit, folder=self.folder)


def run_preflight(
    settings: Settings, checks: Sequence[Check] | None = None, progress: Progress | None = None
) -> Report | None:
    """Check the machines; the report, on rank 0 or where the processes were started here, else None.

    Raises UsageError for a layout that the number of ranks does not fit, an unknown floor, and a device that is not
    there.
    """
    chosen = tuple(all_checks() if checks is None else checks)
    _check_floors(settings.floors, chosen)
    place = place_from_environment(os.environ)
    device = _device(settings.device)
    if place is None:
        return _on_this_host(settings, chosen, device, progress)
    return _as_rank(settings, chosen, device, place, progress)


def _on_this_host(settings: Settings, checks: Sequence[Check], device: str, progress: Progress | None) -> Report:
    count = settings.nproc or (settings.topology.world_size if settings.topology else _default_ranks(device))
    topology = _topology(settings, count)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with socket.create_server(("127.0.0.1", 0), backlog=max(64, 2 * count)) as server:
        port = server.getsockname()[1]

        def connect() -> Store:
            return TCPStore("127.0.0.1", port, None, False, timedelta(seconds=CONNECT_S), wait_for_workers=False)

        def serve(rank: int) -> None:
            server.close()
            me = Member(rank=rank, host=host_name(), local_rank=rank, device=device)
            run_agent(connect, me, checks, topology, settings.chunks, settings.effort())

        agents = [fork(lambda rank=rank: serve(rank)) for rank in range(count)]  # type: ignore[misc]
        try:
            store = TCPStore(
                "127.0.0.1", port, None, True, timedelta(seconds=CONNECT_S), wait_for_workers=False,
                master_listen_fd=server.detach(),
            )  # fmt: skip
            return _coordinate(settings, checks, Meeting(store), topology, progress)
        finally:
            _end(agents)


def _as_rank(
    settings: Settings, checks: Sequence[Check], device: str, place: Place, progress: Progress | None
) -> Report | None:
    topology = _topology(settings, place.world_size)
    prefix = f"megascope-preflight/{store_restarts(os.environ)}"
    me = Member(
        rank=place.rank, host=host_name(), local_rank=place.local_rank, device=device, address=_own_address()
    )  # fmt: skip
    effort = settings.effort()

    def serve() -> None:
        run_agent(_connect_elsewhere(prefix), me, checks, topology, settings.chunks, effort)

    if place.rank != 0:
        serve()
        return None
    agent = fork(serve)  # before this process has a connection, or the store's threads
    try:
        return _coordinate(settings, checks, Meeting(_open_store(prefix)), topology, progress)
    finally:
        _end([agent])


def _coordinate(
    settings: Settings, checks: Sequence[Check], meeting: Meeting, topology: Topology, progress: Progress | None
) -> Report:
    return coordinate(
        meeting, topology.world_size, topology, settings.chunks, checks, settings.effort(),
        floors=settings.floors, arrive_s=CONNECT_S, progress=progress,
    )  # fmt: skip


def _open_store(prefix: str) -> Store:
    """Rank 0's connection: to torchrun's store, or to one that it opens itself, which waits for nobody."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return _connect_elsewhere(prefix)()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, None, True, timedelta(seconds=CONNECT_S), wait_for_workers=False)
    return PrefixStore(prefix, store)


def _connect_elsewhere(prefix: str) -> Connect:
    """Connections to the store that torchrun, or rank 0, has opened."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

    def connect() -> Store:
        store = TCPStore(host, port, None, False, timedelta(seconds=CONNECT_S), wait_for_workers=False)
        return PrefixStore(prefix, store)

    return connect


def _end(agents: Sequence[int]) -> None:
    """Agents end by themselves once they are told; who has not by then is ended."""
    left = [pid for pid in agents if not end(pid, wait_s=1.0)]
    for pid in left:
        end(pid, kill=True)


def _own_address() -> str:
    """The address of this host on the way to the others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def _default_ranks(device: str) -> int:
    return torch.cuda.device_count() if device == "cuda" else CPU_RANKS


def _topology(settings: Settings, count: int) -> Topology:
    topology = settings.topology or Topology.of(dp=count)
    if topology.world_size != count:
        layout = " x ".join(f"{axis} {size}" for axis, size in topology.axes)
        raise UsageError(
            f"The layout {layout} has {topology.world_size} ranks, but {count} run: change --nproc or the layout, or "
            "leave the configuration out to check the hosts by themselves."
        )
    return topology


def _device(wanted: str) -> str:
    """cuda or cpu. CUDA is not initialised here: processes that are forked later could not use it."""
    there = torch.cuda.device_count() > 0
    if wanted == "cuda" and not there:
        raise UsageError("--device cuda is asked for, but no GPU is visible here: leave it out, or give cpu.")
    return "cuda" if there and wanted != "cpu" else "cpu"


def _check_floors(floors: Mapping[str, float], checks: Sequence[Check]) -> None:
    known = [f"{check.name}.{metric.name}" for check in checks for metric in check.metrics]
    for name in floors:
        if name not in known:
            raise UsageError(f"There is no metric {name!r} to give a floor for: choose among {', '.join(known)}.")
