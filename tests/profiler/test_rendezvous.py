"""`init_process_group` as an operation of all ranks: who has come is told from outside, also of those who wait."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import megascope
from megascope.collectors.spool.rank_drain import RankDrain
from megascope.profiler.box.box import BoxReader
from megascope.profiler.rendezvous import in_rendezvous
from megascope.profiler.vocabulary import STATUS_CODES, Status
from support.forkrun import fork_ranks, run_ranks


def in_flight(spool: Path, rank: int) -> list[tuple[str, str, int | None]]:
    """What a rank has in flight: name, kind and sequence."""
    paths = list(spool.glob(f"run/0/rank-{rank:05d}.box"))
    if not paths:
        return []
    drain = RankDrain(paths[0])
    found = [(one["segment"], one["kind"], one["sequence"]) for one in drain.flights()]
    drain.close()
    return found


WAITING = [("rendezvous", "init", None), ("rendezvous", "collective", 1)]


@pytest.mark.timeout(90)
def test_three_of_four_ranks_wait_for_the_one_that_never_joins(tmp_path: Path) -> None:
    """Each child is alone in a gloo world of its own first: what is tested is the second rendezvous, of all four."""
    meeting = tmp_path / "meeting"

    def work() -> Any:
        import torch.distributed as dist

        dist.destroy_process_group()
        number = int(os.environ["MEMBER"])
        os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="4", MEGASCOPE_RUN="run")
        megascope.init(run="run", attempt=0, spool=tmp_path / "spool", store=tmp_path / "store", agent=False)
        if number == 3:
            time.sleep(60)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=4)

    spool = tmp_path / "spool"
    pids = [_forked(number, work) for number in range(4)]
    try:
        deadline = time.monotonic() + 40

        def boxes() -> int:
            return len(list(spool.glob("run/0/rank-*.box")))

        def is_there() -> bool:
            return boxes() == 4 and [in_flight(spool, rank) for rank in range(4)] == [WAITING] * 3 + [[]]

        while not is_there() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert boxes() == 4
        assert [in_flight(spool, rank) for rank in range(4)] == [WAITING] * 3 + [[]]
        assert (spool / "run" / "0" / "topology.json").exists()
    finally:
        for pid in pids:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _forked(number: int, work: Any) -> int:
    """A process, with a session of its own, that runs ``work`` alone in a world of one, as member ``number``."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            fork_ranks(1, work, timeout_s=60, environment={"MEMBER": str(number)})
        finally:
            os._exit(0)
    return pid


@pytest.mark.timeout(60)
def test_who_has_come_through_has_nothing_in_flight(tmp_path: Path) -> None:
    def work() -> Any:
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore

        store = dist.distributed_c10d._get_default_store()
        rank = dist.get_rank()
        dist.destroy_process_group()
        megascope.init(run="run", attempt=0, spool=tmp_path, store=tmp_path / "store", agent=False)
        original = dist.init_process_group
        dist.init_process_group("gloo", store=PrefixStore("again", store), rank=rank, world_size=2)
        seen = in_flight(tmp_path, rank)
        megascope.shutdown()
        return seen, dist.init_process_group is not original

    assert run_ranks(2, work) == [([], True)] * 2


def test_a_rendezvous_that_is_tried_again_leaves_none_open(tmp_path: Path) -> None:
    recorder = megascope.init(
        run="run", attempt=0, spool=tmp_path, store=tmp_path / "store", agent=False, automatic=False
    )
    try:
        for _ in range(2):
            with pytest.raises(TimeoutError), in_rendezvous(recorder, 4):
                raise TimeoutError
            assert in_flight(tmp_path, 0) == [("rendezvous", "collective", 1)]
        with in_rendezvous(recorder, 4):
            assert in_flight(tmp_path, 0) == WAITING
        assert in_flight(tmp_path, 0) == []
    finally:
        megascope.shutdown()
    records = BoxReader(tmp_path / "run" / "0" / "rank-00000.box").read_ring(0, 0).records
    operations = [STATUS_CODES[one["status"]] for one in records if one["sequence"] == 1]
    assert operations == [Status.ABORTED, Status.ABORTED, Status.OK]
