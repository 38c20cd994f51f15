"""What tests all over share: the demo's own store, made once, and the folder of real traces."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from megascope.collectors.importers.importing import import_run
from support.commands import finished

DEMO_STEPS = 60

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile("megascope", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("megascope")

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the tests are of CPUs, also where there is a GPU
os.environ["MEGASCOPE_SHADOW"] = "0"  # most tests expect the spans of every step; those of shadow steps say so


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only the tests marked `alone` are to run, files without one are not even imported."""
    if config.option.markexpr != "alone" or collection_path.suffix != ".py":
        return None
    return "mark.alone" not in collection_path.read_text(encoding="utf-8") or None


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo that has run: what it printed, and its store."""

    process: subprocess.CompletedProcess[str]
    folder: Path
    store: Path


@pytest.fixture(scope="session")
def traces() -> Path:
    """Traces of real jobs, in a folder beside the project; tests of them are skipped without it, but not in CI."""
    folder = Path(__file__).parents[2] / "shared" / "traces"
    if not folder.is_dir() and not os.environ.get("CI"):
        pytest.skip(f"There are no real traces at {folder}.")
    assert folder.is_dir(), f"CI must have the real traces at {folder}"
    return folder


@pytest.fixture(scope="session")
def imported_store(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the store of one of those files, which is imported once; it is for reading."""

    @functools.cache
    def store_of(path: str) -> Path:
        store = tmp_path_factory.mktemp("imported") / "store"
        import_run([traces / path], store)
        return store

    return store_of


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """`megascope demo`, with half of its steps; rank 5 is slowed from step 20 on."""
    folder = tmp_path_factory.mktemp("demo")
    process = finished(folder, "demo", "--no-serve", "--train.steps", str(DEMO_STEPS), timeout_s=280)
    assert process.returncode == 0, process.stdout
    (store,) = folder.glob("runs/*/store")
    return Demo(process, folder, store)
