"""On which host, and in which rack, each rank is, as ranks tell each other through the store, and what follows."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ..profiler.host import host_name
from ..profiler.racks import read_racks
from ..profiler.topology import Topology
from .sections import BY_HOST, BY_RACK
from .topology import groups_across_hosts, pod_of_places, pods_that_split_places

if TYPE_CHECKING:
    from .config import TrainConfig

log = logging.getLogger(__name__)


class Hosts:
    """The hosts of all ranks. Each rank tells its own; rank 0 alone asks for those of all, and waits until it has them.

    That is when pods follow from hosts or racks, on which the other ranks wait for its word; else only once a step is
    done, before which all have told: no rank stands in its set-up for the sake of a warning.
    """

    def __init__(self, config: TrainConfig, topology: Topology) -> None:
        self._topology, self._rank = topology, dist.get_rank()
        self._wanted, self._file = config.parallel.pod, config.parallel.racks
        self._racks = read_racks(self._file) if self._rank == 0 else None
        layout = "-".join(f"{name}{size}" for name, size in topology.axes)  # and several layouts follow in one process
        self._key = f"megascope/hosts/{config.incarnation(os.environ)}/{layout}"
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

    def racks(self) -> tuple[str, ...]:
        """On rank 0, the rack of each rank; a host that the file does not have is one of its own. Empty: no file."""
        known = self._racks
        return () if known is None else tuple(known.get(host, f"that of {host} alone") for host in self.all())

    def pod(self) -> int:
        """Replicas of a pod, the same number on every rank; 0 where there is one level: none or all in a pod."""
        size = self._wanted
        if isinstance(size, str):
            if self._rank == 0:
                places = self.all() if size == BY_HOST else self.racks()
                self._store.set(f"{self._key}/pod", str(pod_of_places(self._topology, places)))
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
        self._warn_of_racks()
        self._warn_of_pods()

    def _warn_of_pods(self) -> None:
        racks = self.racks()
        places = racks if self._wanted == BY_RACK else self.all()
        if isinstance(self._wanted, str) and not self._pod and self._topology.size("dp") > 1 and len(set(places)) > 1:
            log.warning(
                "parallel.pod is %s, but no neighbouring replicas share a %s evenly: gradients are reduced in one "
                "level. Put dp inside pp in parallel.order, with several replicas on each %s, or set pod to 0.",
                *[self._wanted] * 3,
            )
        for kind, places in ((BY_HOST, self.all()), (BY_RACK, racks)):
            split = pods_that_split_places(self._topology, self._pod, places) if self._pod and places else []
            if split:
                log.warning(
                    "The pod of replicas on ranks %s lies on parts of several %ss (%s): sums inside it cross the "
                    'network too. Choose a parallel.pod that divides the replicas of a %s, or "%s".',
                    list(split[0]),
                    kind,
                    ", ".join(dict.fromkeys(places[rank] for rank in split[0])),
                    kind,
                    kind,
                )

    def _warn_of_racks(self) -> None:
        unknown = [] if self._racks is None else sorted(set(self.all()) - self._racks.keys())
        if unknown:
            log.warning(
                "%s has no rack for %s: each counts as a rack of its own. Add a line host,rack for it, by the name "
                "that the host gives itself.",
                self._file,
                ", ".join(unknown),
            )

    def _named(self, ranks: tuple[int, ...]) -> str:
        return ", ".join(dict.fromkeys(self.all()[rank] for rank in ranks))
