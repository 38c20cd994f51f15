"""The table of techniques: every test and every switch that it names is there, and every row has an effect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import pytest

from megascope.trainer.config import TrainConfig

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "trainer.md").read_text()
SECTIONS = {field.name: getattr(TrainConfig(), field.name) for field in fields(TrainConfig)}
SETTINGS = {
    f"{name}.{setting.name}"
    for name, section in SECTIONS.items()
    if is_dataclass(section)
    for setting in fields(section)
}


@dataclass(frozen=True)
class Row:
    technique: str
    switch: str
    test: str
    effect: str


def rows() -> Iterator[Row]:
    table = TEXT[TEXT.index("## Techniques") : TEXT.index("### Measured")]
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith("| technique |"):
            yield Row(*(cell.strip() for cell in line.strip("|").split(" | ")))


ROWS = list(rows())
each_row = pytest.mark.parametrize("row", ROWS, ids=[row.technique for row in ROWS])


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_table_has_all_rows() -> None:
    assert len(ROWS) >= 30


@each_row
def test_every_test_that_the_table_names_is_there(row: Row) -> None:
    named = {name.partition("[")[0] for name in names_in(row.test)}
    paths = [path for folder in ("trainer", "benchmarks") for path in (ROOT / "tests" / folder).glob("test_*.py")]
    defined = {name for path in paths for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)}
    assert named
    assert named - defined == set()


@each_row
def test_every_switch_that_the_table_names_is_there(row: Row) -> None:
    """A setting, another one of the section of the one before, a section, or a verb."""
    section = ""
    for name in names_in(row.switch):
        if name.startswith("megascope "):
            assert (ROOT / "megascope" / "commands" / f"{name.split()[1]}.py").is_file()
        elif name not in SECTIONS:
            full = name if "." in name else f"{section}.{name}"
            assert full in SETTINGS, f"there is no setting {full}"
            section = full.partition(".")[0]
    assert names_in(row.switch) or row.switch == "always"


@each_row
def test_every_row_has_an_effect(row: Row) -> None:
    """A figure that was measured, or the place where it stands."""
    assert "not measured" not in row.effect
    link = re.search(r"\]\((\w+\.md)#([\w-]+)\)", row.effect)
    if link is None:
        assert re.search(r"\d", row.effect)
        return
    page = (ROOT / "docs" / link[1]).read_text()
    anchors = [
        re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", page, re.M)
    ]
    assert link[2] in anchors
