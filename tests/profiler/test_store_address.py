"""How ranks name a store, in a folder or a bucket, and find a run's earlier attempts in it."""

from __future__ import annotations

import uuid
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import pytest

from megascope.collectors.manifests.manifest import data_folder
from megascope.collectors.storage.address import store_path
from megascope.profiler.errors import UsageError
from megascope.profiler.identity import next_attempt_in
from megascope.profiler.opening import default_spool
from megascope.profiler.store_address import store_address, store_url


def test_a_bucket_has_one_spool_from_wherever_a_rank_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spools = set()
    for folder in (tmp_path, Path("/")):
        monkeypatch.chdir(folder)
        for given in ("s3://traces/a", Path("s3://traces/a"), store_address("s3://traces/a")):
            spools.add(default_spool(given))
            assert store_url(store_address(given)) == "s3://traces/a"
    assert len(spools) == 1
    assert default_spool("runs") != default_spool("s3://traces/a")
    assert store_address("runs/a:b") == Path("/runs/a:b")
    assert store_url("runs/s3") is None


def test_what_is_no_store_is_no_folder_beside_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its readers would look for it elsewhere. A `Path` leaves one slash of two."""
    monkeypatch.chdir(tmp_path)
    for given in ("file:///data/a b", Path("file:///data/a b")):
        assert store_address(given) == store_path("file:///data/a b") == Path("/data/a b")
    (tmp_path / "store" / "runs" / "run=r" / "attempt=2").mkdir(parents=True)
    assert next_attempt_in(Path(f"file://{tmp_path}/store"), tmp_path / "spool")("r") == 3
    for given in ("hdfs://name/traces", Path("abfss://a@b/traces"), "s3://"):
        with pytest.raises(UsageError, match="give a folder, or a URL that begins with s3://"):
            store_address(given)
    (tmp_path / "oss:").mkdir()
    assert store_address("oss:/traces") == tmp_path / "oss:" / "traces"


def test_the_next_attempt_is_after_those_in_the_store_and_in_the_spool(tmp_path: Path) -> None:
    url = f"memory://bucket/{uuid.uuid4().hex}"
    find = next_attempt_in(store_address(url), tmp_path)
    assert find("a run") == 0
    files, root = fsspec.url_to_fs(url)
    for attempt in (0, 3):
        files.pipe_file(f"{root}/runs/run=a%20run/attempt={attempt}/block=b000/x.parquet", b"x")
    assert (find("a run"), find("another")) == (4, 0)
    (tmp_path / "a run" / "7").mkdir(parents=True)
    assert find("a run") == 8


@pytest.mark.parametrize("run", ["n" * 190, "\u8bad\u7ec3" * 30, "a*[b]?", "100%", ".hidden"])
def test_a_run_of_any_name_goes_on_behind_its_attempts(tmp_path: Path, run: str) -> None:
    """Else two attempts would be mixed into one."""
    (tmp_path / data_folder("runs", run, 4, "b000")).mkdir(parents=True)
    (tmp_path / data_folder("runs", f"{run}x", 7, "b000")).mkdir(parents=True)
    assert next_attempt_in(tmp_path, tmp_path / "spool")(run) == 5


def test_a_bucket_that_cannot_be_asked_is_no_reason_to_guess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> None:
        raise OSError("no answer")

    monkeypatch.setattr(fsspec, "url_to_fs", refuse)
    with pytest.raises(UsageError, match=r"no answer.*give the attempt"):
        next_attempt_in(store_address("s3://traces/a"), tmp_path)("run")
