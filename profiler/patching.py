"""Wrapping attributes of other libraries so that they can be put back as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Undo = Callable[[], None]


def replace(owner: Any, name: str, wrapper: Any) -> Undo:
    """Put a wrapper in an attribute's place; what is returned puts back what was there.

    Where somebody else has wrapped it since, theirs stays, and goes on through ours.
    """
    own = vars(owner).get(name)
    setattr(owner, name, wrapper)

    def undo() -> None:
        if vars(owner).get(name) is not wrapper:
            return
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    return undo
