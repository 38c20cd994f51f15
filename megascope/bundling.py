"""The bundle of a verdict, with the 3D page in it where the dashboards can draw it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .collectors.reading.store import Attempt, Store
from .viz3d.bundle.bundle import write_bundle
from .viz3d.hang import Judged
from .viz3d.paths import Sources


def bundle(
    path: Path,
    judged: Judged,
    *,
    sources: Sources | None = None,
    opened: tuple[Store, Attempt] | None = None,
    racks: Mapping[str, str] | None = None,
) -> str:
    """Write it; a sentence that says what it has. ``racks`` are those of hosts, for the page.

    MegascopeError where it cannot be written.
    """
    page = _page(judged, opened, racks)
    written = write_bundle(path, judged, sources=sources, opened=opened, page=page)
    told = "with the 3D page" if page is not None else "without the 3D page: pip install 'megascope[dashboards]'"
    more = f" Not all went in: {'; '.join(written.notes[:4])}." if written.notes else ""
    if len(written.notes) > 4:
        more = more.removesuffix(".") + f"; and {len(written.notes) - 4} more, see its manifest.json."
    return f"The bundle {path} has {written.size_bytes / 1024:,.0f} KiB, {told}.{more}"


def _page(judged: Judged, opened: tuple[Store, Attempt] | None, racks: Mapping[str, str] | None) -> str | None:
    try:
        from .dashboards.scene.history import Past  # noqa: PLC0415
        from .dashboards.scene.page import page_html  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    verdict = judged.verdict
    title = f"{verdict.run}, attempt {verdict.attempt}: {verdict.verdict}"
    past = None if opened is None else Past(*opened)
    return page_html(judged, title=title, past=past, racks=racks)
