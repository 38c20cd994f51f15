"""Running checks: each is guarded, none is waited for without end, and nothing of the machine is changed."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import socket
import threading
from pathlib import Path

import pytest
from rich.console import Console

from megascope.commands.serve import serve
from megascope.doctor import asking, checks, ports, spool
from megascope.doctor.asking import Writing
from megascope.doctor.checks import AREAS, run_checks
from megascope.doctor.finding import Answer, Finding, State, ok, problem
from megascope.doctor.machine import Machine, nearest_folder
from megascope.doctor.report import DoctorReport, render
from support.fake_machine import fake_machine


def broken(machine: Machine) -> Answer:
    """Whether this fails."""
    raise ZeroDivisionError("by zero\nindeed")


def test_a_sound_machine_has_no_problem(tmp_path: Path) -> None:
    files = {
        "dev/kmsg": "",
        "proc/meminfo": "MemTotal: 99999999 kB\nMemAvailable: 99999999 kB\n",
        "proc/sys/kernel/hostname": "node-7\n",
    }
    found = run_checks(fake_machine(tmp_path, files=files), patience_s=120)
    assert [(one.area, one.check) for one in found] == [(area, name) for area in AREAS for name in AREAS[area]]
    assert {one.check: one.value for one in found if one.state is not State.OK} == {}
    assert all(one.looked_at and one.value and one.to_do is None for one in found)


def test_a_check_that_fails_says_so_and_the_others_go_on(tmp_path: Path) -> None:
    first, second = run_checks(
        fake_machine(tmp_path), {"area": {"broken": broken, "good": lambda machine: ok("x", "y")}}, patience_s=60
    )
    assert first.state is State.NOT_CHECKED
    assert first.value == "the check failed (ZeroDivisionError: by zero indeed)"
    assert first.looked_at == "Whether this fails"
    assert second == Finding("area", "good", "x", State.OK, "y", None)


def test_a_check_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    let_go = threading.Event()

    def hangs(machine: Machine) -> Answer:
        """Whether this ends."""
        let_go.wait(60)
        return ok("x", "y")

    def writes(folder: Path) -> Writing:
        let_go.wait(60)
        return Writing(None, True)

    machine = fake_machine(tmp_path, write=writes)
    found = run_checks(machine, {"area": {"hangs": hangs, "place": spool.place}}, patience_s=0.2)
    let_go.set()
    assert [(one.state, one.value) for one in found] == [
        (State.NOT_CHECKED, "no answer within 0.2 s"),
        (State.PROBLEM, "no answer within 0.2 s"),  # ranks would wait for the spool in the same way
    ]


def test_a_store_that_has_no_place_is_one_problem(tmp_path: Path) -> None:
    found = run_checks(fake_machine(tmp_path, {"MEGASCOPE_STORE": "ftp://host/store"}), patience_s=120)
    assert [(one.area, one.check) for one in found if one.state is State.PROBLEM] == [("store", "place")]
    assert not [one.value for one in found if "the check failed" in one.value]


def test_without_threads_checks_are_made_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    areas = {"area": {"broken": broken, "good": lambda machine: ok("x", "y")}}
    found = run_checks(fake_machine(tmp_path), areas)
    assert [one.state for one in found] == [State.NOT_CHECKED, State.OK]


def test_what_is_no_text_can_be_printed() -> None:
    found = Finding.of("a", "b", problem("/x\udcff", "A=\x1b[2J\n\udc80", "unset \u202eA"))
    assert (found.looked_at, found.value, found.to_do) == ("/x?", "A=?[2J??", "unset ?A")
    assert str(found).encode()


def test_the_worst_decides() -> None:
    def report(*states: State) -> DoctorReport:
        return DoctorReport("node", 0, 1.0, [Finding("a", "b", "c", state, "d", "e") for state in states])

    assert (report().verdict, report().exit_code) == (State.OK, 0)
    assert report(State.OK, State.NOT_CHECKED).verdict is State.OK
    assert (report(State.OK, State.ADVICE).verdict, report(State.ADVICE).exit_code) == (State.ADVICE, 0)
    assert (report(State.ADVICE, State.PROBLEM).verdict, report(State.PROBLEM).exit_code) == (State.PROBLEM, 1)
    told = report(State.PROBLEM, State.ADVICE, State.ADVICE, State.OK, State.NOT_CHECKED)
    assert told.sentence() == "node: 1 problem, 2 pieces of advice, 1 checks in order, 1 not made."
    console = Console(file=io.StringIO(), width=100)
    console.print(render(told))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "problem a/b: d. To do: e." in text
    assert text.index("problem a/b") < text.index("advice a/b") < text.index("looked at")


def test_writing_is_tried_and_leaves_nothing(tmp_path: Path) -> None:
    before = tmp_path.stat().st_mtime_ns
    assert asking.try_writing(tmp_path).reason is None
    assert (list(tmp_path.iterdir()), tmp_path.stat().st_mtime_ns) == ([], before)
    assert asking.try_writing(tmp_path / "absent").reason == "No such file or directory"
    assert asking.room_of(tmp_path).free_bytes > 0


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no shared memory here")
def test_in_shared_memory_writing_is_not_only_asked_for() -> None:
    assert asking.try_writing(Path("/dev/shm")) == Writing(None, True)


def test_a_port_in_use_is_told_from_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert asking.try_binding("127.0.0.1", port) is not None
    assert asking.try_binding("127.0.0.1", port) is None


def test_the_kernel_is_asked_about_its_clock() -> None:
    with contextlib.suppress(PermissionError):  # a sandbox may let nobody ask
        assert asking.clock_status().maximum_error_us >= 0
    assert 0 < asking.clock_read_ns(2, 10) < 1e9


def test_a_driver_that_does_not_answer_is_given_up() -> None:
    assert asking.ask_nvml(limit_s=0.0).error == "no answer within 0 s"


def test_nearest_folder(tmp_path: Path) -> None:
    assert nearest_folder(tmp_path / "a" / "b") == tmp_path
    assert nearest_folder(Path("/")) == Path("/")


def test_the_dashboards_address_is_the_servers() -> None:
    told = inspect.signature(serve).parameters
    assert (told["host"].default, told["port"].default) == ports.DASHBOARDS


def test_ranks_and_hosts_are_told_by_the_launcher(tmp_path: Path) -> None:
    files = {f"proc/driver/nvidia/gpus/{number}/information": "" for number in range(4)}
    assert fake_machine(tmp_path).ranks() == (8, "assumed")
    assert fake_machine(tmp_path, {"LOCAL_WORLD_SIZE": "2"}, files).ranks()[0] == 2
    assert fake_machine(tmp_path, {"LOCAL_WORLD_SIZE": "two"}, files).ranks() == (4, "one a GPU")
    assert fake_machine(tmp_path).nodes() is None
    assert fake_machine(tmp_path, {"WORLD_SIZE": "9", "LOCAL_WORLD_SIZE": "8"}).nodes() == 2


def test_every_check_is_on_its_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "doctor.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.startswith("| ")]
    told = {(row[1], row[2].strip("`")) for row in rows if row[2].startswith("`")}
    assert told == {(area, name) for area in AREAS for name in AREAS[area]}


def test_every_check_says_what_it_asks() -> None:
    asked = [checks._title(check) for area in AREAS.values() for check in area.values()]
    assert all(title.startswith(("Whether", "What")) for title in asked), os.linesep.join(asked)
