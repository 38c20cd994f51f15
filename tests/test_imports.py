"""Imports point downwards only, and heavy libraries are imported only where they are used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

MAY_IMPORT = {
    "profiler": set(),
    "collectors": {"profiler"},
    "heatmap": {"collectors", "profiler"},
    "viz3d": {"collectors", "profiler"},
    "dashboards": {"heatmap", "viz3d", "collectors", "profiler"},
    "trainer": {"profiler", "collectors"},
}
FOLDERS = [*MAY_IMPORT, "megascope"]

HEAVY = {
    "torch": {"trainer"},
    "dash": {"dashboards"},
    "plotly": {"dashboards"},
    "duckdb": {"collectors"},
}
HEAVY_FILES = {"plotly": {"heatmap/figure.py", "viz3d/figure.py"}}


def sources(folder: str) -> Iterator[Path]:
    return (ROOT / folder).rglob("*.py")


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """The imports of a module; it is parsed once."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(module as `megascope.x.y` or an outside name, whether at the top of the module)."""
    inside = ("megascope", *path.relative_to(ROOT).with_suffix("").parts)
    package = inside[1:] if inside[1] == "megascope" else inside
    tree = ast.parse(path.read_text())
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node in top
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                yield node.module or "", node in top
                continue
            base = package[: len(package) - node.level]
            for alias in node.names:
                yield ".".join([*base, *(node.module or alias.name).split(".")]), node in top


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_imports_point_downwards(folder: str) -> None:
    allowed = MAY_IMPORT[folder] | {folder}
    for path in sources(folder):
        for module, _ in imports(path):
            parts = module.split(".")
            if parts[0] == "megascope":
                assert len(parts) > 1, f"{path} imports the front door"
                assert parts[1] in allowed, f"{path} imports {module}"


@pytest.mark.parametrize("library", sorted(HEAVY))
def test_heavy_libraries_stay_where_they_are_used(library: str) -> None:
    for folder in FOLDERS:
        for path in sources(folder):
            name = path.relative_to(ROOT).as_posix()
            if folder in HEAVY[library] or name in HEAVY_FILES.get(library, set()):
                continue
            found = [module for module, top in imports(path) if top and module.split(".")[0] == library]
            assert not found, f"{name} imports {library} at its top"


def test_every_module_says_its_job_in_its_first_line() -> None:
    for folder in [*FOLDERS, "tests", "benchmarks", "examples"]:
        for path in sources(folder):
            begins = path.read_text()[:200].splitlines()[0]
            assert begins.startswith('"""'), f"{path} does not begin with its docstring"
            assert len(begins) > len('"""'), f"{path} does not say its job in its first line"


def unit(module: str) -> str:
    """What counts as one in the order of folders: a folder without folders in it; elsewhere a module is for itself."""
    path = ROOT.joinpath(*module.split(".")[1:])
    path = path if path.is_dir() or path.with_suffix(".py").exists() else ROOT.joinpath(*module.split("."))
    folder = path if path.is_dir() else path.parent
    is_open = folder.parent == ROOT or any((inner / "__init__.py").exists() for inner in folder.iterdir())
    return (path if is_open else folder).relative_to(ROOT).as_posix()


def test_no_folders_import_each_other_in_a_circle() -> None:
    order: TopologicalSorter[str] = TopologicalSorter()
    for folder in MAY_IMPORT:
        for path in sources(folder):
            here = unit(".".join(["megascope", *path.relative_to(ROOT).with_suffix("").parts]))
            needed = {unit(module) for module, top in imports(path) if top and module.startswith("megascope.")}
            order.add(here, *(needed - {here}))
    order.prepare()  # CycleError names the circle
