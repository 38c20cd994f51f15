"""Every metric of hardware with the values that it can have, in one table."""

from __future__ import annotations

from collections.abc import Iterable

from ..health import Metric

RATE = 1e13
COUNT = 1e12

ECC_ERRORS = Metric("ecc_uncorrected_errors", 0, COUNT, is_steady=True)
"""Uncorrectable memory errors since the driver was loaded; a device without ECC gives none."""
XID = Metric("xid", 1, 100_000)
"""Number of an Xid of the NVIDIA driver: one row for each line of the kernel's log."""

DEVICE: tuple[Metric, ...] = (
    Metric("temperature_celsius", 1, 130),
    Metric("memory_temperature_celsius", 1, 150),
    Metric("power_watts", 0.001, 5000),
    Metric("sm_clock_mhz", 1, 10_000),
    Metric("memory_clock_mhz", 1, 20_000),
    Metric("clocks_event_reasons", 0, 2**20),  # a mask of bits: see throttling.py
    Metric("utilization_percent", 0, 100),
    Metric("memory_utilization_percent", 0, 100),
    Metric("device_memory_used_bytes", 0, 2**50),
    Metric("nvlink_sent_bytes_per_s", 0, RATE),
    Metric("nvlink_received_bytes_per_s", 0, RATE),
    Metric("power_limit_watts", 0.001, 5000, is_steady=True),
    Metric("slowdown_temperature_celsius", 1, 150, is_steady=True),
    Metric("sm_clock_max_mhz", 1, 10_000, is_steady=True),
    Metric("ecc_corrected_errors", 0, COUNT, is_steady=True),
    ECC_ERRORS,
    Metric("ecc_corrected_errors_lifetime", 0, COUNT, is_steady=True),
    Metric("ecc_uncorrected_errors_lifetime", 0, COUNT, is_steady=True),
    Metric("remapped_rows_corrected", 0, 1e6, is_steady=True),
    Metric("remapped_rows_uncorrected", 0, 1e6, is_steady=True),
    Metric("remapping_pending", 0, 1, is_steady=True),
    Metric("remapping_failed", 0, 1, is_steady=True),
    Metric("pcie_generation", 1, 10, is_steady=True),
    Metric("pcie_generation_max", 1, 10, is_steady=True),
    Metric("pcie_width", 1, 32, is_steady=True),
    Metric("pcie_width_max", 1, 32, is_steady=True),
    Metric("pcie_replay_errors", 0, COUNT, is_steady=True),
    Metric("nvlinks_up", 0, 36, is_steady=True),
    Metric("nvlinks", 0, 36, is_steady=True),
    Metric("nvlink_crc_errors", 0, COUNT, is_steady=True),
    Metric("nvlink_replay_errors", 0, COUNT, is_steady=True),
    Metric("nvlink_recovery_errors", 0, COUNT, is_steady=True),
    Metric("nvlink_symbol_errors", 0, COUNT, is_steady=True),
)
"""Of a GPU. Counters are totals as the driver counts them: since it was loaded, or of the device's life."""

HOST: tuple[Metric, ...] = (
    Metric("cpu_percent", 0, 100),
    Metric("load_1min", 0, 1e6),
    Metric("memory_percent", 0, 100),
    Metric("memory_used_bytes", 0, 2**60),
    Metric("swap_used_bytes", 0, 2**60, is_steady=True),
    Metric("swap_read_bytes_per_s", 0, RATE),
    Metric("disk_read_bytes_per_s", 0, RATE),
    Metric("disk_written_bytes_per_s", 0, RATE),
    Metric("spool_disk_percent", 0, 100, is_steady=True),
    Metric("network_sent_bytes_per_s", 0, RATE),
    Metric("network_received_bytes_per_s", 0, RATE),
    Metric("network_errors", 0, COUNT, is_delta=True),
    Metric("network_dropped_packets", 0, COUNT, is_delta=True),
)
"""Of the host: deltas count since the sample before."""

PORT: tuple[Metric, ...] = (
    Metric("rdma_link_up", 0, 1, is_steady=True),
    Metric("rdma_rate_bits_per_s", 1, 1e14, is_steady=True),
    Metric("rdma_sent_bytes_per_s", 0, RATE),
    Metric("rdma_received_bytes_per_s", 0, RATE),
    *(
        Metric(f"rdma_{name}", 0, COUNT, is_delta=True)
        for name in (
            "symbol_errors", "link_recoveries", "link_downed", "receive_errors", "receive_remote_errors",
            "transmit_discards", "link_integrity_errors", "buffer_overrun_errors", "out_of_buffer",
            "out_of_sequence_errors", "packet_sequence_errors", "implied_nak_errors", "ack_timeouts",
            "not_ready_retries", "adaptive_retransmissions", "retries_exceeded_errors", "completion_errors",
            "icrc_errors", "slow_restarts", "cnp_sent", "cnp_handled",
        )
    ),
)  # fmt: skip
"""Of a port of an RDMA adapter: deltas count since the sample before."""


def by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Metrics by their names."""
    return {metric.name: metric for metric in metrics}


ALL = by_name((*DEVICE, *HOST, *PORT, XID))
