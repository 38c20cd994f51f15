"""Ports of RDMA adapters as the kernel shows them under /sys/class/infiniband: state, rate, and what they count."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path("/sys/class/infiniband")

BYTES_PER_WORD = 4
"""``port_xmit_data`` and ``port_rcv_data`` count words of four octets on every lane together."""

TRAFFIC: Mapping[str, str] = {
    "port_xmit_data": "rdma_sent_bytes_per_s",
    "port_rcv_data": "rdma_received_bytes_per_s",
}

TROUBLE: Mapping[str, str] = {
    "symbol_error": "rdma_symbol_errors",
    "link_error_recovery": "rdma_link_recoveries",
    "link_downed": "rdma_link_downed",
    "port_rcv_errors": "rdma_receive_errors",
    "port_rcv_remote_physical_errors": "rdma_receive_remote_errors",
    "port_xmit_discards": "rdma_transmit_discards",
    "local_link_integrity_errors": "rdma_link_integrity_errors",
    "excessive_buffer_overrun_errors": "rdma_buffer_overrun_errors",
    "out_of_buffer": "rdma_out_of_buffer",
    "out_of_sequence": "rdma_out_of_sequence_errors",
    "packet_seq_err": "rdma_packet_sequence_errors",
    "implied_nak_seq_err": "rdma_implied_nak_errors",
    "local_ack_timeout_err": "rdma_ack_timeouts",
    "rnr_nak_retry_err": "rdma_not_ready_retries",
    "roce_adp_retrans": "rdma_adaptive_retransmissions",
    "req_transport_retries_exceeded": "rdma_retries_exceeded_errors",
    "req_cqe_error": "rdma_completion_errors",
    "rx_icrc_encapsulated": "rdma_icrc_errors",
    "roce_slow_restart": "rdma_slow_restarts",
    "np_cnp_sent": "rdma_cnp_sent",
    "rp_cnp_handled": "rdma_cnp_handled",
}
"""Counters of trouble and of congestion by their files, and their metrics. An adapter has those that it can count."""

_RATE = re.compile(r"([\d.]+)\s*Gb/sec")
_STATE = re.compile(r"(\d+):")
_ACTIVE, _LINK_UP = 4, 5


def read_ports(root: Path = ROOT) -> list[dict[str, Any]]:
    """Every port: ``port`` (mlx5_0/1), ``up`` (None where not told), ``rate`` (bits a second) and ``counters``.

    What cannot be read is None, or missing from the counters; nothing is raised.
    """
    return [_port(path) for path in _folders(root)]


def _folders(root: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for device in sorted(root.iterdir()):
            with contextlib.suppress(OSError):
                yield from sorted(one for one in (device / "ports").iterdir() if one.name.isdigit())


def _port(folder: Path) -> dict[str, Any]:
    counters = {
        name: value
        for place in ("counters", "hw_counters")
        for name in (*TRAFFIC, *TROUBLE)
        if (value := _number(folder / place / name)) is not None
    }
    return {
        "port": f"{folder.parent.parent.name}/{folder.name}",
        "up": _is_up(folder),
        "rate": _rate(_text(folder / "rate")),
        "counters": counters,
    }


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _is_up(folder: Path) -> int | None:
    """1 where the port is active on a link that is up; 0 where either is told not to be."""
    found = [_STATE.match(_text(folder / name) or "") for name in ("state", "phys_state")]
    told = [(int(one[1]), wanted) for one, wanted in zip(found, (_ACTIVE, _LINK_UP), strict=True) if one]
    return int(all(code == wanted for code, wanted in told)) if told else None


def _rate(text: str | None) -> float | None:
    found = _RATE.match(text or "")
    return float(found[1]) * 1e9 if found else None
