"""One file to attach to an incident: the verdict, the report, all that it was read from, and the 3D page."""

from __future__ import annotations

import importlib.metadata
import io
import json
import platform
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from ...collectors.reading.store import Attempt, Store
from ...collectors.storage.durable import write_durably
from ...profiler.errors import MegascopeError
from ..hang import Judged
from ..paths import Sources, diagnose_paths, gathered_dumps
from ..report import render
from ..verdict import HangVerdict, to_json
from .files import copy_files
from .reading import BUNDLE_VERSION, MANIFEST, BundledStore
from .store import write_excerpt

JUDGED_AGAIN_BYTES = 64 * 2**20
"""Up to so many bytes of dumps and logs, the bundle's own content is judged before it is packed, and compared."""

STORE = "store"
_STORED = (".parquet", ".gz", ".zip")
"""Files that are compressed already."""


@dataclass(frozen=True, slots=True)
class Written:
    """A bundle that was written: its size, what was left out of it or cut, and whether its content, judged again,
    comes to the same verdict (None: it was not tried)."""

    size_bytes: int
    notes: tuple[str, ...] = field(default=())
    judged_alike: bool | None = None


def write_bundle(
    path: Path,
    judged: Judged,
    *,
    sources: Sources | None = None,
    opened: tuple[Store, Attempt] | None = None,
    page: str | None = None,
) -> Written:
    """Write the bundle under a temporary name and rename it.

    ``sources`` are the dumps and logs that the verdict was read from, ``opened`` the store and the attempt, whose
    gathered dumps go in too; ``page`` is the 3D page. Nothing else goes in: no environment, no configuration.
    MegascopeError where it cannot be written.
    """
    written: list[Written] = []
    try:
        with tempfile.TemporaryDirectory(prefix="megascope-bundle-") as folder:
            packing = _Packing(Path(folder), judged, sources or Sources(), opened, page)
            written.append(packing.fill())
            size = write_durably(path, lambda temporary: _zip(Path(folder), temporary))
    except OSError as error:
        raise MegascopeError(f"The bundle {path} cannot be written ({error.strerror}): give another place.") from error
    return Written(size, written[0].notes, written[0].judged_alike)


@dataclass(slots=True)
class _Packing:
    """What goes into a bundle, as a folder."""

    folder: Path
    judged: Judged
    sources: Sources
    opened: tuple[Store, Attempt] | None
    page: str | None

    def fill(self) -> Written:
        """Write all files of the bundle; the size is not known yet."""
        verdict = self.judged.verdict
        self._text("verdict.json", json.dumps(to_json(verdict), indent=1, allow_nan=False, default=str))
        self._text("report.txt", report_text(self.judged))
        self._text("looks.json", json.dumps(_look(self.judged), allow_nan=False, default=str))
        if self.page is not None:
            self._text("3d.html", self.page)
        notes: list[str] = []
        gathered: dict[Path, str] = {}
        if self.opened is not None:
            store, attempt = self.opened
            notes += write_excerpt(self.folder / STORE, store, attempt)
            found = gathered_dumps(store.root, attempt)
            gathered = {} if found is None else {found: f"{STORE}/{found.relative_to(store.root)}"}
        accused = tuple(rank for culprit in verdict.culprits for rank in culprit.ranks)
        packed = copy_files(self.folder, self.sources, gathered, accused)
        notes += packed.notes
        paths = [("store", STORE)] if self.opened is not None else []
        paths += [(kind, name) for kind, name in packed.sources if (self.folder / name).exists()]
        age_s, as_of = _age(self.opened)
        alike = (
            _is_judged_alike(self.folder, paths, verdict, age_s) if packed.size_bytes <= JUDGED_AGAIN_BYTES else None
        )
        if alike is False:
            notes.append("judged from what is in here alone, the verdict is another one: see verdict.json")
        manifest = _manifest(verdict, self.folder, paths, notes)
        manifest |= {"judged_alike": alike, "data_age_s": age_s, "as_of": as_of}
        self._text(MANIFEST, json.dumps(manifest, indent=1))
        return Written(0, tuple(notes), alike)

    def _text(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")


def _age(opened: tuple[Store, Attempt] | None) -> tuple[float | None, str]:
    """How old the store's data is, and when; of a store that is a bundle's already, when that was written."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    if opened is None:
        return None, now
    store, attempt = opened
    known = store.as_of if isinstance(store, BundledStore) else None
    return store.data_age_s(attempt), known or now


def _is_judged_alike(
    folder: Path, paths: Sequence[tuple[str, str]], verdict: HangVerdict, age_s: float | None
) -> bool | None:
    """Whether the packed sources come to the same verdict; None where there are none."""
    by_kind = {kind: tuple(folder / path for own, path in paths if own == kind) for kind in ("store", "dumps", "logs")}
    sources = Sources(by_kind["store"], by_kind["dumps"], by_kind["logs"])
    if not paths:
        return None
    try:
        if not sources.stores:
            return _essence(diagnose_paths(sources).verdict) == _essence(verdict)
        with BundledStore(sources.stores[0], age_s) as store:
            return _essence(diagnose_paths(sources, (store, store.attempt())).verdict) == _essence(verdict)
    except MegascopeError:
        return False


def _essence(verdict: HangVerdict) -> tuple[object, ...]:
    """What a verdict says, apart from how it is known and how old the data is."""
    culprits = tuple((one.ranks, one.kind, one.segment, one.group, one.waiters) for one in verdict.culprits)
    return verdict.verdict, culprits, verdict.victims, verdict.explained, verdict.unexplained, verdict.missing


def _zip(folder: Path, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as bundle:
        for one in sorted(folder.rglob("*")):
            if one.is_file():
                how = zipfile.ZIP_STORED if one.suffix in _STORED else zipfile.ZIP_DEFLATED
                bundle.write(one, one.relative_to(folder).as_posix(), how)


def report_text(judged: Judged) -> str:
    """The report as plain text, 120 columns wide."""
    out = io.StringIO()
    Console(file=out, width=120, highlight=False, color_system=None).print(render(judged))
    return out.getvalue()


def _look(judged: Judged) -> dict[str, Any]:
    """The look at the ranks that the verdict was read from, whatever it came from."""
    snapshot = judged.snapshot
    if snapshot is None:
        return {}
    return {
        "moment_ns": snapshot.moment_ns,
        "axes": snapshot.axes,
        "groups": {str(group): asdict(name) for group, name in snapshot.groups.items()},
        "ranks": {
            str(rank): {
                "host": snapshot.hosts.get(rank),
                "coordinates": dict(snapshot.coordinates.get(rank, {})),
                "step": state.step,
                "process_state": state.process_state,
                "in_flight": [_known(asdict(flight)) for flight in state.flights],
                "progress": {str(group): list(done) for group, done in state.progress.items()},
            }
            for rank, state in sorted(snapshot.states.items())
        },
        "missing": snapshot.missing,
    }


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _manifest(
    verdict: HangVerdict, folder: Path, paths: Sequence[tuple[str, str]], notes: Sequence[str]
) -> dict[str, Any]:
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    return {
        "bundle": BUNDLE_VERSION,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": verdict.run,
        "attempt": verdict.attempt,
        "verdict": str(verdict.verdict),
        "versions": {
            "megascope": importlib.metadata.version("megascope"),
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
        },
        "sources": [{"kind": kind, "path": path} for kind, path in paths],
        "files": {one.relative_to(folder).as_posix(): one.stat().st_mtime_ns for one in files},
        "notes": list(notes),
    }
