"""Which texts name an object store, and the path that stands for a store, wherever it lies."""

from __future__ import annotations

import re
from pathlib import Path

from ...profiler.errors import UsageError
from .object_path import ObjectPath
from .remote import remote_of

_URL = re.compile(r"(?P<protocol>[a-z][a-z0-9+]+):(?P<slashes>/{1,2})(?P<rest>[^/].*)")
_WITH_ONE_SLASH = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "memory"})
"""One slash is what `Path` leaves of two. Of other protocols it may be a folder of this machine."""


def store_path(given: str | Path) -> Path:
    """The path of a store: a local one as it is; of a URL such as ``s3://bucket/prefix`` an `ObjectPath`.

    ``file://`` names a local folder. Raises UsageError for a URL without a bucket, and MegascopeError where the library
    for its protocol is not installed.
    """
    text = str(given)
    if local := re.fullmatch(r"file:/+(.*)", text):  # a `Path` leaves one slash
        return Path("/", local[1])
    match = _URL.fullmatch(text)
    is_bare = text.rstrip("/").removesuffix(":") in _WITH_ONE_SLASH and ":" in text
    if match is None and (is_bare or re.match(r"[a-z][a-z0-9+]+://", text)):
        raise UsageError(f"{text} names no place for a store: give a URL such as s3://bucket/prefix.")
    if match is None or (match["slashes"] == "/" and match["protocol"] not in _WITH_ONE_SLASH):
        return Path(given)
    remote_of(match["protocol"])  # says at once what is not installed
    return ObjectPath(f"{match['protocol']}:", match["rest"])
