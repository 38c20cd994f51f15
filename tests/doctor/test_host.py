"""Checks of clocks, permissions, limits and ports, on hosts that are made up."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megascope.doctor import clocks, control_groups, limits, permissions, ports
from megascope.doctor.asking import ClockStatus
from megascope.doctor.finding import Answer, State
from megascope.doctor.machine import Machine
from support.fake_machine import expect, fake_machine

OK, ADVICE, PROBLEM, NOT_CHECKED = State.OK, State.ADVICE, State.PROBLEM, State.NOT_CHECKED
GIB = 2**30
MEMORY = {"proc/meminfo": "MemTotal:  16777216 kB\nMemAvailable:    8388608 kB\n"}
CARD = {"sys/class/infiniband/mlx5_0/node_guid": "x"}
SPY_UNDER = {"proc/sys/kernel/yama/ptrace_scope": "1\n", "proc/self/status": "CapEff:\t0000000000000000\n"}
MAY_TRACE = {**SPY_UNDER, "proc/self/status": "CapEff:\t000001ffffffffff\n"}


def clock(*, steered: bool, error_us: int = 1000) -> Callable[[], ClockStatus]:
    return lambda: ClockStatus(steered, error_us)


def silent_clock() -> ClockStatus:
    raise OSError(errno.EPERM, "not permitted")


def limit(number: int) -> Callable[[int], tuple[int, int]]:
    return lambda kind: (number, number)


def taken(code: int) -> Callable[[str, int], OSError]:
    return lambda host, port: OSError(code, "no")


def group(**files: str) -> dict[str, str]:
    """Files of a control group of version 2."""
    named = {f"sys/fs/cgroup/job/{name.replace('_', '.', 1)}": text for name, text in files.items()}
    return {"proc/self/cgroup": "0::/job\n", **MEMORY, **named}


CASES: list[tuple[Callable[[Machine], Answer], dict[str, Any], State, str]] = [
    (clocks.clock_source, {}, OK, "40 ns a reading"),
    (clocks.clock_source, {"clock_read_ns": lambda: 1200.0}, ADVICE, "1200 ns a reading"),
    (clocks.synchronised, {}, OK, "to within 5 ms"),
    (clocks.synchronised, {"clock": clock(steered=True, error_us=400_000)}, ADVICE, "400 ms"),
    (clocks.synchronised, {"clock": clock(steered=False)}, ADVICE, "nobody"),
    (clocks.synchronised, {"clock": clock(steered=False), "files": {"proc/71/comm": "chronyd\n"}}, OK, "chronyd runs"),
    (clocks.synchronised, {"clock": silent_clock}, NOT_CHECKED, "EPERM"),
    (permissions.stacks, {"env": {"MEGASCOPE_STACKS": "1"}, "find_program": lambda name: None}, OK, "on a signal"),
    (permissions.stacks, {"find_program": lambda name: None}, ADVICE, "no py-spy"),
    (permissions.stacks, {}, OK, "same user"),
    (permissions.stacks, {"files": SPY_UNDER}, ADVICE, "ptrace_scope 1"),
    (permissions.stacks, {"files": MAY_TRACE}, OK, "CAP_SYS_PTRACE"),
    (permissions.kernel_log, {"files": {"dev/kmsg": ""}}, OK, "can be opened"),
    (permissions.kernel_log, {}, ADVICE, "No such file"),
    (permissions.kernel_log, {"env": {"MEGASCOPE_KERNEL_LOG": "/absent/kern.log"}}, PROBLEM, "No such file"),
    (permissions.open_files, {}, OK, "1048576"),
    (permissions.open_files, {"limit": limit(512)}, ADVICE, "512"),
    (permissions.open_files, {"limit": limit(64)}, PROBLEM, "64"),
    (permissions.open_files, {"limit": limit(resource.RLIM_INFINITY)}, OK, "unlimited"),
    (permissions.locked_memory, {"limit": limit(2**16)}, OK, "no RDMA card"),
    (permissions.locked_memory, {"limit": limit(2**16), "files": CARD}, ADVICE, "mlx5_0; 64 KiB"),
    (permissions.locked_memory, {"limit": limit(resource.RLIM_INFINITY), "files": CARD}, OK, "unlimited"),
    (limits.memory, {"files": MEMORY}, OK, "8.0 GiB of 16.0 GiB available"),
    (limits.memory, {}, NOT_CHECKED, "neither"),
    (
        limits.memory, {"files": group(memory_max=f"{GIB}", memory_current=f"{GIB - 10}", memory_stat="file 1\n")},
        PROBLEM, "limit 1.0 GiB, 1.0 GiB in use",
    ),
    (
        limits.memory,
        {"files": group(memory_max=f"{GIB}", memory_current=f"{GIB - 10}", memory_stat=f"inactive_file {GIB // 2}\n")},
        OK, "0.5 GiB in use",
    ),
    (
        limits.memory,
        {"files": group(memory_max=f"{4 * GIB}", memory_current="0", memory_events="oom 3\noom_kill 2\n")},
        ADVICE, "killed 2 processes",
    ),
    (limits.memory, {"files": group(memory_max="max", memory_current="0")}, OK, "8.0 GiB of 16.0 GiB available"),
    (limits.processors, {}, OK, "64 cores"),
    (limits.processors, {"cores": lambda: 2, "env": {"LOCAL_WORLD_SIZE": "8"}}, ADVICE, "2 cores for 8 ranks"),
    (limits.processors, {"cores": lambda: 2}, OK, "2 cores"),
    (
        limits.processors, {"files": group(cpu_max="400000 100000"), "env": {"LOCAL_WORLD_SIZE": "8"}}, ADVICE,
        "limited to 4 cores' worth of time for 8 ranks",
    ),
    (
        limits.processors, {"files": group(cpu_max="800000 100000", cpu_stat="nr_periods 1000\nnr_throttled 300\n")},
        ADVICE, "held back in 300 of 1000 periods",
    ),
    (ports.dashboards, {}, OK, "free"),
    (ports.dashboards, {"bind": taken(errno.EADDRINUSE)}, ADVICE, "in use"),
    (ports.dashboards, {"bind": taken(errno.EACCES)}, NOT_CHECKED, "Permission denied"),
    (ports.metrics, {}, OK, "not set"),
    (ports.metrics, {"env": {"MEGASCOPE_METRICS": "9477"}}, OK, "free"),
    (ports.metrics, {"env": {"MEGASCOPE_METRICS": "9477"}, "bind": taken(errno.EADDRINUSE)}, ADVICE, "in use"),
    (ports.metrics, {"env": {"MEGASCOPE_METRICS": "9477"}, "bind": taken(errno.EADDRNOTAVAIL)}, PROBLEM, "assign"),
    (ports.metrics, {"env": {"MEGASCOPE_METRICS": "0.0.0.0:9477"}}, PROBLEM, "cannot be used"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "changes", "state", "words"), CASES, ids=lambda one: getattr(one, "__name__", None))
def test_a_host(
    tmp_path: Path, check: Callable[[Machine], Answer], changes: dict[str, Any], state: State, words: str
) -> None:
    expect(check, fake_machine(tmp_path, **changes), state, words)


def test_the_tightest_of_nested_groups_holds(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/container\n",
        "sys/fs/cgroup/pod/memory.max": "1000", "sys/fs/cgroup/pod/memory.current": "600",
        "sys/fs/cgroup/pod/container/memory.max": "5000", "sys/fs/cgroup/pod/container/memory.current": "400",
        "sys/fs/cgroup/pod/cpu.max": "200000 100000", "sys/fs/cgroup/pod/container/cpu.max": "max 100000",
    }  # fmt: skip
    machine = fake_machine(tmp_path, files=files)
    assert control_groups.memory(machine) == (1000, 600)
    assert control_groups.processors(machine) == 2.0


def test_groups_of_version_1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/docker/x\n3:memory:/docker/x\n1:name=systemd:/docker/x\n0::/docker/x\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000", "sys/fs/cgroup/memory/memory.usage_in_bytes": "700",
        "sys/fs/cgroup/memory/memory.stat": "inactive_file 9\ntotal_inactive_file 200\n",
        "sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\noom_kill 3\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    }  # fmt: skip
    machine = fake_machine(tmp_path, files=files)
    assert control_groups.memory(machine) == (2000, 500)
    assert (control_groups.kills(machine), control_groups.processors(machine)) == (3, 0.5)


def test_no_limit_of_version_1_is_none(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "3:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "700",
    }
    assert control_groups.memory(fake_machine(tmp_path, files=files)) is None
