"""On which host each rank is, as the ranks tell each other through the rendezvous store, and what follows for axes."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ..profiler.host import host_name
from ..profiler.topology import Topology
from .topology import groups_across_hosts, pod_of_hosts, pods_that_split_hosts

if TYPE_CHECKING:
    from .config import TrainConfig

log = logging.getLogger(__name__)

BY_HOST = "host"
"""The size of a pod that is to follow from the hosts."""


class Hosts:
    """The hosts of all ranks. Each rank tells its own; rank 0 alone asks for those of all, and waits until it has them.

    That is when pods follow from hosts, on which the other ranks wait for its word; else only once a step is done,
    before which all have told: no rank stands in its set-up for the sake of a warning.
    """

    def __init__(self, config: TrainConfig, topology: Topology) -> None:
        self._topology, self._rank, self._wanted = topology, dist.get_rank(), config.parallel.pod
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # a store may outlive a restart
        layout = "-".join(f"{name}{size}" for name, size in topology.axes)  # and several layouts follow in one process
        self._key = f"megascope/hosts/{config.attempt(os.environ)}/{restart}/{layout}"
        self._store: Any = dist.distributed_c10d._get_default_store()
        self._hosts: tuple[str, ...] | None = None
        self._pod = 0
        self._store.set(f"{self._key}/{self._rank}", host_name())

    def all(self) -> tuple[str, ...]:
        """The host of each rank."""
        if self._hosts is None:
            keys = [f"{self._key}/{rank}" for rank in range(self._topology.world_size)]
            self._hosts = tuple(name.decode() for name in self._store.multi_get(keys))
        return self._hosts

    def pod(self) -> int:
        """Replicas of a pod, the same number on every rank; 0 where there is one level: none or all in a pod."""
        size = self._wanted
        if size == BY_HOST:
            if self._rank == 0:
                self._store.set(f"{self._key}/pod", str(pod_of_hosts(self._topology, self.all())))
            size = self._store.get(f"{self._key}/pod").decode()
        self._pod = int(size) if 1 < int(size) < self._topology.size("dp") else 0
        return self._pod

    def warn(self) -> None:
        """Rank 0 warns of axes that the hosts do not suit."""
        if self._rank != 0 or len(set(self.all())) == 1:
            return
        crossing = groups_across_hosts(self._topology, "tp", self.all())
        if crossing:
            log.warning(
                "Tensor-parallel ranks %s lie on several hosts (%s): every layer will wait for the network. "
                "Choose a tp that divides the processes of a host, and keep it innermost in parallel.order.",
                list(crossing[0]),
                self._named(crossing[0]),
            )
        if self._wanted == BY_HOST and not self._pod and self._topology.size("dp") > 1:
            log.warning(
                "parallel.pod is host, but no neighbouring replicas share a host evenly: gradients are reduced in one "
                "level. Put dp inside pp in parallel.order, with several replicas on each host, or set pod to 0."
            )
        split = pods_that_split_hosts(self._topology, self._pod, self.all()) if self._pod else []
        if split:
            log.warning(
                "The pod of replicas on ranks %s lies on parts of several hosts (%s): sums inside it cross the "
                'network too. Choose a parallel.pod that divides the replicas of a host, or "host".',
                list(split[0]),
                self._named(split[0]),
            )

    def _named(self, ranks: tuple[int, ...]) -> str:
        return ", ".join(dict.fromkeys(self.all()[rank] for rank in ranks))
