"""The way of checkpoints: every rank writes a file, forces it to disk and reads it back."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from .check import Answer, Check, Effort, Here
from .compute import GIGA
from .measurements import Metric
from .plan import Cluster, Round


class Checkpoints(Check):
    """Throughput of the checkpoint folder while all ranks write at once, as they do in a checkpoint."""

    name = "checkpoint"
    metrics = (
        Metric(name="write", unit="GB/s", margin_cpu=0.7, margin_cuda=0.5),
        Metric(name="read", unit="GB/s", margin_cpu=0.7, margin_cuda=0.5),
    )

    def why_not(self, cluster: Cluster, effort: Effort) -> str | None:
        """There has to be a folder."""
        if effort.folder is None:
            return "no folder for checkpoints is known: give a configuration with checkpoint.folder, or --folder."
        return None

    def rounds(self, cluster: Cluster) -> list[Round]:
        """All at once."""
        return [[(rank,) for rank in sorted(cluster.members)]]

    def measure(self, here: Here) -> Answer:
        """Bytes over the time until they are on disk, and over the time to read them without the page cache.

        What comes back must be what was written. The file is removed, also where something fails.
        """
        folder = here.effort.folder
        assert folder is not None
        folder.mkdir(parents=True, exist_ok=True)
        size = here.effort.size(cpu=64 << 20, cuda=1 << 30, device=here.device)
        content = np.random.default_rng(here.rank).bytes(size)
        handle, name = tempfile.mkstemp(prefix=f".preflight-{here.rank:05}-", dir=folder)
        path = Path(name)
        try:
            written = _write(handle, content, here)
            here.note("reading back")
            began = time.perf_counter()
            back = self.read(here, path)
            read = time.perf_counter() - began
        finally:
            path.unlink(missing_ok=True)
        if hashlib.blake2b(back).digest() != hashlib.blake2b(content).digest():
            raise RuntimeError(f"what was read back from {folder} is not what was written")
        return Answer({"write": size / written / GIGA, "read": size / read / GIGA})

    def read(self, here: Here, path: Path) -> bytes:
        """What is on the disk."""
        return path.read_bytes()


def _write(handle: int, content: bytes, here: Here) -> float:
    with os.fdopen(handle, "wb", buffering=0) as file:
        here.note("writing")
        began = time.perf_counter()
        view = memoryview(content)
        while view:
            view = view[file.write(view) or 0 :]
        here.note("waiting until it is on disk")
        os.fsync(file.fileno())
        seconds = time.perf_counter() - began
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return seconds
