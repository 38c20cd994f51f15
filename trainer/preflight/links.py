"""What links carry: loopback, pairs that will talk, all-to-all in a host, all-reduce with the neighbouring host."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from .check import Answer, Check, Effort, Here, sync_of
from .compute import GIGA
from .measurements import Metric
from .plan import Cluster, Round, Team, alone, host_teams, in_rounds, neighbour_teams, talking_pairs

MICRO = 1e6


class Loopback(Check):
    """The host's own network stack: bytes from a process to itself through a TCP socket on the loopback interface."""

    name = "loopback"
    metrics = (Metric(name="bandwidth", unit="GB/s", margin_cpu=0.7, margin_cuda=0.5),)

    def rounds(self, cluster: Cluster) -> list[Round]:
        """Every rank by itself."""
        return alone(cluster)

    def measure(self, here: Here) -> Answer:
        """Bytes over the shortest of several transfers."""
        size = here.effort.size(cpu=64 << 20, cuda=64 << 20, device="cpu")
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as source:
            target, _ = server.accept()
            with target:
                best, end = float("inf"), time.monotonic() + here.effort.window_s
                while best == float("inf") or time.monotonic() < end:
                    best = min(best, _transfer(source, target, size))
        return Answer({"bandwidth": size / best / GIGA})


def _transfer(source: socket.socket, target: socket.socket, size: int) -> float:
    buffer = memoryview(bytearray(1 << 20))
    sender = threading.Thread(target=source.sendall, args=(bytes(size),))
    began, left = time.perf_counter(), size
    sender.start()
    while left:
        left -= target.recv_into(buffer, min(left, len(buffer)))
    seconds = time.perf_counter() - began
    sender.join()
    return seconds


class OfTeam(Check):
    """A check whose team has one value: that of its slowest member. Its members have a process group."""

    is_of_team = True
    needs_group = True

    def best(self, here: Here, work: Callable[[], object], device: torch.device) -> float:
        """Shortest time of ``work``, which all members do equally often: the first decides how often."""
        sync, window_s = sync_of(device), here.effort.window_s / 2
        here.note("first time")
        work()
        sync()
        began = time.perf_counter()
        work()
        sync()
        best = time.perf_counter() - began
        count = torch.tensor([max(3, min(300, int(window_s / best)))], device=device)
        dist.broadcast(count, 0)
        for number in range(int(count)):
            if number % 50 == 0:
                here.note(f"repetition {number + 1} of {int(count)}")
            began = time.perf_counter()
            work()
            sync()
            best = min(best, time.perf_counter() - began)
        return best


class Pairs(OfTeam):
    """Every pair of ranks that will talk: a large message there and back, and a small one."""

    name = "pairs"
    metrics = (
        Metric(name="bandwidth", unit="GB/s", margin_cpu=0.5, margin_cuda=0.15),
        Metric(name="latency", unit="us", higher_is_better=False, margin_cpu=4.0, margin_cuda=1.0),
    )

    def why_not(self, cluster: Cluster, effort: Effort) -> str | None:
        """One rank talks to nobody."""
        return None if cluster.topology.world_size > 1 else "there is one rank, which talks to nobody."

    def rounds(self, cluster: Cluster) -> list[Round]:
        """Pairs of the layout."""
        return in_rounds(talking_pairs(cluster.topology, cluster.chunks), cluster)

    def peers(self, team: Team, cluster: Cluster) -> str:
        """Pairs inside a host are compared with each other, and pairs between hosts: the links are not the same."""
        return "between hosts" if cluster.crosses_hosts(team) else "inside a host"

    def measure(self, here: Here) -> Answer:
        """Half of a round trip each."""
        device = here.torch_device()
        size = here.effort.size(cpu=16 << 20, cuda=256 << 20, device=device.type)
        large, small = (torch.zeros(count, dtype=torch.uint8, device=device) for count in (size, 8))
        here.note(f"talking with rank {here.team[1 - here.index]}")
        big = self.best(here, lambda: self.round_trip(here, large), device) / 2
        little = self.best(here, lambda: self.round_trip(here, small), device) / 2
        return Answer({"bandwidth": size / big / GIGA, "latency": little * MICRO})

    def round_trip(self, here: Here, message: torch.Tensor) -> None:
        """There and back."""
        peer = 1 - here.index
        if here.index == 0:
            dist.send(message, peer)
            dist.recv(message, peer)
        else:
            dist.recv(message, peer)
            dist.send(message, peer)


class AllToAll(OfTeam):
    """All ranks of a host exchange with each other at the same time."""

    name = "all_to_all"
    metrics = (Metric(name="bandwidth", unit="GB/s", margin_cpu=0.5, margin_cuda=0.1),)

    def why_not(self, cluster: Cluster, effort: Effort) -> str | None:
        """Hosts with one rank have nothing to exchange."""
        return None if any(host_teams(cluster)) else "no host has several ranks."

    def rounds(self, cluster: Cluster) -> list[Round]:
        """Every host, all at once."""
        return in_rounds(host_teams(cluster), cluster)

    def peers(self, team: Team, cluster: Cluster) -> str:
        """Hosts with as many ranks."""
        return f"hosts of {len(team)} ranks"

    def measure(self, here: Here) -> Answer:
        """Bytes that leave a rank over the shortest time: (n - 1) / n of its buffer."""
        device, members = here.torch_device(), len(here.team)
        size = here.effort.size(cpu=16 << 20, cuda=512 << 20, device=device.type) // members * members
        source = torch.zeros(size, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        seconds = self.best(here, lambda: dist.all_to_all_single(target, source), device)
        return Answer({"bandwidth": size * (members - 1) / members / seconds / GIGA})


class AllReduce(OfTeam):
    """An all-reduce of every two neighbouring hosts; of the one host where there is no other."""

    name = "all_reduce"
    metrics = (Metric(name="bandwidth", unit="GB/s", margin_cpu=0.5, margin_cuda=0.1),)

    def why_not(self, cluster: Cluster, effort: Effort) -> str | None:
        """One rank has nobody to reduce with."""
        return None if cluster.topology.world_size > 1 else "there is one rank, which has no neighbour."

    def rounds(self, cluster: Cluster) -> list[Round]:
        """Hosts 0 and 1, 2 and 3 and so on at once; then 1 and 2, 3 and 4 and so on."""
        return in_rounds(neighbour_teams(cluster), cluster)

    def peers(self, team: Team, cluster: Cluster) -> str:
        """Neighbours with as many ranks."""
        return f"neighbours of {len(team)} ranks" if cluster.crosses_hosts(team) else f"hosts of {len(team)} ranks"

    def measure(self, here: Here) -> Answer:
        """Bus bandwidth: 2 (n - 1) / n of the bytes over the shortest time, as NCCL's tests count it."""
        device, members = here.torch_device(), len(here.team)
        size = here.effort.size(cpu=16 << 20, cuda=512 << 20, device=device.type) // 4
        numbers = torch.zeros(size, dtype=torch.float32, device=device)
        seconds = self.best(here, lambda: dist.all_reduce(numbers), device)
        ones = torch.ones(1024, device=device)
        dist.all_reduce(ones)
        if not bool((ones == members).all()):
            raise RuntimeError(f"an all-reduce of ones over {members} ranks did not give {members} everywhere")
        return Answer({"bandwidth": 2 * (members - 1) / members * 4 * size / seconds / GIGA})
