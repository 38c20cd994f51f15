"""Paths in an object store: they read like those of pathlib, and a request is tried again with back-off."""

from __future__ import annotations

import io
import pickle
import threading
import uuid
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megascope.cli import main
from megascope.collectors.storage.address import store_path
from megascope.collectors.storage.object_files import AHEAD, BLOCK_BYTES, BlockCache
from megascope.collectors.storage.object_path import ObjectPath
from megascope.collectors.storage.remote import Remote, UnreachableError, remote_of
from megascope.profiler.errors import MegascopeError, UsageError

NAMES = st.text("abcXYZ019-_=%~ .", min_size=1, max_size=8).filter(
    lambda name: name.strip(".") and name == name.strip()
)


@pytest.fixture
def folder() -> ObjectPath:
    path = store_path(f"memory://bucket/{uuid.uuid4().hex}")
    assert isinstance(path, ObjectPath)
    return path


@settings(max_examples=40)
@given(st.lists(NAMES, min_size=1, max_size=4))
def test_a_url_survives_what_becomes_of_a_path_on_its_way(names: list[str]) -> None:
    url = "memory://bucket/" + "/".join(names)
    path = store_path(url)
    assert str(path) == url
    for other in (
        store_path(Path(url)),
        store_path(str(Path(url))),
        store_path(path),
        pickle.loads(pickle.dumps(path)),
    ):
        assert (other, str(other), type(other)) == (path, url, ObjectPath)
    root = store_path("memory://bucket")
    assert path.relative_to(root).as_posix() == "/".join(names)
    assert str(root / path.relative_to(root)) == url
    assert path.absolute() == path.resolve() == path


def test_local_paths_stay_what_they_are() -> None:
    for text in ("runs/store", "/data/store", "s3", "a:b/c", "C:/x"):
        assert type(store_path(text)) is type(Path())
        assert store_path(text) == Path(text)
    assert store_path("file:///data/store") == store_path(Path("file:///data/store")) == Path("/data/store")


def test_addresses_that_cannot_be_stores() -> None:
    for text in ("s3://", Path("s3://"), "gs:"):
        with pytest.raises(UsageError, match="s3://bucket/prefix"):
            store_path(text)
    with pytest.raises(MegascopeError, match="nosuch://"):
        store_path("nosuch://bucket/x")


def test_it_lists_reads_and_writes_as_a_folder_would(folder: ObjectPath, tmp_path: Path) -> None:
    for place in (folder, tmp_path):
        if place is tmp_path:
            (place / "t" / "run=b").mkdir(parents=True)
            (place / "t" / "run=a").mkdir(parents=True)
        (place / "t" / "run=b" / "2.json").write_text("two")
        (place / "t" / "run=a" / "1.json").write_text("one")
        (place / "top.json").write_bytes(b"\x00")
    for pattern in ("t/run=*/*.json", "*", "t/run=a", "t/run=x", "*.json", "t/*/3.json"):
        found = [sorted(p.relative_to(place).as_posix() for p in place.glob(pattern)) for place in (folder, tmp_path)]
        assert found[0] == found[1], pattern
    for name in ("t", "top.json", "t/run=a/1.json", "nothing"):
        one, other = folder / name, tmp_path / name
        assert (one.exists(), one.is_dir(), one.is_file()) == (other.exists(), other.is_dir(), other.is_file())
    assert (folder / "t/run=a/1.json").read_text() == "one"
    assert (folder / "t/run=a/1.json").stat().st_size == 3
    assert [p.name for p in folder.rglob("*.json")] == ["1.json", "2.json", "top.json"]
    with pytest.raises(FileNotFoundError):
        (folder / "nothing").read_bytes()
    with pytest.raises(FileNotFoundError):
        (folder / "nothing").unlink()
    (folder / "nothing").unlink(missing_ok=True)
    folder.remove_all()
    assert not folder.exists()


def test_nothing_is_done_on_this_machine_in_its_place(folder: ObjectPath) -> None:
    (folder / "a").write_text("x")
    with pytest.raises(io.UnsupportedOperation):
        (folder / "a").rename(folder / "b")
    with pytest.raises(io.UnsupportedOperation):
        (folder / "a").open("a")
    (folder / "deep").mkdir(parents=True)
    assert not Path("memory:").exists()


def test_create_knows_its_own_content(folder: ObjectPath) -> None:
    assert (folder / "a").create(b"mine")
    assert (folder / "a").create(b"mine")
    assert not (folder / "a").create(b"another's")
    assert (folder / "a").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "argv",
    [
        ("export", "grafana", "s3://b/x"),
        ("timeline", "none", "--out", "s3://b/x"),
        ("mfu", "none", "--csv", "s3://b/x"),
    ],
)
def test_what_is_written_beside_a_store_goes_to_this_machine(
    argv: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    assert "s3://b/x is in an object store: give a path on this machine" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("argv", [("prune", "memory://b/x"), ("simulate", "memory://b/x", "--steps", "1")])
def test_a_verb_whose_store_does_not_answer_ends_with_a_sentence(
    argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote_of("memory"), "_rests_until", float("inf"))
    assert main(argv) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "The object store memory:// does not answer and is left alone for a moment: try again once it answers."
    )


