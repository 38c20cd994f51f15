"""The 3D picture of a verdict as one HTML file, which opens without a server and without a network."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from ...profiler.racks import Racks
from ...viz3d.hang import Judged
from .data import SHOW_ALL_RANKS, count_of, edge_colours, racks_of
from .history import Past
from .model import draw, model_of

ASSETS = Path(__file__).resolve().parents[1] / "assets"
SCRIPTS = (
    "00_core.js",
    "01_paint.js",
    "scene_1_model.js",
    "scene_2_paint.js",
    "scene_3_overview.js",
    "scene_4_panels.js",
    "scene_5_camera.js",
    "scene_6_choices.js",
    "scene_7_view.js",
    "scene_8_alone.js",
)

MOST_TOLD = 2048
"""Of a larger job only those that matter are told in detail: no server can be asked for the others."""

_TONES = {"hang": "bad", "crashed": "bad", "running": "good", "finished": "good"}

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline';
 style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<header class="bar"><span class="brand">megascope</span><nav>{title}</nav><span class="age">{moment}</span>
<button data-action="theme" type="button">Light / dark</button></header>
<main>
<div class="banner {tone}" role="status"><span class="word">{word}</span><span class="sentence">{sentence}</span></div>
<div class="widget scene" id="alone"></div>
<script type="application/json" id="model">{model}</script>
<noscript>The picture needs JavaScript; the verdict above and the command line tell the same.</noscript>
</main>
{scripts}
</body>
</html>
"""


def page_html(judged: Judged, *, title: str, past: Past | None = None, racks: Racks | None = None) -> str:
    """The page of a verdict. Of a job of more than `MOST_TOLD` ranks only those that matter are told in
    detail; all are drawn on demand, with their states. A verdict without a look at the ranks is told in words.

    ``past`` gives the slider its moments, and the stacks; ``racks`` the racks of hosts.
    """
    verdict = judged.verdict
    model = _model(judged, past, racks)
    text = json.dumps(model, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return _PAGE.format(
        title=escape(title),
        style=(ASSETS / "style.css").read_text(encoding="utf-8"),
        moment=escape(str(model.get("moment", ""))),
        tone=_TONES.get(str(verdict.verdict), "unsure"),
        word=escape(str(verdict.verdict).upper()),
        sentence=escape(verdict.sentence()),
        model=text,
        scripts="\n".join(f"<script>\n{_script(name)}</script>" for name in SCRIPTS),
    )


def _model(judged: Judged, past: Past | None, racks: Racks | None) -> dict[str, Any]:
    snapshot = judged.snapshot
    if snapshot is None or not count_of(snapshot):
        return {}
    many = count_of(snapshot)
    drawn = draw(judged, everyone=many <= MOST_TOLD)
    is_small = many <= SHOW_ALL_RANKS or not judged.verdict.culprits
    return model_of(drawn) | {
        "run": judged.verdict.run,
        "attempt": judged.verdict.attempt,
        "around": "all" if is_small else "involved",
        "colours": edge_colours(snapshot.axes),
        "racks": racks_of(racks, snapshot),
        **({} if past is None else past.told(drawn)),
    }


def _script(name: str) -> str:
    text = (ASSETS / name).read_text(encoding="utf-8")
    return text.replace("</script", "<\\/script")
