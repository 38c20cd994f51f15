"""Which spans are recorded without a word in the user's code, and switching them on and off again."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

from ..c10d.c10d import install_collectives
from ..errors import UsageError
from ..null import NullRecorder
from ..patching import Undo
from ..recorder import Recorder
from ..rendezvous import install_rendezvous
from ..topology import Topology
from .compile import Compilation, teach_dynamo
from .data import install_data_loader
from .exit import Goodbye, install_exceptions
from .gc_spans import install_gc
from .torch_spans import Evaluation, install_checkpoint, install_compiled, install_graphs
from .uncaught import install_uncaught

log = logging.getLogger(__name__)

VARIABLE = "MEGASCOPE_AUTOMATIC"

Installer = Callable[[], Undo | None]
"""Begins to record; None where what it watches is not loaded yet."""


class Automatic(StrEnum):
    """What can be recorded by itself."""

    GC = "gc"
    DATA = "data"
    CHECKPOINT = "checkpoint"
    EXCEPTIONS = "exceptions"
    EXIT = "exit"
    EVALUATION = "evaluation"
    COMPILE = "compile"
    GRAPHS = "graphs"
    COLLECTIVES = "collectives"


def choose(setting: bool | str | Iterable[str] | None) -> frozenset[Automatic]:
    """What a setting asks for; None asks ``$MEGASCOPE_AUTOMATIC``, where nothing means all.

    True, "all"; False, "none"; names with commas between them; or names with a minus, to leave out of all: "-gc".
    UsageError for a name that is none; from the environment that is warned of, and all is taken.
    """
    if setting is None:
        try:
            return choose(os.environ.get(VARIABLE) or True)
        except UsageError as error:
            log.warning("%s All of them are recorded.", error)
            return frozenset(Automatic)
    if isinstance(setting, bool):
        return frozenset(Automatic if setting else ())
    names = setting.split(",") if isinstance(setting, str) else [str(name) for name in setting]
    names = [name.strip() for name in names if name.strip()]
    if names in (["all"], ["none"]):
        return frozenset(Automatic if names == ["all"] else ())
    unknown = [name for name in names if name.removeprefix("-") not in set(Automatic)]
    if unknown:
        raise UsageError(
            f"There are no automatic spans called {', '.join(unknown)} (init's automatic=, or ${VARIABLE}): "
            f"name some of {', '.join(Automatic)}, or all, or none."
        )
    left_out = frozenset(Automatic(name[1:]) for name in names if name.startswith("-"))
    named = frozenset(Automatic(name) for name in names if not name.startswith("-"))
    return (named or frozenset(Automatic)) - left_out


class AutomaticSpans:
    """The automatic spans of one recorder.

    ``close`` ends recording with a reason, when the process is told to end; ``in_compiled_code`` maps functions of ours
    to what code that torch compiles calls in their place.
    """

    def __init__(
        self,
        recorder: Recorder | NullRecorder,
        chosen: Iterable[Automatic],
        *,
        topology: Topology | None = None,
        close: Callable[[str], None] = lambda reason: None,
        in_compiled_code: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
    ) -> None:
        chosen, replacements = frozenset(chosen), dict(in_compiled_code or {})
        evaluation = Evaluation(recorder)
        goodbye = Goodbye(close)
        self._evaluation = evaluation if Automatic.EVALUATION in chosen else None
        self._goodbye = goodbye
        by_kind: dict[Automatic, tuple[Installer, ...]] = {
            Automatic.GC: (lambda: install_gc(recorder),),
            Automatic.DATA: (lambda: install_data_loader(recorder),),
            Automatic.CHECKPOINT: (
                lambda: install_checkpoint(recorder, "torch"),
                lambda: install_checkpoint(recorder, "torch.distributed.checkpoint"),
            ),
            Automatic.EXCEPTIONS: (lambda: install_exceptions(recorder), lambda: install_uncaught(recorder, close)),
            Automatic.EXIT: (goodbye.install,),
            Automatic.EVALUATION: (evaluation.install,),
            Automatic.COMPILE: (
                Compilation(recorder, replacements).install,
                lambda: install_compiled(recorder),
            ),
            Automatic.GRAPHS: (lambda: install_graphs(recorder),),
            Automatic.COLLECTIVES: (
                lambda: install_collectives(recorder, topology),
                lambda: install_rendezvous(recorder),
            ),
        }
        self._waiting = [installer for kind in Automatic if kind in chosen for installer in by_kind[kind]]
        self._waiting.append(lambda: (lambda: None) if teach_dynamo(replacements) else None)
        self._undone: list[Undo] = []
        self._look()

    @property
    def was_told_to_end(self) -> bool:
        """Whether the process has got a SIGTERM."""
        return self._goodbye.was_told

    def step(self) -> None:
        """A step begins: an evaluation is over, and what was not loaded before may be now."""
        if self._evaluation is not None:
            self._evaluation.end()
        if self._waiting:
            self._look()

    def _look(self) -> None:
        waiting, self._waiting = self._waiting, []
        for installer in waiting:
            try:
                undo = installer()
            except (AttributeError, ImportError, RuntimeError, TypeError) as error:
                log.warning("Some spans are not recorded by themselves: %s.", error)
                continue
            if undo is None:
                self._waiting.append(installer)
            else:
                self._undone.append(undo)

    def close(self) -> None:
        """Leave everything as it was found."""
        if self._evaluation is not None:
            self._evaluation.end()
        self._waiting = []
        for undo in reversed(self._undone):
            with contextlib.suppress(Exception):
                undo()
        self._undone = []
