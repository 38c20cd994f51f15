"""GPUs through a real driver library (made by the test), a child that may hang, and the agent that writes it all."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megascope.collectors.agent.agent import Agent
from megascope.collectors.hardware.asking import Answer, Asker
from megascope.collectors.hardware.kernel_lines import EventKind, Severity
from megascope.collectors.hardware.report import Happened, _remark
from megascope.collectors.hardware.watch import NO_LIBRARY, HardwareWatch, Sources
from megascope.collectors.metrics.agent_families import AGENT_FAMILIES
from megascope.collectors.metrics.family import Samples
from megascope.collectors.metrics.hardware_gauges import HardwareGauges
from megascope.collectors.reading.store import Store
from megascope.collectors.spool.outbox import Outbox, Whole
from support.collecting import collective
from support.fake_nvml import HEALTHY, FakeDriver, build_library
from support.sysfs import write_port

Row = Mapping[str, Any]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("driver")).parent


@pytest.fixture
def driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A driver with two GPUs under load, which children of this process load."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "state"))
    found = FakeDriver(tmp_path / "state")
    found.set(count=2)
    for index in range(2):
        found.gpu(index, **HEALTHY)
    return found


class Told(Outbox):
    """An attempt that only listens."""

    now_ns = 10**18

    def __init__(self) -> None:
        super().__init__()
        self.outbox: Outbox = self
        self.rows: dict[str, list[Row]] = defaultdict(list)
        self.whole: dict[str, Whole] = {}

    def append(self, table: str, rows: Any) -> None:
        self.rows[table].extend(rows)

    def put(self, table: str, whole: Whole) -> None:
        self.whole[table] = whole

    def values(self, device: str | None) -> dict[str, float | None]:
        """The last value of every metric of a device."""
        return {row["metric"]: row["value"] for row in self.rows["health"] if row["device"] == device}

    def events(self) -> list[tuple[str, str | None]]:
        return [(row["kind"], row["device"]) for row in self.rows["hardware_events"]]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., HardwareWatch]]:
    """Makes watches without a kernel log, that sample in every turn."""
    made: list[HardwareWatch] = []

    def make(**sources: Any) -> HardwareWatch:
        places = dict.fromkeys(("ports", "kernel_log", "dmi", "system_id"), tmp_path / "none")
        made.append(HardwareWatch(0.0, Sources(**{"has_gpus": True, **places, **sources})))
        return made[-1]

    yield make
    for each in made:
        each.close()


def poll_until(watcher: HardwareWatch, told: Told, is_enough: Callable[[], bool]) -> None:
    """Poll like an agent until there is enough; a turn that waits for a GPU that hangs takes too long."""
    deadline = time.monotonic() + 40
    while not is_enough():
        assert time.monotonic() < deadline, told.events()
        watcher.poll([told])
        time.sleep(0.01)


@pytest.mark.timeout(60)
def test_gpus_are_sampled_and_what_is_odd_is_null(driver: FakeDriver, watch: Callable[..., HardwareWatch]) -> None:
    driver.gpu(1, temperature=255, power=2**32 - 1)
    driver.forget(1, "ecc_uncorrected", "field_82", "nvlinks")
    told, watcher = Told(), watch()
    poll_until(watcher, told, lambda: bool(told.values("GPU-00000001")))
    whole = told.values("GPU-00000000")
    assert (whole["temperature_celsius"], whole["memory_temperature_celsius"], whole["power_watts"]) == (55, 70, 650)
    assert (whole["nvlinks"], whole["nvlinks_up"], whole["pcie_width"]) == (18, 17, 16)
    flags = {row["metric"]: row["flag"] for row in told.rows["health"] if row["device"] == "GPU-00000001"}
    assert (flags["temperature_celsius"], flags["power_watts"]) == ("out-of-range", "out-of-range")
    assert (flags["ecc_uncorrected_errors"], flags["nvlinks"], flags["sm_clock_mhz"]) == ("blank", "blank", None)
    driver.gpu(0, ecc_uncorrected=2, field_138=5000)
    poll_until(watcher, told, lambda: told.values("GPU-00000000")["ecc_uncorrected_errors"] == 2)
    assert (told.values("GPU-00000000")["nvlink_sent_bytes_per_s"] or 0) > 0
    (machine,) = told.whole["machines"].rows
    assert (machine["basis"], machine["gpus"]) == ("gpus", ["GPU-00000000", "GPU-00000001"])
    driver.gpu(1, error=15)
    poll_until(watcher, told, lambda: ("gpu-lost", "GPU-00000001") in told.events())
    assert told.values("GPU-00000001")["sm_clock_mhz"] is None
    driver.forget(1, "error")
    poll_until(watcher, told, lambda: ("answers-again", "GPU-00000001") in told.events())
    assert told.values("GPU-00000001")["sm_clock_mhz"] == 1755
    assert [kind for kind, _ in told.events()].count("gpu-lost") == 1


@pytest.mark.timeout(60)
def test_a_gpu_that_hangs_is_told_and_left_alone_while_others_go_on(
    driver: FakeDriver, watch: Callable[..., HardwareWatch]
) -> None:
    driver.gpu(0, hang=50)
    told, watcher = Told(), watch(answer_s=0.3, rest_s=1.0)
    poll_until(watcher, told, lambda: ("no-answer", "index 0") in told.events())
    poll_until(watcher, told, lambda: bool(told.values("GPU-00000001")))
    assert set(told.values("index 0").values()) == {None}
    driver.forget(0, "hang")
    poll_until(watcher, told, lambda: told.values("GPU-00000000").get("sm_clock_mhz") == 1755)
    assert ("answers-again", "GPU-00000000") in told.events()


@pytest.mark.timeout(60)
def test_a_driver_that_is_not_loaded_is_one_sentence(driver: FakeDriver, watch: Callable[..., HardwareWatch]) -> None:
    driver.set(init=9)
    told, watcher = Told(), watch()
    poll_until(watcher, told, lambda: len(told.events()) >= 2)
    for _ in range(20):
        watcher.poll([told])
    texts = [row["text"] for row in told.rows["hardware_events"]]
    assert texts[1:] == ["No GPU is sampled: Driver Not Loaded."]


class _Answers:
    """An asker that has its answers already."""

    problem = None

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)

    def ask(self) -> bool:
        return True

    def take(self) -> Answer | None:
        return self._answers.pop(0) if self._answers else None

    def close(self) -> None:
        self._answers.clear()


GPU = {"gpu": 0, "uuid": "GPU-1", "pci": "0000:3b:00.0", "lost": None, "values": {"temperature_celsius": 95.0}}
PORT = {"port": "mlx5_0/1", "up": 1, "rate": 4e11, "counters": {"symbol_error": 5}}


@pytest.mark.parametrize(
    ("silence", "device", "metric"),
    [
        (Answer(silent=["nvml"]), "GPU-1", "temperature_celsius"),
        (Answer(unreadable="Unknown Error"), "GPU-1", "temperature_celsius"),
        (Answer(absent="Driver Not Loaded"), "GPU-1", "temperature_celsius"),
        (Answer(silent=["ports"]), "mlx5_0/1", "rdma_link_up"),
    ],
)
def test_what_the_driver_tells_no_more_is_blank(
    watch: Callable[..., HardwareWatch], monkeypatch: pytest.MonkeyPatch, silence: Answer, device: str, metric: str
) -> None:
    watcher, told, gauges = watch(has_gpus=False), Told(), HardwareGauges()
    watcher.poll([told])
    monkeypatch.setattr(watcher, "_asker", _Answers(Answer(gpus=[GPU], ports=[PORT]), silence))
    watcher.poll([told])
    assert told.values(device)[metric] is not None
    gauges.take(told.rows["health"])
    told.rows.clear()
    watcher.poll([told])
    assert told.values(device)[metric] is None
    assert set(told.values(device).values()) == {None}
    gauges.take(told.rows["health"])
    samples = Samples(AGENT_FAMILIES)
    gauges.add_to(samples)
    assert (device,) not in {one.labels for _, found in samples.families() for one in found}
    if silence.unreadable is not None:
        (row,) = told.rows["hardware_events"]
        assert row["text"] == "No GPU is sampled: the driver does not tell them (Unknown Error)."


@pytest.mark.parametrize("what", ["nvml", "ports"])
def test_a_driver_that_answers_again_is_no_trouble_any_more(
    watch: Callable[..., HardwareWatch], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    watcher, told = watch(has_gpus=False), Told()
    watcher.poll([told])
    good = Answer(gpus=[GPU], ports=[PORT])
    monkeypatch.setattr(watcher, "_asker", _Answers(good, Answer(silent=[what]), good, good))
    for _ in range(4):
        watcher.poll([told])
    silence, again = (
        Happened(moment_ns, row["kind"], row["severity"], row["device"], None, row["text"], 1)
        for moment_ns, row in enumerate(told.rows["hardware_events"])
        if row["kind"] in (EventKind.NO_ANSWER, EventKind.ANSWERS)
    )
    assert _remark(silence, [silence]).severity == Severity.ERROR
    assert _remark(silence, [silence, again]).text.endswith("it is over")
    assert _remark(replace(silence, text="Another did not answer."), [silence, again]).severity == Severity.ERROR


def test_a_host_without_anything_says_so_to_every_attempt_and_starts_no_child(
    watch: Callable[..., HardwareWatch],
) -> None:
    watcher, first, second = watch(has_gpus=False), Told(), Told()
    for _ in range(3):
        watcher.poll([first])
    watcher.poll([first, second])
    for told in (first, second):
        texts = [row["text"] for row in told.rows["hardware_events"]]
        assert NO_LIBRARY in texts
        assert any(text.startswith("The kernel's log is not read") for text in texts)
        assert told.values(None)["cpu_percent"] is not None
    assert watcher._asker is None


@pytest.mark.timeout(60)
def test_what_happened_while_nothing_ran_is_not_of_the_next_attempt(
    watch: Callable[..., HardwareWatch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, ports = tmp_path / "kern.log", tmp_path / "ib"
    log.touch()

    def errors(count: int) -> None:
        write_port(ports, "mlx5_0", state="4: ACTIVE", rate="400 Gb/sec (4X NDR)", symbol_error=count)

    def told_of(told: Told) -> list[float]:
        return [row["value"] for row in told.rows["health"] if row["metric"] == "rdma_symbol_errors" and row["value"]]

    errors(5)
    watcher, first, second = watch(has_gpus=False, ports=ports, kernel_log=log), Told(), Told()
    poll_until(watcher, first, lambda: "rdma_symbol_errors" in first.values("mlx5_0/1"))
    watcher.poll([])
    with log.open("a") as file:
        file.write("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus\n")
    errors(5005)
    watcher.poll([])
    assert watcher._log is not None
    monkeypatch.setattr(watcher._log, "_clock", lambda: time.monotonic_ns() + 100 * 10**9)
    poll_until(watcher, second, lambda: "rdma_symbol_errors" in second.values("mlx5_0/1"))
    errors(5007)
    poll_until(watcher, second, lambda: bool(told_of(second)))
    assert told_of(second) == [2]
    assert "xid" not in second.values("0000:3b:00")
    assert "xid" not in {kind for kind, _ in [*first.events(), *second.events()]}


def test_sampling_that_fails_ends_alone(
    watch: Callable[..., HardwareWatch], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher, told = watch(has_gpus=False), Told()

    def fails() -> None:
        raise KeyError("odd")

    monkeypatch.setattr(watcher._host, "read", fails)
    for _ in range(3):
        watcher.poll([told])
    assert [record.message for record in caplog.records] == ["Hardware is not sampled any more: reading it failed."]
    assert not told.rows


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.timeout(60)
def test_what_does_not_answer_rests_longer_each_time(driver: FakeDriver, tmp_path: Path) -> None:
    driver.gpu(0, hang=50)
    clock = _Clock()
    asker = Asker(has_ports=False, ports_root=tmp_path, clock=clock, rest_s=60)
    rests = []
    for _ in range(3):
        assert asker.ask()
        assert not asker.ask()
        while (answer := asker.take()) is None:
            if asker._begun == 0:
                clock.now += 100
            time.sleep(0.01)
        assert answer.silent == [0]
        assert asker.resting == {0}
        began = clock.now
        while asker.resting:
            clock.now += 1
        rests.append(clock.now - began)
    assert rests == [60, 120, 240]
    asker.close()
    assert asker.take() is None


@pytest.mark.timeout(60)
def test_a_child_that_dies_is_no_answer(driver: FakeDriver, tmp_path: Path) -> None:
    driver.gpu(1, hang=50)
    asker = Asker(has_ports=False, ports_root=tmp_path)
    assert asker.ask()
    while asker._begun != 1:
        assert asker.take() is None
        time.sleep(0.01)
    assert asker._child is not None
    asker._child.kill()
    answer: Answer | None = None
    while answer is None:
        answer = asker.take()
    assert (answer.silent, answer.has_ended) == ([1], True)
    assert [one["gpu"] for one in answer.gpus] == [0]
    asker.close()


@pytest.mark.timeout(60)
def test_the_agent_writes_hardware_of_an_attempt(
    driver: FakeDriver, recorder: Callable[..., Any], agent: Callable[..., Agent], store_root: Path, tmp_path: Path
) -> None:
    log = tmp_path / "kern.log"
    log.touch()
    write_port(tmp_path / "ib", "mlx5_0", state="4: ACTIVE", rate="400 Gb/sec (4X NDR)", symbol_error=0)
    rank = recorder()
    collective(rank, 1)
    watcher = agent(flush_s=0.0)
    watcher._hardware = HardwareWatch(
        0.0, Sources(has_gpus=True, ports=tmp_path / "ib", kernel_log=log, dmi=tmp_path, system_id=tmp_path)
    )
    watcher.poll()
    with log.open("a") as file:
        file.write("NVRM: Xid (PCI:0000:91:00): 79, pid=7, GPU has fallen off the bus.\n")
    write_port(tmp_path / "ib", "mlx5_0", state="1: DOWN", rate="400 Gb/sec (4X NDR)", symbol_error=3)
    deadline = time.monotonic() + 30
    found: set[str] = set()
    while not {"rdma_link_up", "temperature_celsius", "xid"} <= found and time.monotonic() < deadline:
        watcher.poll(flush=True)
        time.sleep(0.02)
        with Store(store_root) as store:
            found = {row["metric"] for row in store.query("SELECT DISTINCT metric FROM health").to_pylist()}
    rank.close("finished")
    with Store(store_root) as store:
        attempt = store.attempt()
        (event,) = store.read("hardware_events", attempt, where="kind = 'xid'").to_pylist()
        (xid,) = store.read("health", attempt, where="metric = 'xid'").to_pylist()
        (machine,) = store.read("machines", attempt).to_pylist()
    assert (event["code"], event["severity"], event["pid"]) == (79, "error", 7)
    assert (xid["value"], xid["device"], xid["moment_ns"]) == (79, event["device"], event["moment_ns"])
    assert machine["gpus"] == ["GPU-00000000", "GPU-00000001"]
    assert abs(event["moment_ns"] - time.time_ns()) < 60 * 10**9
