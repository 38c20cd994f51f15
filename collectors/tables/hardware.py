"""The tables of hardware: its metrics, what happened to it, and which machine a host is."""

from __future__ import annotations

import pyarrow as pa

from .schema_types import F64, I32, I64, NAME, Column, table_of

HEALTH = table_of(
    "health",
    "A metric of a device or a host at a moment.",
    Column("host", NAME, "Name of the machine.", nullable=False),
    Column(
        "device",
        pa.string(),
        "GPU UUID (its index where that cannot be read), or an RDMA port such as mlx5_0/1; NULL for the host.",
    ),
    Column("moment_ns", I64, "Moment of the sample on the host's clock.", nullable=False),
    Column("metric", NAME, "Name with its unit.", nullable=False),
    Column("value", F64, "Value; NULL where blank or out of range."),
    Column("flag", NAME, "Why the value is NULL: blank, out-of-range or reset (a counter); NULL otherwise."),
)

HARDWARE_EVENTS = table_of(
    "hardware_events",
    "Something that happened to hardware: a line of the kernel's log, a device that does not answer, or what is not "
    "sampled on a host, and why.",
    Column("host", NAME, "Name of the machine.", nullable=False),
    Column("device", pa.string(), "GPU UUID where it is known, else PCI address or interface; NULL for the host."),
    Column("moment_ns", I64, "When it was logged or noticed, on the host's clock.", nullable=False),
    Column(
        "kind",
        NAME,
        "xid, sxid, memory-error, oom-kill, link-down, link-up, task-blocked, storage-not-responding, cpu-throttled, "
        "no-answer, answers-again, gpu-lost or not-sampled.",
        nullable=False,
    ),
    Column("severity", NAME, "note, warning, or error: likely to stop or slow a job.", nullable=False),
    Column("code", I32, "Number of the Xid or SXid; NULL otherwise."),
    Column("pid", I32, "Process that it names, on the host."),
    Column("text", pa.string(), "The line, or what was noticed, in words.", nullable=False),
)

MACHINES = table_of(
    "machines",
    "Which machine a host is, whatever its name: rows of one machine share the board, or most of the GPUs.",
    Column("host", NAME, "Name of the machine.", nullable=False),
    Column("machine", pa.string(), "Identity by what it was told by; NULL where nothing tells."),
    Column("basis", NAME, "board, gpus or system (its machine id): what the identity was told by."),
    Column("board", pa.string(), "Hash of the board's serial number; NULL where it cannot be read."),
    Column("gpus", pa.list_(pa.string()), "UUIDs of its GPUs, sorted."),
    Column("written_ns", I64, "When the row was written, UTC: of several rows of a key, views show the last."),
)
