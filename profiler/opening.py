"""Opening a recorder: where the spool is, how large a box may be, and one clock base for all ranks of a host."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata as package_metadata
from pathlib import Path
from typing import Any

from .box.box import BoxLayout, create_box
from .box.metadata import MetadataKind, MetadataWriter
from .cadence import Cadence
from .calibration import recorder_span_ns
from .device_clock import CudaTimer
from .errors import UsageError
from .host import host_name
from .identity import is_run_name
from .null import NullRecorder
from .patching import Undo, replace
from .recorder import AnyRecorder, Recorder
from .store_address import store_address
from .topology import stable_id

log = logging.getLogger(__name__)

SPOOL_VARIABLE = "MEGASCOPE_SPOOL"
METADATA_VERSION = 1
MIN_RING_RECORDS = 512
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderSettings:
    """Who records, and where: ``spool`` is a folder on the rank's own host, such as `default_spool` gives.

    ``cadence`` says which steps are timed; all of them by default.
    """

    run: str
    attempt: int
    rank: int
    world_size: int
    spool: Path
    local_rank: int = 0
    local_world_size: int = 1
    device: str | None = None
    layout: BoxLayout = field(default_factory=BoxLayout)
    cadence: Cadence = field(default_factory=Cadence)


def default_spool(store: str | Path) -> Path:
    """The spool of the jobs on this host that write to one store: one spool, one agent, one store.

    It lies in `$MEGASCOPE_SPOOL`, else in a folder of this user in shared memory, else in the temporary folder.
    """
    folder = f"{stable_id('spool', str(store_address(store))):016x}"
    if given := os.environ.get(SPOOL_VARIABLE):
        return Path(given) / folder
    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    return parent / _user_folder() / folder


def fallback_spool(spool: Path) -> Path:
    """Where boxes go when there is no room in the spool; its agent looks there too."""
    return Path(tempfile.gettempdir()) / _user_folder() / f"{spool.name}-fallback"


def _user_folder() -> str:
    return f"megascope-{os.getuid()}"


def attempt_folder(spool: Path, run: str, attempt: int) -> Path:
    """Folder of one attempt in a spool. Run names are data: they may not leave the folder.

    Raises UsageError for a name that cannot be a folder's.
    """
    if not is_run_name(run):
        raise UsageError(f"The run name {run[:80]!r} cannot be used: give one without '/', '=' and line breaks.")
    return spool / run / str(attempt)


def open_recorder(settings: RecorderSettings) -> AnyRecorder:
    """Open a rank's recorder. Where no space can be had, warn and return one that is off: training goes on."""
    problem: OSError | None = None
    for spool in (settings.spool, fallback_spool(settings.spool)):
        try:
            folder = attempt_folder(spool, settings.run, settings.attempt)
            _make_private(spool)
            folder.mkdir(parents=True, exist_ok=True)
            share = _share_of_room(folder, settings.local_world_size)
        except OSError as error:
            problem = error
            continue
        for layout in _layouts(settings.layout, share):
            try:
                recorder = _open(folder, layout, settings)
                recorder.spool = spool
                return recorder
            except OSError as error:
                problem = error
    log.warning("Rank %d is not recorded: no room for its black box (%s). Training goes on.", settings.rank, problem)
    return NullRecorder()


def _make_private(spool: Path) -> None:
    """Make the folder of this user in a place that all users share; PermissionError if it is somebody else's."""
    parent = spool.parent
    if parent.name == _user_folder():
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if parent.is_symlink() or parent.stat().st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "belongs to another user", str(parent))


