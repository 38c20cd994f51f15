"""Functional collectives (DTensor, compiled code): lets the operations inside them be seen, and times their waits."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from ..patching import Undo
from .spans import OperationSpans

_NAMESPACE = "_c10d_functional"
_WAIT = "wait_tensor"
_BACKENDS = ("CPU", "CUDA")
_UNUSED = "IPU"
"""A backend that nobody has: its kernel is the common one of all backends, which our wrappers stand before."""


_issuing = threading.local()


def is_functional() -> bool:
    """Whether this thread is issuing a functional collective, whose results are waited for as tensors."""
    return getattr(_issuing, "on", False)


def install_functional(spans: OperationSpans, key: str) -> Undo:
    """Make the operations that functional collectives issue pass by the wrappers at dispatch key ``key``.

    A tensor subclass such as DTensor issues them where that key is left out, and inference mode does without it.
    """
    import torch  # noqa: PLC0415  (only where it is used)

    library: Any = torch.library.Library(_NAMESPACE, "IMPL")  # type: ignore[no-untyped-call]
    common = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _UNUSED))
    shown = getattr(torch._C.DispatchKey, key)
    for full_name in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full_name.partition("::")
        if namespace != _NAMESPACE or not torch._C._dispatch_has_kernel_for_dispatch_key(
            full_name, "CompositeExplicitAutograd"
        ):
            continue
        name, _, overload = name.partition(".")
        operation = getattr(getattr(getattr(torch.ops, _NAMESPACE), name), overload or "default")
        run = functools.partial(operation.redispatch, common)
        wrapper = functools.partial(_wait, spans, run) if name == _WAIT else functools.partial(_show, shown, run)
        for backend in _BACKENDS:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(full_name, backend):
                library.impl(full_name.partition("::")[2], wrapper, backend)
    undo: Undo = library._destroy
    return undo


def _wait(spans: OperationSpans, run: Callable[..., Any], tensor: Any) -> Any:
    return spans.wait_for_tensor(tensor, lambda: run(tensor))


def _show(key: Any, run: Callable[..., Any], *args: Any) -> Any:
    """Run a functional collective with ``key`` switched on for what it issues."""
    from torch import _C  # noqa: PLC0415

    was_excluded = _C._dispatch_tls_is_dispatch_key_excluded(key)
    was_included = _C._dispatch_tls_is_dispatch_key_included(key)
    _C._dispatch_tls_set_dispatch_key_excluded(key, False)
    _C._dispatch_tls_set_dispatch_key_included(key, True)
    _issuing.on = True
    try:
        return run(*args)
    finally:
        _issuing.on = False
        _C._dispatch_tls_set_dispatch_key_included(key, was_included)
        _C._dispatch_tls_set_dispatch_key_excluded(key, was_excluded)