class NoBucket:
    """A filesystem without the bucket that is written to."""

    def pipe_file(self, key: str, content: bytes, **_: Any) -> None:
        raise FileNotFoundError("The specified bucket does not exist")

    def put_file(self, local: str, key: str, **_: Any) -> None:
        raise FileNotFoundError("The specified bucket does not exist")


def test_a_bucket_that_is_not_there_is_named(tmp_path: Path) -> None:
    remote = Remote(NoBucket(), "The object store s3://", is_exact=True)
    (tmp_path / "x").write_bytes(b"x")
    for write in (
        lambda: remote.put("mine/a", b"x"),
        lambda: remote.put("mine/a", tmp_path / "x"),
        lambda: remote.create("mine/a", b"x"),
    ):
        with pytest.raises(FileNotFoundError, match="there is no such bucket: 's3://mine'"):
            write()


class Flaky:
    """A filesystem whose next answers are given."""

    def __init__(self, *answers: Exception | bytes) -> None:
        self.answers = list(answers)

    def cat_file(self, key: str, **_: Any) -> bytes:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_request_is_tried_again_unless_that_cannot_help() -> None:
    remote = Remote(Flaky(OSError("500"), TimeoutError(), b"x"), "It", is_exact=True)
    assert (remote.read("k"), remote.requests) == (b"x", 3)
    for error in (FileNotFoundError("k"), PermissionError("k")):
        remote = Remote(Flaky(error), "It", is_exact=True)
        with pytest.raises(type(error)):
            remote.read("k")
        assert remote.requests == 1


def test_a_store_that_does_not_answer_is_left_alone_for_a_moment() -> None:
    flaky = Flaky(*[OSError("500")] * 50)
    remote = Remote(flaky, "It", is_exact=True, patience_s=0.1)
    with pytest.raises(UnreachableError, match="does not answer"):
        remote.read("k")
    asked = remote.requests
    with pytest.raises(UnreachableError, match="left alone for a moment"):
        remote.read("k")
    assert remote.requests == asked
    remote._rests_until = 0.0
    flaky.answers = [b"x"]
    assert remote.read("k") == b"x"
    assert remote._failures == 0


class Counting:
    """Small files; says how many were asked for at the same time, and fails for each of some the first time."""

    def __init__(self, failing: set[str], together: int) -> None:
        self.failing, self.lock = failing, threading.Lock()
        self.asked: list[str] = []
        self.barrier = threading.Barrier(together)

    def cat_file(self, key: str, start: int, end: int) -> bytes:
        with self.lock:
            self.asked.append(key)
            is_early, fails = len(self.asked) <= self.barrier.parties, key in self.failing
            self.failing.discard(key)
        if is_early:
            self.barrier.wait(10)
        if fails:
            raise FileNotFoundError(key)
        return key.encode()[start:end]


def test_small_files_are_read_ahead_together_and_each_once() -> None:
    keys = [f"b/events/run=r/attempt=0/block=b000/w-{number:02d}.parquet" for number in range(3 * AHEAD)]
    lost, large = keys[5], "b/events/run=r/attempt=0/block=b001/w.parquet"
    filesystem = Counting({lost}, AHEAD)
    cache = BlockCache(Remote(filesystem, "It", is_exact=True))
    for key in (*keys, "b/steps/run=r/attempt=0/block=b000/w.parquet", large):
        cache.note_size(key, len(key) if key != large else 3 * BLOCK_BYTES)
    for key in keys:
        cache.fetch_ahead(key)
        if key == keys[0]:
            wait(list(cache._coming.values()))
        assert cache.read(key, 0, 999) == key.encode()
    assert sorted(filesystem.asked) == sorted([*keys, lost])
    assert not cache._coming


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=6), st.integers(1, 3))
def test_blocks_add_up_to_what_was_asked_for(reads: list[tuple[int, int]], kept: int) -> None:
    content = bytes(range(256)) * (5 * BLOCK_BYTES // 512)  # two blocks and a half

    class Whole:
        def cat_file(self, key: str, start: int, end: int) -> bytes:
            return content[start:end]

        def info(self, key: str) -> dict[str, Any]:
            return {"name": key, "type": "file", "size": len(content)}

    cache = BlockCache(Remote(Whole(), "It", is_exact=True), limit_bytes=kept * BLOCK_BYTES)
    for at, length in reads:
        start, end = at * BLOCK_BYTES // 2 - at, (at + length) * BLOCK_BYTES // 2
        start = max(0, start)
        assert cache.read("k", start, end) == content[start:end]
        assert len(cache._blocks) <= kept


@pytest.mark.parametrize("protocol", ["s3", "s3a", "memory"])
def test_no_listing_is_remembered_and_both_names_of_s3_are_one(protocol: str) -> None:
    remote = remote_of(protocol)
    assert not remote.filesystem.dircache.use_listings_cache
    assert remote.is_exact == (protocol != "memory")
    if protocol != "memory":
        assert remote.filesystem.config_kwargs["read_timeout"] > 0
