"""What a page is: an address, a name, controls that follow the URL, and a body that also follows the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dash.development.base_component import Component

from ..components import Rendered
from ..view import View
from ..workbench import Workbench


@dataclass(frozen=True, slots=True)
class Page:
    """One page. ``frame`` is drawn again when the address changes, ``body`` also when the store does (if ``live``)."""

    path: str
    name: str
    frame: Callable[[View, Workbench], Component]
    body: Callable[[View, Workbench], Rendered]
    live: bool = True
