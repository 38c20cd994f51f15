"""What makes checkpoints quick changes nothing: copies of what lies together, and blocks that several threads read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.null import NullRecorder
from megascope.trainer.checkpoints.files import DamagedError, shard_path
from megascope.trainer.checkpoints.reading import BlockReader, read_saved
from megascope.trainer.checkpoints.state import STATES, HostCopy, _joined
from megascope.trainer.loop import Trainer
from support.checkpoints import new_writers, some_values, write_checkpoint
from support.forkrun import run_ranks
from support.training import small_config


@given(borders=st.lists(st.integers(0, 40)), gaps=st.sets(st.integers(0, 10)), skipped=st.sets(st.integers(0, 10)))
def test_what_lies_together_is_copied_at_once(borders: list[int], gaps: set[int], skipped: set[int]) -> None:
    """``gaps``: parts before which the copy leaves room; ``skipped``: parts that are not copied."""
    memory = torch.arange(40, dtype=torch.float64)
    cuts = sorted({0, 40, *borders})
    parts = [memory[low:high] for low, high in pairwise(cuts)]
    pairs, end = [], 0
    for number, part in enumerate(parts):
        if number in skipped:
            continue
        end += 64 if number in gaps else 0
        pairs.append((end, part))
        end += part.nbytes
    copy = torch.zeros(end, dtype=torch.uint8)
    runs = list(_joined(pairs))
    for begin, source in runs:
        copy[begin : begin + len(source)] = source
    for begin, part in pairs:
        assert copy[begin : begin + part.nbytes].numpy().tobytes() == part.numpy().tobytes()
    together = sum(after - before == len(part) * 8 and part.data_ptr() + part.nbytes == other.data_ptr()
                   for (before, part), (after, other) in pairwise(pairs))  # fmt: skip
    assert len(runs) == len(pairs) - together


@pytest.mark.parametrize("layout", [{}, {"pp": 2, "chunks": 2, "model": {"tied": True}}, {"tp": 2}], ids=str)
def test_a_copy_holds_the_state_and_is_made_in_few_pieces(layout: dict[str, Any]) -> None:
    config = small_config(steps=1, **layout)

    def work() -> tuple[int, int]:
        trainer = Trainer(config, NullRecorder(), torch.device("cpu"))
        for number, bucket in enumerate(trainer.optimizer.buckets):
            for place, state in enumerate(bucket.state()):
                state.copy_(torch.arange(len(state)) + 1000.0 * number + 100_000.0 * place)
        host = HostCopy(trainer.optimizer, trainer._mesh)
        host.take()
        held = {(piece.parameter, piece.state): bytes(content) for piece, content in host.pieces()}
        checked = 0
        for bucket in trainer.optimizer.buckets:
            for name, state in zip(STATES, bucket.state(), strict=True):
                for one in bucket.slices:
                    if (one.spec.name, name) in held:
                        checked += 1
                        assert held[one.spec.name, name] == state[one.start : one.end].numpy().tobytes()
        assert checked >= len(held) - 1  # all but the norms' history, on the first rank
        return len(list(_joined(zip(host._places, host._parts(), strict=True)))), len(list(host._parts()))

    runs, parts = run_ranks(config.topology().world_size, work)[0]
    assert parts > 10
    assert runs == 1 + config.parallel.chunks  # the norms' history, and each chunk's state


def test_threads_read_what_one_reads(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, new_writers(tmp_path), 4, some_values())
    saved = read_saved(tmp_path, 4)
    wanted = [(one.rank, block) for one in saved.descriptions for piece in one.pieces for block in piece.blocks] * 9
    assert len(wanted) > 60
    with BlockReader(tmp_path) as alone, BlockReader(tmp_path, 4) as many:
        expected = [alone.read(rank, block) for rank, block in wanted]
        assert list(many.read_all(wanted)) == expected
        assert many.size_bytes == alone.size_bytes == sum(map(len, expected))
    path = shard_path(tmp_path, 4, 1)
    content = np.fromfile(path, np.uint8)
    content[-1] ^= 1
    content.tofile(path)
    with BlockReader(tmp_path, 4) as many, pytest.raises(DamagedError, match=r"rank-00001\.shard is damaged"):
        list(many.read_all(wanted))
