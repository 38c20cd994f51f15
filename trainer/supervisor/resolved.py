"""The job's configuration as one file, with all flags taken in and all paths absolute, for every node to read."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

from ...collectors.storage.durable import make_folders, write_durably
from ..config import TrainConfig


def write_resolved(config: TrainConfig, path: Path) -> Path:
    """Write the configuration as TOML; what is absent stays absent. OSError where that cannot be done."""
    make_folders(path.parent)
    text = as_toml(config)
    write_durably(path, lambda file: _fill(file, text))
    return path


def as_toml(config: TrainConfig) -> str:
    """The configuration in TOML: `load_config` gives the same back, with paths made absolute."""
    values = asdict(config)
    top = [f"{name} = {_value(value)}" for name, value in values.items() if not isinstance(value, dict)]
    for section, settings in values.items():
        if isinstance(settings, dict):
            top += ["", f"[{section}]"]
            top += [f"{name} = {_value(value)}" for name, value in settings.items() if value is not None]
    return "\n".join(top) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Enum):  # read by its name, not by its value
        value = value.name.lower().replace("_", "-")
    if isinstance(value, Path):
        value = str(value.absolute())
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)


def _fill(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
