"""Which kind of file system a folder is on."""

from __future__ import annotations

from pathlib import Path

from .machine import Machine


def file_system(machine: Machine, folder: Path) -> str | None:
    """The type, as the kernel calls it; None where it does not tell."""
    from ..collectors.storage.mounts import mount_type  # noqa: PLC0415

    lines = machine.text("proc/self/mountinfo")
    return None if lines is None else mount_type(folder.resolve(), lines.splitlines())
