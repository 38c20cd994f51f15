"""Collectives on a device that does not exist, and the hooks that a later torch has: both without torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from megascope.profiler.box.box import BoxReader
from megascope.profiler.c10d import groups as c10d_groups
from megascope.profiler.c10d.groups import Groups
from megascope.profiler.c10d.hooks import has_hooks, install_hooks, segment_name
from megascope.profiler.c10d.spans import OperationSpans
from megascope.profiler.device_clock import CudaTimer
from megascope.profiler.topology import Topology
from megascope.profiler.vocabulary import STATUS_CODES, Status
from support.fake_cuda import FakeCuda, FakeStream
from support.recording import Recorded

UNMEASURED = STATUS_CODES.index(Status.UNMEASURED)


class FakeWork:
    """An operation that the library runs on a stream of its own, until ``end_ms``."""

    def __init__(self, cuda: FakeCuda, end_ms: float, *, has_future: bool = True, is_enqueued: bool = True) -> None:
        self.cuda, self.end_ms, self.has_future, self.is_enqueued = cuda, end_ms, has_future, is_enqueued

    def done(self) -> bool:
        return self.is_enqueued

    def wait(self) -> bool:
        self.cuda.current.drained_ms = max(self.cuda.current.drained_ms, self.end_ms)
        return True

    def get_future(self) -> FakeWork:
        if not self.has_future:
            raise RuntimeError("no future")
        return self


class FakeGroup:
    """A process group with the hooks; `issue` does what torch does around an operation."""

    group_desc = "mesh_tp"

    def __init__(self) -> None:
        self.before: dict[int, Callable[[Any], None]] = {}
        self.after: dict[int, Callable[[Any], None]] = {}

    def register_pre_hook(self, number: int, hook: Callable[[Any], None]) -> None:
        self.before[number] = hook

    def register_post_hook(self, number: int, hook: Callable[[Any], None]) -> None:
        self.after[number] = hook

    def unregister_pre_hook(self, number: int) -> None:
        del self.before[number]

    def unregister_post_hook(self, number: int) -> None:
        del self.after[number]

    def issue(self, name: str, size: int, work: Any, op_id: int, **more: Any) -> None:
        tensor = SimpleNamespace(numel=lambda: size, element_size=lambda: 4, is_cuda=False)
        values = {"name": name, "op_id": op_id, "async_op": False, "input_tensors": [tensor], "output_tensors": []}
        for hook in list(self.before.values()):
            hook(SimpleNamespace(**{**values, **more}))
        for hook in list(self.after.values()):
            hook(SimpleNamespace(name=name, op_id=op_id, work=work))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the groups ask of torch.distributed: rank 0 of 4, groups of ranks 0 and 1."""
    group = FakeGroup()
    c10d = SimpleNamespace(
        _world=SimpleNamespace(pg_group_ranks={group: {0: 0, 1: 1}}),
        _new_process_group_helper=lambda: (FakeGroup(), None),
        ProcessGroup=FakeGroup,
    )
    distributed = SimpleNamespace(
        get_rank=lambda: 0,
        get_world_size=lambda: 4,
        get_process_group_ranks=lambda _: [0, 1],
        distributed_c10d=c10d,
    )
    monkeypatch.setattr(c10d_groups, "_distributed", lambda: distributed)
    return SimpleNamespace(group=group, c10d=c10d)


@pytest.fixture
def cuda(recorded: Recorded) -> Iterator[FakeCuda]:
    fake = FakeCuda()
    recorded.recorder.device = CudaTimer(fake, recorded.recorder, clock=fake.host_ns)
    yield fake
    recorded.recorder.device = None


def spans_on(recorded: Recorded, cuda: FakeCuda | None) -> OperationSpans:
    groups = Groups(recorded.recorder, Topology.of(dp=2, tp=2))
    return OperationSpans(recorded.recorder, groups, lambda work: work.wait(), cuda)


def in_flight(recorded: Recorded) -> list[tuple[int, int]]:
    """(sequence, whether it has ended) of the operations in the box."""
    return sorted((int(slot["sequence"]), int(slot["ended"])) for slot in BoxReader(recorded.box).slots())


