"""The documentation says what a user can meet (tables, verdicts, verbs), and links to what exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from megascope.cli import VERBS
from megascope.heatmap import verdict as straggler_verdict
from megascope.viz3d import verdict as hang_verdict

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])


def test_the_page_of_tables_is_up_to_date() -> None:
    path = ROOT / "docs" / "render_tables.py"
    spec = importlib.util.spec_from_file_location("render_tables", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "tables.md").read_text() == module.render(), "run: python docs/render_tables.py"


@pytest.mark.parametrize(
    "values",
    [
        straggler_verdict.Outcome,
        straggler_verdict.CulpritKind,
        straggler_verdict.Cause,
        straggler_verdict.Pattern,
        straggler_verdict.Severity,
        hang_verdict.State,
        hang_verdict.CulpritKind,
    ],
)
def test_every_verdict_is_explained(values: type) -> None:
    text = (ROOT / "docs" / "verdicts.md").read_text()
    missing = [str(value) for value in values if f"`{value}`" not in text]  # type: ignore[attr-defined]
    assert not missing


def test_every_verb_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text() + (ROOT / "docs" / "recording.md").read_text()
    text += (ROOT / "docs" / "trainer.md").read_text() + (ROOT / "CHANGELOG.md").read_text()
    assert [verb for verb in VERBS if f"megascope {verb}" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for named in re.findall(r"`((?:tests|trainer|profiler|docs|examples)/[\w./]+\.\w+)`", page.read_text()):
        assert (ROOT / named).exists(), f"{page.name} names {named}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_path_of_a_developers_machine(page: Path) -> None:
    assert not re.search(r"(^|[\s(`])/(work|root|home)/", page.read_text())
