"""Retention: raw before rolled up, old before new, remembered, and never what is still being written."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from megascope.cli import main
from megascope.collectors.manifests.manifest import FileEntry, data_folder
from megascope.collectors.reading.store import CATALOG, Store
from megascope.collectors.upkeep.compaction_plan import moment_ns
from megascope.collectors.upkeep.keeper import BlockKeeper
from megascope.collectors.upkeep.retention import prune, pruned_sentence
from megascope.collectors.upkeep.retention_plan import Retention, choose
from megascope.collectors.upkeep.sweeping import sweep
from megascope.collectors.upkeep.upkeep import upkeep
from megascope.collectors.writing.writer import TableWriter
from megascope.commands.common import open_attempt
from megascope.commands.prune import parse_age, parse_size
from megascope.profiler.errors import UsageError

DAY_NS = 86400 * 10**9
NOW_NS = 1_800_000_000 * 10**9
MS = 10**6


def _entry(
    table: str, days_old: float, size: int = 10, level: int | None = None, block: str = "b000", number: int = 1
) -> FileEntry:
    path = f"{data_folder(table, 'r', 0, block)}/w-{number:012d}-{level or 0}.parquet"
    moment = NOW_NS - round(days_old * DAY_NS)
    return FileEntry(path, table, "r", 0, block, 1, size, committed_ns=moment, level=level)


ALL = [
    _entry("events", 1), _entry("events", 9, number=2), _entry("heartbeats", 9), _entry("health", 8),
    *(_entry("rank_windows", 9, level=level) for level in (10, 100, 1000)),
    *(_entry(table, 9) for table in ("steps", "hardware_events", "runs", "ranks", "segments", "incidents", "faults")),
    *(_entry(table, 9) for table in ("in_flight", "machines")),
    _entry("rank_windows", 9, block="b000-open"),
]  # fmt: skip


def _chosen(retention: Retention) -> list[tuple[str, int | None, int]]:
    found = choose(ALL, retention, NOW_NS)
    return [(entry.table, entry.level, (NOW_NS - moment_ns(entry)) // DAY_NS) for entry in found]


def test_age_takes_raw_data_only() -> None:
    assert _chosen(Retention()) == []
    assert _chosen(Retention(raw_age_s=7 * 86400)) == [
        ("events", None, 9), ("heartbeats", None, 9), ("health", None, 8),
    ]  # fmt: skip
    assert _chosen(Retention(rollup_age_s=7 * 86400)) == [("rank_windows", 10, 9), ("rank_windows", 100, 9)]


def test_size_takes_the_oldest_raw_data_first_and_small_tables_never() -> None:
    total = sum(entry.size_bytes for entry in ALL)
    order = [
        ("events", None, 9), ("events", None, 1), ("heartbeats", None, 9), ("health", None, 8), ("rank_windows", 10, 9),
        ("rank_windows", 100, 9), ("rank_windows", 1000, 9), ("hardware_events", None, 9), ("steps", None, 9),
    ]  # fmt: skip
    for count in range(len(order) + 1):
        assert _chosen(Retention(size_bytes=total - 10 * count)) == order[:count]
    assert _chosen(Retention(size_bytes=0)) == order


def _write(root: Path, writer: str = "w", **settings: Any) -> TableWriter:
    opened = TableWriter(root, writer, **settings)
    for step in range(4):
        spans = {"rank": [0] * 50, "step": [step] * 50, "segment": [7] * 50, "start_ns": range(50)}
        opened.write("events", "r", 0, spans | {"clock": ["host"] * 50, "status": ["ok"] * 50})
        opened.write("steps", "r", 0, {"rank": [0], "step": [step], "start_ns": [step]})
        opened.commit()
    windows = {"rank": [0] * 3, "segment": [7] * 3, "window_steps": [10, 100, 1000], "first_step": [0] * 3}
    opened.write("rank_windows", "r", 0, windows | {"duration_count": [200] * 3})
    opened.write("runs", "r", 0, {"start_ns": [1], "world_size": [1], "exit_reason": ["finished"], "end_ns": [9]})
    opened.commit()
    return opened


@pytest.fixture
def filled(store_root: Path) -> Path:
    """A store of 200 spans, with windows of all lengths; its writer is gone."""
    _write(store_root).close()
    return store_root


def test_what_was_pruned_is_remembered_and_told(filled: Path) -> None:
    report = prune(filled, Retention(raw_age_s=0.0), quiet_s=0)
    assert [(each.table, each.rows, each.last_step) for each in report.pruned] == [("events", 200, 3)]
    with Store(filled) as store:
        attempt = store.attempt()
        assert store.read("events", attempt).num_rows == 0
        assert store.read("steps", attempt).num_rows == 4
        (pruned,) = store.pruned(attempt)
        assert store.damaged == []
    assert pruned_sentence(pruned).startswith("200 raw spans up to step 3 (1970-01-01 00:00:00 UTC) were pruned")
    for _ in range(2):
        sweep(filled, 0)
    assert not list(filled.rglob("events/**/*.parquet"))


def test_fine_windows_go_before_coarse_ones(filled: Path) -> None:
    report = upkeep(filled, Retention(raw_age_s=0.0, rollup_age_s=0.0), quiet_s=0)
    assert {(each.table, each.level, each.last_step) for each in report.pruned} == {
        ("events", None, 3), ("rank_windows", 10, 9), ("rank_windows", 100, 99),
    }  # fmt: skip
    with Store(filled) as store:
        windows = store.read("rank_windows", store.attempt())
    assert windows["window_steps"].to_pylist() == [1000]


def test_what_is_being_written_stays(store_root: Path) -> None:
    writer = _write(store_root)
    try:
        report = prune(store_root, Retention(size_bytes=0), quiet_s=0)
        assert report.pruned == []
        assert report.being_written == 9
        writer.seal_after_s = 0
        writer.commit()
        report = prune(store_root, Retention(raw_age_s=0.0), quiet_s=0)
        assert [each.rows for each in report.pruned] == [200], "old files of an attempt that goes on may go"
    finally:
        writer.close()


def test_a_dry_run_changes_nothing(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in filled.rglob("*")}
    report = upkeep(filled, Retention(raw_age_s=0.0), dry_run=True, quiet_s=0)
    assert [(each.table, each.files, each.rows) for each in report.pruned] == [("events", 4, 200)]
    assert {path: path.stat().st_mtime_ns for path in filled.rglob("*")} == before
    assert main(["prune", str(filled), "--older-than", "0s", "--dry-run"]) == 0
    assert "being written" in capsys.readouterr().out, "the writer ended only just now"
    assert {path: path.stat().st_mtime_ns for path in filled.rglob("*")} == before


def test_a_damaged_file_is_never_deleted(filled: Path) -> None:
    path = next(filled.rglob("events/**/*.parquet"))
    path.write_bytes(path.read_bytes()[:-10])
    report = prune(filled, Retention(size_bytes=0), quiet_s=0)
    assert sum(each.rows for each in report.pruned if each.table == "events") == 150
    for _ in range(2):
        sweep(filled, 0)
    assert path.exists()


def test_a_full_disk_prunes_nothing_by_half(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = sorted(filled.rglob("*.parquet"))
    with monkeypatch.context() as patch:
        patch.setattr("megascope.collectors.writing.manifest_writer.write_manifest", full)
        report = prune(filled, Retention(size_bytes=0), quiet_s=0)
    assert report.pruned == []
    assert "No space" in report.problems[0]
    assert sorted(filled.rglob("*.parquet")) == before
    with Store(filled) as store:
        assert store.read("events", store.attempt()).num_rows == 200
        assert store.pruned(store.attempt()) == []


def test_the_catalog_follows(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb

    with Store(filled) as store:
        store.write_catalog()
    upkeep(filled, Retention(), quiet_s=0, grace_s=0)
    for _ in range(2):
        sweep(filled, 0)
    with duckdb.connect(str(filled / CATALOG), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchall() == [(200,)]
        assert connection.execute("SELECT count(*) FROM steps").fetchall() == [(4,)]


def _age(root: Path) -> None:
    """Have all writers be gone for long."""
    for path in root.glob("_manifests/*/*.json"):
        os.utime(path, (time.time() - 3600,) * 2)


def test_a_block_that_is_held_is_said(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _age(filled)
    with BlockKeeper(filled, "r", 0, "b000"):
        assert main(["prune", str(filled), "--older-than", "0s"]) == 0
        assert "held by another process" in capsys.readouterr().out
        assert main(["prune", str(filled), "--older-than", "0s", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["busy_blocks"] == 1


def test_a_file_system_without_locks_is_a_problem(
    filled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    _age(filled)
    monkeypatch.setattr("fcntl.flock", none)
    assert main(["prune", str(filled), "--older-than", "0s"]) == 1
    error = capsys.readouterr().err
    assert "keeps no locks" in error
    assert error.count("\n") == 1


def test_a_full_disk_is_made_emptier_first(
    filled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was replaced before goes although no manifest can be written, and one sentence says what to do."""
    _age(filled)
    assert main(["prune", str(filled)]) == 0
    assert "replaced, to be deleted" in capsys.readouterr().out
    _age(filled)
    sweep(filled, 3600)  # the writer lets go
    before = len(list(filled.rglob("*.parquet")))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("megascope.collectors.manifests.manifest.write_durably", full)
        patch.setattr("megascope.collectors.upkeep.keeper.write_durably", full)
        _age(filled)
        assert main(["prune", str(filled), "--older-than", "0s", "--grace", "0"]) == 1
    error = capsys.readouterr().err
    assert "make room" in error
    assert error.count("\n") == 1
    assert len(list(filled.rglob("*.parquet"))) < before
    with Store(filled) as store:
        assert store.read("events", store.attempt()).num_rows == 200


