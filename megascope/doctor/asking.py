"""How the real machine is asked. Nothing of it leaves a file, changes a setting, or waits for a driver without end."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

NVML_S = 4.0
"""A driver that answers later than this does not answer."""

TIME_ERROR, UNSYNCHRONISED = 5, 0x40
"""adjtimex(2): what it returns, and the bit of its status, where nobody steers the clock."""

_NVML = """
import json, sys
try:
    import pynvml as n
    n.nvmlInit()
    names = [n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())]
    print(json.dumps({"driver": n.nvmlSystemGetDriverVersion(), "gpus": names}))
except Exception as error:
    print(json.dumps({"error": str(error) or type(error).__name__}))
"""


@dataclass(frozen=True, slots=True)
class Writing:
    """Whether a folder can be written: ``reason`` why not. ``tried``: a nameless file was written, not only asked."""

    reason: str | None
    tried: bool
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """A file system: bytes in all and free to this user; free files, None where it does not count them."""

    total_bytes: int
    free_bytes: int
    free_files: int | None = None


@dataclass(frozen=True, slots=True)
class ClockStatus:
    """What the kernel says of its clock; the maximum error is in microseconds."""

    is_steered: bool
    maximum_error_us: int


@dataclass(frozen=True, slots=True)
class Drivers:
    """What NVML says: the driver's version and the GPUs' names, or why it does not."""

    driver: str | None = None
    gpus: tuple[str, ...] = ()
    error: str | None = None


def version_of(package: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def requirements() -> list[str]:
    """What megascope requires, as its package says: ``"torch>=2.8; extra == 'trainer'"``."""
    return importlib.metadata.requires("megascope") or []


def torch_file(name: str) -> str | None:
    """The text of a file of torch's package, which is not imported; None without torch or the file."""
    try:
        path = importlib.metadata.distribution("torch").locate_file(f"torch/{name}")
        return Path(str(path)).read_text(encoding="utf-8", errors="replace")
    except (importlib.metadata.PackageNotFoundError, OSError):
        return None


def try_writing(folder: Path) -> Writing:
    """Write a byte into a file without a name (O_TMPFILE), which is gone when it is closed, also after a kill.

    Where the file system has no such files, permissions are asked.
    """
    try:
        file = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return Writing(os.strerror(error.errno or 0), True, error.errno == errno.EROFS)
        may = os.access(folder, os.W_OK | os.X_OK)
        return Writing(None if may else "no permission, or a read-only file system", False)
    try:
        os.write(file, b"\0")
    except OSError as error:
        return Writing(os.strerror(error.errno or 0), True)
    finally:
        with contextlib.suppress(OSError):
            os.close(file)
    return Writing(None, True)


def room_of(folder: Path) -> Room:
    """The file system of a folder that exists."""
    told = os.statvfs(folder)
    files = told.f_favail if told.f_files else None
    return Room(told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize, files)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


class _Timex(ctypes.Structure):
    """The beginning of ``struct timex`` of adjtimex(2), and room for its rest."""

    _fields_ = (
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_byte * 256),
    )  # fmt: skip


def clock_status() -> ClockStatus:
    """Ask the kernel about its clock, changing nothing (modes 0). OSError where it does not say."""
    asked = _Timex()
    library = ctypes.CDLL(None, use_errno=True)
    state = library.adjtimex(ctypes.byref(asked))
    if state < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return ClockStatus(state != TIME_ERROR and not asked.status & UNSYNCHRONISED, int(asked.maxerror))


def clock_read_ns(batches: int = 5, reads: int = 200) -> float:
    """What one reading of the monotonic clock takes, in nanoseconds: the fastest of some batches."""
    best = float("inf")
    for _ in range(batches):
        began = time.perf_counter_ns()
        for _ in range(reads):
            time.monotonic_ns()
        best = min(best, (time.perf_counter_ns() - began) / reads)
    return best


def ask_nvml(limit_s: float = NVML_S) -> Drivers:
    """Ask NVML in a child, since a sick driver may hang whoever asks it."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", _NVML], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = child.communicate(timeout=limit_s)
        told = json.loads(out)
        return Drivers(told.get("driver"), tuple(told.get("gpus", ())), told.get("error"))
    except subprocess.TimeoutExpired:
        return Drivers(error=f"no answer within {limit_s:.0f} s")
    except ValueError:
        return Drivers(error=f"the process that asked ended with code {child.returncode}")
    finally:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.1)  # one that hangs in the kernel ends when the driver lets go
        if child.stdout is not None:
            child.stdout.close()


def try_binding(host: str, port: int) -> OSError | None:
    """Whether an address is free; nobody is listened to, and the socket is closed at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            return error
    return None
