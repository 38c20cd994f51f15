"""A store, dumps and logs, alone and together: what is recognised, what is used, who is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from megascope.collectors.incidents.dumps import dumps_folder
from megascope.profiler.errors import MegascopeError
from megascope.profiler.topology import Topology
from megascope.viz3d.dumps.reading import read_folder
from megascope.viz3d.hang import Judged
from megascope.viz3d.paths import _with_dumps, diagnose_paths, sort_paths
from megascope.viz3d.verdict import Abstention, CulpritKind, HangVerdict, State, to_json
from support.dumps import Call, absent_member
from support.hang_scenes import Scene
from support.hang_store import write_scene

WATCHDOG = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "/srv/train.py", line 10, in step\n'
    "[rank3]:     raise ValueError('bad batch')\n"
    "[rank3]: ValueError: bad batch\n"
)


def verdict_of(paths: list[Path]) -> HangVerdict:
    return diagnose_paths(sort_paths(paths)).verdict


def named(verdict: HangVerdict) -> set[int]:
    return {rank for one in verdict.culprits for rank in one.ranks}


@pytest.mark.parametrize(
    ("folder", "ranks", "kind"),
    [("gpu_error_1st", {12, 14}, CulpritKind.DEVICE_STUCK), ("lock_gil_1st", {9, 14}, CulpritKind.HOST_STUCK)],
)
def test_the_real_dumps_name_exactly_the_faulty_ranks(
    traces: Path, folder: str, ranks: set[int], kind: CulpritKind
) -> None:
    verdict = verdict_of([traces / "flight_recorder" / folder])
    assert verdict.verdict == State.HANG
    assert named(verdict) == ranks
    assert {one.kind for one in verdict.culprits} == {kind}
    assert [(one.kind, one.count) for one in verdict.used] == [("dumps", 16)]


def test_damaged_and_absent_dumps_of_the_real_job_accuse_no_victim(traces: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    shutil.copytree(traces / "flight_recorder" / "gpu_error_1st", folder)
    cut = (folder / "_dump_3").read_bytes()
    (folder / "_dump_3").write_bytes(cut[: len(cut) // 2])
    (folder / "_dump_6").write_bytes(b"")
    (folder / "_dump_9").unlink()
    verdict = verdict_of([folder])
    assert verdict.missing == (3, 6, 9)
    assert verdict.verdict == State.HANG
    assert [(one.ranks, one.kind) for one in verdict.culprits] == [
        ((12,), CulpritKind.DEVICE_STUCK),
        ((14,), CulpritKind.DEVICE_STUCK),
    ]
    told = " ".join(one.reason for one in verdict.abstained)
    assert "no dump of rank 9" in told
    assert "_dump_6: it is empty" in told
    assert "_dump_3: it is cut" in told


@pytest.mark.parametrize("as_json", [False, True])
def test_single_files_and_folders_per_host_are_one_set(tmp_path: Path, as_json: bool) -> None:
    job = absent_member(range(4), 2)
    one = job.write(tmp_path / "a", [0, 1], as_json=as_json)
    other = job.write(tmp_path / "b", [2, 3], as_json=as_json)
    for paths in ([one, other], [*sorted(one.iterdir()), *sorted(other.iterdir())]):
        verdict = verdict_of(paths)
        assert named(verdict) == {2}, verdict.sentence()
        assert verdict.missing == ()
        assert sum(used.count for used in verdict.used) == 4


def test_two_sets_of_dumps_tell_slow_from_stuck(tmp_path: Path) -> None:
    job = absent_member(range(4), 2)
    first = job.write(tmp_path / "first")
    job.calls = {rank: [*(Call("0", n) for n in range(1, 12)), Call("0", 12, done=False)] for rank in (0, 1, 3)}
    job.calls[2] = [Call("0", n) for n in range(1, 12)]
    later = job.write(tmp_path / "later")
    assert verdict_of([first, later]).verdict in (State.RUNNING, State.SLOW)
    assert verdict_of([first]).verdict == State.HANG


def test_logs_tell_why_the_absent_rank_is_absent(tmp_path: Path) -> None:
    dumps = absent_member(range(4), 3).write(tmp_path / "dumps", [0, 1, 2])
    log = tmp_path / "job.log"
    log.write_text(WATCHDOG)
    verdict = verdict_of([dumps, log])
    assert named(verdict) == {3}
    assert verdict.culprits[0].kind == CulpritKind.EXCEPTION
    assert [one.kind for one in verdict.used] == ["dumps", "logs"]
    assert to_json(verdict)["used"][1] == {"kind": "logs", "path": str(log), "count": 1, "damaged": 0}


def test_logs_alone(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(WATCHDOG)
    verdict = verdict_of([log])
    assert verdict.verdict == State.CRASHED
    assert [(one.kind, one.count) for one in verdict.used] == [("logs", 1)]


def test_what_is_no_evidence_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(MegascopeError, match="no Flight Recorder dumps and no logs"):
        sort_paths([tmp_path / "empty"])
    with pytest.raises(MegascopeError, match="does not exist"):
        sort_paths([tmp_path / "absent"])


def test_gathered_dumps_speak_where_the_store_names_nobody_for_certain(tmp_path: Path) -> None:
    scene = Scene(Topology.of(dp=4))
    for rank in range(4):
        scene.collective(rank, "dp", 5)
    root = tmp_path / "store"
    with write_scene(root, scene.looks()) as store:
        opened = store, store.attempt()
        alone = diagnose_paths(sort_paths([root]), opened).verdict
        absent_member(range(4), 2).write(dumps_folder(root, alone.run, alone.attempt))
        both = diagnose_paths(sort_paths([root]), opened).verdict
    assert alone.verdict == State.INCONCLUSIVE
    assert [(one.kind, one.count) for one in alone.used] == [("store", 4)]
    assert both.verdict == State.HANG
    assert named(both) == {2}
    assert (both.run, both.attempt) == (alone.run, alone.attempt)
    assert [(one.kind, one.count) for one in both.used] == [("store", 4), ("dumps", 4)]
    assert "the dumps do" in both.abstained[0].reason


def test_whom_dumps_suspect_is_told_where_the_store_names_nobody(tmp_path: Path) -> None:
    others = [rank for rank in range(9) if rank != 2]
    folder = read_folder(absent_member(range(9), 2).write(tmp_path, others, as_json=True))
    store = Judged(HangVerdict("run", 0, None, State.INCONCLUSIVE, abstained=(Abstention("own", "nothing moves"),)))
    verdict = _with_dumps(store, [folder]).verdict
    assert verdict.verdict == State.INCONCLUSIVE
    assert named(verdict) == {2}
    assert [one.reason for one in verdict.abstained][:2] == [
        "the store alone names nobody: the dumps make suspects", "nothing moves",
    ]  # fmt: skip


@pytest.mark.parametrize(("dumped", "is_contradicted"), [(1, False), (2, True)])
def test_a_store_leads_and_dumps_that_contradict_it_are_told(
    tmp_path: Path, dumped: int, is_contradicted: bool
) -> None:
    scene = Scene(Topology.of(dp=4))
    scene.work(1, "forward")
    scene.progress(1, scene.of("dp", 1), 4, 4)
    for rank in (0, 2, 3):
        scene.collective(rank, "dp", 5)
    dumps = absent_member(range(4), dumped).write(tmp_path / "dumps")
    root = tmp_path / "store"
    with write_scene(root, scene.looks()) as store:
        verdict = diagnose_paths(sort_paths([dumps, root]), (store, store.attempt())).verdict
    assert verdict.verdict == State.HANG
    assert named(verdict) == {1}
    assert any(one.signal == "dumps" and "2" in one.reason for one in verdict.abstained) == is_contradicted


def test_two_stores_and_three_sets_of_dumps_are_too_many(tmp_path: Path) -> None:
    folders = [absent_member(range(2), 1).write(tmp_path / name) for name in ("a", "b", "c")]
    with pytest.raises(MegascopeError, match="3 sets of dumps"):
        verdict_of(folders)
    scene = Scene(Topology.of(dp=2))
    stores = [tmp_path / "one", tmp_path / "two"]
    for root in stores:
        write_scene(root, scene.looks()).close()
    with pytest.raises(MegascopeError, match="2 stores are named"):
        sort_paths(stores)


def test_names_of_hosts_with_numbers_do_not_confuse_the_ranks(tmp_path: Path) -> None:
    job = absent_member(range(4), 2)
    folder = tmp_path / "dumps"
    folder.mkdir()
    plain = job.write(tmp_path / "plain")
    for rank in range(4):
        shutil.copy(plain / f"_dump_{rank}", folder / f"node{17 - rank % 2}-rank{rank:03}.pickle")
    verdict = verdict_of([folder])
    assert named(verdict) == {2}
    assert verdict.missing == ()
