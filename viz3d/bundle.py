"""One file to attach to an incident: the verdict, the report, what it was read from, and the 3D page."""

from __future__ import annotations

import importlib.metadata
import io
import json
import platform
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from ..collectors.durable import write_durably
from ..collectors.store import Attempt, Store
from ..profiler.errors import MegascopeError
from .hang import Judged
from .report import render
from .verdict import to_json

LAST_NS = 300 * 10**9
"""Heartbeats and health of so long before the newest one are packed."""

MOST_ROWS = 200_000
MOST_FILE_BYTES = 2 * 2**20
MOST_FILES_BYTES = 64 * 2**20
"""Dumps and logs that were read are packed as they are up to these sizes, the larger ones by their end."""

_WHOLE = ("ranks", "groups", "incidents", "in_flight", "clock_offsets")
_RECENT = ("heartbeats", "health")


def write_bundle(
    path: Path,
    judged: Judged,
    *,
    store: Store | None = None,
    attempt: Attempt | None = None,
    files: Sequence[Path] = (),
    page: str | None = None,
) -> int:
    """Write the bundle under a temporary name and rename it; its size in bytes.

    ``store`` and ``attempt`` give the tables, ``files`` are dumps and logs that were read beside it, ``page`` is the
    3D page. Nothing else goes in: no environment, no configuration. MegascopeError where it cannot be written.
    """
    try:
        return write_durably(path, lambda temporary: _fill(temporary, judged, store, attempt, files, page))
    except OSError as error:
        raise MegascopeError(f"The bundle {path} cannot be written ({error.strerror}): give another place.") from error


def _fill(
    path: Path, judged: Judged, store: Store | None, attempt: Attempt | None, files: Sequence[Path], page: str | None
) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        notes: list[str] = []
        bundle.writestr("verdict.json", json.dumps(to_json(judged.verdict), indent=1, allow_nan=False, default=str))
        bundle.writestr("report.txt", report_text(judged))
        bundle.writestr("looks.json", json.dumps(_look(judged), allow_nan=False, default=str))
        if page is not None:
            bundle.writestr("3d.html", page)
        if store is not None and attempt is not None:
            for name, table in _tables(store, attempt).items():
                bundle.writestr(f"tables/{name}.parquet", _parquet(table), zipfile.ZIP_STORED)
        notes += _add_files(bundle, files)
        bundle.writestr("manifest.json", json.dumps(_manifest(judged, bundle.namelist(), notes), indent=1))


def report_text(judged: Judged) -> str:
    """The report as plain text, 120 columns wide."""
    out = io.StringIO()
    Console(file=out, width=120, highlight=False, color_system=None).print(render(judged))
    return out.getvalue()


def _tables(store: Store, attempt: Attempt) -> dict[str, pa.Table]:
    found = {}
    for name in _WHOLE:
        found[name] = store.query(f"SELECT * FROM {name} LIMIT {MOST_ROWS}", attempt=attempt)
    for name in _RECENT:
        found[name] = store.query(
            f"SELECT * FROM {name} WHERE moment_ns >= (SELECT max(moment_ns) FROM {name}) - {LAST_NS} "
            f"ORDER BY moment_ns DESC LIMIT {MOST_ROWS}",
            attempt=attempt,
        )
    columns = "run, attempt, layout, world_size, versions, start_ns, end_ns, exit_reason"
    found["runs"] = store.query(f"SELECT {columns} FROM runs", attempt=attempt)
    return {name: table for name, table in found.items() if table.num_rows}


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


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


def _add_files(bundle: zipfile.ZipFile, files: Sequence[Path]) -> list[str]:
    """Pack dumps and logs; what was cut or left out, in words."""
    notes: list[str] = []
    room = MOST_FILES_BYTES
    for number, path in enumerate(sorted(set(files))):
        name = f"files/{number:05}-{path.name}"
        try:
            size = path.stat().st_size
            if room <= 0:
                notes.append(f"{path.name}: left out, there is no more room")
                continue
            with path.open("rb") as file:
                if size > MOST_FILE_BYTES:
                    file.seek(size - MOST_FILE_BYTES)
                    notes.append(f"{path.name}: its last {MOST_FILE_BYTES} of {size} bytes")
                content = file.read(MOST_FILE_BYTES)
        except OSError as error:
            notes.append(f"{path.name}: left out ({error.strerror})")
            continue
        room -= len(content)
        bundle.writestr(name, content)
    return notes


def _manifest(judged: Judged, names: Sequence[str], notes: Sequence[str]) -> dict[str, Any]:
    verdict = judged.verdict
    return {
        "bundle": 1,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": verdict.run,
        "attempt": verdict.attempt,
        "verdict": str(verdict.verdict),
        "versions": {
            "megascope": importlib.metadata.version("megascope"),
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
        },
        "files": list(names),
        "notes": list(notes),
    }
