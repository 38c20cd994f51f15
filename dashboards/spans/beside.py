"""The second view of the Timeline: the same ranks in another step, attempt or run."""

from __future__ import annotations

from dataclasses import replace

from ..view import View


def beside_of(view: View) -> View | None:
    """The view that ``beside`` means, with the ranks of the first one; None where nothing is asked for."""
    if view.beside is None:
        return None
    parts = view.beside.split(":", 2)
    step = int(parts[0] if len(parts) == 1 else parts[1])
    attempt = view.attempt if len(parts) == 1 else int(parts[0])
    run = parts[2] if len(parts) > 2 else view.run
    return replace(view, run=run, attempt=attempt, steps=(step, step), since=None, until=None, beside=None)
