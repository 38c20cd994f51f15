"""Samples of hardware for a synthetic store: sound GPUs, ports and hosts, and what is wrong with some of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megascope.collectors.writing.writer import TableWriter

from .synthetic_job import SyntheticJob

SAMPLES = 40
"""Moments that are spread over the job."""

SOUND = {
    "temperature_celsius": 58.0, "memory_temperature_celsius": 70.0, "power_watts": 640.0, "power_limit_watts": 700.0,
    "sm_clock_mhz": 1755.0, "sm_clock_max_mhz": 1980.0, "clocks_event_reasons": 0.0, "utilization_percent": 98.0,
    "slowdown_temperature_celsius": 90.0, "ecc_corrected_errors": 0.0, "ecc_uncorrected_errors": 0.0,
    "pcie_width": 16.0, "pcie_width_max": 16.0, "pcie_generation": 5.0, "nvlinks": 18.0, "nvlinks_up": 18.0,
    "device_memory_used_bytes": 6.4e10,
}  # fmt: skip
HOST = {"cpu_percent": 31.0, "load_1min": 12.0, "memory_percent": 44.0, "spool_disk_percent": 20.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Ranks and hosts with something wrong; None means none."""

    hot_rank: int | None = None
    spare_ports: bool = False
    "A second port of every host, without a cable: that is no trouble."
    ecc_rank: int | None = None
    errors_host: str | None = None
    down_host: str | None = None
    lost_rank: int | None = None


def device_of(rank: int) -> str:
    """The UUID of a rank's GPU."""
    return f"GPU-{rank:08d}"


def add_hardware(root: Path, job: SyntheticJob, trouble: Trouble | None = None, *, after_ns: int = 0) -> None:
    """Write ``health``, ``hardware_events`` and ``machines`` of a job, and the devices of its ranks.

    Samples go on for ``after_ns`` beyond its last step, as the heartbeats of a synthetic job do for a minute.
    """
    wrong, mesh = trouble or Trouble(), job.topology
    hosts = {rank: f"node{rank // job.ranks_per_host:04d}" for rank in range(mesh.world_size)}
    end_ns = job.first_ns + job.steps * job.step_ns + after_ns
    moments = [job.first_ns + (end_ns - job.first_ns) * index // (SAMPLES - 1) for index in range(SAMPLES)]
    health = [row for index, moment in enumerate(moments) for row in _samples(hosts, wrong, index, moment)]
    with TableWriter(root, f"hardware-{job.run}-{job.attempt}") as writer:
        writer.write("health", job.run, job.attempt, _columns(health))
        events = list(_events(hosts, wrong, moments[SAMPLES // 2]))
        if events:
            writer.write("hardware_events", job.run, job.attempt, _columns(events))
        gpus: dict[str, list[str]] = defaultdict(list)
        for rank, host in hosts.items():
            gpus[host].append(device_of(rank))
        machines = [
            {"host": host, "machine": f"gpus-{host}", "basis": "gpus", "board": None, "gpus": found}
            for host, found in gpus.items()
        ]
        writer.write("machines", job.run, job.attempt, _columns(machines))
        ranks = [
            {"rank": rank, "host": host, "local_rank": rank % job.ranks_per_host, "device": device_of(rank),
             **mesh.coordinates(rank)}
            for rank, host in hosts.items()
        ]  # fmt: skip
        writer.write("ranks", job.run, job.attempt, _columns(ranks), axes=mesh.names)
        writer.commit()


def _samples(hosts: dict[int, str], wrong: Trouble, index: int, moment: int) -> Iterator[dict[str, Any]]:
    is_late = index >= SAMPLES // 2
    for rank, host in hosts.items():
        values: dict[str, float | None] = dict(SOUND)
        values["temperature_celsius"] = 58.0 + (index + rank) % 3
        if rank == wrong.hot_rank and is_late:
            values |= {"temperature_celsius": 91.0, "sm_clock_mhz": 1215.0, "clocks_event_reasons": float(0x40)}
        if rank == wrong.ecc_rank and is_late:
            values["ecc_uncorrected_errors"] = 2.0
        if rank == wrong.lost_rank and is_late:
            values = dict.fromkeys(values)
        for metric, value in values.items():
            yield _row(host, device_of(rank), moment, metric, value)
    for host in dict.fromkeys(hosts.values()):
        for metric, value in HOST.items():
            yield _row(host, None, moment, metric, value)
        up = 0.0 if host == wrong.down_host and is_late else 1.0
        errors = 5.0 if host == wrong.errors_host and is_late else 0.0
        yield _row(host, "mlx5_0/1", moment, "rdma_link_up", up)
        yield _row(host, "mlx5_0/1", moment, "rdma_symbol_errors", errors)
        yield _row(host, "mlx5_0/1", moment, "rdma_sent_bytes_per_s", 2.5e10 * up)
        if wrong.spare_ports:
            yield _row(host, "mlx5_1/1", moment, "rdma_link_up", 0.0)


def _row(host: str, device: str | None, moment: int, metric: str, value: float | None) -> dict[str, Any]:
    flag = "blank" if value is None else None
    return {"host": host, "device": device, "moment_ns": moment, "metric": metric, "value": value, "flag": flag}


def _events(hosts: dict[int, str], wrong: Trouble, moment: int) -> Iterator[dict[str, Any]]:
    def event(host: str, device: str | None, kind: str, code: int | None, text: str, severity: str) -> dict[str, Any]:
        return {"host": host, "device": device, "moment_ns": moment, "kind": kind, "severity": severity,
                "code": code, "pid": None, "text": text}  # fmt: skip

    if wrong.ecc_rank is not None:
        text = "Xid 94 (memory had an error that ECC cannot correct, contained to one program): Contained memory error"
        yield event(hosts[wrong.ecc_rank], device_of(wrong.ecc_rank), "xid", 94, text, "error")
    if wrong.down_host is not None:
        yield event(wrong.down_host, "ens1f0np0", "link-down", None, "mlx5_core ens1f0np0: Link down", "error")
    if wrong.lost_rank is not None:
        text = f"GPU 0 ({device_of(wrong.lost_rank)}) did not answer within 5 s."
        yield event(hosts[wrong.lost_rank], device_of(wrong.lost_rank), "no-answer", None, text, "error")
    text = "The kernel's log is not read: /dev/kmsg cannot be opened (Operation not permitted)."
    yield event(next(iter(hosts.values())), None, "not-sampled", None, text, "note")


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}
