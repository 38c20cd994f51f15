"""The web dashboards: one module a page."""
