"""An agent's compaction of its store once nothing is left to drain, where the store belongs to its host alone."""

from __future__ import annotations

import logging
import re
import socket
from pathlib import Path

from ..profiler.errors import MegascopeError
from .compaction import CompactionReport, compact
from .compaction_plan import Limits
from .listing import Listing
from .manifest import is_compactor_folder

log = logging.getLogger(__name__)

MIN_FILES = 8
"""Fewer small files are left as they are: the next agent may add to them."""


def compact_if_alone(root: Path, min_files: int = MIN_FILES) -> CompactionReport | None:
    """Compact a store that only agents of this host write; None for others, which `megascope prune` compacts.

    Here a free lock tells that a writer is gone. Whatever fails is logged and left for later: it is a convenience.
    """
    try:
        if not _is_alone(root):
            return None
        report = compact(root, Limits(min_files=min_files), quiet_s=0.0)
    except (OSError, MegascopeError) as error:
        log.debug("The store %s was not compacted: %s", root, error)
        return None
    for problem in report.problems:
        log.warning("%s", problem)
    return report


def _is_alone(root: Path) -> bool:
    host = re.escape(socket.gethostname())
    own = re.compile(rf"(agent|clocks)-{host}(-[0-9a-f]{{16}})?")
    listing = Listing(root)
    listing.refresh()
    writers = [each.writer for folder, each in listing.manifests().items() if not is_compactor_folder(folder)]
    return all(own.fullmatch(writer) for writer in writers)
