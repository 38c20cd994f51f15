"""A small line of a value over time, in the colour of the sheet: for tables, without a canvas or a script."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from dash import html
from dash.development.base_component import Component

WIDTH, HEIGHT = 96, 18
PAD = 2
NO_RANGE = 1e-9


def sparkline(
    values: Sequence[float | None], text: str, *, low: float, high: float, colour: str = "--link", width: int = WIDTH
) -> Component:
    """The values from left to right between ``low`` and ``high``; what is missing is a gap.

    ``text`` tells them, under the mouse and to who cannot see; ``width`` is in pixels.
    """
    shown = _svg(values, low, high, width)
    mask = f'url("data:image/svg+xml,{quote(shown)}")'
    style = {
        "display": "inline-block", "width": f"{width}px", "height": f"{HEIGHT}px", "background": f"var({colour})",
        "maskImage": mask, "WebkitMaskImage": mask, "maskRepeat": "no-repeat", "verticalAlign": "middle",
    }  # fmt: skip
    return html.Span(title=text, className="sparkline", style=style, role="img")


def _svg(values: Sequence[float | None], low: float, high: float, width: int) -> str:
    """The line as an image of its own; a value alone is a dot."""
    steps = max(1, len(values) - 1)
    scale = (HEIGHT - 2 * PAD) / max(high - low, NO_RANGE)
    parts, is_open = [], False
    for place, value in enumerate(values):
        if value is None:
            is_open = False
            continue
        x = PAD + (width - 2 * PAD) * place / steps
        y = HEIGHT - PAD - scale * (min(max(value, low), high) - low)
        parts.append(f"{'L' if is_open else 'M'}{x:.1f} {y:.1f}" + ("" if is_open else "h.1"))
        is_open = True
    path = f'<path d="{"".join(parts)}" fill="none" stroke="#000" stroke-width="1.6" stroke-linecap="round"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}">{path}</svg>'
