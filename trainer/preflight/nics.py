"""From each network card of a host to each other one, with perftest's ib_write_bw, where there are RDMA cards."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

from .check import Answer, Check, Effort, Here
from .measurements import Metric
from .plan import Cluster, Round
from .ports import SYSFS

TOOL = "ib_write_bw"
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s", re.MULTILINE)
"""#bytes, #iterations, peak and average bandwidth."""


class Nics(Check):
    """RDMA writes between all active cards of a host, each with itself too: the slowest way of each host.

    Ethernet cards without RDMA are not measured inside a host: the kernel takes a way around them.
    """

    name = "nics"
    metrics = (Metric(name="bandwidth", unit="GB/s", margin_cpu=0.1, margin_cuda=0.1, is_of_host=True),)

    def __init__(self, root: Path = SYSFS) -> None:
        self.root = root

    def why_not(self, cluster: Cluster, effort: Effort) -> str | None:
        """Without RDMA cards or the tool there is nothing to do; judged by the first host, as the others are alike."""
        if not active_cards(self.root):
            return (
                "no active RDMA card in /sys/class/infiniband; Ethernet cards of a host do not carry its own traffic."
            )
        return None if shutil.which(TOOL) else f"{TOOL} is not installed: install perftest on the hosts."

    def rounds(self, cluster: Cluster) -> list[Round]:
        """The first rank of every host."""
        return [[(ranks[0],) for ranks in cluster.hosts().values()]]

    def measure(self, here: Here) -> Answer:
        """The slowest of all ways, and all of them as facts."""
        cards = active_cards(self.root)
        found = {}
        for source in cards:
            for target in cards:
                here.note(f"{source} to {target}")
                found[f"{source} > {target}"] = write_bandwidth(source, target, 2.0 if here.effort.quick else 5.0)
        return Answer({"bandwidth": min(found.values())}, kind=f"hosts with {len(cards)} RDMA cards", facts=found)


def active_cards(root: Path) -> list[str]:
    """Cards that have an active port."""
    states = root.glob("infiniband/*/ports/*/state")
    return sorted({path.parents[2].name for path in states if "ACTIVE" in path.read_text(errors="replace")})


def write_bandwidth(source: str, target: str, timeout_s: float) -> float:
    """GB/s from one card to another of this host. Raises RuntimeError with the tool's last words where it fails."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    common = ["-F", "-p", port, "-s", str(1 << 20), "-n", "1000", "--report_gbits"]
    server = subprocess.Popen(
        [TOOL, "-d", target, *common], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    )
    try:
        time.sleep(0.3)
        done = subprocess.run(
            [TOOL, "-d", source, *common, "127.0.0.1"],
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
    finally:
        server.kill()
        server.wait()
    row = _ROW.search(done.stdout)
    if done.returncode != 0 or row is None:
        words = " ".join((done.stderr or done.stdout).split())[-200:]
        raise RuntimeError(f"{TOOL} from {source} to {target} failed ({words or 'it said nothing'})")
    return float(row.group(1)) / 8
