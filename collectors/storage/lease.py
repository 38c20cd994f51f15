"""A lock in an object store: a numbered object that only one process can make, and that counts while it is renewed."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading

from ...profiler.host import host_name
from .object_path import ObjectPath

LEASE_S = 60.0
"""A lease that nobody renewed for so long is free again, by the server's clock."""

_FREE = b"free"
_decides: dict[str, bool] = {}


class Lease:
    """Held until `release`, or until it was not renewed for `LEASE_S`. Renewal has a thread of its own.

    Who takes it makes the object with the next higher number, which only one can. What a lease guards must not rely on
    time alone: a holder that slept may not know yet that it lost it, so manifests are created under their numbers too.
    ``is_real`` is False where the server does not decide between two that create one object: then it keeps nobody away.
    """

    def __init__(self, path: ObjectPath, own: ObjectPath, content: bytes, *, is_real: bool) -> None:
        self.path, self.is_real = path, is_real
        self._own, self._content = own, content
        self._ended = threading.Event()
        self._renewer = threading.Thread(target=self._renew, name="megascope-lease", daemon=True)
        self._renewer.start()

    @classmethod
    def acquire(cls, path: ObjectPath) -> Lease | None:
        """Take the lease, or return None where somebody holds it. OSError where the store does not answer."""
        newest = _newest(path)
        if newest is not None and not _is_free(path, newest):
            return None
        own = path.with_name(f"{path.name}.claim-{_number(newest) + 1:06d}")
        content = f"{host_name()}:{os.getpid()}:{secrets.token_hex(8)}".encode()
        if not own.create(content):
            return None
        is_real = _server_decides(own, content)
        for old in path.parent.glob(f"{path.name}.claim-*"):
            if _number(old) < _number(own):
                old.unlink(missing_ok=True)
        return cls(path, own, content, is_real=is_real)

    def release(self, *, delete: bool = False) -> None:
        """Give it free. Its object stays, so that numbers only ever go up."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._renewer.join()
        with contextlib.suppress(OSError):
            if _newest(self.path) == self._own:
                self._own.write_bytes(_FREE)

    def _renew(self) -> None:
        while not self._ended.wait(LEASE_S / 4):
            with contextlib.suppress(OSError):
                if _newest(self.path) != self._own:
                    return
                self._own.write_bytes(self._content)


def _newest(path: ObjectPath) -> ObjectPath | None:
    return max(path.parent.glob(f"{path.name}.claim-*"), key=_number, default=None)


def _number(path: ObjectPath | None) -> int:
    text = "" if path is None else path.name.rpartition("-")[2]
    return int(text) if text.isdecimal() else 0


def _is_free(path: ObjectPath, newest: ObjectPath) -> bool:
    try:
        if newest.read_bytes() == _FREE:
            return True
        probe = path.with_name(f"{path.name}.probe-{secrets.token_hex(8)}")
        probe.write_bytes(b"")
        try:
            now_ns = probe.stat().st_mtime_ns
        finally:
            probe.unlink(missing_ok=True)
        return now_ns - newest.stat().st_mtime_ns >= LEASE_S * 1e9
    except FileNotFoundError:  # somebody took over meanwhile
        return False


def _server_decides(own: ObjectPath, content: bytes) -> bool:
    """Whether the server refuses to create an object that is there; asked once a process and bucket."""
    bucket = "/".join(own.parts[:2])
    if bucket not in _decides:
        _decides[bucket] = own.remote.is_exact and not own.create(_FREE)
        own.write_bytes(content)
    return _decides[bucket]
