"""Results that belong to no attempt, as JSON files of a store: where each kind lies, and reading and writing them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..profiler.errors import MegascopeError
from .storage.address import store_path
from .storage.durable import make_folders, write_durably

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ResultKind:
    """A kind of result: its folder in the store, the verb that makes it, and what each one has."""

    folder: str
    verb: str
    needed: tuple[str, ...]


PREFLIGHT = ResultKind(
    "preflight",
    "megascope preflight",
    ("verdict", "started_ns", "culprits", "abstained", "skipped", "notes", "summaries", "hosts", "world_size"),
)
MFU_CURVE = ResultKind(
    "mfu-curve",
    "megascope simulate --mfu-curve",
    ("started_ns", "model", "assumptions", "techniques", "points", "ladder", "ladder_gpus", "source"),
)


def write_result(store: Path, kind: ResultKind, result: Mapping[str, Any]) -> Path:
    """Write a result, which says in ``started_ns`` when it was begun, whole or not at all; its path. Raises OSError."""
    moment = datetime.fromtimestamp(result["started_ns"] / 1e9, UTC)
    folder = store_path(store) / kind.folder
    make_folders(folder)
    path = folder / f"{moment:%Y%m%dT%H%M%S.%fZ}.json"
    text = json.dumps(result, allow_nan=False) + "\n"

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_durably(path, write)
    return path


def list_results(store: Path, kind: ResultKind) -> list[Path]:
    """Files of all results of a kind, the newest first."""
    return sorted((store / kind.folder).glob("*.json"), reverse=True)


def read_result(path: Path, kind: ResultKind) -> dict[str, Any]:
    """One result. Raises MegascopeError for a file that is none of this kind, or of a later version."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MegascopeError(f"{path} cannot be read ({error}): run {kind.verb} again.") from error
    if not isinstance(found, dict) or any(name not in found for name in kind.needed):
        raise MegascopeError(f"{path} is no result of {kind.verb}: remove it.")
    if found.get("schema") != SCHEMA:
        raise MegascopeError(f"{path} has schema {found.get('schema')}, not {SCHEMA}: read it with a newer megascope.")
    return found
