"""What is shipped, and that analysis works where neither torch nor dash is installed."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.demo_store import small_store

ROOT = Path(__file__).resolve().parents[1]
LIST = ["git", "ls-files", "--cached", "--others"]
FOLDERS = ("profiler", "collectors", "heatmap", "viz3d", "dashboards", "trainer")

WITHOUT = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "dash", "plotly", "flask", "waitress", "tokenizers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from megascope.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel that a user would install, built from a copy so that nothing is left in the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    names = subprocess.run(
        [*LIST, "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    for name in filter(None, names):
        if (ROOT / name).exists():
            target = folder / "tree" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "tree")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_holds_every_module_and_no_tests(wheel: zipfile.ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert all(name.startswith("megascope/") for name in shipped)
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".js", ".css", ".toml", ".json", ".yaml"}:
                assert f"megascope/{path.relative_to(ROOT).as_posix()}" in shipped
    assert {"megascope/__init__.py", "megascope/cli.py", "megascope/commands/demo.py", "megascope/py.typed"} <= shipped
    assert not [name for name in shipped if "test" in name.lower() or "benchmark" in name]


def test_the_wheel_declares_open_ranges_and_the_command(wheel: zipfile.ZipFile) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    text = wheel.read(metadata).decode()
    assert "Requires-Python: >=3.11" in text
    assert "License-Expression: Apache-2.0" in text
    assert 'Requires-Dist: torch>=2.8; extra == "trainer"' in text
    required = [line for line in text.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert not [line for line in required if any(heavy in line for heavy in ("torch", "dash", "plotly"))]
    (entry,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "megascope = megascope.cli:main" in wheel.read(entry).decode()


def test_analysis_works_without_torch_and_dash(tmp_path: Path) -> None:
    store = str(small_store(tmp_path / "store"))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    for arguments in (
        ("stragglers", store, "--json"),
        ("hang", store, "--json"),
        ("sql", store, "select 1 as a", "--json"),
        ("timeline", store, "--out", str(tmp_path / "trace.json")),
    ):
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        if "--json" in arguments:
            assert json.loads(done.stdout)
    demo = ("demo", "--folder", str(tmp_path))
    refused: list[tuple[list[str], str]] = [
        (["serve", store], "dashboards"),
        ([*demo], "dashboards"),
        ([*demo, "--no-serve"], "trainer"),
    ]
    for words, extra in refused:
        done = run(*words)
        assert done.returncode == 1
        assert f"pip install 'megascope[{extra}]'" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
