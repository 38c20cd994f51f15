"""Checks of the store: whether it is one, can be written, has room, and is the same for all hosts."""

from __future__ import annotations

from pathlib import Path

from ..profiler.errors import MegascopeError
from ..profiler.store_address import store_url
from .finding import Answer, advice, not_checked, ok, problem
from .machine import Machine, nearest_folder
from .places import file_system

LEAST_FREE_BYTES = 2**28
LITTLE_FREE_BYTES = 2 * 2**30
FEW_FREE_FILES = 10_000
"""An agent writes some thousand small files a day before they are merged."""

NEARLY_FULL = 0.9


def place(machine: Machine) -> Answer:
    """Whether the store can be reached, is none of a newer version, and can be written."""
    looked_at = f"the store {_named(machine)}, by {machine.store_source}"
    if store_url(machine.store) is not None:
        return _of_objects(machine, looked_at)
    store, there = machine.store, nearest_folder(machine.store)
    if not there.is_dir():
        return problem(looked_at, f"{there} is a file", "name a folder")
    seen = "no store yet: the first job makes it"
    try:
        if there == store and any(store.iterdir()):
            from ..collectors.reading.root import find_store  # noqa: PLC0415

            find_store(store)
            seen = "it is one"
    except (MegascopeError, OSError) as error:
        return problem(looked_at, "it cannot be used", str(error))
    writing = machine.write(there)
    if writing.reason and writing.read_only and seen == "it is one":
        return advice(looked_at, f"{seen}, on a read-only file system", "jobs need one that they can write to")
    if writing.reason:
        return problem(looked_at, f"{there} cannot be written ({writing.reason})", "name another, or see to its rights")
    return ok(looked_at, f"{seen}; {there} can be written{'' if writing.tried else ' by its permissions (not tried)'}")


def room(machine: Machine) -> Answer:
    """Whether its disk has room."""
    if store_url(machine.store) is not None:
        return ok(f"the store {_named(machine)}", "an object store has no end")
    folder = nearest_folder(machine.store)
    space = machine.room(folder)
    looked_at = f"the file system of {folder}"
    seen = f"{_gib(space.free_bytes)} of {_gib(space.total_bytes)} free"
    if space.free_files is not None and space.free_files < FEW_FREE_FILES:
        return problem(
            looked_at, f"{space.free_files} files can still be made", "remove small files, or name another disk"
        )
    if space.free_bytes < LEAST_FREE_BYTES:
        return problem(looked_at, seen, f"make room, or megascope prune {machine.store} --max-size 1GiB")
    if space.free_bytes < LITTLE_FREE_BYTES:
        return advice(looked_at, seen, f"make room soon, or megascope prune {machine.store} --older-than 7d")
    return ok(looked_at, seen)


def size(machine: Machine) -> Answer:
    """Whether the store is near its quota, beyond which agents drop spans."""
    from ..collectors.storage.quota import NO_LIMIT, default_quota, folder_bytes  # noqa: PLC0415

    looked_at = f"all files of {_named(machine)}, and the quota that agents take by default"
    if store_url(machine.store) is not None:
        return not_checked(looked_at, "an object store has no quota")
    if not machine.store.is_dir():
        return ok(looked_at, "no store yet")
    used, quota = folder_bytes(machine.store), default_quota(machine.store)
    seen = f"{_gib(used)} of {_gib(quota)}"
    if quota < NO_LIMIT and used > NEARLY_FULL * quota:
        to_do = f"megascope prune {machine.store} --older-than 7d, or megascope collect --quota-gib for a larger one"
        return advice(looked_at, seen, f"{to_do}: beyond it spans are dropped")
    return ok(looked_at, seen)


def shared(machine: Machine) -> Answer:
    """Whether all hosts of the job would write to one store."""
    from ..collectors.storage.mounts import LOCAL  # noqa: PLC0415

    looked_at = f"the file system of {_named(machine)}, and the launcher's environment"
    if store_url(machine.store) is not None:
        return ok(looked_at, "an object store, which all hosts see")
    kind, nodes = file_system(machine, nearest_folder(machine.store)), machine.nodes()
    jobs = "number of hosts not known" if nodes is None else f"{nodes} hosts"
    seen = f"{kind or 'file system not known'}; {jobs}"
    if kind in LOCAL and (nodes or 1) > 1:
        return problem(looked_at, seen, "name a folder that all hosts see, or an object store: each would have its own")
    if kind in LOCAL:
        return ok(looked_at, f"{seen}; this machine alone sees it")
    return ok(looked_at, seen)


def _of_objects(machine: Machine, looked_at: str) -> Answer:
    """An object store is asked once whether it holds a store; nothing is put there."""
    from ..collectors.manifests.marker import check_marker  # noqa: PLC0415
    from ..collectors.storage.address import store_path  # noqa: PLC0415

    try:
        is_store = check_marker(store_path(machine.store))
    except MegascopeError as error:
        return problem(looked_at, "it cannot be used", str(error))
    except OSError as error:
        words = " ".join(str(error).split())[:200]
        return problem(looked_at, f"no answer: {words}", "check the URL, the credentials and the network")
    return ok(looked_at, f"it answers, {'and is one' if is_store else 'and holds none yet'}; writing was not tried")


def _named(machine: Machine) -> str | Path:
    return store_url(machine.store) or machine.store


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:,.1f} GiB"
