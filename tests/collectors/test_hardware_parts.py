"""Parts of the sampling of hardware: counters, ports, lines of the kernel's log, what is left out, which machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.collectors.hardware.counters import FULL, Deltas, difference
from megascope.collectors.hardware.events import MOST_EVENTS, EventRows
from megascope.collectors.hardware.host import HostReader
from megascope.collectors.hardware.kernel_lines import EventKind, KernelEvent, Severity, event_of, pci_key
from megascope.collectors.hardware.kernel_log import KernelLog, Logged
from megascope.collectors.hardware.machine import Basis, Machine, same_machines, this_machine
from megascope.collectors.hardware.metrics import ALL, DEVICE, HOST, PORT
from megascope.collectors.hardware.rdma import TRAFFIC, TROUBLE, read_ports
from megascope.collectors.hardware.reading import Rows
from megascope.collectors.hardware.thinning import Thinner
from megascope.collectors.hardware.throttling import reasons
from megascope.collectors.hardware.xids import XIDS, Blame, tell
from support.sysfs import write_port

# -- counters -------------------------------------------------------------------------------------------------------


@given(before=st.integers(0, 2**64 - 1), counted=st.integers(0, 2**61), width=st.sampled_from([32, 64]))
def test_a_difference_is_what_was_counted_or_nothing(before: int, counted: int, width: int) -> None:
    """Modulo the counter's width, a difference is never negative and never another number than what was counted."""
    before %= 2**width
    counted = min(counted, 2 ** (width - 3))
    now = (before + counted) % 2**width
    found = difference(before, now)
    assert found == counted if width == 32 or before < 2**32 or now >= before else found in (counted, None)


