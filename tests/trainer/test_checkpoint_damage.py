"""A flipped, cut or missing byte anywhere in a checkpoint is refused by name: it never loads as something else."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megascope.profiler.errors import UsageError
from megascope.trainer.checkpoints.commit import parse_commit, read_commit, write_commit
from megascope.trainer.checkpoints.description import read_description, write_description
from megascope.trainer.checkpoints.files import DamagedError, commit_path, description_path, shard_path
from megascope.trainer.checkpoints.listing import list_checkpoints, verify_checkpoints
from megascope.trainer.checkpoints.reading import read_saved
from support.checkpoints import new_writers, read_checkpoint, some_values, write_checkpoint

BASE, STEP = 4, 8
NEWER = some_values(1)
FILES = [
    *(shard_path(Path(), BASE, rank) for rank in range(2)),
    *(shard_path(Path(), STEP, rank) for rank in range(2)),
    *(description_path(Path(), STEP, rank) for rank in range(2)),
    commit_path(Path(), STEP),
]


@pytest.fixture(scope="module")
def saved() -> Iterator[Path]:
    """A whole checkpoint of step 4, and one of step 8 that builds upon it: one tensor has changed."""
    with tempfile.TemporaryDirectory() as name:
        folder, values = Path(name), some_values()
        writers = new_writers(folder, whole_every=2)
        write_checkpoint(folder, writers, BASE, values)
        commit = write_checkpoint(folder, writers, STEP, {**values, "second": NEWER["second"]})
        assert commit.bases == [BASE]
        yield folder


def expected() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {**some_values(), "second": NEWER["second"]}


@given(file=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True), data=st.data())
def test_damage_is_refused_by_name(saved: Path, file: Path, place: float, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(saved, Path(name) / "copy"))
        path = folder / file
        content = bytearray(path.read_bytes())
        at = int(place * len(content))
        kind = data.draw(st.sampled_from(["flip", "cut", "missing", "empty"]))
        if kind == "missing":
            path.unlink()
        elif kind == "flip":
            content[at] ^= data.draw(st.integers(1, 255))
            path.write_bytes(content)
        else:
            path.write_bytes(content[:at] if kind == "cut" else b"")
        refusal = None
        try:
            found = read_checkpoint(folder, STEP, expected())
        except DamagedError as error:
            refusal = str(error)
        if refusal is None:  # in the base, the blocks of the tensor that has changed since are not needed
            assert file in FILES[:2]
            for parameter, tensor in expected().items():
                np.testing.assert_array_equal(found[parameter], tensor)
            return
        assert str(path) in refusal
        if commit_path(folder, STEP).exists():
            assert str(path) in verify_checkpoints(folder, STEP)[0].problems[0]


def test_the_undamaged_loads(saved: Path) -> None:
    for parameter, tensor in read_checkpoint(saved, STEP, expected()).items():
        np.testing.assert_array_equal(tensor, expected()[parameter])
    assert [one.problems for one in verify_checkpoints(saved)] == [(), ()]
    listing = list_checkpoints(saved)
    assert [(one.step, one.problem, one.bases) for one in listing.checkpoints] == [(8, None, (4,)), (4, None, ())]
    assert listing.checkpoints[0].layout == "pp 1 x dp 1 x tp 2"
    assert listing.checkpoints[0].size_bytes == 160
    assert listing.checkpoints[0].state_bytes == 256
    assert listing.others == ()


def test_a_base_that_is_gone_is_named(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "copy"))
    shutil.rmtree(commit_path(folder, BASE).parent)
    with pytest.raises(DamagedError, match=r"checkpoint 8 builds upon 4, but .*step-00000004/commit.json is not there"):
        read_saved(folder, STEP)
    assert "builds upon 4" in str(list_checkpoints(folder).checkpoints[0].problem)


def test_a_later_version_is_refused_and_not_taken_for_damage(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = read_commit(saved, STEP)
    monkeypatch.setattr("megascope.trainer.checkpoints.commit.VERSION", 3)
    content = write_commit(commit)
    monkeypatch.undo()
    with pytest.raises(UsageError, match="is of version 3, but this program reads 2"):
        parse_commit(Path("commit.json"), content)


@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_content_of_a_file_raises_anything_else(content: bytes) -> None:
    for read in (parse_commit, read_description):
        with pytest.raises(DamagedError):
            read(Path("file"), content)


def test_a_description_is_read_as_it_was_written(saved: Path) -> None:
    for description in read_saved(saved, STEP).descriptions:
        path = description_path(saved, STEP, description.rank)
        assert write_description(description, STEP) == path.read_bytes()
        assert description.bases == {BASE, STEP}