def _share_of_room(folder: Path, local_world_size: int) -> int:
    """Bytes that one rank may take: half of the file system, or of what is free, over the ranks of the host.

    Shared memory is also what collectives and data loaders live on.
    """
    room = os.statvfs(folder)
    return min(room.f_blocks // 2, room.f_bavail) * room.f_frsize // max(local_world_size, 1)


def _layouts(wanted: BoxLayout, share: int) -> Iterator[BoxLayout]:
    """The layout, then with rings of a quarter, and again, as long as they hold something."""
    records = wanted.ring_records
    while records >= MIN_RING_RECORDS:
        layout = BoxLayout(wanted.slots, wanted.rings, records, wanted.groups)
        if layout.total_bytes <= share:
            yield layout
        records //= 4


def _open(folder: Path, layout: BoxLayout, settings: RecorderSettings) -> Recorder:
    header = _header(settings, clock_base_ns(folder))
    box, path = _create(folder, layout, settings.rank)
    try:
        metadata = MetadataWriter(path.with_suffix(".meta.jsonl"))
        metadata.write(MetadataKind.HEADER, header)
        steps = MetadataWriter(path.with_suffix(".steps.jsonl"))
    except OSError:
        box.close()
        path.unlink(missing_ok=True)
        raise
    recorder = Recorder(box, layout, metadata, steps, settings.cadence)
    find_device(recorder, metadata, header)
    return recorder


def find_device(recorder: Recorder, metadata: MetadataWriter, header: Mapping[str, Any]) -> None:
    """Time segments on the device as soon as this process uses one: now, or when a later step begins."""

    def attach() -> None:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        recorder.find_device = None
        try:
            timer = CudaTimer(torch.cuda, recorder)
            recorder.release_device = pause_during_captures(torch.cuda.CUDAGraph, timer)
            uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
            metadata.write(MetadataKind.HEADER, {**header, "device": device_name(uuid)})
        except (RuntimeError, OSError) as error:
            log.warning("The device cannot be timed (%s): segments are timed by the host's clock.", error)
            recorder.release_device()
            return
        recorder.device = timer
        timer.start_thread()

    recorder.find_device = attach
    attach()


def pause_during_captures(graph: Any, timer: CudaTimer) -> Undo:
    """Hold the timer while a CUDA graph is captured. ``graph`` is `torch.cuda.CUDAGraph`, or has its two methods.

    Needed wherever a device is timed, whatever else is recorded: a query from another thread would break the capture.
    """
    begin, end = graph.capture_begin, graph.capture_end
    held: set[int] = set()

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        timer.hold()
        try:
            result = begin(self, *args, **kwargs)
        except BaseException:
            timer.release()
            raise
        held.add(id(self))
        return result

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(self, *args, **kwargs)
        finally:
            if id(self) in held:  # not one that began before these wrappers were there
                held.discard(id(self))
                timer.release()

    undone = [replace(graph, "capture_begin", capture_begin), replace(graph, "capture_end", capture_end)]

    def undo() -> None:
        for each in undone:
            each()

    return undo


def device_name(uuid: str | None) -> str | None:
    """A GPU's UUID as NVML writes it, so that spans and health meet: torch leaves the prefix out."""
    return uuid if uuid is None or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


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
        "host": host_name(),
        "local_rank": settings.local_rank,
        "pid": os.getpid(),
        "pid_namespace": _pid_namespace(),
        "device": device_name(settings.device),
        "clock_base_ns": base_ns,
        "boot": boot_id(),
        "versions": versions(),
        "sample": settings.cadence.sample,
        "shadow_every": settings.cadence.shadow_every,
        "recorder_span_ns": round(recorder_span_ns(), 1),
    }


def _pid_namespace() -> int | None:
    """Which processes can see this one's id; None where that cannot be told."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116  (a link whose target is no path)
    except OSError:
        return None


def versions() -> Mapping[str, str]:
    """Versions of what a record depends on; packages that are not installed are left out."""
    found = {"python": platform.python_version(), "system": platform.platform(terse=True)}
    for name in ("megascope", "torch", "numpy"):
        with contextlib.suppress(package_metadata.PackageNotFoundError):
            found[name] = package_metadata.version(name)
    return found


def clock_base_ns(folder: Path) -> int:
    """What turns this host's monotonic clock into UTC: read once by the first rank, taken over by all others.

    The monotonic clock starts anew at a boot: ranks that find a base from before it share one of their own.
    """
    boot, base_ns = boot_id(), time.time_ns() - time.monotonic_ns()
    own = folder / f"clock.{os.getpid()}.tmp"
    own.write_text(json.dumps({"clock_base_ns": base_ns, "boot": boot}))
    try:
        for name in ("clock.json", f"clock-{boot[:8]}.json"):
            with contextlib.suppress(FileExistsError):
                os.link(own, folder / name)
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a damaged file is as one of another boot
                stored = json.loads((folder / name).read_text())
                if stored["boot"] == boot:
                    return int(stored["clock_base_ns"])
    finally:
        own.unlink(missing_ok=True)
    return base_ns


@functools.cache
def boot_id() -> str:
    """What tells one boot of this host from another; empty where the system does not say."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""
