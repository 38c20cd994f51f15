"""The page benchmarks' kept stores: one that was not written to its end is never measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.pages_server import whole_store


def write(root: Path) -> None:
    root.mkdir()
    (root / "data").write_text("all")


def test_a_store_is_written_once(tmp_path: Path) -> None:
    written: list[Path] = []

    def counted(root: Path) -> None:
        written.append(root)
        write(root)

    for _ in range(2):
        store = whole_store(tmp_path / "store", counted)
        assert (store, (store / "data").read_text()) == (tmp_path / "store", "all")
    assert len(written) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["store"]


def test_one_that_is_half_written_is_made_anew(tmp_path: Path) -> None:
    def ended(root: Path) -> None:
        root.mkdir()
        (root / "half").write_text("some")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        whole_store(tmp_path / "store", ended)
    assert not (tmp_path / "store").exists()
    store = whole_store(tmp_path / "store", write)
    assert [each.name for each in store.iterdir()] == ["data"]
    assert [each.name for each in tmp_path.iterdir()] == ["store"]
