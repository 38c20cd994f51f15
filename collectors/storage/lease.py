"""A lock in an object store: a numbered object that only one process can make, and that counts while it is renewed."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import weakref
from collections.abc import Callable

from ...profiler.host import host_name
from .object_path import ObjectPath

LEASE_S = 60.0
"""A lease that nobody renewed for so long is free again, by the server's clock."""

RENEW_EVERY_S = LEASE_S / 4

MOST_WAIT_S = 10.0
"""For a renewal that is under way when the lease is given free; one that comes later lapses by itself."""

_FREE = b"free"
_decides: dict[str, bool] = {}


class Lease:
    """Held until `release`, or until it was not renewed for `LEASE_S`. Renewal has a thread of its own.

    One that nobody refers to any more is not renewed.

    Who takes it makes the object with the next higher number, which only one can. What a lease guards must not rely on
    time alone: a holder that slept may not know yet that it lost it, so manifests are created under their numbers too.
    ``is_real`` is False where the server does not decide between two that create one object: then it keeps nobody away.
    """

    def __init__(self, path: ObjectPath, own: ObjectPath, content: bytes, *, is_real: bool) -> None:
        self.path, self.is_real = path, is_real
        self._own, self._content = own, content
        self.was_held = _number(own) > 1
        self._ended = threading.Event()
        arguments = (weakref.ref(self), self._ended)
        self._renewer = threading.Thread(target=_keep_renewing, args=arguments, name="megascope-lease", daemon=True)
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
        try:
            beside = [each for each in path.parent.glob(f"{path.name}.*") if each != own]
            if any(_is_claim(each) and _number(each) > _number(own) for each in beside):
                own.unlink(missing_ok=True)  # others were so far ahead that its number was free again
                return None
            is_real = _server_decides(own, content)
        except BaseException:
            with contextlib.suppress(OSError):
                own.write_bytes(_FREE)
            raise
        with contextlib.suppress(OSError):
            for old in beside:  # older claims, and what who looked at them was killed over
                old.unlink(missing_ok=True)
        return cls(path, own, content, is_real=is_real)

    def release(self, *, delete: bool = False) -> None:
        """Give it free. Its object stays, so that numbers only ever go up."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._renewer.join(MOST_WAIT_S)
        with contextlib.suppress(OSError):
            if _newest(self.path) == self._own:
                self._own.write_bytes(_FREE)

    def renew(self) -> bool:
        """Let it count from now on; False where somebody else has it."""
        with contextlib.suppress(OSError):
            if _newest(self.path) != self._own:
                return False
            self._own.write_bytes(self._content)
        return True


def _keep_renewing(find: Callable[[], Lease | None], ended: threading.Event) -> None:
    while not ended.wait(RENEW_EVERY_S):
        lease = find()
        if lease is None or not lease.renew():
            return
        del lease


def _newest(path: ObjectPath) -> ObjectPath | None:
    return max(path.parent.glob(f"{path.name}.claim-*"), key=_number, default=None)


def _is_claim(path: ObjectPath) -> bool:
    return ".claim-" in path.name


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
