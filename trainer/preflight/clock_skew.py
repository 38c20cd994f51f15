"""How far apart the hosts' clocks are: messages between the first host and all others."""

from __future__ import annotations

import json
import secrets
import time

from ...profiler.clock_exchange import answer, ask, open_server
from .check import Answer, Check, Effort, Here
from .measurements import Metric
from .plan import Cluster, Round

ROUND_TRIPS = 20
SILENCE_S = 0.5
LIMIT_MS = 100.0
"""Logs of hosts that are further apart than this tell a wrong order; a host that keeps NTP's time is within a few."""


class ClockSkew(Check):
    """Offset of each host's wall clock from the first host's. What is claimed is at least what the messages bound."""

    name = "clock"
    depends_on_first = True
    metrics = (
        Metric(name="offset", unit="ms", higher_is_better=False, limit=LIMIT_MS, is_compared=False, is_of_host=True),
    )

    def why_not(self, cluster: Cluster, effort: Effort) -> str | None:
        """One host agrees with itself."""
        return None if len(cluster.hosts()) > 1 else "there is one host: its ranks share a clock."

    def rounds(self, cluster: Cluster) -> list[Round]:
        """The first ranks of all hosts together."""
        return [[tuple(ranks[0] for ranks in cluster.hosts().values())]]

    def measure(self, here: Here) -> Answer:
        """The first host answers, the others ask; the quickest of a host's round trips bounds its offset."""
        if here.index == 0:
            self._answer(here)
            return Answer({})
        address, port, token = json.loads(here.exchange("clock", None))
        here.note(f"asking {address}")
        found = ask([address], port, bytes.fromhex(token), self.now_ns, "first host", ROUND_TRIPS)
        if found is None:
            raise RuntimeError(f"no answer about the time came from {address}, port {port} (UDP)")
        return Answer({"offset": -found.offset_ns / 1e6}, uncertainty={"offset": found.uncertainty_ns / 1e6})

    def _answer(self, here: Here) -> None:
        """Answer until nobody has asked for a while, or nobody at all by half of the time limit."""
        token, end = secrets.token_bytes(16), time.monotonic() + here.effort.timeout_s / 2
        with open_server() as server:
            address = here.cluster.members[here.rank].address
            here.exchange("clock", json.dumps([address, server.getsockname()[1], token.hex()]))
            here.note("answering")
            asked = False
            while time.monotonic() < end:
                answered = answer(server, token, self.now_ns, min(end, time.monotonic() + SILENCE_S))
                if asked and not answered:
                    return
                asked = asked or answered > 0

    def now_ns(self) -> int:
        """This host's wall clock."""
        return time.time_ns()