# -- the verb ---------------------------------------------------------------------------------------------------


def test_the_verb_prints_one_object(
    filled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megascope.collectors.upkeep.upkeep.QUIET_S", 0.0)
    monkeypatch.setattr(upkeep, "__kwdefaults__", {**(upkeep.__kwdefaults__ or {}), "quiet_s": 0.0})
    assert main(["prune", str(filled), "--older-than", "0s", "--grace", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["table"], each["rows"]) for each in found["pruned"]] == [("events", 200)]
    assert found["compacted"]["files_before"] > found["compacted"]["files_after"]
    assert found["deleted_files"] > 0
    with Store(filled) as store:
        listed = {path for table in store.tables() for path in store.files(table)}
    assert set(filled.rglob("*.parquet")) == listed
    assert main(["prune", str(filled), "--grace", "0"]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_a_size_that_cannot_be_reached_is_said(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", str(filled), "--max-size", "1kB", "--grace", "0"]) == 1
    assert "still has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43200), ("7d", 604800), ("1.5w", 907200)]
)
def test_ages(text: str, seconds: float) -> None:
    assert parse_age("--older-than", text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("500", 500), ("500GB", 500 * 10**9), ("1.5 TiB", 3 * 2**39), ("10MiB", 10 * 2**20), ("2k", 2000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size("--max-size", text) == size


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "7 years"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--older-than"):
        parse_age("--older-than", text)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 1, "no store at nowhere"),
        (["."], 1, "no store of megascope"),
        ([".", "--max-size", "much"], 2, "--max-size much is no size"),
        ([".", "--older-than", "long"], 2, "--older-than long is no age"),
    ],
)
def test_errors_are_one_sentence(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["prune", *arguments]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_other_verbs_say_what_was_pruned(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prune(filled, Retention(raw_age_s=0.0), quiet_s=0)
    open_attempt(filled, None, None)[0].close()
    assert capsys.readouterr().err.startswith("megascope: 200 raw spans up to step 3 ")


# -- what lies beside the tables ----------------------------------------------------------------------------------


BESIDE = ("_alarms", "_diagnoses", "_dumps", "_phases", "_supervisor")


def _beside(root: Path, run: str = "r", attempt: int = 0, age_s: float = 2 * 86400, size: int = 1000) -> None:
    """Dumps, told alarms, claims, phases and logs of an attempt, all of the same age."""
    for name in BESIDE:
        folder = root / name / f"run={run}" / f"attempt={attempt}"
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(bytes(size))
        os.utime(folder / "file", (time.time() - age_s,) * 2)


def _left(root: Path) -> list[str]:
    return sorted(path.parent.relative_to(root).as_posix() for path in root.glob("_*/run=*/attempt=*/file"))


def test_dumps_alarms_and_claims_go_with_the_raw_data_of_their_attempt(filled: Path) -> None:
    _beside(filled, "old run")
    _beside(filled, age_s=100)
    report = prune(filled, Retention(raw_age_s=86400), quiet_s=0)
    assert [(each.run, each.table, each.files, each.size_bytes) for each in report.pruned] == [
        ("old run", name, 1, 1000) for name in BESIDE
    ]
    assert _left(filled) == [f"{name}/run=r/attempt=0" for name in BESIDE]
    assert not list(filled.glob("_*/run=old*"))
    assert prune(filled, Retention(rollup_age_s=0), quiet_s=0).pruned == []
    assert len(_left(filled)) == len(BESIDE)


def test_what_keeps_an_alarm_from_being_told_again_stays_for_its_window(filled: Path) -> None:
    _beside(filled, age_s=1800)
    report = prune(filled, Retention(raw_age_s=60), quiet_s=0)
    assert _left(filled) == ["_alarms/run=r/attempt=0"]
    assert report.being_written == 1


def test_what_was_written_just_now_stays(filled: Path) -> None:
    _beside(filled, age_s=10)
    report = prune(filled, Retention(raw_age_s=0.0), quiet_s=60)
    assert len(_left(filled)) == len(BESIDE)
    assert report.being_written >= len(BESIDE)


def test_a_size_counts_dumps_and_takes_them_behind_the_raw_tables(filled: Path) -> None:
    size = sum(path.stat().st_size for path in filled.rglob("*.parquet"))
    raw = sum(path.stat().st_size for path in (filled / "events").rglob("*.parquet"))
    _beside(filled, size=10_000)
    assert prune(filled, Retention(size_bytes=size + 50_000), quiet_s=0).pruned == []
    report = prune(filled, Retention(size_bytes=size + 50_000 - raw), quiet_s=0)
    assert {each.table for each in report.pruned} == {"events"}
    assert len(_left(filled)) == len(BESIDE)
    report = prune(filled, Retention(size_bytes=size - raw), quiet_s=0)
    assert {each.table for each in report.pruned} == set(BESIDE)
    assert report.size_bytes == size - raw


def test_a_dry_run_lists_them(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _beside(filled)
    assert main(["prune", str(filled), "--older-than", "1d", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["table"] for each in found["pruned"]} == set(BESIDE)
    assert len(_left(filled)) == len(BESIDE)


def test_a_link_in_their_place_is_not_followed(filled: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    os.utime(outside / "file", (1, 1))
    (filled / "_dumps" / "run=r").mkdir(parents=True)
    (filled / "_dumps" / "run=r" / "attempt=0").symlink_to(outside)
    assert prune(filled, Retention(raw_age_s=60.0), quiet_s=0).pruned == []
    assert (outside / "file").exists()


def test_what_a_supervisor_knows_of_its_run_outlives_the_logs(filled: Path) -> None:
    """Without its history, hosts that it fenced would be used again."""
    _beside(filled)
    history = filled / "_supervisor" / "run=r" / "history.json"
    history.write_text("{}")
    prune(filled, Retention(raw_age_s=86400), quiet_s=0)
    assert _left(filled) == []
    assert history.exists()
