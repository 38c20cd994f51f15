"""When a machine's samples are worth a word: limits in one table, and what is wrong with a GPU, a port or a host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .kernel_lines import Severity
from .throttling import HARD, THERMAL, reasons

SERIOUS_PORT_ERRORS = (
    "rdma_symbol_errors", "rdma_link_recoveries", "rdma_link_downed", "rdma_receive_errors",
    "rdma_receive_remote_errors", "rdma_link_integrity_errors", "rdma_buffer_overrun_errors",
    "rdma_packet_sequence_errors", "rdma_ack_timeouts", "rdma_retries_exceeded_errors", "rdma_icrc_errors",
)  # fmt: skip
"""What a sound link does not count at all; congestion (CNP, discards, slow restarts) is common, and no error."""


COMPARED = ("pcie_width", "nvlinks_up")
"""Metrics of GPUs that are held against the median of all GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where a value begins to be told; which of them come from a maker says their text."""

    near_slowdown_celsius: float = 5.0
    "Below the temperature at which the GPU says that it slows down."
    hot_celsius: float = 87.0
    "The same for a GPU that does not say it: H100 slows down from 87 to 90 °C on."
    warm_celsius: float = 75.0
    "Below this no temperature is told beside a verdict, ..."
    hotter_celsius: float = 8.0
    "... nor where it is not so much above the others'."
    hot_memory_celsius: float = 95.0
    "HBM: makers' limits are 95 to 105 °C."
    throttled_share: float = 0.1
    "Of the samples with clocks held back by heat or hardware."
    slower_clock: float = 0.95
    "Of the other GPUs' SM clock."
    full_percent: float = 95.0
    "Of a host's memory, or of the spool's disk."
    silent_s: float = 15.0
    "Age of a host's newest heartbeat beside the newest of all, while the job runs."
    corrected: float = 100.0
    "Errors that ECC corrected in the attempt: a few come with sound memory."
    port_errors: float = 10.0
    "Errors of an RDMA port in the attempt, ..."
    more_port_errors: float = 3.0
    "... and over the median of all ports."
    replays: float = 100.0
    "PCIe replays in the attempt: a few come with every sound link."


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about a machine: how bad, and a sentence without its name."""

    severity: Severity
    text: str


Values = Mapping[str, float | None]


def of_gpu(
    name: str, last: Values, grown: Values, held: float | None, mask: float | None, usual: Values
) -> Iterator[Remark]:
    """What is wrong with a GPU.

    ``last``: the newest value of each metric; ``grown``: what counters have counted while it was looked at; ``held``:
    the share of samples whose clocks were held back, ``mask``: why; ``usual``: the median of `COMPARED` over all GPUs.
    """
    limit = last.get("slowdown_temperature_celsius")
    hot = LIMITS.hot_celsius if limit is None else limit - LIMITS.near_slowdown_celsius
    if held is not None and held >= LIMITS.throttled_share:
        why = " and ".join(reasons(mask, THERMAL | HARD))
        yield Remark(Severity.ERROR, f"{name} is held back ({why}) in {held:.0%} of its samples")
    if (grown.get("ecc_uncorrected_errors") or 0) > 0:
        yield Remark(Severity.ERROR, f"{name} had {grown['ecc_uncorrected_errors']:g} errors that ECC cannot correct")
    if last.get("remapping_failed"):
        yield Remark(Severity.ERROR, f"{name} could not remap a bad row of its memory")
    yield from _links(name, last, usual)
    value, memory = last.get("temperature_celsius"), last.get("memory_temperature_celsius")
    if value is not None and value >= hot:
        yield Remark(Severity.WARNING, f"{name} is hot: {value:g} °C")
    if memory is not None and memory >= LIMITS.hot_memory_celsius:
        yield Remark(Severity.WARNING, f"the memory of {name} is hot: {memory:g} °C")
    if last.get("remapping_pending"):
        yield Remark(Severity.WARNING, f"{name} waits for a reset to remap a row of its memory")
    for metric, least, what in (
        ("ecc_corrected_errors", LIMITS.corrected, "errors that ECC corrected"),
        ("pcie_replay_errors", LIMITS.replays, "replays on PCIe"),
        ("nvlink_crc_errors", 1, "CRC errors on NVLink"),
        ("nvlink_replay_errors", 1, "replays on NVLink"),
        ("nvlink_recovery_errors", 1, "recoveries of NVLink"),
    ):
        count = grown.get(metric)
        if count is not None and count >= least:
            yield Remark(Severity.WARNING, f"{name} had {count:g} {what}")


def _links(name: str, last: Values, usual: Values) -> Iterator[Remark]:
    """Links that are narrower than they could be and than those of the others: boards may leave some unconnected."""
    for metric, whole, what in (
        ("pcie_width", "pcie_width_max", "lanes of PCIe"),
        ("nvlinks_up", "nvlinks", "NVLinks up"),
    ):
        value, most, others = last.get(metric), last.get(whole), usual.get(metric)
        if value is not None and most is not None and others is not None and value < min(most, others):
            yield Remark(Severity.ERROR, f"{name} has {value:g} of {most:g} {what}, the others {others:g}")


def port_errors(grown: Values) -> float:
    """Errors that a port has counted and that a sound link does not have."""
    return sum(grown.get(metric) or 0 for metric in SERIOUS_PORT_ERRORS)


def of_port(name: str, last: Values, grown: Values, most: Values, usual: float) -> Iterator[Remark]:
    """What is wrong with a port of an RDMA adapter. One without a cable was never up.

    ``most``: the largest value of each metric; ``usual``: the median over all ports of `port_errors`.
    """
    if last.get("rdma_link_up") == 0:
        went = most.get("rdma_link_up") == 1
        yield Remark(Severity.ERROR if went else Severity.NOTE, f"{name} went down" if went else f"{name} is not up")
    errors = port_errors(grown)
    if errors >= LIMITS.port_errors and errors > LIMITS.more_port_errors * usual:
        worst = max(SERIOUS_PORT_ERRORS, key=lambda metric: grown.get(metric) or 0)
        what = worst.removeprefix("rdma_").replace("_", " ")
        yield Remark(Severity.WARNING, f"{name} counted {errors:g} errors (most: {what})")


def of_host(last: Values, age_s: float | None, lost_spans: int) -> Iterator[Remark]:
    """What is wrong with a host. ``age_s``: of its newest heartbeat beside those of all; None: not judged."""
    if age_s is not None and -age_s > LIMITS.silent_s:
        told = f"its heartbeats are {-age_s:,.0f} s ahead of most hosts'"
        yield Remark(Severity.WARNING, f"{told}: its clock is ahead, or the others are silent")
    if age_s is not None and age_s > LIMITS.silent_s:
        yield Remark(Severity.ERROR, f"no heartbeat for {age_s:,.0f} s")
    memory = last.get("memory_percent")
    if memory is not None and memory >= LIMITS.full_percent:
        yield Remark(Severity.WARNING, f"memory is {memory:.0f} % full")
    disk = last.get("spool_disk_percent")
    if disk is not None and disk >= LIMITS.full_percent:
        yield Remark(Severity.WARNING, f"the disk of the spool is {disk:.0f} % full")
    if lost_spans:
        yield Remark(Severity.WARNING, f"{lost_spans:,} spans were lost")
