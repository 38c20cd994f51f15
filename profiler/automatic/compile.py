"""Compilation as spans, and segments inside compiled code, which are left out there without breaking its graph."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from ..null import NullRecorder
from ..patching import Undo, replace
from ..recorder import Recorder
from ..vocabulary import SegmentKind

_CALLBACKS = "torch._dynamo.callback"
_taught: set[Callable[..., Any]] = set()


class Compilation:
    """Each compilation by dynamo as a span of kind compile.

    ``replacements`` are functions of ours and what compiled code calls in their place: it cannot be timed inside.
    """

    def __init__(
        self, recorder: Recorder | NullRecorder, replacements: dict[Callable[..., Any], Callable[..., Any]]
    ) -> None:
        self._recorder, self._replacements = recorder, replacements
        self._open: list[Any] = []
        self._undone: list[Undo] = []

    def install(self) -> Undo | None:
        """Begin as soon as dynamo is loaded, which the first `torch.compile` does; None until torch is."""
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "compile"):
            return None
        if _CALLBACKS in sys.modules:
            self._begin()
            return self._end
        original = torch.compile

        @functools.wraps(original)
        def compile_with_spans(*args: Any, **kwargs: Any) -> Any:
            compiled = original(*args, **kwargs)
            if _CALLBACKS in sys.modules and len(self._undone) == 1:
                self._begin()
            return compiled

        self._undone.append(replace(torch, "compile", compile_with_spans))
        return self._end

    def _begin(self) -> None:
        handler = sys.modules[_CALLBACKS].callback_handler
        segment = self._recorder.segment("compile", SegmentKind.COMPILE)

        def began(_: Any) -> None:
            self._open.append(self._recorder.begin(segment))

        def ended(_: Any) -> None:
            if self._open:
                self._recorder.end(self._open.pop())

        handler.register_start_callback(began)
        handler.register_end_callback(ended)

        def undo() -> None:
            if began in handler.start_callbacks:
                handler.remove_start_callback(began)
            if ended in handler.end_callbacks:
                handler.remove_end_callback(ended)

        self._undone.append(undo)
        teach_dynamo(self._replacements)

    def _end(self) -> None:
        for undo in self._undone:
            undo()
        self._undone = []


def teach_dynamo(replacements: dict[Callable[..., Any], Callable[..., Any]]) -> bool:
    """Tell dynamo, once it is loaded, what to trace in place of our functions; whether it is told."""
    dynamo = sys.modules.get("torch._dynamo")
    substitute = getattr(dynamo, "substitute_in_graph", None)
    if substitute is None:
        return False
    for function, replacement in replacements.items():
        if function not in _taught:
            _taught.add(function)
            substitute(function, skip_signature_check=True)(replacement)
    return True
