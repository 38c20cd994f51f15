"""Bundles as sources: a bundle's file, or its unpacked folder, stands for the store, dumps and logs that are in it."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...collectors.reading.store import Attempt, Store
from ...profiler.errors import MegascopeError
from ..hang import Judged
from ..verdict import Abstention

BUNDLE_VERSION = 2
"""Version 1 had tables and files that could be read, and not be judged again."""

MANIFEST = "manifest.json"
MOST_BYTES = 2 * 2**30
"""A bundle that would unpack to more is refused; one that `write_bundle` made has less than half of it."""


class BundledStore(Store):
    """The store of a bundle: its data counts as so old as it was when the bundle was written.

    Whether a job ran can be told by fresh data only, and a bundle's is never fresh again.
    """

    def __init__(self, root: Path, packed_age_s: float | None, as_of: str | None = None) -> None:
        """``as_of`` is the moment from which ``packed_age_s`` counts, as the manifest has it."""
        super().__init__(root)
        self._packed_age_s, self.as_of = packed_age_s, as_of

    def data_age_s(self, attempt: Attempt) -> float | None:
        """Seconds between the newest moment in the store and the writing of the bundle."""
        return self._packed_age_s


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Paths to judge in place of those given. ``names`` maps folders of bundles to what was given for each, and
    ``manifests`` to its manifest."""

    paths: tuple[Path, ...]
    names: Mapping[Path, Path] = field(default_factory=dict)
    manifests: Mapping[Path, Mapping[str, Any]] = field(default_factory=dict)

    def open_store(self, path: Path) -> Store:
        """Open a store of `paths`; raises what `Store` does."""
        manifest = self._manifest(path) or {}
        age_s = manifest.get("data_age_s")
        if not isinstance(age_s, int | float):
            return Store(path)
        return BundledStore(path, float(age_s), str(manifest.get("as_of")))

    def told(self, judged: Judged) -> Judged:
        """The verdict with the sources named as they were given, not as they were unpacked, with the age of the data
        now, and with the moment at which the bundle was written."""
        verdict = judged.verdict
        used = tuple(replace(one, path=self._named(one.path)) for one in verdict.used)
        manifest = next((one for used_one in verdict.used if (one := self._manifest(Path(used_one.path)))), None)
        written = None if manifest is None else _moment(manifest.get("as_of"))
        if written is None:
            return replace(judged, verdict=replace(verdict, used=used))
        told = f"this is the job as it was at {written:%Y-%m-%d %H:%M:%S} UTC, when the bundle was written"
        since_s = max(0.0, (datetime.now(UTC) - written).total_seconds())
        age_s = None if verdict.data_age_s is None else verdict.data_age_s + since_s
        verdict = replace(
            verdict, used=used, data_age_s=age_s, abstained=(*verdict.abstained, Abstention("bundle", told))
        )
        return replace(judged, verdict=verdict)

    def _manifest(self, path: Path) -> Mapping[str, Any] | None:
        return next((one for folder, one in self.manifests.items() if path.is_relative_to(folder)), None)

    def _named(self, path: str) -> str:
        for folder, given in self.names.items():
            if path.startswith(f"{folder}/"):
                return f"{given}:{path.removeprefix(f'{folder}/')}"
        return path


@contextmanager
def unpacked(paths: Sequence[Path]) -> Iterator[Unpacked]:
    """``paths`` with each bundle among them replaced by what is in it; temporary folders are gone afterwards.

    MegascopeError for a zip file that is no bundle, is damaged, or is of another version.
    """
    found: list[Path] = []
    names: dict[Path, Path] = {}
    manifests: dict[Path, Mapping[str, Any]] = {}
    with ExitStack() as stack:
        for path in paths:
            if is_bundle_folder(path):
                manifests[path] = _manifest(path, path)
                found += _sources(path, path)
            elif _is_zip(path):
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="megascope-bundle-")))
                _unpack(path, folder)
                names[folder] = path
                manifests[folder] = _manifest(folder, path)
                found += _sources(folder, path)
            else:
                found.append(path)
        yield Unpacked(tuple(found), names, manifests)


def is_bundle_folder(path: Path) -> bool:
    """Whether a folder is an unpacked bundle, by its manifest."""
    try:
        return isinstance(json.loads((path / MANIFEST).read_bytes()).get("bundle"), int)
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def _is_zip(path: Path) -> bool:
    """By its first bytes: of a damaged one too."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def _unpack(path: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(path) as bundle:
            if MANIFEST not in bundle.namelist():
                raise MegascopeError(f"{path} is no bundle of megascope (it has no {MANIFEST}): unpack it, and name "
                                     "what is in it.")  # fmt: skip
            size = sum(one.file_size for one in bundle.infolist())
            if size > MOST_BYTES:
                raise MegascopeError(f"{path} would unpack to {size:,} bytes, more than the {MOST_BYTES:,} of any "
                                     "bundle: unpack it by hand, and name the folder.")  # fmt: skip
            bundle.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise MegascopeError(f"The bundle {path} is damaged ({error}): copy it again.") from error
    except OSError as error:
        raise MegascopeError(f"The bundle {path} cannot be unpacked ({error.strerror or error}).") from error
    moments = _manifest(folder, path).get("files")
    known = moments if isinstance(moments, dict) else {}
    for one in folder.rglob("*"):  # a zip keeps even seconds only
        moment_ns = known.get(one.relative_to(folder).as_posix())
        if isinstance(moment_ns, int) and 0 <= moment_ns < 2**63:
            os.utime(one, ns=(moment_ns, moment_ns))


def _sources(folder: Path, given: Path) -> list[Path]:
    manifest = _manifest(folder, given)
    if manifest["bundle"] != BUNDLE_VERSION:
        raise MegascopeError(
            f"The bundle {given} is of version {manifest['bundle']}, and this judges version {BUNDLE_VERSION}: its own "
            "verdict is in its report.txt."
        )
    try:
        paths = [Path(str(one["path"])) for one in manifest["sources"]]
    except (KeyError, TypeError) as error:
        raise MegascopeError(f"The {MANIFEST} of the bundle {given} is damaged: copy it again.") from error
    if any(path.is_absolute() or ".." in path.parts for path in paths):
        raise MegascopeError(f"The {MANIFEST} of the bundle {given} names files outside of it: it is not read.")
    present = [folder / path for path in paths if (folder / path).exists()]
    if not present:
        raise MegascopeError(f"The bundle {given} has nothing to judge again: its own verdict is in its report.txt.")
    return present


def _moment(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment.tzinfo is not None else None


def _manifest(folder: Path, given: Path) -> dict[str, Any]:
    try:
        value = json.loads((folder / MANIFEST).read_bytes())
        if isinstance(value, dict) and isinstance(value.get("bundle"), int):
            return value
    except (OSError, ValueError, RecursionError):
        pass
    raise MegascopeError(f"{given} is no bundle of megascope (its {MANIFEST} is not that of one): name what is in it.")