def progress(recorded: Recorded, group: int = 0) -> tuple[int, int]:
    """The last sequence numbers that a group issued and completed."""
    issued, completed = BoxReader(recorded.box).progress()[group]
    return int(issued), int(completed)


def poll(recorded: Recorded, cuda: FakeCuda, now_ms: float) -> None:
    cuda.now_ms = now_ms
    timer = recorded.recorder.device
    assert isinstance(timer, CudaTimer)
    assert timer.poll() == 0


def test_an_operation_is_timed_from_its_input_to_its_end_and_the_wait_apart(
    recorded: Recorded, cuda: FakeCuda, world: SimpleNamespace
) -> None:
    spans = spans_on(recorded, cuda)
    track = spans.groups.of(world.group)
    assert track is not None
    cuda.current.launch(10.0)  # what computes the input
    probe = spans.probe(track)
    span = spans.begin(track, "all_reduce", 64, probe=probe)
    work = FakeWork(cuda, 10.0 + 25.0)
    spans.launched(span, work, probe=probe)
    cuda.current.launch(5.0)  # computes beside it, until 15
    spans.wait(work)
    cuda.current.launch(1.0)
    assert cuda.current.drained_ms == 36.0  # timing has delayed nothing
    poll(recorded, cuda, 100.0)
    (record,) = recorded.spans()
    assert (int(record["duration_ns"]), int(record["exposed_ns"])) == (25_000_000, 20_000_000)
    assert cuda.synchronizations == 1  # that of the timer's own start
    spans.close()


def test_two_operations_of_a_group_queue_up_on_the_device(
    recorded: Recorded, cuda: FakeCuda, world: SimpleNamespace
) -> None:
    spans = spans_on(recorded, cuda)
    track = spans.groups.of(world.group)
    assert track is not None
    for end_ms in (20.0, 50.0):
        probe = spans.probe(track)
        span = spans.begin(track, "all_gather", 64, probe=probe)
        spans.wait(spans.launched(span, FakeWork(cuda, end_ms), probe=probe).work)  # type: ignore[union-attr]
        assert isinstance(probe, FakeStream)
    poll(recorded, cuda, 100.0)
    assert [int(record["duration_ns"]) for record in recorded.spans()] == [20_000_000, 30_000_000]
    spans.close()


@pytest.mark.parametrize(("has_future", "is_enqueued"), [(False, True), (True, False)])
def test_without_a_future_on_the_device_an_operation_has_no_times(
    recorded: Recorded, cuda: FakeCuda, world: SimpleNamespace, has_future: bool, is_enqueued: bool
) -> None:
    spans = spans_on(recorded, cuda)
    track = spans.groups.of(world.group)
    assert track is not None
    probe = spans.probe(track)
    work = FakeWork(cuda, 20.0, has_future=has_future, is_enqueued=is_enqueued)
    assert spans.launched(spans.begin(track, "all_reduce", 64, probe=probe), work, probe=probe) is not None
    assert in_flight(recorded) == [(1, 0)]
    assert spans.wait(work)
    assert in_flight(recorded) == []
    assert [int(record["status"]) for record in recorded.spans()] == [UNMEASURED]
    assert progress(recorded) == (1, 1)
    spans.close()


def test_before_the_device_is_timed_an_operation_is_in_flight_until_it_was_waited_for(
    recorded: Recorded, world: SimpleNamespace
) -> None:
    spans = spans_on(recorded, FakeCuda())
    track = spans.groups.of(world.group)
    assert track is not None
    assert not spans.times_device
    works = [FakeWork(FakeCuda(), 0.0) for _ in range(2)]
    for work in works:
        spans.launched(spans.begin(track, "all_reduce", 64), work, on_device=True)
    assert (in_flight(recorded), progress(recorded)) == ([(1, 0), (2, 0)], (2, 0))
    spans.wait(works[0])
    assert (in_flight(recorded), progress(recorded)) == ([(2, 0)], (2, 1))
    del works, work  # nobody can wait for the second
    spans.begin(track, "all_reduce", 64)
    assert (in_flight(recorded), progress(recorded)) == ([(3, 0)], (3, 2))
    assert [int(record["status"]) for record in recorded.spans()] == [UNMEASURED] * 2
    spans.close()


