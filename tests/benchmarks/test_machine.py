"""The machine in a benchmark's object: also which commit it measured."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import machine


def git(folder: Path, *command: str) -> str:
    own = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    told = subprocess.run(["git", *own, *command], cwd=folder, check=True, capture_output=True, text=True)
    return told.stdout.strip()


def test_the_commit_is_told_and_whether_files_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "machine.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert machine.commit() is None
    git(tmp_path, "init", "--quiet")
    assert machine.commit() is None
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    git(tmp_path, "tag", "-a", "v1", "-m", "told as a hash all the same")
    assert machine.commit() == git(tmp_path, "rev-parse", "--short", "HEAD")
    (tmp_path / "a").write_text("2")
    told = machine.machine()["commit"]
    assert told == git(tmp_path, "rev-parse", "--short", "HEAD") + "-dirty"


def test_without_git_no_commit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.commit() is None