@given(before=st.integers(1, 2**64 - 1))
def test_a_counter_that_was_reset_gives_nothing_negative(before: int) -> None:
    found = difference(before, 0)
    wraps = any(2**width - 2**width // 4 <= before < 2**width for width in (32, 64))
    assert (found is not None) == wraps
    assert found is None or found > 0


@pytest.mark.parametrize(
    ("before", "now", "counted"),
    [(2**32 - 1, 4, 5), (2**64 - 2, 1, 3), (2**32 - 1, 2**31, None), (2**31, 5, None), (2**40, 7, None), (3, 3, 0)],
)
def test_only_from_the_end_to_the_beginning_is_a_wrap(before: int, now: int, counted: int | None) -> None:
    assert difference(before, now) == counted


def test_a_counter_that_stands_at_its_end_or_is_new_tells_nothing() -> None:
    deltas = Deltas()
    assert deltas.take("a", "symbol_error", 5) == (None, False)
    assert deltas.take("a", "symbol_error", 9) == (4, True)
    assert deltas.take("b", "symbol_error", 9) == (None, False)
    assert deltas.take("a", "symbol_error", FULL["symbol_error"]) == (FULL["symbol_error"] - 9, True)
    assert deltas.take("a", "symbol_error", FULL["symbol_error"]) == (None, True)
    assert deltas.take("a", "symbol_error", None) == (None, True)
    assert deltas.take("a", "symbol_error", 3) == (None, False)
    deltas.forget("a")
    assert deltas.take("a", "symbol_error", 4) == (None, False)


# -- ports ----------------------------------------------------------------------------------------------------------


def test_ports_are_read_with_their_counters_as_differences(tmp_path: Path) -> None:
    write_port(tmp_path, "mlx5_0", state="4: ACTIVE", rate="400 Gb/sec (4X NDR)", symbol_error=7, port_xmit_data=1000)
    write_port(tmp_path, "mlx5_1", state="1: DOWN", rate="odd", symbol_error=0)
    (tmp_path / "mlx5_1" / "ports" / "1" / "counters" / "symbol_error").write_text("N/A (no PMA)\n")
    rows = Rows()
    first = {(row["device"], row["metric"]): row for port in read_ports(tmp_path) for row in rows.of_port(port, 100.0)}
    assert first["mlx5_0/1", "rdma_link_up"]["value"] == 1
    assert first["mlx5_0/1", "rdma_rate_bits_per_s"]["value"] == 4e11
    assert (first["mlx5_1/1", "rdma_link_up"]["value"], first["mlx5_1/1", "rdma_rate_bits_per_s"]["flag"]) == (
        0, "blank",
    )  # fmt: skip
    assert ("mlx5_0/1", "rdma_symbol_errors") not in first
    write_port(tmp_path, "mlx5_0", state="4: ACTIVE", rate="400 Gb/sec (4X NDR)", symbol_error=9, port_xmit_data=2000)
    second = {row["metric"]: row for port in read_ports(tmp_path)[:1] for row in rows.of_port(port, 102.0)}
    assert second["rdma_symbol_errors"]["value"] == 2
    assert second["rdma_sent_bytes_per_s"]["value"] == 4 * 1000 / 2
    write_port(tmp_path, "mlx5_0", state="4: ACTIVE", rate="400 Gb/sec (4X NDR)", symbol_error=0, port_xmit_data=0)
    third = {row["metric"]: row for port in read_ports(tmp_path)[:1] for row in rows.of_port(port, 104.0)}
    assert (third["rdma_symbol_errors"]["value"], third["rdma_symbol_errors"]["flag"]) == (None, "reset")
    assert third["rdma_sent_bytes_per_s"]["value"] is None


def test_without_adapters_there_are_no_ports(tmp_path: Path) -> None:
    assert read_ports(tmp_path / "none") == []


def test_every_metric_that_can_be_read_has_a_range() -> None:
    assert {*TRAFFIC.values(), *TROUBLE.values()} <= {metric.name for metric in PORT}
    assert len(ALL) == len(DEVICE) + len(HOST) + len(PORT) + 1
    assert {name for name, _ in HostReader().read()} <= {metric.name for metric in HOST}


def test_the_host_has_its_metrics_and_rates_come_with_the_second_reading(tmp_path: Path) -> None:
    reader = HostReader(tmp_path)
    first, second = dict(reader.read()), dict(reader.read())
    assert {"cpu_percent", "memory_percent", "load_1min", "spool_disk_percent", "swap_used_bytes"} <= first.keys()
    assert "network_sent_bytes_per_s" not in first
    assert {"network_sent_bytes_per_s", "swap_read_bytes_per_s", "network_errors"} <= second.keys()


# -- the kernel's log -----------------------------------------------------------------------------------------------


def test_the_xids_of_a_real_log_are_told_with_their_device(traces: Path) -> None:
    """By the manifest: Xid 119 on GPU 4, which the log has at 0000:9b:00."""
    lines = (traces / "gpud" / "xid-dmesg-with-xid-119.log").read_text().splitlines()
    events = [event for line in lines if (event := event_of(line)) is not None]
    assert {(one.kind, one.code, one.device, one.severity) for one in events} == {
        (EventKind.XID, 119, "0000:9b:00", Severity.ERROR)
    }
    assert len(events) == sum("NVRM: Xid" in line for line in lines) == 5
    assert events[0].pid == 2024380
    assert "system processor" in events[0].text


def test_a_real_log_without_trouble_tells_nothing(traces: Path) -> None:
    lines = (traces / "gpud" / "pkg-kmsg-kmsg.1.log").read_text().splitlines()
    assert [event_of(line) for line in lines if event_of(line) is not None] == []


@pytest.mark.parametrize(
    ("line", "kind", "severity", "device", "pid"),
    [
        ("NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
         "xid", "error", "0000:3b:00", None),
        ("NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row", "xid", "warning", "0000:10:1c", 1896),
        ("NVRM: Xid (PCI:0000:10:1c): 31, pid=12, MMU Fault", "xid", "warning", "0000:10:1c", 12),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress", "sxid", "warning",
         "0000:c1:00.0", None),
        ("Memory cgroup out of memory: Killed process 4242 (python) total-vm:1kB", "oom-kill", "error", None, 4242),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "memory-error", "warning", None, None),
        ("EDAC MC1: 1 UE memory read error on CPU_SrcID#0", "memory-error", "error", None, None),
        ("mlx5_core 0000:5d:00.0 ens1f0np0: Link down", "link-down", "error", "ens1f0np0", None),
        ("i40e 0000:18:00.0 eth0: NIC Link is Down", "link-down", "error", "eth0", None),
        ("mlx5_core 0000:5d:00.0 ens1f0np0: Link up", "link-up", "note", "ens1f0np0", None),
        ("INFO: task python:77 blocked for more than 122 seconds.", "task-blocked", "error", None, 77),
        ("nfs: server fs1 not responding, still trying", "storage-not-responding", "error", None, None),
        ("CPU12: Package temperature above threshold, cpu clock throttled", "cpu-throttled", "warning", None, None),
    ],
)  # fmt: skip
def test_lines_that_tell_of_hardware(line: str, kind: str, severity: str, device: str | None, pid: int | None) -> None:
    for text in (line, f"[  123.456] {line}", f"node7 kernel: {line}"):
        event = event_of(text)
        assert event is not None
        assert (event.kind, event.severity, event.device, event.pid) == (kind, severity, device, pid)
    plain = event_of(line)
    for head in ("[  123.456] ", "<4>[99.1] ", "Nov 30 12:00:01 node-7 kernel: [99.1] "):
        assert event_of(head + line) == plain


