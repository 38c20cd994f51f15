"""Collectives and p2p operations of code that uses torch.distributed itself, on real gloo ranks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from megascope.profiler.box.box import ABSENT_I32, ABSENT_I64, ABSENT_INDEX, BoxReader
from megascope.profiler.box.metadata import read_metadata
from megascope.profiler.c10d.c10d import install_collectives
from megascope.profiler.c10d.groups import Groups
from megascope.profiler.c10d.kernels import Operation, _Watch
from megascope.profiler.c10d.spans import OperationSpans
from megascope.profiler.null import NullRecorder
from megascope.profiler.opening import open_recorder
from megascope.profiler.topology import Topology
from megascope.profiler.vocabulary import STATUS_CODES, Status
from support.forkrun import run_ranks
from support.recording import settings

STATUS = dict(enumerate(STATUS_CODES))


@dataclass(frozen=True, slots=True)
class Seen:
    """One span, with names in place of indices and None for what is absent."""

    name: str
    group: tuple[str, tuple[int, ...]] | None
    sequence: int | None
    peer: int | None
    size_bytes: int | None
    duration_ns: int | None
    exposed_ns: int | None
    self_ns: int | None
    parent: str | None
    status: Status


def record(folder: Path, work: Callable[[], Any], topology: Topology | None = None) -> tuple[list[Seen], Any]:
    """What ``work`` did on this rank, in the order of its begin, and what it returned."""
    import torch.distributed as dist

    rank = dist.get_rank()
    recorder = open_recorder(settings(folder, rank=rank, world_size=dist.get_world_size()))
    undo = install_collectives(recorder, topology)
    assert undo is not None
    try:
        result = work()
    finally:
        undo()
        recorder.close()
    return read(folder / "run" / "0" / f"rank-{rank:05d}.box"), result


def read(box: Path) -> list[Seen]:
    lines = [line for _, line in read_metadata(box.with_suffix(".meta.jsonl"))]
    names = {line["index"]: line["name"] for line in lines if line["kind"] == "segment"}
    groups = {line["index"]: (line["group_kind"], tuple(line["ranks"])) for line in lines if line["kind"] == "group"}
    reader = BoxReader(box)
    records = [record for ring in range(reader.layout.rings) for record in reader.read_ring(ring, 0).records]

    def known(value: Any, absent: int) -> int | None:
        return None if int(value) == absent else int(value)

    return [
        Seen(
            names[int(r["segment"])],
            groups.get(int(r["group"])),
            known(r["sequence"], ABSENT_I64),
            known(r["peer"], ABSENT_I32),
            known(r["size_bytes"], ABSENT_I64),
            known(r["duration_ns"], ABSENT_I64),
            known(r["exposed_ns"], ABSENT_I64),
            known(r["self_ns"], ABSENT_I64),
            names.get(int(r["parent"])) if int(r["parent"]) != ABSENT_INDEX else None,
            STATUS[int(r["status"])],
        )
        for r in sorted(records, key=lambda r: int(r["begun_ns"]))
    ]


def every_operation() -> None:
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    ones, parts = torch.ones(6), [torch.zeros(3), torch.zeros(3)]
    dist.all_reduce(ones)
    dist.broadcast(ones, 0)
    dist.reduce(ones, 0)
    dist.all_gather(parts, torch.ones(3))
    gather, scatter = dist.distributed_c10d.all_gather_single, dist.distributed_c10d.reduce_scatter_single
    gather(torch.zeros(6), torch.ones(3))
    scatter(torch.zeros(3), torch.ones(6))
    dist.reduce_scatter(torch.zeros(3), [torch.ones(3), torch.ones(3)])
    dist.gather(torch.ones(3), parts if rank == 0 else None)
    dist.scatter(torch.zeros(3), [torch.ones(3), torch.ones(3)] if rank == 0 else None)
    dist.all_to_all_single(torch.zeros(6), torch.ones(6))
    dist.barrier()
    dist.monitored_barrier()


def test_each_collective_has_its_group_number_and_size(tmp_path: Path) -> None:
    ranks = [spans for spans, _ in run_ranks(2, lambda: record(tmp_path, every_operation))]
    expected = ["all_reduce", "broadcast", "reduce", "all_gather", "all_gather", "reduce_scatter", "reduce_scatter"]
    expected += ["gather", "scatter", "all_to_all", "barrier", "barrier"]
    for rank, spans in enumerate(ranks):
        assert [span.name for span in spans] == [f"world_{name}" for name in expected]
        assert [span.sequence for span in spans] == list(range(1, 13))
        assert {span.group for span in spans} == {("world", (0, 1))}
        assert {span.status for span in spans} == {Status.OK}
        sizes = [24] * 7 + ([24, 24] if rank == 0 else [12, 12]) + [24, None, None]
        assert [span.size_bytes for span in spans] == sizes
        for span in spans:
            assert span.duration_ns is not None
            assert span.exposed_ns is not None  # a synchronous call waits, all of it or nearly


def point_to_point() -> float:
    import torch
    import torch.distributed as dist

    rank, other = dist.get_rank(), 1 - dist.get_rank()
    tensor, answer = torch.full((4,), float(rank)), torch.zeros(4)
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(answer)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, other), dist.P2POp(dist.irecv, answer, other)])
    for work in works:
        work.wait()
    return float(answer.sum())


def test_p2p_is_numbered_by_direction_and_knows_its_peer(tmp_path: Path) -> None:
    results = run_ranks(2, lambda: record(tmp_path, point_to_point))
    assert [value for _, value in results] == [4.0, 0.0]
    up, down = ("world_up", (0, 1)), ("world_down", (0, 1))
    shown = [[(span.name, span.group, span.sequence, span.peer) for span in spans] for spans, _ in results]
    assert shown[0] == [
        ("world_send", up, 1, 1),
        ("world_send", up, 2, 1),
        ("world_recv", down, 1, 1),
    ]
    assert shown[1] == [
        ("world_recv", None, None, None),  # from whoever sends
        ("world_send", down, 1, 0),
        ("world_recv", up, 1, 0),
    ]


def wait_late() -> list[float]:
    import torch
    import torch.distributed as dist

    dist.barrier()
    if dist.get_rank() == 0:
        time.sleep(0.06)
    first = dist.all_reduce(torch.ones(1), async_op=True)
    time.sleep(0.15)
    first.wait()
    if dist.get_rank() == 0:
        time.sleep(0.1)
    second = dist.all_reduce(torch.ones(1), async_op=True)
    second.wait()
    dropped = dist.all_reduce(torch.ones(1), async_op=True)
    time.sleep(0.02)
    del dropped
    dist.barrier()
    return []


def test_the_end_of_an_asynchronous_collective_is_seen_before_it_is_waited_for(tmp_path: Path) -> None:
    (_, _), (late, _) = run_ranks(2, lambda: record(tmp_path, wait_late))
    _, first, second, dropped, _ = late
    assert first.duration_ns is not None
    assert first.exposed_ns is not None
    assert 0.03e9 < first.duration_ns < 0.13e9  # it waited for rank 0, and was complete long before the wait
    assert first.exposed_ns < 0.03e9
    assert second.exposed_ns is not None
    assert second.exposed_ns > 0.06e9
    assert (dropped.exposed_ns, dropped.status) == (None, Status.OK)
    assert dropped.duration_ns is not None


def train_with_ddp() -> list[float]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(6)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(30):
        batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(step * 10 + dist.get_rank()))
        loss = (model(batch) - batch).square().mean()
        if step == 20 and dist.get_rank() == 0:
            time.sleep(0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [*losses, *(parameter.sum().item() for parameter in model.parameters())]


def test_gradient_buckets_of_ddp_are_spans_and_results_stay_identical(tmp_path: Path) -> None:
    plain = run_ranks(2, train_with_ddp)
    results = run_ranks(2, lambda: record(tmp_path, train_with_ddp, Topology.of(dp=2)))
    assert [values for _, values in results] == plain
    for spans, _ in results:
        reduced = [span for span in spans if span.name == "dp_all_reduce"]
        assert len(reduced) > 3 * 29  # buckets; the first step has one of its own sizes
        assert [span for span in reduced if span.status is not Status.OK or span.exposed_ns is None] == []
        numbers = [span.sequence for span in spans if span.group == ("dp", (0, 1))]
        assert numbers == list(range(1, len(numbers) + 1))
    waiting = [span.exposed_ns or 0 for span in results[1][0] if span.name == "dp_all_reduce"]
    assert max(waiting) > 0.06e9  # rank 1 waited in step 20, and that is not taken for work
    assert sum(wait > 0.06e9 for wait in waiting) <= 5  # of 116: a busy machine may add a few


def functional_code() -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    world = dist.group.WORLD
    assert world is not None
    reduced = functional.all_reduce(torch.ones(2), "sum", world)
    assert (reduced + 1).tolist() == [3, 3]
    with torch.inference_mode():
        assert (functional.all_reduce(torch.ones(2), "sum", world) + 1).tolist() == [3, 3]
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    whole = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
    added = whole + 1
    assert isinstance(added, DTensor)
    assert float(added.to_local().sum()) == 32
    model = torch.nn.Linear(8, 8)
    fully_shard(model, mesh=mesh)
    model(torch.ones(2, 8)).sum().backward()


def test_functional_collectives_dtensor_and_fsdp_are_seen(tmp_path: Path) -> None:
    for spans, _ in run_ranks(2, lambda: record(tmp_path, functional_code)):
        counts = Counter(span.name for span in spans)
        assert counts["world_all_reduce"] == 2
        assert counts["world_all_gather"] + counts["tp_all_gather"] >= 2  # DTensor's and FSDP's
        assert counts["world_reduce_scatter"] + counts["tp_reduce_scatter"] == 1
        assert all(span.exposed_ns is not None for span in spans if "all_reduce" in span.name)


def own_groups() -> None:
    import torch
    import torch.distributed as dist

    dist.new_group([0, 1])
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    mine = [group for group in groups if dist.get_rank(group) >= 0]
    for group in mine:
        dist.all_reduce(torch.ones(1), group=group)
    again = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    dist.all_reduce(torch.ones(1), group=again[dist.get_rank() % 2])
    dist.destroy_process_group(mine[0])
    dist.all_reduce(torch.ones(1))


def test_groups_lie_along_axes_and_never_share_an_identity(tmp_path: Path) -> None:
    mesh = Topology.of(dp=2, tp=2)
    ranks = [spans for spans, _ in run_ranks(4, lambda: record(tmp_path, own_groups, mesh))]
    assert [span.group for span in ranks[3]] == [
        ("tp", (2, 3)),
        ("dp", (1, 3)),
        ("dp_2", (1, 3)),
        ("world", (0, 1, 2, 3)),
    ]
    assert ranks[0][0].group == ("tp_2", (0, 1))  # the first group of these ranks was never used
    assert all(span.sequence == 1 for spans in ranks for span in spans)


def refuse() -> tuple[str, str]:
    import torch
    import torch.distributed as dist

    try:
        dist.all_gather([torch.zeros(2)], torch.ones(3))
    except (RuntimeError, ValueError) as error:
        return type(error).__name__, str(error).partition("\n")[0]
    return "", ""


def test_an_operation_that_is_refused_is_an_aborted_span_and_the_same_error(tmp_path: Path) -> None:
    plain = run_ranks(1, refuse)
    ((spans, error),) = run_ranks(1, lambda: record(tmp_path, refuse))
    assert error == plain[0]
    assert error[0]
    assert [span.status for span in spans] == [Status.ABORTED]


def strange_group() -> None:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore, PrefixStore, ProcessGroupGloo

    store = HashStore()
    own = dist.ProcessGroup(PrefixStore("group", store), 0, 1)  # made without torch's lists of groups
    backend = ProcessGroupGloo(PrefixStore("backend", store), 0, 1)  # type: ignore[call-arg]
    own._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    own._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    for _ in range(2):
        own.allreduce([torch.ones(3)]).wait()
    dist.all_reduce(torch.ones(1))


def test_a_group_of_ranks_that_nobody_knows_is_left_alone(tmp_path: Path) -> None:
    ((spans, _),) = run_ranks(1, lambda: record(tmp_path, strange_group))
    assert [span.name for span in spans] == ["world_all_reduce"]


def send_to_nobody() -> bool:
    import torch
    import torch.distributed as dist

    spans = OperationSpans(NullRecorder(), Groups(NullRecorder(), None), lambda work: work.wait())
    watch, group = _Watch(spans, None), dist.distributed_c10d._get_default_group()

    def kernel(*_: Any) -> None:
        raise ValueError("no such rank")  # gloo would crash

    operation = Operation("send", first=1, peer=2, is_async=None, has_work=True)
    for peer in (1, -1):
        with pytest.raises(ValueError, match="no such rank"):
            watch.run(operation, kernel, None, [torch.ones(1)], group.boxed(), peer)
    return watch._has_failed


def test_a_rank_that_does_not_exist_is_the_librarys_error_and_not_ours() -> None:
    assert run_ranks(1, send_to_nobody) == [False]


def fail_inside() -> str:
    import torch
    import torch.distributed as dist

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("ours")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OperationSpans, "begin", fail)
        for _ in range(2):
            dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1))
    return "done"


def test_an_error_of_the_recording_ends_the_recording_only(tmp_path: Path) -> None:
    assert run_ranks(1, lambda: record(tmp_path, fail_inside)) == [([], "done")]


def make_groups_again() -> None:
    import torch
    import torch.distributed as dist

    for calls in (2, 1):
        group = dist.new_group([0])
        for _ in range(calls):
            dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)


def test_the_numbers_of_a_group_that_is_made_again_go_on(tmp_path: Path) -> None:
    ((spans, _),) = run_ranks(1, lambda: record(tmp_path, make_groups_again))
    assert [(span.group, span.sequence) for span in spans] == [(("world_2", (0,)), number) for number in (1, 2, 3)]


def forward_with_buffers() -> list[float]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
    results = []
    for step in range(4):
        if step == 3 and dist.get_rank() == 0:
            time.sleep(0.1)
        results.append(model(torch.ones(4, 4) * step).sum().item())
    return [*results, *(float(buffer.sum()) for buffer in model.buffers())]


def test_the_wait_for_ddps_buffers_is_exposed(tmp_path: Path) -> None:
    plain = run_ranks(2, forward_with_buffers)
    results = run_ranks(2, lambda: record(tmp_path, forward_with_buffers))
    assert [values for _, values in results] == plain
    for spans, _ in results:
        broadcasts = [span for span in spans if span.name == "world_broadcast"]
        assert len(broadcasts) >= 4
        assert [span for span in broadcasts if span.exposed_ns is None or span.status is not Status.OK] == []
    assert max(span.exposed_ns or 0 for span in results[1][0] if span.name == "world_broadcast") > 0.06e9


def test_what_the_trainers_funnel_times_is_not_counted_twice(tmp_path: Path) -> None:
    from megascope.trainer.worker import run_worker
    from support.training import small_config

    config = small_config(dp=2, steps=2)

    def train(folder: Path, *, is_installed: bool) -> Counter[str]:
        import torch.distributed as dist

        rank = dist.get_rank()
        recorder = open_recorder(settings(folder, rank=rank, world_size=2))
        undo = install_collectives(recorder, config.topology()) if is_installed else None
        run_worker(config, recorder)
        if undo is not None:
            undo()
        return Counter(span.name for span in read(folder / "run" / "0" / f"rank-{rank:05d}.box") if span.group)

    alone = run_ranks(2, lambda: train(tmp_path / "alone", is_installed=False))
    both = run_ranks(2, lambda: train(tmp_path / "both", is_installed=True))
    assert alone == both
    assert all(counts["dp_reduce_scatter"] > 0 for counts in alone)
