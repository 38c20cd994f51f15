"""The Grafana dashboard and the alert rules that come with the package."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "grafana"
FILES = ("megascope.json", "megascope-rules.yaml")


def write_grafana(folder: Path) -> list[Path]:
    """Write both files into a folder, each whole or not at all, and return their paths. OSError where it cannot."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in FILES:
        temporary = folder / f"{name}.tmp"
        try:
            temporary.write_bytes((FOLDER / name).read_bytes())
            written.append(temporary.replace(folder / name))
        finally:
            temporary.unlink(missing_ok=True)
    return written
