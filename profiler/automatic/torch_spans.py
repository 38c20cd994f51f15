"""What torch does by itself, as spans: replays of CUDA graphs, saving and loading, evaluation."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ..patching import Undo, replace
from ..recorder import AnyRecorder
from ..vocabulary import STATUS_CODES, SegmentKind, Status

OPAQUE = STATUS_CODES.index(Status.OPAQUE)

_CHECKPOINT = {
    "torch": {"save": "checkpoint_write", "load": "checkpoint_load"},
    "torch.distributed.checkpoint": {
        "save": "checkpoint_save",
        "async_save": "checkpoint_snapshot",
        "load": "checkpoint_load",
    },
}
"""Functions by module, and the segment of a call."""


def install_graphs(recorder: AnyRecorder, graph: Any = None) -> Undo | None:
    """Record each replay of a CUDA graph as one opaque span: what runs inside has no times of its own.

    Its time stays in the self time of the span around it, since whoever compares ranks leaves out what is opaque.
    ``graph`` is a class with the ``replay`` of `torch.cuda.CUDAGraph`, the default; None until torch is loaded.
    """
    if graph is None:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "cuda"):
            return None
        if not torch.cuda.is_available():
            return lambda: None
        graph = torch.cuda.CUDAGraph
    segment = recorder.segment("cuda_graph_replay", SegmentKind.COMPUTE)
    original = graph.replay

    @functools.wraps(original)
    def replay(self: Any) -> Any:
        with _opaque(recorder, segment):
            return original(self)

    return replace(graph, "replay", replay)


@contextlib.contextmanager
def _opaque(recorder: AnyRecorder, segment: int) -> Iterator[None]:
    span: Any = recorder.begin_async(segment)
    try:
        yield
    finally:
        recorder.end_async(span)
        recorder.abandon(span, status=OPAQUE)


def install_compiled(recorder: AnyRecorder, compiled: Any = None) -> Undo | None:
    """Record each run of a graph that inductor compiled as one opaque span: no segment inside is timed.

    Its time stays in the self time of the span around it, as that of a replay does.
    ``compiled`` is a class with the ``__call__`` of inductor's `CompiledFxGraph`, the default; None until inductor is
    loaded, which the first compilation with it does. Other backends of `torch.compile` are not seen.
    """
    if compiled is None:
        compiled = getattr(sys.modules.get("torch._inductor.output_code"), "CompiledFxGraph", None)
        if compiled is None:
            return None
    forward = recorder.segment("compiled_forward", SegmentKind.COMPUTE)
    backward = recorder.segment("compiled_backward", SegmentKind.COMPUTE)
    original = compiled.__call__

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_backward = (getattr(self, "fx_kwargs", None) or {}).get("is_backward")
        with _opaque(recorder, backward if is_backward else forward):
            return original(self, *args, **kwargs)

    return replace(compiled, "__call__", call)


def install_checkpoint(recorder: AnyRecorder, module_name: str) -> Undo | None:
    """Record saving and loading by a module's functions (``torch``, ``torch.distributed.checkpoint``).

    None until that module is loaded. Of calls inside each other only the outermost counts, and what is written to
    memory does not.
    """
    module = sys.modules.get(module_name)
    names = _CHECKPOINT[module_name]
    if module is None or not all(hasattr(module, name) for name in names):
        return None
    undone = [replace(module, name, _timed_io(recorder, getattr(module, name), names[name])) for name in names]

    def undo() -> None:
        for step in undone:
            step()

    return undo


_saving = threading.local()


def _timed_io(recorder: AnyRecorder, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    segment = recorder.segment(name, SegmentKind.CHECKPOINT)

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        in_memory = any(isinstance(value, io.BytesIO) for value in (*args[:2], *kwargs.values()))
        if in_memory or getattr(_saving, "on", False):
            return function(*args, **kwargs)
        span: Any = recorder.begin(segment)
        clock = recorder.work_clocks.get(segment)
        if clock is not None:
            clock.enter()
        _saving.on = True
        try:
            return function(*args, **kwargs)
        finally:
            _saving.on = False
            if clock is not None:
                clock.leave()
            recorder.end(span)

    return timed


class Evaluation:
    """A span of kind eval from ``model.eval()`` to ``model.train()``, or to the next step.

    Only a model counts that was switched by ``train()`` before and has parameters to train: a part of it, such as a
    batch norm that is frozen while the rest learns, may stay in eval mode, and a frozen teacher does for good.
    """

    def __init__(self, recorder: AnyRecorder) -> None:
        self._recorder = recorder
        self._segment: int | None = None
        self._span: Any = None
        self._depth = threading.local()
        self._trained: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> Undo | None:
        """Follow the modes of all modules; None until torch is loaded."""
        module = sys.modules.get("torch.nn.modules.module")
        if module is None:
            return None
        original = module.Module.train

        @functools.wraps(original)
        def train(model: Any, mode: bool = True) -> Any:
            if getattr(self._depth, "on", False):  # a part of the model that changes its mode
                return original(model, mode)
            self._depth.on = True
            try:
                return original(model, mode)
            finally:
                self._depth.on = False
                self._note(model, mode)

        return replace(module.Module, "train", train)

    def _note(self, model: Any, mode: bool) -> None:
        if mode:
            self.end()
            for each in _unwrapped(model):
                self._trained.add(each)
        elif (
            self._span is None
            and model in self._trained
            and any(parameter.requires_grad for parameter in model.parameters())
        ):
            if self._segment is None:
                self._segment = self._recorder.segment("eval", SegmentKind.EVAL)
            self._span = self._recorder.begin_async(self._segment)

    def end(self) -> None:
        """The evaluation is over, if one was on."""
        span, self._span = self._span, None
        if span is not None:
            self._recorder.end_async(span)
            self._recorder.abandon(span)


def _unwrapped(model: Any) -> Iterator[Any]:
    """A model, and those that it wraps: DDP's, or that of compiled code."""
    while model is not None:
        yield model
        wrapped = model._modules.get("module")
        model = model._modules.get("_orig_mod") if wrapped is None else wrapped
