"""Opening a recorder: where the spool is, how large a box may be, and one clock base for all ranks of a host."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata as package_metadata
from pathlib import Path
from typing import Any

from .box import BoxLayout, create_box
from .device_clock import CudaTimer
from .errors import UsageError
from .metadata import MetadataKind, MetadataWriter
from .null import NullRecorder
from .recorder import Recorder
from .topology import stable_id

log = logging.getLogger(__name__)

SPOOL_VARIABLE = "MEGASCOPE_SPOOL"
METADATA_VERSION = 1
MIN_RING_RECORDS = 512
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderSettings:
    """Who records, and where: ``spool`` is a folder on the rank's own host, such as `default_spool` gives."""

    run: str
    attempt: int
    rank: int
    world_size: int
    spool: Path
    local_rank: int = 0
    device: str | None = None
    layout: BoxLayout = field(default_factory=BoxLayout)


def default_spool(store: str | Path) -> Path:
    """The spool of the jobs on this host that write to one store: one spool, one agent, one store.

    It lies in `$MEGASCOPE_SPOOL`, else in a folder of this user in shared memory, else in the temporary folder.
    """
    folder = f"{stable_id('spool', str(Path(store).absolute())):016x}"
    if given := os.environ.get(SPOOL_VARIABLE):
        return Path(given) / folder
    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    return parent / _user_folder() / folder


def _user_folder() -> str:
    return f"megascope-{os.getuid()}"


def attempt_folder(spool: Path, run: str, attempt: int) -> Path:
    """Folder of one attempt in a spool. Run names are data: they may not leave the folder.

    Raises UsageError for a name that cannot be a folder's.
    """
    if not run or run in {".", ".."} or len(run.encode()) > 200 or any(c in "/\\\0\n=" for c in run):
        raise UsageError(f"The run name {run[:80]!r} cannot be used: give one without '/', '=' and line breaks.")
    return spool / run / str(attempt)


def open_recorder(settings: RecorderSettings) -> Recorder | NullRecorder:
    """Open a rank's recorder. Where no space can be had, warn and return one that is off: training goes on."""
    fallback = Path(tempfile.gettempdir()) / _user_folder() / settings.spool.name
    problem: OSError | None = None
    for root in dict.fromkeys((settings.spool, fallback)):
        layout = settings.layout
        while layout.ring_records >= MIN_RING_RECORDS:
            try:
                return _open(attempt_folder(root, settings.run, settings.attempt), layout, settings)
            except OSError as error:
                problem = error
                layout = BoxLayout(layout.slots, layout.rings, layout.ring_records // 4, layout.groups)
    log.warning("Rank %d is not recorded: no room for its black box (%s). Training goes on.", settings.rank, problem)
    return NullRecorder()


def _open(folder: Path, layout: BoxLayout, settings: RecorderSettings) -> Recorder:
    folder.mkdir(parents=True, exist_ok=True)
    base_ns = clock_base_ns(folder)
    box, path = _create(folder, layout, settings.rank)
    try:
        metadata = MetadataWriter(path.with_suffix(".meta.jsonl"))
        metadata.write(MetadataKind.HEADER, _header(settings, base_ns))
    except OSError:
        box.close()
        path.unlink(missing_ok=True)
        raise
    recorder = Recorder(box, layout, metadata)
    if settings.device is not None:
        import torch  # noqa: PLC0415  (only where there is a device)

        timer = CudaTimer(torch.cuda, recorder)
        recorder.device = timer
        timer.start_thread()
    return recorder


def _create(folder: Path, layout: BoxLayout, rank: int) -> tuple[Any, Path]:
    """Create the box under the first free name: two processes that claim one rank get a box each."""
    for number in range(1000):
        path = folder / (f"rank-{rank:05d}.box" if number == 0 else f"rank-{rank:05d}.{number}.box")
        with contextlib.suppress(FileExistsError):
            return create_box(path, layout, rank=rank, pid=os.getpid()), path
    raise OSError(f"{folder} holds 1000 boxes of rank {rank}")


def _header(settings: RecorderSettings, base_ns: int) -> dict[str, Any]:
    return {
        "version": METADATA_VERSION,
        "run": settings.run,
        "attempt": settings.attempt,
        "rank": settings.rank,
        "world_size": settings.world_size,
        "host": socket.gethostname(),
        "local_rank": settings.local_rank,
        "pid": os.getpid(),
        "device": settings.device,
        "clock_base_ns": base_ns,
        "versions": versions(),
    }


def versions() -> Mapping[str, str]:
    """Versions of what a record depends on; packages that are not installed are left out."""
    found = {"python": platform.python_version(), "system": platform.platform(terse=True)}
    for name in ("megascope", "torch", "numpy"):
        with contextlib.suppress(package_metadata.PackageNotFoundError):
            found[name] = package_metadata.version(name)
    return found


def clock_base_ns(folder: Path) -> int:
    """What turns this host's monotonic clock into UTC: read once by the first rank, taken over by all others."""
    path = folder / "clock.json"
    base_ns = time.time_ns() - time.monotonic_ns()
    own = folder / f"clock.{os.getpid()}.tmp"
    own.write_text(json.dumps({"clock_base_ns": base_ns, "boot": _boot_id()}))
    try:
        with contextlib.suppress(FileExistsError):
            os.link(own, path)
    finally:
        own.unlink()
    stored = json.loads(path.read_text())
    return int(stored["clock_base_ns"]) if stored["boot"] == _boot_id() else base_ns


def _boot_id() -> str:
    """The monotonic clock starts anew at a boot: a base from before it does not hold."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""
