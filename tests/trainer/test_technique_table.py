"""The table of techniques: every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_that_the_table_names_is_there() -> None:
    text = (HERE.parents[1] / "docs" / "trainer.md").read_text()
    rows = text[text.index("## Techniques") : text.index("### Measured")]
    named = set(re.findall(r"`(test_\w+)(?:\[[^\]]*\])?`", rows))
    defined = {
        name for path in HERE.glob("test_*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    assert len(named) > 20
    assert named - defined == set()