@pytest.mark.parametrize(
    "line", ["IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready", "usb 1-1: new device", "", "Xid 79", "a: b: c"]
)
def test_lines_that_tell_of_nothing(line: str) -> None:
    assert event_of(line) is None


@given(st.text())
def test_no_line_is_too_odd(line: str) -> None:
    event_of(line)


def _kmsg(path: Path) -> int:
    """A pipe that is read as /dev/kmsg is: one record a read, as each is written alone."""
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def _xid(number: int, logged_s: int) -> bytes:
    return b"3,17,%d,-;NVRM: Xid (PCI:0000:9b:00): %d, pid=1, name=a\n SUBSYSTEM=pci\n" % (logged_s * 10**6, number)


@pytest.mark.parametrize(("logged_s", "told"), [(98, [(119, 2 * 10**9)]), (1, [])])
def test_the_kernels_own_device_gives_events_with_their_age(tmp_path: Path, logged_s: int, told: list[Any]) -> None:
    pipe = _kmsg(tmp_path / "kmsg")
    log = KernelLog(tmp_path / "kmsg", clock=lambda: 100 * 10**9)
    os.write(pipe, _xid(119, logged_s))
    assert [(one.event.code, one.age_ns) for one in log.read()] == told
    log.close()
    assert log.read() == []
    os.close(pipe)


@pytest.mark.parametrize(
    ("now_s", "logged_s", "age_s"), [(1001, 910, 1), (1001, 1001, 0), (1200, 1010, 190), (1200, 900, 200)]
)
def test_what_comes_after_the_start_is_new_though_the_logs_clock_is_behind(
    tmp_path: Path, now_s: int, logged_s: int, age_s: int
) -> None:
    """Also what came while one turn took minutes."""
    pipe, now = _kmsg(tmp_path / "kmsg"), [1000]
    log = KernelLog(tmp_path / "kmsg", clock=lambda: now[0] * 10**9)
    assert log.read() == []
    now[0] = now_s
    os.write(pipe, _xid(79, logged_s))
    assert [(one.event.code, one.age_ns) for one in log.read()] == [(79, age_s * 10**9)]
    log.close()
    os.close(pipe)


def test_what_nobody_wanted_is_told_for_a_minute_with_its_age(tmp_path: Path) -> None:
    path, now = tmp_path / "kern.log", [0.0]
    path.touch()
    log = KernelLog(path, clock=lambda: int(now[0] * 1e9))
    for at_s, number in ((0, 79), (100, 48)):
        now[0] = at_s
        with path.open("a") as file:
            file.write(f"NVRM: Xid (PCI:0000:9b:00): {number}, pid=7\n")
        log.keep()
    now[0] = 130.0
    assert [(one.event.code, one.age_ns) for one in log.read()] == [(48, 30 * 10**9)]
    assert log.read() == []
    log.close()


