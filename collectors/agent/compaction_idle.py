"""An agent's compaction of its store once nothing is left to drain, where the store belongs to its host alone."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

from ...profiler.errors import MegascopeError
from ...profiler.host import host_name
from ..manifests.listing import Listing
from ..manifests.manifest import is_compactor_folder
from ..storage.mounts import is_local
from ..storage.object_path import ObjectPath
from ..upkeep.blocks import QUIET_S
from ..upkeep.compaction import CompactionReport, compact
from ..upkeep.compaction_plan import Limits

log = logging.getLogger(__name__)

MIN_FILES = 8
"""Fewer small files are left as they are: the next agent may add to them."""


def compact_if_alone(
    root: Path, min_files: int = MIN_FILES, should_stop: Callable[[], bool] = lambda: False
) -> CompactionReport | None:
    """Compact a store that only agents of this host write; None for others, and in an object store, where the agents of
    many hosts come and go: `megascope prune` compacts them.

    On a local file system a free lock tells that a writer is gone. Hosts of one name may share another one, where locks
    may not reach from one to the other: there, writers are gone after the usual time. Whatever fails is logged and left
    for later: it is a convenience. ``should_stop`` is asked before each merge and between its pieces.
    """
    try:
        if isinstance(root, ObjectPath) or not _is_alone(root):
            return None
        quiet_s = 0.0 if is_local(root) else QUIET_S
        report = compact(root, Limits(min_files=min_files), quiet_s=quiet_s, should_stop=should_stop)
    except (OSError, MegascopeError) as error:
        log.debug("The store %s was not compacted: %s", root, error)
        return None
    for problem in report.problems:
        log.warning("%s", problem)
    return report


def _is_alone(root: Path) -> bool:
    host = re.escape(host_name())
    own = re.compile(rf"(agent|clocks)-{host}(-[0-9a-f]{{16}})?")
    listing = Listing(root)
    listing.refresh()
    writers = [each.writer for folder, each in listing.manifests().items() if not is_compactor_folder(folder)]
    return all(own.fullmatch(writer) for writer in writers)
