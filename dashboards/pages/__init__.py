"""The pages of the dashboards, one module each, by their address."""

from __future__ import annotations

from .health import PAGE as HEALTH
from .heatmap import PAGE as HEATMAP
from .incidents import PAGE as INCIDENTS
from .overview import PAGE as OVERVIEW
from .page import Page
from .preflight import PAGE as PREFLIGHT
from .scaling import PAGE as SCALING
from .sql import PAGE as SQL
from .three_d import PAGE as THREE_D
from .timeline import PAGE as TIMELINE

PAGES: dict[str, Page] = {
    page.path: page for page in (OVERVIEW, HEATMAP, TIMELINE, THREE_D, HEALTH, INCIDENTS, PREFLIGHT, SCALING, SQL)
}
"""In the order of the navigation."""
