"""Colours can be read: text at 4.5:1 against what it stands on, shapes at 3:1 (WCAG 2.2, 1.4.3 and 1.4.11)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import megascope.dashboards.app
from megascope.dashboards.scene.model import LETTERS
from megascope.viz3d.doing import Doing

ASSETS = Path(megascope.dashboards.app.FOLDER) / "assets"
TEXT = (
    *((name, ground) for name in ("ink", "quiet", "link") for ground in ("surface", "raised")),
    *((name, f"{name}-surface") for name in ("good", "bad", "unsure")),
    ("ink", "good-surface"),
    ("ink", "bad-surface"),
    ("ink", "unsure-surface"),
    ("fault", "surface"),
    ("surface", "ink"),
)
SHAPES = (
    *("compute", "backward", "collective", "p2p", "data", "optimizer", "other", "fault", "good", "quiet", "select"),
    "missing-line",
)


def colours(theme: str) -> dict[str, str]:
    """Name to #rrggbb of a theme."""
    sheet = (ASSETS / "style.css").read_text()
    block = sheet.split(f'data-theme="{theme}"] {{', 1)[1].split("}", 1)[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def luminance(colour: str) -> float:
    """Relative luminance, 0 to 1 (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio, 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_ratio_is_the_standards() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_shapes_stand_out(theme: str) -> None:
    found = colours(theme)
    for name, ground in TEXT:
        assert contrast(found[name], found[ground]) >= 4.5, (name, ground)
    for name in SHAPES:
        assert contrast(found[name], found["surface"]) >= 3.0, name


def test_every_state_has_a_shape_of_its_own() -> None:
    script = (ASSETS / "scene_1_model.js").read_text()
    looks = re.findall(r'(\w+): \["[\w-]+", "(\w+)", [\d.]+\]', script)
    assert {state for state, _ in looks} == {str(state) for state in Doing} == {str(state) for state in LETTERS}
    assert len({shape for _, shape in looks}) == len(looks)
    signs = re.findall(r'(\w+): \["(.)", "[^"]+"\]', script)
    assert {state for state, _ in signs} == {str(state) for state in Doing}
    assert len({sign for _, sign in signs}) == len(signs)
    letters = dict(re.findall(r'\b([a-z]): "(\w+)"', script.split("const LETTERS = {", 1)[1].split("}", 1)[0]))
    assert letters == {letter: str(state) for state, letter in LETTERS.items()}
