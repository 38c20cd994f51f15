"""The bundle of a verdict, with the 3D page in it where the dashboards can draw it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .collectors.store import Attempt, Store
from .viz3d.bundle import write_bundle
from .viz3d.hang import Judged


def bundle(
    path: Path,
    judged: Judged,
    *,
    store: Store | None = None,
    attempt: Attempt | None = None,
    files: Sequence[Path] = (),
) -> str:
    """Write it; a sentence that says what it has. MegascopeError where it cannot be written."""
    page = _page(judged)
    size = write_bundle(path, judged, store=store, attempt=attempt, files=files, page=page)
    told = "with the 3D page" if page is not None else "without the 3D page: pip install 'megascope[dashboards]'"
    return f"The bundle {path} has {size / 1024:,.0f} KiB, {told}."


def _page(judged: Judged) -> str | None:
    try:
        from .dashboards.scene_page import page_html  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    verdict = judged.verdict
    return page_html(judged, title=f"{verdict.run}, attempt {verdict.attempt}: {verdict.verdict}")
