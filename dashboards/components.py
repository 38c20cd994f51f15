"""Small building blocks of the pages: banners, tables, facts, form controls. No knowledge of any page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

Children = Component | str | Sequence[Component | str]

LONG_TEXT = 12
"""Characters of a table's text from which on it may be cut off, and is told in full under the mouse."""


class Awaited(IntEnum):
    """What a page waits for: nothing, a newer verdict in place of the one that it shows, or the first one."""

    NOTHING = 0
    NEWER = 1
    FIRST = 2


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a page shows below its controls. While something is ``awaited``, the page is to be asked for again.
    ``frame_key``: what the page's own choices depend on; the controls are drawn again when it changes."""

    banner: Children
    children: Children
    awaited: Awaited = Awaited.NOTHING
    frame_key: str = ""


def banner(tone: str, word: str, sentence: str, *more: Component | str) -> Component:
    """A verdict: a word and a sentence. ``tone`` is good, bad or unsure; the word says the same without colour."""
    return html.Div(
        [html.Span(word, className="word"), html.Span(sentence, className="sentence"), *more],
        className=f"banner {tone}",
        role="status",
    )


def problem(sentence: str, href: str | None = None) -> Component:
    """An error in one sentence, with a way back."""
    way_back = [dcc.Link("Open this page without parameters", href=href, className="more")] if href else []
    return banner("bad", "Cannot show this", sentence, *way_back)


def number(value: float | int | None, digits: int = 4) -> str:
    """A number for people; an empty dash for what is missing."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if value != 0 and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{digits - 1}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(decimals, 6)}f}"


def milliseconds(ns: float | None) -> str:
    """A duration in the unit that suits it."""
    if ns is None:
        return number(None)
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= size:
            return f"{number(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def utc(moment_ns: int | None, *, seconds_only: bool = True) -> str:
    """A moment as text in UTC."""
    if moment_ns is None:
        return number(None)
    moment = datetime.fromtimestamp(moment_ns / 1e9, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC" if seconds_only else "%Y-%m-%d %H:%M:%S.%f UTC")


def facts(pairs: Iterable[tuple[str, str, str]]) -> Component:
    """Headline numbers: (id, label, value)."""
    tiles = [
        html.Div([html.B(value, id=f"fact-{key}"), html.Span(label)], className="fact") for key, label, value in pairs
    ]
    return html.Div(tiles, className="facts")


def table(
    columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]], *, numbers: Iterable[str] = (), name: str = ""
) -> Component:
    """An HTML table: column key to heading; values are text, components or None (shown as a quiet NULL)."""
    right = set(numbers)
    head = html.Thead(html.Tr([html.Th(text, className=_side(key in right)) for key, text in columns.items()]))
    body = [html.Tr([_cell(row.get(key), key in right) for key in columns]) for row in rows]
    more: dict[str, Any] = {"id": name} if name else {}
    return html.Table([head, html.Tbody(body)], **more)


def _side(is_right: bool) -> str:
    return "number" if is_right else ""


def _cell(value: Any, is_right: bool) -> Component:
    if value is None:
        return html.Td("NULL", className=f"null {_side(is_right)}")
    more: dict[str, Any] = {"title": value} if isinstance(value, str) and len(value) > LONG_TEXT else {}
    return html.Td(value, className=_side(is_right), **more)


def data(**attributes: str) -> dict[str, Any]:
    """HTML attributes for JavaScript: ``view="1"`` becomes ``data-view="1"``."""
    return {f"data-{name}": value for name, value in attributes.items()}


def controls(fields: Sequence[Component], *, clears: Sequence[str] = (), manual: bool = False) -> Component:
    """A form whose fields are parameters of the URL: a change goes to the address, and from there to the page.

    ``clears`` are parameters that a change makes meaningless; ``manual`` waits for the submit button.
    """
    attributes = data(view="1", clears=",".join(clears)) | (data(manual="1") if manual else {})
    return html.Form(fields, className="controls", **attributes)


def select(name: str, label: str, options: Mapping[str, str], chosen: str | None, *, hint: str = "") -> Component:
    """A drop-down list: value to text."""
    items = [html.Option(text, value=value, selected=value == chosen) for value, text in options.items()]
    # React keeps the state of an element with the same key; a new key makes the list follow the URL.
    box = html.Select(items, name=name, id=f"select-{name}", key=f"{name}={chosen}", title=hint)
    return html.Label([label, box])


def field(name: str, label: str, value: str, *, hint: str = "", placeholder: str = "", wide: bool = False) -> Component:
    """A text field."""
    box = dcc.Input(
        id=f"field-{name}",
        name=name,
        value=value,
        type="text",
        placeholder=placeholder,
        autoComplete="off",
        className="" if wide else "short",
    )
    return html.Label([label, box], title=hint)


def widget(kind: str, source: str, *, height: int, marks: str = "[]") -> Component:
    """A canvas that JavaScript draws from the data at ``source`` (see assets/00_core.js)."""
    attributes = data(widget=kind, source=source, marks=marks)
    return html.Div(id=f"widget-{kind}", className="widget", style={"height": f"{height}px"}, **attributes)


def hint(*children: Component | str) -> Component:
    """A quiet line of help."""
    return html.P(list(children), className="hint")