def test_a_p2p_operation_without_a_known_end_counts_as_completed(recorded: Recorded, world: SimpleNamespace) -> None:
    spans = spans_on(recorded, None)
    track = spans.groups.of(world.group)
    assert track is not None
    work = FakeWork(FakeCuda(), 0.0)
    spans.launched(spans.begin(track, "send", 64, peer=1), work, is_p2p=True)
    time.sleep(0.01)
    spans.wait(work)
    assert [int(record["status"]) for record in recorded.spans()] == [UNMEASURED]
    assert progress(recorded, 1) == (1, 1)  # group 0 is that of all, 1 its direction upwards
    spans.close()


def test_coalesced_operations_end_with_their_one_work(recorded: Recorded, world: SimpleNamespace) -> None:
    spans = spans_on(recorded, None)
    track = spans.groups.of(world.group)
    assert track is not None
    spans.start_batch()
    for name in ("send", "recv"):
        assert spans.launched(spans.begin(track, name, 64, peer=1), None, is_p2p=True) is None
    work = FakeWork(FakeCuda(), 0.0)
    spans.end_batch(work)
    spans.wait(work)
    sent, received = recorded.spans()
    assert int(sent["duration_ns"]) > 0
    assert int(received["duration_ns"]) > 0
    assert int(sent["exposed_ns"]) >= 0
    assert int(received["exposed_ns"]) < 0  # absent: one wait counts once
    spans.close()


def test_hooks_record_every_group_and_come_off_again(recorded: Recorded, world: SimpleNamespace) -> None:
    spans = spans_on(recorded, None)
    assert has_hooks(FakeGroup)
    assert not has_hooks(object)
    made = world.c10d._new_process_group_helper
    undo = install_hooks(spans, world.c10d)
    later, _ = world.c10d._new_process_group_helper()
    assert len(later.before) == 1
    for number in range(2):
        work = FakeWork(FakeCuda(), 0.0)
        world.group.issue("ALL_REDUCE", 16, work, number)
        spans.wait(work)
    work = FakeWork(FakeCuda(), 0.0)
    world.group.issue("SEND", 4, work, 2, root=1)
    spans.wait(work)
    undo()
    assert (world.group.before, later.after, world.c10d._new_process_group_helper) == ({}, {}, made)
    records = recorded.spans()
    assert [int(record["sequence"]) for record in records] == [1, 2, 1]
    assert [int(record["size_bytes"]) for record in records] == [64, 64, 16]
    lines = [line for line in recorded.metadata() if line["kind"] in {"segment", "group"}]
    assert [line.get("name", line.get("group_kind")) for line in lines] == ["tp", "tp_all_reduce", "tp_send", "tp_up"]
    spans.close()


def test_a_hook_that_is_not_as_expected_is_a_warning_and_no_error(
    recorded: Recorded, world: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    spans = spans_on(recorded, None)
    fallen_back: list[bool] = []
    undo = install_hooks(spans, world.c10d, fall_back=lambda: fallen_back.append(True))
    for hook in world.group.before.values():
        hook(SimpleNamespace(other="shape"))
        hook(SimpleNamespace(other="shape"))
    assert caplog.text.count("hooks of process groups are not as expected") == 1
    assert fallen_back == [True]
    undo()
    spans.close()


@pytest.mark.parametrize(
    ("hooked", "name"),
    [
        ("HookOpName.ALL_REDUCE", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("all_gather_single", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("REDUCE", "reduce"),
        ("alltoall_base", "all_to_all"),
        ("recv_any_source", "recv"),
        ("monitored_barrier", "barrier"),
        ("something_new", "somethingnew"),
    ],
)
def test_names_of_hooks_become_segments(hooked: str, name: str) -> None:
    assert segment_name(hooked) == name
