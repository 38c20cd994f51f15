"""`diagnose_paths`: the hang verdict of whatever is left of a job: a store, dumps, logs, or all together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..collectors.incidents.dumps import dumps_folder
from ..collectors.reading.store import Attempt, Store
from ..collectors.storage.address import store_path
from ..profiler.errors import MegascopeError, UsageError
from .collector import without_collector
from .dumps.facts import DumpFolder
from .dumps.judging import judge_dumps, judge_snapshot
from .dumps.merging import merged
from .dumps.reading import is_dump_file, is_dump_folder, read_folder
from .dumps.scene import snapshot_of
from .hang import Judged, diagnose_with_graph
from .logs.adding import add_to_snapshot, add_to_verdict
from .logs.facts import LogEvidence
from .logs.reading import log_files, read_logs
from .logs.verdict import judge_logs
from .verdict import Abstention, State, Used, listed

MANIFESTS = "_manifests"
MOST_DUMPS = 2
FIRM = frozenset({State.HANG, State.CRASHED})
OPEN = frozenset({State.INCONCLUSIVE, State.SLOW})


@dataclass(frozen=True, slots=True)
class Sources:
    """Paths by what they hold."""

    stores: tuple[Path, ...] = ()
    dumps: tuple[Path, ...] = ()
    logs: tuple[Path, ...] = ()


def sort_paths(paths: Sequence[Path]) -> Sources:
    """What each path holds. MegascopeError for one that is missing, or holds nothing that tells of a hang;
    UsageError for more than one store."""
    stores, dumps, logs = [], [], []
    for given in paths:
        path = store_path(given)
        if not path.exists():
            raise MegascopeError(f"{path} does not exist: name a store, a folder of Flight Recorder dumps, or logs.")
        if (path / MANIFESTS).is_dir():
            stores.append(path)
        elif is_dump_folder(path) or is_dump_file(path):
            dumps.append(path)
        elif _has_logs(path):
            logs.append(path)
        else:
            raise MegascopeError(f"{path} has no store, no Flight Recorder dumps and no logs: name a folder that has.")
    if len(stores) > 1:
        raise UsageError(f"{len(stores)} stores are named: ask about one job at a time.")
    return Sources(tuple(stores), tuple(dumps), tuple(logs))


def _has_logs(path: Path) -> bool:
    try:
        return bool(log_files([path]))
    except UsageError:
        return False


@without_collector()
def diagnose_paths(
    sources: Sources,
    opened: tuple[Store, Attempt] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Judged:
    """The verdict of all sources together, and what it was read from (``used``).

    A store's own evidence leads (``opened``: the store of ``sources`` and the attempt asked about); dumps speak where
    it names nobody, those that agents gathered into it too; logs tell why ranks are gone. What contradicts is said,
    not hidden. Dumps of different ranks are one set; UsageError for more than two sets.
    """
    folders = _sets(sources.dumps, progress)
    evidence = read_logs(sources.logs) if sources.logs else None
    used = [*_dumps_used(folders), *_logs_used(sources.logs, evidence)]
    if opened is not None:
        store, attempt = opened
        judged = diagnose_with_graph(store, attempt)
        if not folders and _is_open(judged) and (gathered := gathered_dumps(sources.stores[0], attempt)) is not None:
            folders = _sets([gathered], progress)
            used += _dumps_used(folders)
        judged = _with_dumps(judged, folders)
        used.insert(0, Used("store", str(sources.stores[0]), len(judged.snapshot.states) if judged.snapshot else 0))
    elif folders and evidence is not None:
        look = add_to_snapshot(snapshot_of(folders[-1]), evidence)
        judged = judge_snapshot(folders[-1], look, folders[:-1])
    elif folders:
        judged = judge_dumps(folders)
    else:
        assert evidence is not None
        judged = judge_logs(evidence)
    if evidence is not None and (folders or opened is not None):
        judged = add_to_verdict(judged, evidence)
    return replace(judged, verdict=replace(judged.verdict, used=tuple(used)))


def _sets(paths: Sequence[Path], progress: Callable[[int, int], None] | None) -> list[DumpFolder]:
    folders = merged([read_folder(path, progress) for path in paths])
    if len(folders) > MOST_DUMPS:
        raise UsageError(f"{len(folders)} sets of dumps of the same ranks are named: give one, or two of the same job.")
    return folders


def _is_open(judged: Judged) -> bool:
    """Whether a store's own evidence leaves something open."""
    own = judged.verdict
    return own.verdict == State.INCONCLUSIVE or (own.verdict == State.HANG and bool(own.missing or not own.culprits))


def gathered_dumps(store: Path, attempt: Attempt) -> Path | None:
    """The folder of dumps that agents gathered into the store; None where there are none."""
    folder = dumps_folder(store, attempt.run, attempt.attempt)
    return folder if is_dump_folder(folder) else None


def _with_dumps(judged: Judged, folders: Sequence[DumpFolder]) -> Judged:
    """A store's verdict beside that of dumps: theirs where the store names nobody, else whether they agree."""
    if not folders:
        return judged
    theirs = judge_dumps(folders, judged.verdict.run, judged.verdict.attempt)
    own, other = judged.verdict, theirs.verdict
    named, told = _accused(judged), _accused(theirs)
    if own.verdict in OPEN and other.verdict in FIRM:
        note = Abstention("store", f"the store alone says {own.verdict}, and names nobody for certain: the dumps do")
        return replace(theirs, verdict=replace(other, data_age_s=own.data_age_s, abstained=(note, *other.abstained)))
    if own.verdict == State.INCONCLUSIVE and not named and told:
        notes = (Abstention("store", "the store alone names nobody: the dumps make suspects"), *own.abstained)
        return replace(theirs, verdict=replace(other, data_age_s=own.data_age_s, abstained=(*notes, *other.abstained)))
    if other.verdict in FIRM and told != named:
        note = Abstention(
            "dumps", f"the dumps alone name ranks {listed(sorted(told))}: the store's own evidence is closer"
        )
        return replace(judged, verdict=replace(own, abstained=(*own.abstained, note)))
    return judged


def _accused(judged: Judged) -> frozenset[int]:
    return frozenset(rank for one in judged.verdict.culprits for rank in one.ranks)


def _dumps_used(folders: Sequence[DumpFolder]) -> list[Used]:
    return [Used("dumps", str(one.path), len(one.dumps), len(one.damaged)) for one in folders]


def _logs_used(paths: Sequence[Path], evidence: LogEvidence | None) -> list[Used]:
    return [] if evidence is None else [Used("logs", str(path), len(log_files([path]))) for path in paths]