def test_a_text_file_that_is_rotated_is_read_to_its_end_and_then_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("old\n")
    log = KernelLog(path)
    old = path.rename(tmp_path / "kern.log.1")
    assert log.read() == []
    path.touch()
    with old.open("a") as file:
        file.write("NVRM: Xid (PCI:0000:9b:00): 48, pid=7, DBE\nNVRM: Xid (PCI:0000:9b:00): 64")
    assert [one.event.code for one in log.read()] == [48]
    path.write_text("NVRM: Xid (PCI:0000:9b:00): 79, pid=1\n")
    assert [one.event.code for one in log.read()] == [64, 79]
    with path.open("a") as file:
        file.write("NVRM: Xid (PCI:0000:9b:00): 94, x\n")
    assert [one.event.code for one in log.read()] == [94]
    assert log.problem is None
    log.close()


def test_a_text_file_is_read_from_its_end_on_also_after_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("NVRM: Xid (PCI:0000:9b:00): 79, old\n")
    log = KernelLog(path)
    assert log.read() == []
    with path.open("a") as file:
        file.write("NVRM: Xid (PCI:0000:9b:00): 48, pid=7, DBE\nNVRM: Xid (PCI:0000:9b:00): 6")
    assert [one.event.code for one in log.read()] == [48]
    with path.open("a") as file:
        file.write("4, pid=7, x\n")
    assert [one.event.code for one in log.read()] == [64]
    path.write_text("NVRM: Xid (PCI:0000:9b:00): 94, x\n")
    assert [one.event.code for one in log.read()] == [94]
    log.close()


def test_a_log_that_may_not_be_read_is_one_sentence(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "none")
    assert log.problem is not None
    assert log.problem.startswith("The kernel's log is not read: ")
    assert log.problem.count(".") >= 1
    assert log.read() == []


def test_a_flood_of_events_is_cut_and_counted() -> None:
    now = [0.0]
    rows = EventRows(lambda: now[0])
    event = KernelEvent(EventKind.XID, Severity.ERROR, "x", "0000:9b:00", 79)
    kept = []
    for second in range(50):
        now[0] = second
        for _ in range(5):
            rows.logged(Logged(event, 0))
        kept += rows.take()
    assert len(kept) == MOST_EVENTS
    now[0] = 60.0
    (told,) = rows.take()
    assert told["text"].startswith("50 more events")
    rows.logged(Logged(event, 0))
    assert len(rows.take()) == 1


def test_every_xid_has_a_meaning_and_an_unknown_one_says_so() -> None:
    assert all(one.number == number and one.meaning for number, one in XIDS.items())
    assert tell(79) == "Xid 79 (the GPU has fallen off the PCI bus)"
    assert "no words" in tell(9999)
    assert {XIDS[number].blame for number in (13, 31, 43, 45)} == {Blame.PROGRAM}
    assert all(XIDS[number].accuses_hardware for number in (48, 62, 74, 79, 94, 95, 119, 120))


def test_reasons_of_slow_clocks_in_words() -> None:
    assert reasons(0x1 | 0x40 | 0x20) == ("thermal slowdown by software", "thermal slowdown by hardware")
    assert reasons(None) == reasons(0) == reasons(0x1) == ()


def test_addresses_of_one_device_are_the_same() -> None:
    assert pci_key("00000000:9B:00.0") == pci_key("0000:9b:00") == "0:9b:00"
    assert pci_key("0001:9b:00.0") != pci_key("0000:9b:00.0")
    assert pci_key("eth0") == "eth0"


# -- what is left out -----------------------------------------------------------------------------------------------


def _row(metric: str, value: float | None, flag: str | None = None) -> dict[str, Any]:
    return {"device": "GPU-1", "metric": metric, "value": value, "flag": flag if value is not None else flag or "blank"}


