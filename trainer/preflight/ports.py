"""Counters of errors of this host's network ports, from the kernel: read before and after, the difference is news."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from .check import Answer, Check, Here
from .measurements import Culprit, Kind, Reason
from .plan import Cluster, Round

SYSFS = Path("/sys/class")

ERRORS = frozenset(
    {
        # InfiniBand and RoCE: counters and hw_counters of a port (kernel documentation, sysfs-class-infiniband)
        "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
        "port_rcv_switch_relay_errors", "port_rcv_constraint_errors", "port_xmit_constraint_errors",
        "local_link_integrity_errors", "excessive_buffer_overrun_errors", "packet_seq_err", "local_ack_timeout_err",
        "rnr_nak_retry_err", "implied_nak_seq_err", "req_cqe_error", "resp_cqe_error",
        # any interface: statistics (sysfs-class-net-statistics)
        "rx_errors", "tx_errors", "rx_crc_errors", "rx_frame_errors", "rx_length_errors", "rx_missed_errors",
        "rx_fifo_errors", "rx_over_errors", "tx_carrier_errors", "tx_fifo_errors", "tx_aborted_errors",
        "collisions",
    }
)  # fmt: skip
"""Counters that a healthy port leaves alone."""

DROPS = frozenset({"port_xmit_discards", "out_of_buffer", "out_of_sequence", "rx_dropped", "tx_dropped"})
"""Counters that grow for harmless reasons too (congestion, packets of unknown protocols): told, and nobody accused."""


def read_counters(root: Path = SYSFS) -> dict[str, int]:
    """Counters of errors and drops of all ports of this host, such as "eth0 rx_errors" or "mlx5_0/1 symbol_error".

    Interfaces without hardware (loopback, bridges) are left out, and counters that cannot be read.
    """
    found: dict[str, int] = {}
    for port, folder in _folders(root):
        for path in sorted(folder.iterdir()):
            if path.name in ERRORS or path.name in DROPS:
                value = _number(path)
                if value is not None:
                    found[f"{port} {path.name}"] = value
    return found


def _folders(root: Path) -> Iterator[tuple[str, Path]]:
    for port in sorted(root.glob("infiniband/*/ports/*")):
        for name in ("counters", "hw_counters"):
            if (port / name).is_dir():
                yield f"{port.parents[1].name}/{port.name}", port / name
    for interface in sorted(root.glob("net/*")):
        if (interface / "device").exists() and (interface / "statistics").is_dir():
            yield interface.name, interface / "statistics"


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


class Ports(Check):
    """Reads the counters of every host; run before and after the others."""

    name = "ports"
    metrics = ()

    def __init__(self, root: Path = SYSFS) -> None:
        self.root = root

    def rounds(self, cluster: Cluster) -> list[Round]:
        """The first rank of every host."""
        return [[(ranks[0],) for ranks in cluster.hosts().values()]]

    def measure(self, here: Here) -> Answer:
        """The counters as facts."""
        return Answer({}, facts=read_counters(self.root))


Counters = Mapping[int, Mapping[str, int]]
"""By the rank that read them."""


def find_growth(before: Counters, after: Counters, cluster: Cluster) -> tuple[list[Culprit], list[str]]:
    """Accusations of hosts whose counters of errors grew, and a sentence for each counter of drops that did."""
    culprits, notes = [], []
    for rank, old in before.items():
        for counter, value in after.get(rank, {}).items():
            grown = value - old.get(counter, value)
            if grown <= 0:
                continue
            host = cluster.members[rank].host
            port, _, name = counter.partition(" ")
            sentence = f"Host {host}: {name} of port {port} grew by {grown:,} (to {value:,}) during the checks."
            if name in DROPS:
                notes.append(sentence)
                continue
            culprits.append(
                Culprit(
                    kind=Kind.HOST,
                    reason=Reason.ERRORS,
                    check="ports",
                    metric=name,
                    ranks=tuple(cluster.hosts()[host]),
                    hosts=(host,),
                    value=float(grown),
                    peers=0.0,
                    unit="errors",
                    statement=sentence,
                )
            )
    return culprits, notes
