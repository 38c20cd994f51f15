"""One attempt of a supervised job: its hosts, and what their agents have said of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .checks import CheckResult


@dataclass(slots=True)
class AttemptState:
    """What is known of an attempt from its nodes. ``hosts`` are in the order of their ranks.

    ``untold``: hosts not yet told to start.
    ``useless``: hosts whose agents are there, but do not do what they are told: they count as lost too.
    """

    number: int
    hosts: tuple[str, ...]
    ranks_per_host: int
    began_ns: int
    port: int | None = None
    codes: dict[int, int] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    pids: dict[int, int] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    checks: dict[str, CheckResult] = field(default_factory=dict)
    untold: set[str] = field(default_factory=set)
    useless: set[str] = field(default_factory=set)

    @property
    def world_size(self) -> int:
        """Ranks of the attempt."""
        return len(self.hosts) * self.ranks_per_host

    @property
    def failed(self) -> dict[int, int]:
        """Ranks that ended badly, with their exit codes (negative: a signal)."""
        return {rank: code for rank, code in self.codes.items() if code != 0}

    @property
    def has_ended_well(self) -> bool:
        """Whether all ranks have ended, each in order."""
        return len(self.codes) == self.world_size and not self.failed

    def ranks_of(self, host: str) -> range:
        """Global ranks on a host."""
        first = self.hosts.index(host) * self.ranks_per_host
        return range(first, first + self.ranks_per_host)

    def is_still(self, host: str) -> bool:
        """Whether no rank runs on a host any more, as far as can be told."""
        return host in self.lost | self.untold or all(rank in self.codes for rank in self.ranks_of(host))

    def give_up(self, hosts: Iterable[str]) -> None:
        """Count hosts as lost whose agents do not do what they are told."""
        self.useless.update(hosts)
        self.lost.update(self.useless)

    def take(self, host: str, message: Mapping[str, Any]) -> None:
        """Take over what a node of the attempt said; what is about an earlier attempt is passed over."""
        what = message.get("say")
        if what == "checked":
            self.checks[host] = CheckResult(message["passed"], str(message["report"]))
        if host not in self.hosts:
            return
        if what == "lost":
            self.lost.add(host)
        if message.get("attempt") != self.number:
            return
        if what == "ended":
            self.codes.update({int(rank): int(code) for rank, code in message["codes"].items()})
            self.said[host] = str(message["said"]) or self.said.get(host, "")
        elif what == "started":
            self.pids.update({int(rank): int(pid) for rank, pid in message["pids"].items()})
        elif what == "stopped":
            self.stopped.add(host)
        elif what == "port":
            self.port = int(message["port"])
        elif what == "refused":
            self.said[host] = str(message["why"])
            self.codes.update(dict.fromkeys(self.ranks_of(host), 1))