def test_only_what_is_news_is_written_again() -> None:
    thinner = Thinner(again_s=60)

    def passes(now: float, *rows: dict[str, Any]) -> list[str]:
        return [row["metric"] for row in thinner.thin(rows, now)]

    same = [_row("temperature_celsius", 50), _row("power_limit_watts", 700), _row("rdma_symbol_errors", 0)]
    blank = _row("memory_temperature_celsius", None)
    assert len(passes(0, *same, blank)) == 4
    assert passes(5, *same, blank) == ["temperature_celsius"]
    assert passes(10, _row("power_limit_watts", 600), _row("rdma_symbol_errors", 3)) == [
        "power_limit_watts", "rdma_symbol_errors",
    ]  # fmt: skip
    assert passes(15, _row("rdma_symbol_errors", 3)) == ["rdma_symbol_errors"]
    assert passes(20, _row("memory_temperature_celsius", 70)) == ["memory_temperature_celsius"]
    assert passes(70, *same[1:]) == ["power_limit_watts"]
    assert "rdma_symbol_errors" in passes(75, same[2])
    thinner.reset()
    assert len(passes(76, *same, blank)) == 4


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=40))
def test_differences_add_up_whatever_is_left_out(readings: list[tuple[int, int]]) -> None:
    thinner, now, total, kept = Thinner(), 0.0, 0, 0.0
    for value, pause in readings:
        now += pause
        total += value
        kept += sum(row["value"] for row in thinner.thin([_row("rdma_symbol_errors", value)], now))
    assert kept == total


# -- which machine --------------------------------------------------------------------------------------------------


def test_a_machine_is_told_by_the_surest_that_there_is(tmp_path: Path) -> None:
    (tmp_path / "board_serial").write_text("Default string\n")
    (tmp_path / "product_serial").write_text("SN-1\n")
    (tmp_path / "machine-id").write_text("abc\n")
    by_board = this_machine(["GPU-2", "GPU-1"], tmp_path, tmp_path / "machine-id")
    assert (by_board.basis, by_board.gpus) == (Basis.BOARD, ("GPU-1", "GPU-2"))
    assert "SN-1" not in str(by_board.row("a"))
    by_gpus = this_machine(["GPU-1"], tmp_path / "none", tmp_path / "machine-id")
    by_system = this_machine((), tmp_path / "none", tmp_path / "machine-id")
    nothing = this_machine((), tmp_path / "none", tmp_path / "none")
    assert [one.basis for one in (by_gpus, by_system, nothing)] == [Basis.GPUS, Basis.SYSTEM, None]
    assert nothing.name is None


def test_a_machine_keeps_its_identity_under_another_name_and_with_a_new_gpu() -> None:
    old = Machine(gpus=tuple(f"GPU-{index}" for index in range(8)))
    new = Machine(gpus=("GPU-9", *(f"GPU-{index}" for index in range(1, 8))))
    other = Machine(gpus=(*(f"GPU-{index}" for index in range(3)), *(f"GPU-{index}" for index in range(20, 25))))
    rows = [old.row("node-a"), new.row("node-b"), other.row("node-a")]
    names = [name for _, name in same_machines(rows)]
    assert names[0] == names[1] == old.name
    assert names[2] == other.name


def test_the_board_decides_where_it_is_known() -> None:
    gpus = ("GPU-1", "GPU-2")
    one, moved, same = Machine("b1", gpus), Machine("b2", gpus), Machine("b1", ("GPU-7",))
    names = [name for _, name in same_machines([one.row("a"), moved.row("b"), same.row("c"), Machine().row("d")])]
    assert names == [one.name, moved.name, one.name]


@given(st.permutations(range(6)))
def test_machines_do_not_depend_on_the_order(order: list[int]) -> None:
    rows = [Machine(gpus=(f"GPU-{index // 2}",)).row(f"host-{index}") for index in range(6)]
    found = {row["host"]: name for row, name in same_machines([rows[index] for index in order])}
    assert all(found[f"host-{index}"] == found[f"host-{index + 1}"] for index in (0, 2, 4))
    assert len(set(found.values())) == 3
