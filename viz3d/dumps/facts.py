"""What a Flight Recorder dump says of its rank, reduced to what a verdict needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..verdict import GroupName


@dataclass(frozen=True, slots=True)
class DumpedOperation:
    """An operation that was enqueued and had not completed when the dump was written.

    ``group`` is None where nothing tells the members of its process group. ``sequence`` counts the collectives of the
    group; it means nothing for a message, whose ``peer`` is a global rank (None for a collective). ``sizes`` and
    ``dtypes`` are (input, output). ``frames`` are the Python frames that enqueued it, the innermost first.
    """

    name: str
    library: str
    group: GroupName | None
    sequence: int
    begun_ns: int | None
    is_p2p: bool = False
    peer: int | None = None
    sizes: tuple[object, object] = ((), ())
    dtypes: tuple[object, object] = ((), ())
    frames: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's dump. ``operations`` are in the order in which they were enqueued.

    ``enqueued`` and ``completed`` are the last sequence numbers of a group as its status has them; of a group that
    carries messages they count those too. ``entries`` is how many the dump held, completed ones included. ``newest`` is
    the collective that was enqueued last, over or not. ``is_blank``: it tells nothing, not even that the rank recorded.
    ``is_json``: a thread of the rank wrote it when it was asked to; the library's own is a pickle.
    """

    rank: int
    path: Path
    version: str
    library: str
    entries: int
    operations: tuple[DumpedOperation, ...] = ()
    groups: tuple[GroupName, ...] = ()
    enqueued: Mapping[GroupName, int] = field(default_factory=dict)
    completed: Mapping[GroupName, int] = field(default_factory=dict)
    seen_completed: Mapping[GroupName, int] = field(default_factory=dict)
    unplaced: int = 0
    last_ns: int | None = None
    newest: DumpedOperation | None = None
    is_blank: bool = False
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class Damaged:
    """A file that holds no dump, and why; ``rank`` as its name tells. ``has_answered``: the rank did write one, which
    was not brought here or tells nothing, so that nothing speaks against it."""

    path: Path
    rank: int | None
    reason: str
    has_answered: bool = False


@dataclass(frozen=True, slots=True)
class DumpFolder:
    """The dumps of one folder, by rank; what could not be read; and the topology file beside them."""

    path: Path
    dumps: Mapping[int, Dump]
    damaged: tuple[Damaged, ...] = ()
    world_size: int | None = None
    hosts: Mapping[int, str] = field(default_factory=dict)
    coordinates: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    axes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def expected(self) -> frozenset[int]:
        """All ranks that the job has, as far as the dumps, their names and their groups tell."""
        groups = {id(group): group for dump in self.dumps.values() for group in dump.groups}  # shared: see parsing
        ranks = {rank for group in groups.values() for rank in group.ranks}
        ranks |= set(self.dumps) | {one.rank for one in self.damaged if one.rank is not None}
        return frozenset(ranks | set(range(self.world_size or 0)))
