"""The actions that an incident lists: what an agent saw and did, with the moments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def parse_actions(text: str | None) -> list[Mapping[str, Any]]:
    """The JSON list of an incident's actions; empty for what is no such list."""
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return []
    return [action for action in found if isinstance(action, dict)] if isinstance(found, list) else []
