"""Preflight over several hosts, whose ranks are started elsewhere; here, processes with host names of their own."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.verdicts import to_json
from megascope.profiler.topology import Topology
from megascope.trainer.preflight.bounded import end, fork
from megascope.trainer.preflight.check import Check, Here
from megascope.trainer.preflight.clock_skew import ClockSkew
from megascope.trainer.preflight.links import AllReduce, Pairs
from megascope.trainer.preflight.starting import Settings, run_preflight

pytestmark = [pytest.mark.timeout(120), pytest.mark.alone]


class Skewed(ClockSkew):
    """The clock of host h1 is half a second fast."""

    def now_ns(self) -> int:
        fast = os.environ["MEGASCOPE_HOST"] == "h1"
        return time.time_ns() + (500_000_000 if fast else 0)


def as_ranks(folder: Path, hosts: Sequence[str], checks: Sequence[Check], topology: Topology) -> dict[str, Any]:
    """The result of rank 0, where every rank is a process with a launcher's environment."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def run(rank: int) -> None:
        local = [index for index, host in enumerate(hosts) if host == hosts[rank]].index(rank)
        os.environ.update(
            RANK=str(rank), WORLD_SIZE=str(len(hosts)), LOCAL_RANK=str(local), MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port), MEGASCOPE_HOST=hosts[rank], GLOO_SOCKET_IFNAME="lo",
        )  # fmt: skip
        report = run_preflight(Settings(topology=topology, quick=True, device="cpu", timeout_s=15), checks)
        assert (report is not None) == (rank == 0)
        if report is not None:
            (folder / "result.json").write_text(json.dumps(to_json(report)))

    children = [fork(lambda rank=rank: run(rank)) for rank in range(len(hosts))]  # type: ignore[misc]
    try:
        for child in children:
            assert end(child, wait_s=90)
    finally:
        for child in children:
            end(child, kill=True)
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def test_hosts_with_their_pairs_and_neighbours_and_a_wrong_clock(tmp_path: Path) -> None:
    result = as_ranks(tmp_path, ["h0", "h0", "h1", "h1"], [Skewed(), Pairs(), AllReduce()], Topology.of(pp=2, tp=2))
    assert result["hosts"] == ["h0", "h1"]
    (culprit,) = [one for one in result["culprits"] if one["check"] == "clock"]
    assert (culprit["kind"], culprit["reason"], culprit["hosts"]) == ("host", "limit", ["h1"])
    assert culprit["value"] == pytest.approx(500, abs=90)
    pairs = {(tuple(one["ranks"]), one["peers"]) for one in result["measurements"] if one["check"] == "pairs"}
    assert pairs == {
        ((0, 1), "inside a host"), ((2, 3), "inside a host"), ((0, 2), "between hosts"), ((1, 3), "between hosts"),
    }  # fmt: skip
    (reduced,) = [one for one in result["measurements"] if one["check"] == "all_reduce"]
    assert (reduced["ranks"], reduced["peers"]) == ([0, 1, 2, 3], "neighbours of 4 ranks")


def test_clocks_that_agree_are_not_accused(tmp_path: Path) -> None:
    class Right(ClockSkew):
        def measure(self, here: Here) -> Any:
            assert here.team == (0, 1, 2)
            return super().measure(here)

    result = as_ranks(tmp_path, ["h0", "h2", "h3"], [Right()], Topology.of(dp=3))
    assert result["culprits"] == []
    assert [one["ranks"] for one in result["measurements"]] == [[1], [2]]
    assert result["verdict"] == "insufficient-evidence"
